"""What a dump holds beside the steps: cosines and sines, positions, masks, labels, a loss; each beside the run's own.

Shapes: T tokens, Q queries, K keys, V vocabulary, W rotary width.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tinytf.compare.constants import plain, solved_base
from tinytf.compare.dumps.fit import distance
from tinytf.compare.dumps.read import Dump
from tinytf.compare.settings import programs
from tinytf.config import ModelConfig, Rope
from tinytf.parts.part import worded
from tinytf.report import Data
from tinytf.steps.operations import Mask, Rotate
from tinytf.steps.operations.rotate import rotary_table
from tinytf.steps.table import table_of
from tinytf.text.printable import printable

_KINDS = {
    "cosines": r"cos(?:_cached)?|freqs_cos|rotary_emb\w*(?:[._]0)?|position_embeddings[._]0",
    "sines": r"sin(?:_cached)?|freqs_sin|rotary_emb\w*[._]1|position_embeddings[._]1",
    "positions": r"position_ids|positions|cache_position",
    "mask": r"(?:attention|attn|causal)_mask|mask",
    "labels": r"labels",
    "loss": r"loss",
}
_NAMES = {kind: re.compile(rf"(?:.*[./])?(?:{pattern})") for kind, pattern in _KINDS.items()}
_SHIFTS = {
    -1: "the token before",
    0: "the token itself",
    1: "the next token",
    2: "the token after next",
    3: "the third token after it",
}
_MOST_OFF = 8
"""The most tokens that positions are tried to be off."""
_IGNORED = -100
"""The label of a token that does not count, as in torch."""
_WEAK = -1_000.0
"""A number above this, added to a score, leaves a share of it that may count."""
_LOSS = 1e-3
"""How far apart two losses are that are computed in few bits, relative to them."""


@dataclass(frozen=True)
class BesideSteps(Data):
    """A tensor of a dump that is no step, by its ``name``: whether it ``agrees`` with the run's own, in ``words``."""

    name: str
    kind: str
    agrees: bool
    words: str

    @property
    def is_read(self) -> bool:
        """Whether the model reads it, so that it matters only where steps differ."""
        return self.kind not in ("labels", "loss")

    def without_effect(self) -> "BesideSteps":
        """It, where no step differs: other numbers than the run's own that change nothing, as of padding."""
        return self if self.agrees else replace(self, agrees=True, words=f"{self.words}, and no step differs")

    @property
    def in_words(self) -> str:
        """What there is to say of it, as a clause."""
        return self.words if self.kind == "loss" and not self.agrees else f"{self.name} {self.words}"


def kind_of_tensor(name: str) -> str:
    """What a name that is no step's means beside the steps; empty if nothing that is known."""
    return next((kind for kind, pattern in _NAMES.items() if pattern.fullmatch(name)), "")


def beside_steps(
    dump: Dump,
    names: tuple[str, ...],
    config: ModelConfig,
    ids: list[int],
    logits: Callable[[], Tensor | None],
    tolerance: float,
) -> tuple[BesideSteps, ...]:
    """The tensors of these ``names`` beside what the run on ``ids`` has in their place.

    ``logits`` gives those (T, V) that a loss is of, None where they are not all known.
    """
    by_kind: dict[str, str] = {}
    for name in names:
        if kind := kind_of_tensor(name):
            by_kind.setdefault(kind, name)
    tensors = {kind: dump.read(name) for kind, name in by_kind.items()}
    found = dict[str, tuple[bool, str]]()
    for kind, ours in (("cosines", 0), ("sines", 1)):
        if kind in tensors:
            found[kind] = _of_waves(tensors, ours, config, len(ids), tolerance)
    if "positions" in tensors:
        found["positions"] = _of_positions(tensors["positions"].flatten(), config, len(ids))
    if "mask" in tensors:
        found["mask"] = _of_mask(tensors["mask"], config, len(ids))
    labels = tensors["labels"].flatten().long() if "labels" in tensors else None
    loss = float(tensors["loss"]) if "loss" in tensors and tensors["loss"].numel() == 1 else None
    if labels is not None:
        masked = f"count for {int((labels != _IGNORED).sum())} tokens"
        found["labels"] = (True, masked) if config.looks_ahead else _of_labels(labels, ids)
    if loss is not None:
        made = logits()
        found["loss"] = _of_masked(loss, labels, made) if config.looks_ahead else _of_loss(loss, labels, ids, made)
    return tuple(
        BesideSteps(printable(by_kind[kind], spaces=False), kind, *found[kind]) for kind in by_kind if kind in found
    )


def _ropes(config: ModelConfig) -> list[Rope]:
    """The rotations of a model, one for each kind of layer."""
    operations = (step.operation for step, _ in table_of(config).rows)
    return list(dict.fromkeys(operation.rope for operation in operations if isinstance(operation, Rotate)))


def _waves_of(rope: Rope, count: int, skipped: int = 0) -> tuple[Tensor, Tensor]:
    cosine, sine = rotary_table(count + skipped, rope, torch.device("cpu"), torch.float32)
    return cosine[skipped:], sine[skipped:]


def _of_waves(
    tensors: Mapping[str, Tensor], which: int, config: ModelConfig, count: int, tolerance: float
) -> tuple[bool, str]:
    """Cosines (0) or sines (1) beside the model's own of these positions."""
    rows = {kind: _rows(tensors[kind], count) for kind in ("cosines", "sines") if kind in tensors}
    kind = ("cosines", "sines")[which]
    theirs, ropes = rows[kind], _ropes(config)
    if theirs is None:
        return False, f"have no row for each of {count} tokens"
    if not ropes:
        return False, "are in the file, and the model has no rotary positions"

    def same(ours: Tensor) -> bool:
        both = [one[..., : min(ours.shape[-1], theirs.shape[-1])].float() for one in (theirs, ours)]
        return theirs.shape[-1] in (ours.shape[-1], ours.shape[-1] // 2) and distance(*both) <= tolerance

    if any(same(_waves_of(rope, count)[which]) for rope in ropes):
        return True, "are the model's"
    for words, ours in _other_waves(config, ropes, count, which):
        if same(ours):
            return False, words
    cosines, sines = rows.get("cosines"), rows.get("sines")
    if cosines is not None and sines is not None and cosines.shape == sines.shape:
        half = ropes[0].width // 2
        turned = torch.cat((cosines[..., :half], sines[..., :half]), dim=-1)[None]
        x = torch.cat((torch.ones(1, count, half), torch.zeros(1, count, half)), dim=-1)
        base = solved_base(x, turned, ropes[0]) if turned.shape == x.shape else math.nan
        if 1 < base < 1e12 and same(_waves_of(ropes[0]._replace(theta=base), count)[which]):
            return False, f"are of a rotary base of {worded(base)} instead of {worded(ropes[0].theta)}"
    return False, "are not the model's"


def _other_waves(config: ModelConfig, ropes: list[Rope], count: int, which: int) -> Iterator[tuple[str, Tensor]]:
    """Cosines or sines of wrong programs, in words."""
    for rope in ropes:
        waves = _waves_of(rope, count)
        yield f"are the {('sines', 'cosines')[which]}", waves[1 - which]
        yield "have the other sign", -waves[which]
        for by in range(1, _MOST_OFF + 1):
            yield f"are of positions from {by} on", _waves_of(rope, count, by)[which]
        if rope.attention_factor != 1:
            yield "are without the attention factor", waves[which] / rope.attention_factor
            yield "have the attention factor twice", waves[which] * rope.attention_factor
    for program in programs(config):
        for name, layer in program.changed:
            if not program.table.has(name, layer):
                continue
            operation = program.table.at(name, layer).operation
            if isinstance(operation, Rotate) and operation.rope not in ropes:
                yield f"are of {program.words}", _waves_of(operation.rope, count)[which]


def _rows(tensor: Tensor, count: int) -> Tensor | None:
    """(…, T, W) or a table that is longer -> (T, W)."""
    if tensor.dim() < 2 or tensor.shape[-2] < count:
        return None
    return tensor.reshape(-1, *tensor.shape[-2:])[0, :count]


def _of_positions(positions: Tensor, config: ModelConfig, count: int) -> tuple[bool, str]:
    if len(positions) != count:
        return False, f"are {len(positions):,}, and the text has {count:,} tokens"
    off = positions.long() - torch.arange(count)
    if not off.any():
        return True, "are 0, 1, 2 …"
    if bool((off == off[0]).all()):
        first = int(positions[0])
        turned = config.positions == "rotary"
        return turned, f"begin at {first}" + ", which no score sees" * turned
    at = int((off != off[0]).nonzero()[0]) if not off[0] else 0
    return False, f"are others from token {at} on: {int(positions[at])} there"


def _of_mask(mask: Tensor, config: ModelConfig, count: int) -> tuple[bool, str]:
    """Which keys a query sees, beside the masks of the layers."""
    if mask.shape[-1] != count or mask.shape[-2:-1] not in ((), (1,), (count,)):
        sizes = " × ".join(map(str, mask.shape))
        return False, f"is {sizes}, and the text has {count:,} tokens"
    adds = bool((mask < 0).any())
    seen = mask > -0.5 if adds else mask > 0
    if mask.shape[-2:-1] != (count,):
        hidden = (~seen.reshape(-1, count)[0]).nonzero().flatten().tolist()
        return (not hidden), ("hides no token" if not hidden else f"hides token {hidden[0]}")
    seen = seen.reshape(-1, count, count)[0]
    sights = {step.operation.sight for step, _ in table_of(config).rows if isinstance(step.operation, Mask)}
    allowed = [sight.allowed(count, None, seen.device) for sight in sights] or [None]
    whole = [torch.ones(count, count, dtype=torch.bool) if one is None else one for one in allowed]
    if not any(torch.equal(seen, one) for one in whole):
        query, key = (int(at) for at in (seen != whole[0]).nonzero()[0])
        return False, f"{'shows' if seen[query, key] else 'hides'} key {key} to query {query}, where the model does not"
    if adds and (most := float(mask[mask < 0].max())) > _WEAK:
        return False, f"adds {plain(most):.6g} to hidden scores, not −∞: softmax still gives them a share"
    return True, "is the model's"


def _shift_of(labels: Tensor, ids: list[int]) -> int | None:
    """By how many tokens labels are shifted, where they are: the label of token t is the id of token t + shift."""
    tokens = torch.tensor(ids)
    if len(labels) != len(tokens):
        return None
    for shift in (0, 1, 2, 3, -1):
        places = torch.arange(len(tokens)) + shift
        inside = (places >= 0) & (places < len(tokens)) & (labels != _IGNORED)
        if inside.any() and torch.equal(labels[inside], tokens[places[inside]]):
            return shift
    return None


def _of_masked(loss: float, labels: Tensor | None, logits: Tensor | None) -> tuple[bool, str]:
    """The loss of masked tokens, whose labels are their own."""
    if labels is None or logits is None or logits.dim() != 2 or len(logits) != len(labels):
        return True, f"is {loss:.6g}, of labels or logits that are not in the file"
    ours = float(torch.nn.functional.cross_entropy(logits.double(), labels, ignore_index=_IGNORED))
    if abs(ours - loss) <= _LOSS * abs(ours):
        return True, "is of the masked tokens"
    return False, f"the loss is {loss:.6g}, and by these logits and labels {ours:.6g}"


def _of_labels(labels: Tensor, ids: list[int]) -> tuple[bool, str]:
    shift = _shift_of(labels, ids)
    if not bool((labels != _IGNORED).any()):
        return False, f"leave out every token: all are {_IGNORED}"
    if shift is None:
        return False, "are not the tokens of the text, shifted or not"
    return shift in (0, 1), f"are {'the tokens' if shift == 0 else f'those of {_SHIFTS[shift]}'}"


def _of_loss(loss: float, labels: Tensor | None, ids: list[int], logits: Tensor | None) -> tuple[bool, str]:
    """Which tokens a loss is of, and how it is averaged: what gives its number from the logits of the same file."""
    if logits is None or len(ids) < 2 or logits.dim() != 2:
        return True, f"is {loss:.6g}, of logits that are not all known"
    shift = 0 if labels is None else _shift_of(labels, ids)
    targets, log_p = torch.tensor(ids) if shift is None or labels is None else labels, logits.double().log_softmax(-1)
    right = math.nan
    candidates = dict[str, tuple[bool, float]]()
    for further in (1, 0, 2, 3, -1) if shift in (None, 0) else (1 - shift, 0, 1, 2):
        ahead = (shift or 0) + further
        moved = slice(max(0, further), len(ids) + min(0, further))
        rows, wanted = log_p[max(0, -further) :][: moved.stop - moved.start], targets[moved]
        counted = wanted != _IGNORED
        if ahead not in _SHIFTS or not counted.any():
            continue
        losses = -rows[counted].gather(1, wanted[counted, None])[:, 0]
        mean, total = float(losses.mean()), float(losses.sum())
        if ahead == 1 and math.isnan(right):
            right = mean
        twice = "labels are shifted twice: " if ahead == 2 else "labels are not shifted: " if ahead == 0 else ""
        of = f"that of predicting {_SHIFTS[ahead]}"
        for words, number in (
            (f"{twice}the loss, {loss:.6g}, is {of}", mean),
            (f"{twice}the loss, {loss:.6g}, is {of}, summed over {len(losses):,} tokens", total),
            (f"{twice}the loss, {loss:.6g}, is {of}, in bits", mean / math.log(2)),
            (f"{twice}the loss, {loss:.6g}, is {of}, summed and divided by all {len(ids):,} tokens", total / len(ids)),
            (f"{twice}the loss, {loss:.6g}, is e to {of}: a perplexity", math.exp(min(mean, 700.0))),
        ):
            candidates.setdefault(words, (ahead == 1 and number == mean, number))
    for words, (is_right, number) in candidates.items():
        if abs(number - loss) <= _LOSS * max(abs(number), 1e-3):
            return (
                is_right,
                "is that of the next token" if is_right else f"{words}; that of the next token is {right:.6g}",
            )
    if labels is None:
        return True, f"is {loss:.6g}, of labels that are not in the file; that of the next token is {right:.6g}"
    return False, f"the loss is {loss:.6g}, and that of the next token is {right:.6g}"
