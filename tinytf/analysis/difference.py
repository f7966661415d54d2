"""Two runs side by side: two texts on one model, or one text on two models or in two dtypes.

Both run in step, one layer at a time, so that the steps of one layer are all that is held of either.
Shapes: T tokens, H heads, Q queries, K keys, V vocabulary.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.analysis.alignment import Alignment, Side, align
from tinytf.analysis.moved import Moved, moved_weights
from tinytf.errors import AddressError
from tinytf.model.attention import Sight
from tinytf.trace.address import parse_address
from tinytf.trace.check import TOLERANCE
from tinytf.trace.derive import probabilities
from tinytf.trace.steps import Step, StepTable
from tinytf.trace.trace import Trace
from tinytf.trace.walk import walk

_CHUNK_BYTES = 64 * 2**20
_ROWS = 16  # positions whose logits are held at a time
_VOCABULARY = ("logits", "probs")


@dataclass(frozen=True)
class Compared:
    """One step in both runs.

    ``largest`` is the largest difference of two cells, at the cell ``at``, where the numbers are ``values``; ``scale``
    the largest magnitude of either step. ``cosine`` is that of the whole step. ``kl`` is KL(first ‖ second) in nats,
    the mean over the positions, of logits and probabilities alone.
    """

    name: str
    step: Step
    layer: int | None
    shape: tuple[int, ...]
    largest: float
    scale: float
    cosine: float
    at: tuple[int, ...]
    values: tuple[float, float]
    kl: float | None = None

    @property
    def relative(self) -> float:
        """The largest difference in units of the largest magnitude; infinite where one is no finite number."""
        if not self.largest:
            return 0.0
        return self.largest / self.scale if math.isfinite(self.largest) and self.scale else math.inf

    @property
    def head(self) -> int | None:
        """The head with the largest difference, where the step has heads."""
        return self.at[0] if self.step.has_heads else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "layer": self.layer,
            "shape": list(self.shape),
            "largest": self.largest,
            "relative": self.relative,
            "cosine": self.cosine,
            "at": list(self.at),
            "values": list(self.values),
            "head": self.head,
            "kl": self.kl,
        }


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


@dataclass(frozen=True)
class Position:
    """What both predict at one position: KL(first ‖ second) in nats, and the most probable id of each."""

    index: int
    kl: float
    first: tuple[int, float]
    second: tuple[int, float]


@dataclass(frozen=True)
class Prediction:
    """The most probable ids of either run behind its text, or at a mask, with their probabilities in both runs.

    ``kl`` is KL(first ‖ second) in nats.
    """

    position: int
    other_position: int
    kl: float
    ids: tuple[int, ...]
    first: tuple[float, ...]
    second: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """All that is different in two runs, in the order in which it comes about.

    ``steps`` are compared, ``incomparable`` are not; ``predictions`` belong to the ends of the two texts, or to the
    masks of an encoder. ``losses`` (nats a token) and ``moved`` are of two models. ``tolerance`` is relative.
    """

    alignment: Alignment
    tolerance: float
    steps: tuple[Compared, ...]
    incomparable: tuple[Incomparable, ...]
    attention: Attention | None
    positions: tuple[Position, ...]
    predictions: tuple[Prediction, ...]
    losses: tuple[float, float] | None
    moved: tuple[Moved, ...]

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


def default_tolerance(*dtypes: torch.dtype) -> float:
    """What rounding alone may come to in the coarser of these dtypes."""
    return max(TOLERANCE.get(dtype, 1e-5) for dtype in dtypes)


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
    is in units of a step's largest magnitude; without it that of the coarser dtype. Errors as of ``align`` and
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
            tuple(run.positions),
            tuple(run.predictions(top)),
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
        self.positions: list[Position] = []
        self.apart: list[tuple[float, ...] | None] = []
        self.kept: tuple[float, int, int, Tensor, Tensor] | None = None
        self.hidden: tuple[Tensor, Tensor] | None = None

    def go(self, force: bool) -> None:
        """Walk through both models; the layers that only one of them has are only named."""
        walks = [walk(side.model, side.encoding, force=force) for side in self.sides]
        depths = [side.model.config.n_layers for side in self.sides]
        self._part(next(walks[0]), next(walks[1]), None)
        for layer in range(max(depths)):
            traces = [next(parts) if layer < depth else None for parts, depth in zip(walks, depths, strict=True)]
            self._part(traces[0], traces[1], layer)
        ends = [next(parts) for parts in walks]
        self.hidden = ends[0].last_hidden, ends[1].last_hidden
        self._end(ends[0], ends[1])

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
        for step in _behind(first, second):
            if step.name in _VOCABULARY:
                continue
            self._step(step, first, second, None)
        if first.model.head is None or second.model.head is None:
            for name in _VOCABULARY:
                if (first.model.head is None) != (second.model.head is None):
                    self.incomparable.append(Incomparable(name, "only one of the models has a language-model head"))
        elif not self.alignment.same_vocabulary:
            sizes = " and ".join(f"{side.model.config.vocab_size:,}" for side in self.sides)
            for name in _VOCABULARY:
                self.incomparable.append(Incomparable(name, f"the vocabularies are different ones, of {sizes} tokens"))
        else:
            self._logits(first, second)

    def _step(self, step: Step, first: Trace, second: Trace, layer: int | None) -> None:
        name = step.full_name(layer)
        for which, trace in (("first", first), ("second", second)):
            if step.name not in trace.steps.by_name:
                self.incomparable.append(Incomparable(name, f"the {which} model has no such step"))
                return
        sums = _Sums()
        for heads in _head_parts(step, first, second):
            a, b = (self._aligned(step, trace.step(step.name, layer, heads)) for trace in (first, second))
            if a.shape != b.shape:
                self.incomparable.append(Incomparable(name, f"{_shape(a)} and {_shape(b)} numbers"))
                return
            sums.add(a, b, heads[0] if heads else 0)
        self.steps.append(sums.compared(name, step, layer))

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

    def attention(self) -> Attention | None:
        if self.kept is None:
            return None
        _, layer, head, a, b = self.kept
        allowed = [Sight.of(side.model.config).allowed(len(a), None, a.device) for side in self.sides]
        seen = None if allowed[0] is None or allowed[1] is None else allowed[0] | allowed[1]
        return Attention(layer, head, a, b, seen, tuple(self.apart))

    def _logits(self, first: Trace, second: Trace) -> None:
        """Logits and probabilities, some positions at a time."""
        assert self.hidden is not None
        logits, probs, total = _Sums(), _Sums(), 0.0
        for start in range(0, self.alignment.positions, _ROWS):
            rows = slice(start, min(start + _ROWS, self.alignment.positions))
            a, b = (
                side.model.unembed(hidden[rows]) for side, hidden in zip(self.sides, self.hidden, strict=True)
            )  # (rows, V)
            logits.add(a, b, start)
            log_p, log_q = (one.log_softmax(dim=-1, dtype=torch.float64) for one in (a, b.to(a.device)))
            p, q = (one.exp() for one in (log_p, log_q))
            kl = _divergence(p, log_p, log_q)
            p, q = p.float(), q.float()
            probs.add(p, q, start)
            total += float(kl.sum())
            best = [one.max(dim=-1) for one in (p, q)]
            for row in range(len(a)):
                tops = [(int(one.indices[row]), float(one.values[row])) for one in best]
                self.positions.append(Position(start + row, float(kl[row]), tops[0], tops[1]))
        mean = total / self.alignment.positions
        table = first.steps.by_name
        self.steps.append(logits.compared("logits", table["logits"], None, mean))
        self.steps.append(probs.compared("probs", table["probs"], None, mean))

    def predictions(self, top: int) -> Iterator[Prediction]:
        """What comes behind either text, or goes into the masks that both have."""
        if not self.positions:
            return
        assert self.hidden is not None
        for a, b in self.alignment.asked:
            logits = [
                side.model.unembed(hidden[at]) for side, hidden, at in zip(self.sides, self.hidden, (a, b), strict=True)
            ]
            p, q = (probabilities(one) for one in logits)
            kl = float(divergence(*logits))
            best = [one.topk(min(top, len(one))).indices.tolist() for one in (p, q)]
            ids = sorted({*best[0], *best[1]}, key=lambda i: -max(float(p[i]), float(q[i])))
            yield Prediction(a, b, kl, tuple(ids), tuple(float(p[i]) for i in ids), tuple(float(q[i]) for i in ids))

    def losses(self) -> tuple[float, float] | None:
        """The mean of −log p of each next token, of two decoders and a text of two tokens at least."""
        assert self.hidden is not None
        if any(side.model.head is None or not side.model.config.causal or len(side.encoding.ids) < 2
               for side in self.sides):  # fmt: skip
            return None
        a, b = (_loss(side, hidden) for side, hidden in zip(self.sides, self.hidden, strict=True))
        return a, b


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(first ‖ second) in nats of two rows of logits (…, V) -> (…), in float64."""
    a, b = (one.to(first.device).log_softmax(dim=-1, dtype=torch.float64) for one in (first, second))
    return _divergence(a.exp(), a, b)


def _divergence(p: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    return (p * log_p.sub(log_q)).sum(dim=-1).clamp(min=0)


def _loss(side: Side, hidden: Tensor) -> float:
    ids = torch.tensor(side.encoding.ids, device=hidden.device)
    total = 0.0
    for start in range(0, len(ids) - 1, _ROWS):
        targets = ids[start + 1 : start + 1 + _ROWS]
        log_p = side.model.unembed(hidden[start : start + len(targets)]).double().log_softmax(dim=-1)
        total -= float(log_p.gather(1, targets[:, None]).sum())
    return total / (len(ids) - 1)


class _Sums:
    """What is known of a step that comes in parts along its first axis."""

    def __init__(self) -> None:
        self.largest, self.scale = -1.0, 0.0
        self.at: tuple[int, ...] = ()
        self.values = (math.nan, math.nan)
        self.shape: tuple[int, ...] = ()
        self.dot = self.first = self.second = 0.0

    def add(self, first: Tensor, second: Tensor, start: int) -> None:
        """Another part, whose first row is row ``start`` of the whole."""
        kind = torch.promote_types(first.dtype, second.dtype)
        kind = torch.promote_types(kind, torch.float32)
        a, b = first.to(kind), second.to(first.device, kind)
        apart = (a - b).abs()
        finite = bool(apart.max().isfinite())
        if not finite:
            apart = torch.where(a == b, 0.0, apart).nan_to_num(nan=math.inf)  # equal where both are −∞
        flat = int(apart.argmax())
        if float(apart.flatten()[flat]) > self.largest:
            self.largest = float(apart.flatten()[flat])
            place = [int(i) for i in torch.unravel_index(torch.tensor(flat), a.shape)]
            self.at = (place[0] + start, *place[1:])
            self.values = float(a.flatten()[flat]), float(b.flatten()[flat])
        if not finite:
            seen = a.isfinite() & b.isfinite()
            a, b = torch.where(seen, a, 0.0), torch.where(seen, b, 0.0)
        self.scale = max(self.scale, *(abs(float(end)) for one in (a, b) for end in one.aminmax()))
        a, b = a.flatten().double(), b.flatten().double()
        self.dot += float(a @ b)
        self.first += float(a @ a)
        self.second += float(b @ b)
        self.shape = (start + first.shape[0], *first.shape[1:])

    def compared(self, name: str, step: Step, layer: int | None, kl: float | None = None) -> Compared:
        size = math.sqrt(self.first * self.second)
        cosine = 1.0 if not self.largest else min(1.0, self.dot / size) if size else 0.0
        return Compared(name, step, layer, self.shape, self.largest, self.scale, cosine, self.at, self.values, kl)


def _head_parts(step: Step, first: Trace, second: Trace) -> Iterator[tuple[int, ...] | None]:
    """None for a step that is compared in one go; of maps (H, Q, K) so many heads as may be held at once."""
    if step.axes != ("head", "query", "key") or first.config.n_heads != second.config.n_heads:
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


def _tensors(trace: Trace) -> list[Step]:
    return [step for step in trace.steps.by_name.values() if step.is_tensor]


def _is_before(step: Step, layer: int | None) -> bool:
    return step.in_layer if layer is not None else step.name.startswith("embed.")


def _merged(first: list[Step], second: list[Step]) -> list[Step]:
    names = {step.name for step in first}
    return [*first, *(step for step in second if step.name not in names)]


def _shape(tensor: Tensor) -> str:
    return " × ".join(f"{size:,}" for size in tensor.shape)
