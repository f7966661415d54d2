"""Two runs side by side: two texts on one model, or one text on two models or in two dtypes.

Both run in step, one layer at a time, so that the steps of one layer are all that is held of either.
Shapes: T tokens, H heads, Q queries, K keys, V vocabulary.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.analysis.alignment import Alignment, Side, align
from tinytf.analysis.compared import Compared, Sums
from tinytf.analysis.moved import Moved, moved_weights
from tinytf.analysis.predicted import Ends, Position, Prediction, loss
from tinytf.errors import AddressError
from tinytf.report import About, Report
from tinytf.steps.operations.mask import Sight
from tinytf.steps.table import Step, StepTable
from tinytf.trace.address import parse_address
from tinytf.trace.record import walk
from tinytf.trace.trace import Trace

_CHUNK_BYTES = 64 * 2**20
_ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""What rounding came to at most in the 30 layers of SmolLM2, times three or less."""


@dataclass(frozen=True)
class Incomparable:
    """A step that is not compared, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Attention:
    """The weights of one head in both runs (Q, K), and of every head how far they are apart.

    ``apart[layer][head]`` is half the sum of a query's absolute differences, the mean over the queries: 0 for equal
    weights, 1 for weights on different keys. None where heads are not comparable. ``seen`` (Q, K) is false where a key
    is masked, None where nothing is.
    """

    layer: int
    head: int
    first: Tensor
    second: Tensor
    seen: Tensor | None
    apart: tuple[tuple[float, ...] | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """Masked cells are −∞."""
        first, second = (
            (one if self.seen is None else one.masked_fill(~self.seen, -math.inf)).tolist()
            for one in (self.first, self.second)
        )
        apart = [heads and list(heads) for heads in self.apart]
        return {"layer": self.layer, "head": self.head, "first": first, "second": second, "apart": apart}


@dataclass(frozen=True)
class Difference(Report):
    """All that is different in two runs, in the order in which it comes about.

    ``steps`` are compared, ``incomparable`` are not; ``predictions`` belong to the ends of the two texts, or to the
    masks of an encoder. ``losses`` (nats a token) and ``moved`` are of two models. ``tolerance`` is relative, in units
    of the largest number of a token. ``sides`` are the two runs, as a Model fills them in; ``fail_over`` is the
    relative difference that is too large.
    """

    KIND = "difference"
    EVENTS: ClassVar = {
        "steps": "step",
        "incomparable": "incomparable",
        "positions": "position",
        "predictions": "prediction",
        "weights": "weights",
        "attention": "attention",
        "check": "check",
    }

    alignment: Alignment
    tolerance: float
    steps: tuple[Compared, ...]
    incomparable: tuple[Incomparable, ...]
    attention: Attention | None
    positions: tuple[Position, ...]
    predictions: tuple[Prediction, ...]
    losses: tuple[float, float] | None
    moved: tuple[Moved, ...]
    sides: tuple[About, ...] = field(default=(), repr=False, compare=False)
    fail_over: float | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing differs by more than was allowed; there is no limit unless one was given."""
        limit, worst = self.fail_over, self.worst
        return limit is None or (worst is not None and worst.relative <= limit)

    def fields(self) -> dict[str, Any]:
        first, worst = self.first, self.worst
        shown = self.sides[0].model.tokenizer.shown if self.sides else lambda token: None
        return {
            **{name: side.to_dict() for name, side in zip(("first", "second"), self.sides, strict=False)},
            "aligned": {
                "positions": self.alignment.positions,
                "changed": list(self.alignment.changed),
                "note": self.alignment.note,
            },
            "tolerance": self.tolerance,
            "equal": self.equal,
            "first_difference": first and first.name,
            "largest_difference": worst and worst.name,
            "steps": [one.to_dict() for one in self.steps],
            "incomparable": [{"name": one.name, "why": one.why} for one in self.incomparable],
            "attention": self.attention and self.attention.to_dict(),
            "positions": [
                {"index": one.index, "kl": one.kl, "first": _top(one.first), "second": _top(one.second)}
                for one in self.positions
            ],
            "predictions": [
                {
                    "position": one.position,
                    "other_position": one.other_position,
                    "kl": one.kl,
                    "top": [
                        {"id": i, "token": shown(i), "first": a, "second": b}
                        for i, a, b in zip(one.ids, one.first, one.second, strict=True)
                    ],
                }
                for one in self.predictions
            ],
            "losses": self.losses and list(self.losses),
            "weights": [one.to_dict() for one in self.moved],
            "check": {"fail_over": self.fail_over, "holds": self.holds},
        }

    def tensors(self) -> dict[str, Tensor]:
        """The weights of the head that is shown, of both runs."""
        found = self.attention
        if found is None:
            return {}
        name = f"L{found.layer}H{found.head}.weights"
        return {f"first/{name}": found.first, f"second/{name}": found.second}

    @property
    def first(self) -> Compared | None:
        """The first step that differs beyond the tolerance."""
        return next((one for one in self.steps if one.relative > self.tolerance), None)

    @property
    def worst(self) -> Compared | None:
        """The step whose relative difference is the largest."""
        return max(self.steps, key=lambda one: one.relative, default=None)

    @property
    def equal(self) -> bool:
        """Whether every number of every step is the same, and all steps and positions were compared."""
        return not self.alignment.note and not self.incomparable and all(not one.largest for one in self.steps)


def _top(best: tuple[int, float]) -> dict[str, Any]:
    return {"id": best[0], "probability": best[1]}


def default_tolerance(*dtypes: torch.dtype) -> float:
    """What rounding alone may come to in the coarser of these dtypes."""
    return max(_ROUNDING.get(dtype, 1e-4) for dtype in dtypes)


def difference(
    first: Side,
    second: Side,
    *,
    tolerance: float | None = None,
    head: tuple[int, int] | None = None,
    top: int = 5,
    force: bool = False,
) -> Difference:
    """Run both sides in step and compare everything that can be compared.

    ``head`` is the (layer, head) whose weights are kept, or the one whose weights are furthest apart. ``tolerance``
    is in units of a token's largest magnitude; without it that of the coarser dtype. Errors as of ``align`` and
    ``walk``, and AddressError for a head that one of the models lacks.
    """
    alignment = align(first, second)
    if head is not None:
        for side in (first, second):
            _require_head(side, *head)
    run = _Run(first, second, alignment, head)
    with torch.no_grad():
        run.go(force)
        two = first.model is not second.model
        return Difference(
            alignment,
            default_tolerance(*(next(side.model.parameters()).dtype for side in (first, second)))
            if tolerance is None
            else tolerance,
            tuple(run.steps),
            tuple(run.incomparable),
            run.attention(),
            run.positions,
            () if run.ends is None else tuple(run.ends.predictions(top)),
            run.losses() if two else None,
            moved_weights(first.model, second.model) if two else (),
        )


def parse_head(text: str, table: StepTable) -> tuple[int, int]:
    """The layer and head that an address such as ``L3H5`` names; AddressError for anything else."""
    where = parse_address(text, table)
    if where.cell or where.layers is None or where.heads is None or len(where.layers) * len(where.heads) != 1:
        raise AddressError(f"{text!r} is not one head", "a head is L3H5")
    if where.step is not None and where.step.name != "weights":
        raise AddressError(f"{text!r} is a step, and the maps are of weights", "a head is L3H5")
    return where.layers[0], where.heads[0]


def _require_head(side: Side, layer: int, head: int) -> None:
    config = side.model.config
    if layer >= config.n_layers or head >= config.n_heads:
        raise AddressError(
            f"there is no head L{layer}H{head}: one of the models has {config.n_layers} layers × {config.n_heads} heads"
        )


class _Run:
    """Both sides on their way, and what was found so far."""

    def __init__(self, first: Side, second: Side, alignment: Alignment, head: tuple[int, int] | None) -> None:
        self.sides, self.alignment, self.wanted = (first, second), alignment, head
        self.steps: list[Compared] = []
        self.incomparable: list[Incomparable] = []
        self.positions: tuple[Position, ...] = ()
        self.ends: Ends | None = None
        self.apart: list[tuple[float, ...] | None] = []
        self.kept: tuple[float, int, int, Tensor, Tensor] | None = None

    def go(self, force: bool) -> None:
        """Walk through both models; the layers that only one of them has are only named."""
        walks = [
            walk(side.model, side.encoding, force=force) if side.trace is None else itertools.repeat(side.trace)
            for side in self.sides
        ]
        depths = [side.model.config.n_layers for side in self.sides]
        self._part(next(walks[0]), next(walks[1]), None)
        for layer in range(max(depths)):
            traces = [next(parts) if layer < depth else None for parts, depth in zip(walks, depths, strict=True)]
            self._part(traces[0], traces[1], layer)
        self._end(next(walks[0]), next(walks[1]))

    def _part(self, first: Trace | None, second: Trace | None, layer: int | None) -> None:
        """The embeddings, or one layer."""
        if first is None or second is None:
            which, here = ("second", first) if second is None else ("first", second)
            assert here is not None
            self.incomparable.append(Incomparable(f"L{layer}", f"the {which} model has no layer {layer}"))
            return
        for step in _in_order(first, second, layer):
            self._step(step, first, second, layer)
        if layer is not None:
            self._attention(first, second, layer)

    def _end(self, first: Trace, second: Trace) -> None:
        self.hidden = first.last_hidden, second.last_hidden
        for step in _behind(first, second):
            if step.is_vocabulary:
                continue
            self._step(step, first, second, None)
        if first.model.head is None or second.model.head is None:
            for name in _over_vocabulary(first, second):
                if (first.model.head is None) != (second.model.head is None):
                    self.incomparable.append(Incomparable(name, "only one of the models has a language-model head"))
        elif not self.alignment.same_vocabulary:
            sizes = " and ".join(f"{side.model.config.vocab_size:,}" for side in self.sides)
            for name in _over_vocabulary(first, second):
                self.incomparable.append(Incomparable(name, f"the vocabularies are different ones, of {sizes} tokens"))
        else:
            for which, here, other in (("second", first.steps, second.steps), ("first", second.steps, first.steps)):
                lacking = [step.name for step in here.over_vocabulary if step.name not in other.by_name]
                self.incomparable += [Incomparable(name, f"the {which} model has no such step") for name in lacking]
            self.ends = Ends(self.sides, self.hidden, self.alignment)
            steps, self.positions = self.ends.compare()
            self.steps += steps

    def _step(self, step: Step, first: Trace, second: Trace, layer: int | None) -> None:
        name = step.full_name(layer)
        for which, trace in (("first", first), ("second", second)):
            if step.name not in trace.steps.by_name:
                self.incomparable.append(Incomparable(name, f"the {which} model has no such step"))
                return
        sums = Sums(step)
        for heads in _head_parts(step, first, second):
            a, b = (self._aligned(step, trace.step(step.name, layer, heads)) for trace in (first, second))
            if a.shape != b.shape:
                self.incomparable.append(Incomparable(name, f"{_shape(a)} and {_shape(b)} numbers"))
                return
            sums.add(a, b, heads[0] if heads else 0)
        self.steps.append(sums.compared(name, layer))

    def _aligned(self, step: Step, tensor: Tensor) -> Tensor:
        for axis, name in enumerate(step.axes):
            if name in ("token", "query", "key"):
                tensor = tensor.narrow(axis, 0, min(self.alignment.positions, tensor.shape[axis]))
        return tensor

    def _attention(self, first: Trace, second: Trace, layer: int) -> None:
        """How far the weights of every head are apart, and the maps of the one that is wanted."""
        step = first.steps.by_name["weights"]
        n_heads = [trace.config.n_heads for trace in (first, second)]
        wanted = self.wanted if self.wanted is not None and self.wanted[0] == layer else None
        if wanted is not None:
            self._keep(step, first, second, layer, wanted[1], 0.0)
        if n_heads[0] != n_heads[1]:
            self.apart.append(None)
            return
        found: list[float] = []
        for heads in _head_parts(step, first, second):
            a, b = (self._aligned(step, trace.step("weights", layer, heads)).double() for trace in (first, second))
            found += ((a - b.to(a.device)).abs().sum(dim=-1).mean(dim=-1) / 2).tolist()
        self.apart.append(tuple(found))
        if self.wanted is None:
            best = max(range(len(found)), key=lambda one: math.inf if math.isnan(found[one]) else found[one])
            if self.kept is None or found[best] > self.kept[0]:
                self._keep(step, first, second, layer, best, found[best])

    def _keep(self, step: Step, first: Trace, second: Trace, layer: int, head: int, apart: float) -> None:
        a, b = (self._aligned(step, trace.step("weights", layer, (head,)))[0] for trace in (first, second))
        self.kept = apart, layer, head, a.float().cpu().clone(), b.float().cpu().clone()

    def losses(self) -> tuple[float, float] | None:
        """The loss of the text in both runs, where both have one."""
        a, b = (loss(side, hidden) for side, hidden in zip(self.sides, self.hidden, strict=True))
        return None if a is None or b is None else (a, b)

    def attention(self) -> Attention | None:
        if self.kept is None:
            return None
        _, layer, head, a, b = self.kept
        configs = [side.model.config.at(layer) for side in self.sides]
        allowed = [Sight.of(config).allowed(len(a), None, a.device) for config in configs]
        seen = None if allowed[0] is None or allowed[1] is None else allowed[0] | allowed[1]
        return Attention(layer, head, a, b, seen, tuple(self.apart))


def _head_parts(step: Step, first: Trace, second: Trace) -> Iterator[tuple[int, ...] | None]:
    """None for a step that is compared in one go; of maps (H, Q, K) so many heads as may be held at once."""
    if not step.is_map or first.config.n_heads != second.config.n_heads:
        yield None
        return
    count = max(1, _CHUNK_BYTES // (8 * max(len(first.tokens), len(second.tokens)) ** 2))
    for start in range(0, first.config.n_heads, count):
        yield tuple(range(start, min(first.config.n_heads, start + count)))


def _in_order(first: Trace, second: Trace, layer: int | None) -> list[Step]:
    """The steps of the embeddings or of a layer, of both models; what one lacks stands behind."""
    return _merged(*([step for step in _tensors(t) if _is_before(step, layer)] for t in (first, second)))


def _behind(first: Trace, second: Trace) -> list[Step]:
    return _merged(
        *(
            [step for step in _tensors(t) if not step.in_layer and not step.name.startswith("embed.")]
            for t in (first, second)
        )
    )


def _over_vocabulary(first: Trace, second: Trace) -> list[str]:
    return [step.name for step in _behind(first, second) if step.is_vocabulary]


def _tensors(trace: Trace) -> list[Step]:
    return [step for step in trace.steps.by_name.values() if step.is_tensor]


def _is_before(step: Step, layer: int | None) -> bool:
    return step.in_layer if layer is not None else step.name.startswith("embed.")


def _merged(first: list[Step], second: list[Step]) -> list[Step]:
    names = {step.name for step in first}
    return [*first, *(step for step in second if step.name not in names)]


def _shape(tensor: Tensor) -> str:
    return " × ".join(f"{size:,}" for size in tensor.shape)
