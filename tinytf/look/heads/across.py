"""Heads of cross-attention on pairs of texts: how they follow the source, and where they rest.

Induction, the token before and offsets are of one text, so here a head has other scores. Shapes: Q tokens of the
target, S tokens of the source.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.look.heads.measures import entropy_share
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.faults import require_finite
from tinytf.trace.trace import Trace

_STILL = 0.5
"""A head that moves by fewer tokens than this, as a standard deviation, does not move."""
ALONG = 0.5
"""The correlation from which on, by its size, a head is said to move along the source."""


def monotone(weights: Tensor) -> Tensor:
    """Pearson's correlation of a query's position with the mean position that it looks at: (…, Q, S) -> (…)."""
    query, key = (torch.arange(size, dtype=weights.dtype, device=weights.device) for size in weights.shape[-2:])
    seen = weights @ key  # (…, Q)
    query, seen = query - query.mean(), seen - seen.mean(dim=-1, keepdim=True)
    sizes = query.square().mean().sqrt() * seen.square().mean(dim=-1).sqrt()
    moves = (seen.square().mean(dim=-1).sqrt() > _STILL) & (len(query) > 1)
    return torch.where(moves, (query * seen).mean(dim=-1) / sizes.clamp(min=1e-30), 0.0)


def _first(weights: Tensor) -> Tensor:
    return weights[..., 0].mean(dim=-1)


def _end(weights: Tensor) -> Tensor:
    return weights[..., -1].mean(dim=-1)


def _entropy_share(weights: Tensor) -> Tensor:
    queries, keys = weights.shape[-2:]
    return entropy_share(weights, torch.full((queries,), keys))


_MONOTONE = (
    "the correlation of a query's position with the mean position of the source that it looks at: 1 in order, "
    "−1 backwards, 0 for a head that stays"
)
SCORES_ACROSS: Mapping[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "monotone": (monotone, _MONOTONE),
    "first": (_first, "mean weight on the first token of the source"),
    "end": (_end, "mean weight on the last token of the source"),
    "entropy_share": (_entropy_share, "entropy divided by that of equal weights on every token of the source"),
}
"""Every score of a head of cross-attention, with its definition."""


@dataclass(frozen=True)
class CrossScores:
    """Scores of every head of cross-attention: ``values`` by name, (layers, heads), means over ``pairs`` pairs.

    They are those ``of`` a file, or of random tokens, each text of which is source and target.
    """

    of: str
    pairs: int
    values: Mapping[str, Tensor]

    @property
    def ranked(self) -> list[tuple[int, int]]:
        """All heads as (layer, head), the steadiest first, in order or backwards."""
        values = self.values["monotone"]
        layers, heads = values.shape
        every = [(layer, head) for layer in range(layers) for head in range(heads)]
        return sorted(every, key=lambda at: -abs(float(values[at])))

    def to_dict(self) -> dict[str, Any]:
        heads = [
            {"layer": layer, "head": head, **{name: float(score[layer, head]) for name, score in self.values.items()}}
            for layer, head in self.ranked
        ]
        scores = {name: words for name, (_, words) in SCORES_ACROSS.items()}
        return {"of": self.of, "pairs": self.pairs, "scores": scores, "heads": heads}


@torch.no_grad()
def scores_across(model: TextModel, of: str, pairs: Iterable[tuple[str | Trace, str | Encoding]]) -> CrossScores:
    """Score every head of cross-attention on sources and their targets.

    Raises UsageError as ``reading`` does, and TinytfError for numbers that are not finite.
    """
    rows = list[Tensor]()
    for source, target in pairs:
        bound = model.reading(source, truncate=True)
        encoding = bound.encode(target, truncate=True) if isinstance(target, str) else target
        trace = bound.trace_of(encoding)
        require_finite(trace, trace.last_hidden)
        layers = [trace.step("cross.weights", layer).double().cpu() for layer in range(model.config.n_layers)]
        rows.append(torch.stack([torch.stack([score(w) for w in layers]) for score, _ in SCORES_ACROSS.values()]))
    means = torch.stack(rows).mean(dim=0)  # (scores, layers, heads)
    return CrossScores(of, len(rows), dict(zip(SCORES_ACROSS, means, strict=True)))
