"""Walk two runs in parallel, comparing each step, and the attention weights of each head."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tinytf.compare.alignment import Alignment, AnySide, Side
from tinytf.compare.causes import Cause, Evidence, Tried, causes_of, compared_with, unseen_before
from tinytf.compare.dumps.dumped import DumpSide
from tinytf.compare.dumps.passes import starts_of
from tinytf.compare.floor import LIMIT, Floor
from tinytf.compare.measures import Ends, Position, StepComparison, Sums, loss_of
from tinytf.counting import counted
from tinytf.errors import MemoryShortage
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.steps.operations import Add, Softmax
from tinytf.steps.operations.mask import Sight, chosen_in
from tinytf.steps.table import StepKey, table_of
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

_CHUNK_BYTES = 64 * 2**20
_MOST_NUMBERS = 2**24
"""The most numbers of a step that is compared again with every cause, such as logits of a long text."""
_ENOUGH = 256
"""The tokens of a longer text on which causes are tried, or half as many more than come before one that differs."""
Part = Trace | DumpSide
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
    """A ``step`` of a dump that equals ours only after multiplication by ``factor``."""

    step: str
    factor: float


@dataclass(frozen=True)
class Attention:
    """The weights of one head in both runs (Q, K), and for every head the distance between its weights.

    ``apart[layer][head]`` is half the sum of a query's absolute differences, averaged over the queries: 0 for equal
    weights, 1 for weights on different keys; None where heads are not comparable. ``seen`` (Q, K) is false where a key
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
            (weights if self.seen is None else weights.masked_fill(~self.seen, -math.inf)).tolist()
            for weights in (self.first, self.second)
        )
        distances = [heads and list(heads) for heads in self.apart]
        return {"layer": self.layer, "head": self.head, "first": first, "second": second, "apart": distances}


@dataclass(frozen=True)
class _Differing:
    """A step that differs: the dump's numbers, unless these come in parts, and whether some are not finite."""

    place: StepKey
    theirs: Tensor | None
    unlike: bool


class Walk:
    """A pass through both sides, and the differences found so far."""

    def __init__(
        self,
        first: AnySide,
        second: AnySide,
        alignment: Alignment,
        head: tuple[int, int] | None,
        tolerance: float,
    ) -> None:
        self.tolerance = tolerance
        self.causes: tuple[Cause, ...] = ()
        self.follows = False
        self.tried: dict[str, dict[str, None]] = {}
        self.rescaled: Rescaled | None = None
        self.differing: _Differing | None = None
        self.unscaled: _Differing | None = None
        self.sides: tuple[AnySide, AnySide] = (first, second)
        self.alignment, self.chosen_head = alignment, head
        self.steps: list[StepComparison] = []
        self.incomparable: list[Incomparable] = []
        self.missing: list[str] = []
        self.positions: tuple[Position, ...] = ()
        self.ends: Ends | None = None
        self.head_distances: list[tuple[float, ...] | None] = []
        self.shown_head: tuple[float, int, int, Tensor, Tensor] | None = None

    def run(self, force: bool) -> None:
        """Walk through both sides; a layer that only one of them has is listed as incomparable."""
        sides: list[Iterator[Part]] = [side.parts(force) for side in self.sides]
        depths = [side.config.n_layers for side in self.sides]
        parts: Both = (next(sides[0]), next(sides[1]))
        self._compare(_union(*(part.steps.before for part in parts)), parts, None)
        for layer in counted("layers compared:", range(max(depths))):
            present = [next(parts) for parts, depth in zip(sides, depths, strict=True) if layer < depth]
            if len(present) == 1:
                side = "second" if depths[0] > layer else "first"
                self._skip([f"L{layer}"], f"the {side} model has no layer {layer}")
                continue
            parts = present[0], present[1]
            self._compare(_union(*(part.steps.in_layer(layer) for part in parts)), parts, layer)
            self._attention(parts, layer)
        parts = next(sides[0]), next(sides[1])
        self.last = parts
        after = _union(*(part.steps.after for part in parts))
        self._compare([step for step in after if not step.is_vocabulary], parts, None)
        self._predictions(parts, [step.name for step in after if step.is_vocabulary])

    def _skip(self, names: Sequence[str], why: str) -> None:
        self.incomparable += [Incomparable(name, why) for name in names]

    def _predictions(self, both: Both, names: Sequence[str]) -> None:
        """Compare the steps over the vocabulary, where both have the same one."""
        configs = [side.config for side in self.sides]
        rows = tuple(row for row in range(self.alignment.positions) if all(row in side.rows() for side in self.sides))
        have_heads = [config.head.kind != "none" for config in configs]
        if not all(have_heads):
            if any(have_heads):
                self._skip(names, "only one of the models has a language-model head")
        elif configs[0].labels != configs[1].labels:
            self._skip(names, "the heads have other classes")
        elif not all(part.steps.chooses for part in both):
            self._skip(names, "the heads do not choose one of their classes")
        elif not self.alignment.same_vocabulary and not configs[0].labels:
            sizes = " and ".join(f"{config.vocab_size:,}" for config in configs)
            self._skip(names, f"the vocabularies differ, with {sizes} tokens")
        elif not rows:
            self.missing += names
        else:
            for side, part, other in (("second", *both), ("first", both[1], both[0])):
                own = [step.name for step in part.steps.over_vocabulary]
                self._skip(
                    [name for name in own if name not in other.steps.by_name], f"the {side} model has no such step"
                )
            self.ends = Ends(self.sides, both, self.alignment, rows)
            steps, self.positions = self.ends.compare(self.tolerance)
            self.steps += steps
            different = next((step for step in steps if step.differs(self.tolerance)), None)
            theirs = getattr(self.sides[1], "logits", None)
            if different is not None and self.differing is None and theirs is not None and different.name == "logits":
                self.differing = _Differing(("logits", None), theirs[0], False)

    def _compare(self, steps: Sequence[Step], both: Both, layer: int | None) -> None:
        for step in steps:
            name = step.full_name(layer)
            without = next((i for i, part in enumerate(both) if not part.steps.has(step.name, layer)), None)
            if without is not None:
                self._skip([name], f"the {('first', 'second')[without]} model has no such step")
                continue
            dumps = [part for part in both if isinstance(part, DumpSide)]
            if not all(part.has(step.name, layer) for part in dumps):
                self.missing += [] if step.from_stream else [name]  # it is the output of the block before
                continue
            sums = Sums(step)
            for heads, a, b in self._parts(step, both, layer):
                if a is None or b is None:
                    stored = next(part for part, numbers in zip(both, (a, b), strict=True) if numbers is None)
                    if isinstance(stored, DumpSide) and (why := stored.why_not(step, layer)):
                        self._skip([name], why)
                    else:
                        self.missing.append(name)
                    break
                if a.shape != b.shape:
                    sizes = (" × ".join(f"{size:,}" for size in numbers.shape) for numbers in (a, b))
                    self._skip([name], f"{' and '.join(sizes)} numbers")
                    break
                sums.add(a, b, heads[0] if heads else 0)
            else:
                notes = dict.fromkeys(words for part in dumps for words in part.said.get(name, ()))
                compared = sums.compared(name, layer, note=", ".join(notes), tolerance=self.tolerance)
                compared = self._with_unseen(compared, step, both, layer)
                self.steps.append(compared)
                if self.differing is not None:
                    continue
                factors = [part.factors[name] for part in dumps if name in part.factors]
                place, differs = (step.name, layer), compared.differs(self.tolerance)
                if factors:
                    self.rescaled = Rescaled(name, factors[0])
                    self.unscaled = _Differing(place, None if b is None else b / factors[0], False)
                elif isinstance(step.operation, Add) and not differs:
                    self.rescaled = self.unscaled = None  # the stream is ours: only the saved tensor lacked the factor
                if differs:
                    self.differing = _Differing(place, b if heads is None else None, bool(compared.unlike))

    def _with_unseen(self, compared: StepComparison, step: Step, both: Both, layer: int | None) -> StepComparison:
        """Whether what is not finite is a row of weights whose scores are all −∞ on that side."""
        bad = compared.not_finite
        if bad is None or bad.token is None or not isinstance(step.operation, Softmax):
            return compared
        place = both[0].steps.sources(step, layer)[0]
        source, dumps = both[0].steps.at(*place), [part for part in both if isinstance(part, DumpSide)]
        has = all(part.has(*place) for part in dumps) and all(part.steps.has(*place) for part in both)
        for heads, *pair in self._parts(source, both, place[1]) if has else ():
            scores, head = pair["AB".find(bad.sides[:1])], bad.at[0]
            if scores is not None and (heads is None or head in heads):
                row = scores[head if heads is None else heads.index(head), bad.token]
                return replace(compared, not_finite=replace(bad, unseen=bool(row.isneginf().all())))
        return compared

    def _place(self, name: str) -> StepKey:
        rows = table_of(self.sides[0].config).rows
        return next((step.name, layer) for step, layer in rows if step.full_name(layer) == name)

    def places(self) -> list[StepKey]:
        """The steps that both have, in order; without those that are too large to be compared again and again."""
        names = {step.full_name(layer): (step.name, layer) for step, layer in table_of(self.sides[0].config).rows}
        vectors = {step.name for step in table_of(self.sides[0].config).vector_steps}
        known = [one for one in self.steps if one.name in names and (one.step.to_loss or one.name in vectors)]
        return [names[step.name] for step in known if math.prod(step.shape) <= _MOST_NUMBERS]

    def explain(self, force: bool, floor: Floor | None = None) -> None:
        """Find the causes of what differs between a model and a dump; with a ``floor``, from the first bug on.

        Where an earlier step only fits when it is multiplied, a program without the factor is tried: it is the cause if
        it explains the first difference.
        """
        (first, dumped), at = self.sides, self.differing
        if isinstance(dumped, DumpSide) and dumped.dump.passes and self.rescaled is None:
            differing = [step for step in self.steps if step.differs(self.tolerance)]
            earliest = min(differing, key=lambda step: step.begins or 0, default=None)
            at = at if earliest is None else _Differing(self._place(earliest.name), torch.empty(0), False)
        if at is None and floor is not None and floor.bug is not None:
            at = _Differing(self._place(floor.bug.name), torch.empty(0), False)
        if at is None or not (isinstance(first, Side) and isinstance(dumped, DumpSide)):
            return
        if floor is not None and (floor.bug is None or floor.bug.times <= LIMIT):
            return  # the lean of an error says what is wrong; rounding hides more than that
        if self.alignment.positions < len(first.encoding.tokens):
            return
        if floor is None and self.unscaled is None and self._explain_beginning(first, dumped, force):
            return
        if at.theirs is None:
            return
        try:
            trace = first.trace or record(first.model, first.encoding, force=force)
        except MemoryShortage:
            layer = at.place[1]
            if layer is None:
                return
            trace = record(first.model, first.encoding, layers=(layer,), force=force)
        places = [place for place in self.places() if place[1] is None or place[1] in trace.recording.layers]
        evidence = Evidence(dumped, self.tolerance, places, tried=self.tried)
        if dumped.dump.passes and at.theirs is not None and not at.theirs.numel():
            step = next(step for step in self.steps if self._place(step.name) == at.place)
            evidence.start = max(start for start in starts_of(dumped.dump.passes) if start <= (step.begins or 0))
            at = _Differing(at.place, evidence.theirs(at.place, trace), False)
        if floor is not None and floor.bug is not None:
            evidence.allowed = {self._place(share.name): LIMIT * share.own for share in floor.steps}
            place = self._place(floor.bug.name)
            theirs = evidence.theirs(place, trace)
            at = _Differing(place, theirs, False)
        if self.unscaled is not None and self.rescaled is not None and self.unscaled.theirs is not None:
            evidence.fixed = {self.unscaled.place: self.unscaled.theirs}
            found = causes_of(trace, evidence, self.unscaled.place, self.unscaled.theirs, ())
            if found and found[0].found and found[0].explained:
                compared = compared_with(trace, self.unscaled.place, self.unscaled.theirs)
                self.steps = [compared if step.name == compared.name else step for step in self.steps]
                self.causes, self.rescaled = tuple(found), None
                return
            # the numbers of that step are known up to a factor alone
            evidence = replace(evidence, places=[one for one in places if one != self.unscaled.place], fixed={})
        if at.theirs is None:
            return
        causes = causes_of(trace, evidence, at.place, at.theirs, unseen_before(trace, evidence, at.place))
        self.follows = not causes
        self.causes = tuple(causes) if causes and (causes[0].found or not at.unlike) else ()

    def searches(self) -> tuple[Tried, ...]:
        """What was tried at each step where causes were looked for."""
        return tuple(Tried(step, tuple(words)) for step, words in self.tried.items() if words)

    def _explain_beginning(self, first: Side, dumped: DumpSide, force: bool) -> bool:
        """Find the causes on the first tokens of a long text, with the first that differs: they depend on no others.

        False where none is found there.
        """
        count, config = len(first.encoding.tokens), first.config
        begins = min((step.begins or 0 for step in self.steps if step.differs(self.tolerance)), default=0)
        kept = max(_ENOUGH, begins + _ENOUGH // 2)
        turned = kept < config.turned_alike_from(count)
        if config.looks_ahead or turned or dumped.dump.passes or dumped.dump.shards or kept > 0.75 * count:
            return False
        cut = dumped.beginning(kept)
        if cut is None:
            return False
        with suppress(MemoryShortage):
            trace = record(first.model, cut.encoding, force=force)
            evidence = Evidence(cut, self.tolerance, self.places(), tried=self.tried)
            place = next((place for place in evidence.places if evidence.differs(place, trace)), None)
            theirs = None if place is None else evidence.theirs(place, trace)
            if place is not None and theirs is not None:
                found = causes_of(trace, evidence, place, theirs, unseen_before(trace, evidence, place))
                self.causes = tuple(replace(cause, tokens=kept) for cause in found if found[0].found)
        return bool(self.causes)

    def _parts(self, step: Step, both: Both, layer: int | None) -> Iterator[_Pair]:
        """A step of both runs, whole; maps (H, Q, K) a few heads at a time."""
        numbers, theirs = (tuple(step.part_numbers(part.config.at(layer))) for part in both)
        parts: list[tuple[int, ...] | None] = [None]
        dump = next((part for part in both if isinstance(part, DumpSide)), None)
        if dump is not None:
            parts = dump.heads_of(step, layer)
        elif step.is_map and step.has_heads and numbers == theirs:
            count = max(1, _CHUNK_BYTES // (8 * max(len(part.tokens) for part in both) ** 2))
            parts = [numbers[start : start + count] for start in range(0, len(numbers), count)]
        for heads in parts:
            yield heads, *self._aligned(step, both, layer, heads)

    def _aligned(
        self, step: Step, both: Both, layer: int | None, heads: tuple[int, ...] | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The compared positions of a step in both runs; None where a dump's tensor cannot take our shape."""

        def read(part: Part, beside: Part | None, step: Step, layer: int | None, heads: Heads) -> Tensor | None:
            if isinstance(part, DumpSide):
                return part.step(step.name, layer, heads, None if beside is None else partial(read, beside, None))
            positions = slice(self.alignment.positions)
            cut = tuple(positions if axis in ("token", "query", "key") else slice(None) for axis in step.axes)
            return part.step(step.name, layer, heads)[cut]

        first, second = both
        return read(first, None, step, layer, heads), read(second, first, step, layer, heads)

    def _attention(self, both: Both, layer: int) -> None:
        """Measure how far the weights of every head are apart, and keep the maps of the chosen one."""
        step, is_chosen = (
            both[0].steps.by_name[both[0].steps.weights],
            self.chosen_head is not None and self.chosen_head[0] == layer,
        )
        if not all(part.steps.has(part.steps.weights, layer) for part in both):
            self.head_distances.append(None)
            return
        dumps = [part for part in both if isinstance(part, DumpSide)]
        distances: list[float] = []
        if both[0].config.n_heads == both[1].config.n_heads and all(part.has(step.name, layer) for part in dumps):
            for _, a, b in self._parts(step, both, layer):
                if a is not None and b is not None and a.shape == b.shape:
                    distances += ((a.double() - b.to(a.device).double()).abs().sum(dim=-1).mean(dim=-1) / 2).tolist()
        complete = len(distances) == both[0].config.n_heads
        self.head_distances.append(tuple(distances) if complete else None)
        if self.chosen_head is not None and is_chosen:
            self._keep_maps(step, both, layer, self.chosen_head[1], 0.0)
        elif self.chosen_head is None and complete:
            best = max(
                range(len(distances)), key=lambda head: math.inf if math.isnan(distances[head]) else distances[head]
            )
            if self.shown_head is None or distances[best] > self.shown_head[0]:
                self._keep_maps(step, both, layer, best, distances[best])

    def _keep_maps(self, step: Step, both: Both, layer: int, head: int, distance: float) -> None:
        """Keep the maps of one head, if both sides have them."""
        if not any(isinstance(part, DumpSide) for part in both):
            pairs: Iterable[_Pair] = [((head,), *self._aligned(step, both, layer, (head,)))]
        else:
            pairs = self._parts(step, both, layer)
        for heads, a, b in pairs:
            if a is not None and b is not None and (heads is None or head in heads):
                index = head if heads is None else heads.index(head)
                first, second = (weights[index].float().cpu().clone() for weights in (a, b))
                self.shown_head = distance, layer, head, first, second

    def losses(self) -> tuple[float, float] | None:
        """The loss of the text in both runs; None unless both have one."""
        losses = []
        for side, part in zip(self.sides, self.last, strict=True):
            if side.config.head.kind != "lm" or len(side.rows()) < len(side.encoding.tokens):
                return None
            losses.append(loss_of(partial(_logits, side, part), side.encoding.ids))
        a, b = losses
        return None if a is None or b is None else (a, b)

    def logits(self) -> Tensor | None:
        """The logits of all tokens (T, V): of the dump where it has them, else of the model; None if too many."""
        for side, part in reversed([*zip(self.sides, self.last, strict=True)]):
            if self._has_all(side):
                return _logits(side, part, range(len(side.encoding.tokens)))
        return None

    def _has_all(self, side: AnySide) -> bool:
        count = len(side.encoding.tokens)
        few = count * side.config.vocab_size <= _MOST_NUMBERS
        return few and side.config.head.kind == "lm" and len(side.rows()) == count

    def attention(self) -> Attention | None:
        if self.shown_head is None:
            return None
        _, layer, head, a, b = self.shown_head
        configs = [side.config.at(layer) for side in self.sides]
        visible = [
            chosen_in(sight.allowed(len(a), None, a.device), *[weights] * (sight.chosen > 0))
            for sight, weights in zip(map(Sight.of, configs), (a, b), strict=True)
        ]
        seen = None if visible[0] is None or visible[1] is None else visible[0] | visible[1]
        return Attention(layer, head, a, b, seen, tuple(self.head_distances))


def _logits(side: Any, part: Part, rows: Sequence[int]) -> Tensor:
    """The logits of a side at some positions."""
    logits: Tensor = side.outcomes(part, rows)[part.steps.over_vocabulary[-1].name]
    return logits


def _union(first: Sequence[Step], second: Sequence[Step]) -> list[Step]:
    """The tensors of both models in the order of the first; those of the second alone come last."""
    names = {step.name for step in first}
    return [step for step in (*first, *(step for step in second if step.name not in names)) if step.is_tensor]
