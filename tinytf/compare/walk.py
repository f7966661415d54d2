"""Walk two runs in parallel, comparing each step, and the attention weights of each head."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from tinytf.compare.alignment import Alignment, AnySide
from tinytf.compare.causes import Cause, cause_of
from tinytf.compare.dumps.dumped import Dumped
from tinytf.compare.measures import Compared, Ends, Position, Sums, loss_of
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.steps.operations import Add
from tinytf.steps.operations.mask import Sight
from tinytf.steps.table import Place
from tinytf.trace.trace import Trace

_CHUNK_BYTES = 64 * 2**20
Part = Trace | Dumped
Both = tuple[Part, Part]
Heads = tuple[int, ...] | None
_Pair = tuple[Heads, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Incomparable:
    """A step that is not compared, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Rescaled(Data):
    """A ``step`` of a dump whose numbers are ours only when multiplied by ``factor``."""

    step: str
    factor: float


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
        """Plain JSON data; masked cells are −∞."""
        first, second = (
            (one if self.seen is None else one.masked_fill(~self.seen, -math.inf)).tolist()
            for one in (self.first, self.second)
        )
        apart = [heads and list(heads) for heads in self.apart]
        return {"layer": self.layer, "head": self.head, "first": first, "second": second, "apart": apart}


class Walk:
    """Both sides, and what was found so far."""

    def __init__(
        self,
        first: AnySide,
        second: AnySide,
        alignment: Alignment,
        head: tuple[int, int] | None,
        tolerance: float,
    ) -> None:
        self.tolerance = tolerance
        self.cause: Cause | None = None
        self.rescaled: Rescaled | None = None
        self.differs = False
        self.sides, self.alignment, self.wanted = (first, second), alignment, head
        self.steps: list[Compared] = []
        self.incomparable: list[Incomparable] = []
        self.missing: list[str] = []
        self.positions: tuple[Position, ...] = ()
        self.ends: Ends | None = None
        self.apart: list[tuple[float, ...] | None] = []
        self.kept: tuple[float, int, int, Tensor, Tensor] | None = None

    def go(self, force: bool) -> None:
        """Walk through both sides; a layer that only one of them has is only named."""
        walks: list[Iterator[Part]] = [side.parts(force) for side in self.sides]
        depths = [side.config.n_layers for side in self.sides]
        both: Both = (next(walks[0]), next(walks[1]))
        self._compare(_union(*(part.steps.before for part in both)), both, None)
        for layer in range(max(depths)):
            here = [next(parts) for parts, depth in zip(walks, depths, strict=True) if layer < depth]
            if len(here) == 1:
                which = "second" if depths[0] > layer else "first"
                self._skip([f"L{layer}"], f"the {which} model has no layer {layer}")
                continue
            both = here[0], here[1]
            self._compare(_union(*(part.steps.in_layer(layer) for part in both)), both, layer)
            self._attention(both, layer)
        both = next(walks[0]), next(walks[1])
        self.last = both
        after = _union(*(part.steps.after for part in both))
        self._compare([step for step in after if not step.is_vocabulary], both, None)
        self._predictions(both, [step.name for step in after if step.is_vocabulary])

    def _skip(self, names: Sequence[str], why: str) -> None:
        self.incomparable += [Incomparable(name, why) for name in names]

    def _predictions(self, both: Both, names: Sequence[str]) -> None:
        """The steps over the vocabulary, where both have one and the same."""
        configs = [side.config for side in self.sides]
        rows = tuple(row for row in range(self.alignment.positions) if all(row in side.rows() for side in self.sides))
        heads = [config.head.kind != "none" for config in configs]
        if not all(heads):
            if any(heads):
                self._skip(names, "only one of the models has a language-model head")
        elif configs[0].labels != configs[1].labels:
            self._skip(names, "the heads are of other classes")
        elif not all(part.steps.chooses for part in both):
            self._skip(names, "the heads do not choose one of their classes")
        elif not self.alignment.same_vocabulary and not configs[0].labels:
            sizes = " and ".join(f"{config.vocab_size:,}" for config in configs)
            self._skip(names, f"the vocabularies differ, with {sizes} tokens")
        elif not rows:
            self.missing += names
        else:
            for which, here, other in (("second", *both), ("first", both[1], both[0])):
                own = [step.name for step in here.steps.over_vocabulary]
                self._skip(
                    [name for name in own if name not in other.steps.by_name], f"the {which} model has no such step"
                )
            self.ends = Ends(self.sides, both, self.alignment, rows)
            steps, self.positions = self.ends.compare()
            self.steps += steps

    def _compare(self, steps: Sequence[Step], both: Both, layer: int | None) -> None:
        for step in steps:
            name = step.full_name(layer)
            lacking = next((i for i, part in enumerate(both) if step.name not in part.steps.by_name), None)
            if lacking is not None:
                self._skip([name], f"the {('first', 'second')[lacking]} model has no such step")
                continue
            dumps = [part for part in both if isinstance(part, Dumped)]
            if not all(part.has(step.name, layer) for part in dumps):
                self.missing += [] if step.from_stream else [name]  # it is what the block before gave
                continue
            sums = Sums(step)
            for heads, a, b in self._parts(step, both, layer):
                if a is None or b is None:
                    stored = next(part for part, one in zip(both, (a, b), strict=True) if one is None)
                    if isinstance(stored, Dumped) and (why := stored.why_not(step, layer)):
                        self._skip([name], why)
                    else:
                        self.missing.append(name)
                    break
                if a.shape != b.shape:
                    sizes = (" × ".join(f"{size:,}" for size in one.shape) for one in (a, b))
                    self._skip([name], f"{' and '.join(sizes)} numbers")
                    break
                sums.add(a, b, heads[0] if heads else 0)
            else:
                said = dict.fromkeys(words for part in dumps for words in part.said.get(name, ()))
                found = sums.compared(name, layer, note=", ".join(said))
                self.steps.append(found)
                if self.differs:
                    continue
                factors = [part.factors[name] for part in dumps if name in part.factors]
                self.differs = found.relative > self.tolerance
                if factors:
                    self.rescaled = Rescaled(name, factors[0])
                elif isinstance(step.operation, Add) and not self.differs:
                    self.rescaled = None  # the stream as the file has it is ours: only what was kept lacked the factor
                if self.differs and self.rescaled is None:
                    cause = self._cause(both, (step.name, layer), b if heads is None else None)
                    self.cause = cause if cause and (cause.found or not found.unlike) else None

    def _cause(self, both: Both, place: Place, theirs: Tensor | None) -> Cause | None:
        """Why the first step that differs does, where it is that of a dump and of a model."""
        trace, dumped = both
        if isinstance(trace, Dumped) or not isinstance(dumped, Dumped) or theirs is None:
            return None
        if self.alignment.positions < len(trace.tokens):
            return None
        unseen: dict[Place, None] = {}
        waiting, skipped = [place], {one.name for one in self.incomparable}
        while waiting:
            one = waiting.pop()
            for source in trace.steps.sources(trace.steps.at(*one), one[1]):
                here = dumped.has(*source) and trace.steps.at(*source).full_name(source[1]) not in skipped
                if not here and source not in unseen:
                    unseen[source] = None
                    waiting.append(source)
        unseen = {one: None for one in unseen if not trace.steps.at(*one).from_stream}  # what the block before gave
        order = [(step.name, layer) for step, layer in trace.steps.rows]
        return cause_of(trace, place, theirs, sorted(unseen, key=order.index), self.tolerance)

    def _parts(self, step: Step, both: Both, layer: int | None) -> Iterator[_Pair]:
        """A step of both runs at once; of maps (H, Q, K) a few heads at a time."""
        numbers, theirs = (tuple(step.part_numbers(part.config.at(layer))) for part in both)
        parts: list[tuple[int, ...] | None] = [None]
        stored = next((part for part in both if isinstance(part, Dumped)), None)
        if stored is not None:
            parts = stored.heads_of(step, layer)
        elif step.is_map and numbers == theirs:
            count = max(1, _CHUNK_BYTES // (8 * max(len(part.tokens) for part in both) ** 2))
            parts = [numbers[start : start + count] for start in range(0, len(numbers), count)]
        for heads in parts:
            yield heads, *self._aligned(step, both, layer, heads)

    def _aligned(
        self, step: Step, both: Both, layer: int | None, heads: tuple[int, ...] | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The positions of a step that are compared, of both runs; None where a dump has them in no shape of ours."""

        def read(part: Part, beside: Part | None, step: Step, layer: int | None, heads: Heads) -> Tensor | None:
            if isinstance(part, Dumped):
                return part.step(step.name, layer, heads, None if beside is None else partial(read, beside, None))
            places = slice(self.alignment.positions)
            cut = tuple(places if axis in ("token", "query", "key") else slice(None) for axis in step.axes)
            return part.step(step.name, layer, heads)[cut]

        first, second = both
        return read(first, None, step, layer, heads), read(second, first, step, layer, heads)

    def _attention(self, both: Both, layer: int) -> None:
        """How far the weights of every head are apart, and the maps of the one that is wanted."""
        step, here = both[0].steps.by_name[both[0].steps.weights], self.wanted is not None and self.wanted[0] == layer
        if not all(part.steps.has(part.steps.weights, layer) for part in both):
            self.apart.append(None)
            return
        stored = [part for part in both if isinstance(part, Dumped)]
        found: list[float] = []
        if both[0].config.n_heads == both[1].config.n_heads and all(part.has(step.name, layer) for part in stored):
            for _, a, b in self._parts(step, both, layer):
                if a is not None and b is not None and a.shape == b.shape:
                    found += ((a.double() - b.to(a.device).double()).abs().sum(dim=-1).mean(dim=-1) / 2).tolist()
        whole = len(found) == both[0].config.n_heads
        self.apart.append(tuple(found) if whole else None)
        if self.wanted is not None and here:
            self._keep(step, both, layer, self.wanted[1], 0.0)
        elif self.wanted is None and whole:
            best = max(range(len(found)), key=lambda one: math.inf if math.isnan(found[one]) else found[one])
            if self.kept is None or found[best] > self.kept[0]:
                self._keep(step, both, layer, best, found[best])

    def _keep(self, step: Step, both: Both, layer: int, head: int, apart: float) -> None:
        """Keep the maps of one head, where both have them."""
        if not any(isinstance(part, Dumped) for part in both):
            pairs: Iterable[_Pair] = [((head,), *self._aligned(step, both, layer, (head,)))]
        else:
            pairs = self._parts(step, both, layer)
        for heads, a, b in pairs:
            if a is not None and b is not None and (heads is None or head in heads):
                place = head if heads is None else heads.index(head)
                first, second = (one[place].float().cpu().clone() for one in (a, b))
                self.kept = apart, layer, head, first, second

    def losses(self) -> tuple[float, float] | None:
        """The loss of the text in both runs, where both have one."""
        found = []
        for side, part in zip(self.sides, self.last, strict=True):
            if side.config.head.kind != "lm" or len(side.rows()) < len(side.encoding.tokens):
                return None
            found.append(loss_of(partial(_logits, side, part), side.encoding.ids))
        a, b = found
        return None if a is None or b is None else (a, b)

    def attention(self) -> Attention | None:
        if self.kept is None:
            return None
        _, layer, head, a, b = self.kept
        configs = [side.config.at(layer) for side in self.sides]
        visible = [Sight.of(config).allowed(len(a), None, a.device) for config in configs]
        seen = None if visible[0] is None or visible[1] is None else visible[0] | visible[1]
        return Attention(layer, head, a, b, seen, tuple(self.apart))


def _logits(side: Any, part: Part, rows: Sequence[int]) -> Tensor:
    """The logits of a side at some positions."""
    found: Tensor = side.outcomes(part, rows)[part.steps.over_vocabulary[-1].name]
    return found


def _union(first: Sequence[Step], second: Sequence[Step]) -> list[Step]:
    """The tensors of both models in the order of the first; what only the second has comes last."""
    names = {step.name for step in first}
    return [step for step in (*first, *(one for one in second if one.name not in names)) if step.is_tensor]
