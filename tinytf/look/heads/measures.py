"""Measures of attention heads, one number a head, and labels for heads by their numbers.

Weights are (…, Q, K). Repeated tokens are ``length`` tokens, and right after them the same ``length`` again: what
previous-token and induction heads are measured on (Olsson et al. 2022, "In-context Learning and Induction Heads").
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.look.heads.kinds import LABELS, Label
from tinytf.nearest import did_you_mean
from tinytf.steps.operations.mask import Sight
from tinytf.steps.table import StepTable
from tinytf.trace.trace import Trace


def repeated_tokens(vocab_size: int, length: int, count: int, seed: int) -> Tensor:
    """``count`` sequences of ``length`` uniformly random ids, each twice in a row: (count, 2 · length)."""
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(0, vocab_size, (count, length), generator=generator)
    return torch.cat((once, once), dim=1)


def copy_losses(logits: Tensor, ids: Tensor, length: int) -> tuple[float, float]:
    """The mean next-token loss, in nats, within the first copy and in the second: logits (B, 2T, V), ids (B, 2T)."""
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    by_position = losses.view(len(ids), -1).mean(dim=0)  # (2T - 1,)
    return float(by_position[: length - 1].mean()), float(by_position[length:].mean())


def entropies(weights: Tensor) -> Tensor:
    """The entropy of each query's weights, in nats: (…, Q, K) -> (…, Q).

    Weights beside a sink sum to less than 1; the entropy is of their shares of this sum.
    """
    total = weights.sum(dim=-1)
    return torch.where(total > 0, torch.special.entr(weights).sum(dim=-1) / total + total.log(), 0.0)


def entropy(weights: Tensor) -> Tensor:
    return entropies(weights).mean(dim=-1)


def distance(weights: Tensor) -> Tensor:
    position = torch.arange(weights.shape[-1], device=weights.device, dtype=weights.dtype)
    return (weights * (position[:, None] - position).abs()).sum(dim=-1).mean(dim=-1)


def previous(weights: Tensor) -> Tensor:
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1)


def first(weights: Tensor) -> Tensor:
    return weights[..., 1:, 0].mean(dim=-1)


def own(weights: Tensor) -> Tensor:
    return weights.diagonal(dim1=-2, dim2=-1).mean(dim=-1)


def duplicate(weights: Tensor, length: int) -> Tensor:
    """Mean weight, in the second copy, on the same token in the first: query length + i looks at key i."""
    return weights[..., length:, :].diagonal(offset=0, dim1=-2, dim2=-1).mean(dim=-1)


def induction(weights: Tensor, length: int) -> Tensor:
    """Mean weight, in the second copy, on the token that followed the query's in the first."""
    return weights[..., length:, :].diagonal(offset=1, dim1=-2, dim2=-1).mean(dim=-1)


def visible_counts(sight: Sight, length: int) -> Tensor:
    """The number of keys that each query of a text may attend to, (Q,); a query with a single key has no choice."""
    allowed = sight.allowed(length, None, torch.device("cpu"))  # (Q, K)
    counts = torch.full((length,), length) if allowed is None else allowed.sum(dim=-1)
    if sight.near:  # the query's own block ends with it
        return counts.minimum(sight.chosen - sight.block + 1 + torch.arange(length) % sight.block)
    if sight.whole:
        tails = counts % sight.whole
        return (counts - tails).clamp(max=sight.chosen) + tails * sight.tail
    return counts.clamp(max=sight.chosen) if sight.chosen else counts


def entropy_share(weights: Tensor, visible: Tensor) -> Tensor:
    """Entropy divided by the entropy of uniform weights, averaged over the queries that see more than one key.

    It is 0 if no query does. ``visible`` (Q,) are the counts of ``choosing``.
    """
    many = visible > 1
    share = torch.where(many, 1 / visible.clamp(min=2).log() / many.sum().clamp(min=1), 0.0)
    return (entropies(weights) * share.to(weights)).sum(dim=-1)


def overlap(weights: Tensor, visible: Tensor) -> Tensor:
    """The mean overlap of a head's weights with the other heads of its layer: (…, H, Q, K) -> (…, H).

    The overlap is the Bhattacharyya coefficient Σ√(p·q), 1 for equal weights and 0 if they share no key, averaged over
    the other heads and the queries that see more than one key. NaN for a single head, and if no query does.
    """
    rows = weights[..., (visible > 1).to(weights.device), :]
    shares = rows / rows.sum(dim=-1, keepdim=True).clamp(min=1e-30)  # beside a sink they sum to less than 1
    roots = shares.sqrt().transpose(-3, -2)  # (…, Q, H, K)
    similarity = (roots @ roots.transpose(-2, -1)).mean(dim=-3)  # (…, H, H)
    n_heads = weights.shape[-3]
    sums = similarity.sum(dim=-1) - similarity.diagonal(dim1=-2, dim2=-1)
    return sums / (n_heads - 1) if n_heads > 1 else torch.full_like(sums, torch.nan)


def by_offset(weights: Tensor) -> Tensor:
    """The sum of the weights on each diagonal: (…, T, T) -> (…, 2T − 1), from key − query = 1 − T to T − 1."""
    size = weights.shape[-1]
    padded = F.pad(weights.flip(-2), (0, size))  # (…, T, 2T)
    # Shorten the rows by one column: each begins one index earlier, so a column holds a diagonal.
    skewed = padded.flatten(-2)[..., : size * (2 * size - 1)].unflatten(-1, (size, 2 * size - 1))
    return skewed.sum(dim=-2)


MEASURES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "entropy": (
        entropy,
        "how far a token spreads its weight, as mean entropy in nats: 0 if it looks at one token alone",
    ),
    "distance": (distance, "mean distance from query to key, in tokens, weighted"),
    "previous": (previous, "mean weight on the token before, queries 1…T−1"),
    "first": (first, "mean weight on the first token, queries 1…T−1"),
    "self": (own, "mean weight on the query's own token"),
}
"""Measures by name: a function from weights (…, Q, K) to (…), and its definition."""


@dataclass(frozen=True, eq=False)
class MeasuredHeads:
    """``values`` (layers, heads) are the measure ``by`` of every head of ``layers``, float32."""

    by: str
    layers: tuple[int, ...]
    values: Tensor

    @property
    def ranked(self) -> list[tuple[int, int, float]]:
        """(layer, head, value), the largest value first; heads without a finite value are omitted."""
        rows = zip(self.layers, self.values.tolist(), strict=True)
        ranked = [(layer, head, value) for layer, row in rows for head, value in enumerate(row) if math.isfinite(value)]
        return sorted(ranked, key=lambda entry: -entry[2])

    def to_dict(self) -> dict[str, Any]:
        largest = [{"layer": layer, "head": head, "value": value} for layer, head, value in self.ranked]
        return {"by": self.by, "layers": list(self.layers), "values": self.values.tolist(), "largest": largest}


def measure_heads(trace: Trace, by: str, layers: Sequence[int] | None = None) -> Tensor:
    """A measure of every head in all layers or some, (layers, heads), float32; NaN where the text is too short."""
    if by not in MEASURES:
        raise UsageError(f"there is no measure {by!r}", did_you_mean(by, MEASURES))
    return measures_of(trace, [by], layers)[by]


def measures_of(
    trace: Trace, names: Sequence[str], layers: Sequence[int] | None = None, of: str | None = None
) -> dict[str, Tensor]:
    """Several measures of every head; the weights of each layer, or the step ``of`` it, are derived once."""
    attending = require_attention(trace.steps)
    chosen = attending if layers is None else layers
    weights = (trace.step(of or trace.steps.weights, layer).float() for layer in chosen)
    layered = [torch.stack([MEASURES[by][0](w) for by in names], dim=-1) for w in weights]  # (heads, measures) each
    measured = dict(zip(names, stack_heads(layered).movedim(-1, 0), strict=True))
    if layers is not None:
        return measured
    return {by: spread_over_layers(values, attending, trace.config.n_layers) for by, values in measured.items()}


def stack_heads(layers: Sequence[Tensor]) -> Tensor:
    """What each layer has of its heads, (H, …), as one tensor (L, H, …); NaN where a layer has fewer heads."""
    most = max(map(len, layers))
    return torch.stack([torch.cat((one, one.new_full((most - len(one), *one.shape[1:]), torch.nan))) for one in layers])


def require_attention(table: StepTable) -> tuple[int, ...]:
    """The layers that have attention weights. Raises UsageError if none has."""
    if not table.attention_layers:
        raise UsageError("no layer of this model has attention weights", "tinytf trace shows what its layers read")
    return table.attention_layers


def spread_over_layers(values: Tensor, layers: Sequence[int], count: int) -> Tensor:
    """Spread the values of some layers (L, …) over all ``count``; NaN for the others, which have no attention."""
    all_layers = values.new_full((count, *values.shape[1:]), torch.nan)
    all_layers[list(layers)] = values
    return all_layers


_OFFSET = next(label for label in LABELS if label.name == "offset")


@dataclass(frozen=True)
class Named:
    """``label`` is the first of LABELS that a head reaches, None for no pattern; ``evidence`` is scores in words."""

    label: Label | None
    evidence: str

    @property
    def name(self) -> str:
        return "–" if self.label is None else self.label.name


_WORDS = {
    "induction": "induction",
    "duplicate": "duplicate token",
    "previous": "previous token",
    "self": "own token",
    "first": "first token",
    "entropy_share": "entropy",
}


HeadScores = Mapping[str, float]
"""The scores of one head, by name."""


def named(repeats: HeadScores, text: HeadScores | None) -> Named:
    """The label of a head from its scores; the evidence is every label that it reaches, or the highest score."""
    reached: list[Label] = []
    for label in LABELS:
        is_new = label.name != "offset" or not _is_redundant(reached, repeats, text)
        if is_new and _score(label, repeats, text) >= label.least:
            reached.append(label)
    if reached:
        return Named(reached[0], ", ".join(_evidence(label, repeats, text) for label in reached))
    candidates = [label for label in LABELS if label.name not in ("offset", "broad")]
    if (text or repeats)["offset"] not in (0, -1):
        candidates.append(_OFFSET)
    highest = max(candidates, key=lambda label: _score(label, repeats, text))
    return Named(None, f"at most {_evidence(highest, repeats, text)}")


def _score(label: Label, repeats: HeadScores, text: HeadScores | None) -> float:
    return (repeats if label.of_repeats or text is None else text)[label.score]


def _is_redundant(reached: Sequence[Label], repeats: HeadScores, text: HeadScores | None) -> bool:
    """Whether an offset repeats another label: on repeated tokens each label is an offset."""
    if text is None:
        return bool(reached)
    return text["offset"] == 0 or (text["offset"] == -1 and any(label.name == "previous" for label in reached))


def _evidence(label: Label, repeats: HeadScores, text: HeadScores | None) -> str:
    source = "on repeated tokens" if label.of_repeats else "on random tokens" if text is None else "on text"
    words = f"offset {(text or repeats)['offset']:+.0f}" if label.name == "offset" else _WORDS[label.score]
    share = " of the most possible" if label.name == "broad" else ""
    return f"{words} {_score(label, repeats, text):.2f}{share} {source}"
