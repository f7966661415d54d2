"""Two runs side by side: two texts on one model, or one text on two models or in two dtypes.

Both run in step, one layer at a time; only the steps of one layer of each are in memory.
Shapes: T tokens, H heads, Q queries, K keys, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.analysis.alignment import Alignment, AnySide, Side, align
from tinytf.analysis.compared import BothPredict, Compared, Ends, Moved, Position, Sums, loss_of, moved_weights
from tinytf.analysis.mistakes import Cause, cause_of
from tinytf.config import ModelConfig
from tinytf.dumps.dumped import Dumped, of_ids, recorded_config, recorded_encoding
from tinytf.dumps.read import Dump
from tinytf.errors import AddressError, DumpError, UsageError
from tinytf.report import About, Report, plain
from tinytf.steps.operations.mask import Sight
from tinytf.steps.table import Place, Step, StepTable, table_of
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.tolerance import RUN, allowed
from tinytf.trace.address import parse_address
from tinytf.trace.trace import Text, Trace

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
class Setting:
    """A field of the two configurations that is not the same."""

    name: str
    first: Any
    second: Any


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


@dataclass(frozen=True)
class Difference(Report):
    """All that is different in two runs, in the order of the forward pass.

    ``steps`` are compared, ``incomparable`` are not; ``predictions`` belong to the ends of the two texts, or to the
    masks of an encoder. ``losses`` (nats a token) and ``moved`` are of two models. ``tolerance`` is relative, in units
    of the largest number of a token. ``sides`` are the two runs; ``fail_over`` is the
    relative difference that is too large. ``missing`` are the steps that a dump does not have,
    ``cause`` is why it differs first where it does; ``settings`` are those of the two configurations that differ.
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
    predictions: tuple[BothPredict, ...]
    losses: tuple[float, float] | None
    moved: tuple[Moved, ...]
    sides: tuple[About | Dumped, ...] = field(default=(), repr=False, compare=False)
    fail_over: float | None = None
    missing: tuple[str, ...] = ()
    cause: Cause | None = None
    settings: tuple[Setting, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether steps were compared, and none differs by more than ``fail_over`` where that is not None."""
        limit, worst = self.fail_over, self.worst
        return worst is not None and (limit is None or worst.relative <= limit)

    def telling(self, count: int | None) -> list[int]:
        """Which of ``positions`` differ most (all for None), in their order."""
        order = sorted(range(len(self.positions)), key=lambda place: -self.positions[place].kl)
        return sorted(order[:count])

    def fields(self) -> dict[str, Any]:
        first, worst = self.first, self.worst
        shown = self.sides[0].model.shown if self.sides and isinstance(self.sides[0], About) else self.shown
        return {
            **{name: side.to_dict() for name, side in zip(("first", "second"), self.sides, strict=False)},
            "aligned": {name: plain(getattr(self.alignment, name)) for name in ("positions", "changed", "note")},
            **self.members("settings", "tolerance", "equal"),
            "first_difference": first and first.name,
            "largest_difference": worst and worst.name,
            **self.members("cause"),
            **self.members("steps", "incomparable", "missing", "attention"),
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
            **self.members("losses"),
            "weights": plain(self.moved),
            "check": self.members("fail_over", "holds"),
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


def diff(
    model: TextModel,
    text: Text | None,
    other: Text | TextModel | tuple[TextModel, Text] | Dump,
    *,
    names: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    head: str | None = None,
    top: int = 5,
    fail_over: float | None = None,
    truncate: bool = False,
    force: bool = False,
) -> Difference:
    """What is different, step by step, on another text, on another model (or dtype) with this text, or on both.

    Texts may be traces. A dump of another program is compared with the model on its text, or on its ids where ``text``
    is None; ``names`` says what names there mean, ``{n}`` standing for the layer: {"enc.{n}.query": "L{n}.q"}.
    ``head``, as ``L3H5``, is the one whose weights are kept; without it the head whose weights are
    furthest apart. ``tolerance`` is in units of a token's largest magnitude; without it that of the coarser dtype.
    Raises UsageError for runs that cannot be aligned (``align``) or recorded (``walk``), AddressError for a head that
    one of the models lacks, DumpError for a dump that is of something else.
    """
    settings = _Settings(tolerance, head, top, fail_over, force)
    if isinstance(other, Dump):
        encoding = text.encoding if isinstance(text, Trace) else _of_dump(model, text, other, truncate)
        dumped = Dumped.of(other, model.config, model.tokenizer, encoding, names, model.table)
        first = Side.of(model, text if isinstance(text, Trace) and not dumped.note else dumped.encoding, truncate)
        return _difference((first, dumped), (About(model, first.encoding), dumped), settings)
    assert text is not None, "only a dump has a text of its own"
    if isinstance(other, str | Trace):
        other = model, other
    elif not isinstance(other, tuple):
        other = other, text if isinstance(text, str) else text.encoding.text
    first, second = Side.of(model, text, truncate), Side.of(*other, truncate)
    return _difference((first, second), (About(model, first.encoding), About(other[0], second.encoding)), settings)


def diff_dumps(
    first: Dump,
    second: Dump,
    model: TextModel | None = None,
    *,
    names: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    head: str | None = None,
    top: int = 5,
    fail_over: float | None = None,
) -> Difference:
    """What is different in two files of activations, as ``diff``, without running a model.

    One of them says which model it is of, as what tinytf writes does, or ``model`` is that. Raises DumpError where
    neither is so, or where no text is told.
    """
    configs = [None if model is None else model.config for _ in range(2)]
    if model is None:
        configs = [recorded_config(dump) for dump in (first, second)]
    texts = [recorded_encoding(dump, None if model is None else model.tokenizer) for dump in (first, second)]
    config, text = configs[0] or configs[1], texts[0] or texts[1]
    if config is None:
        raise DumpError(f"neither {first.name} nor {second.name} says which model it is of", "--model names one")
    if text is None:
        raise DumpError(f"neither {first.name} nor {second.name} says which tokens it is of", "write them as input_ids")
    table, tokenizer = (None, None) if model is None else (model.table, model.tokenizer)
    one, other = (
        Dumped.of(dump, own or config, tokenizer, tokens or text, names, table)
        for dump, own, tokens in zip((first, second), configs, texts, strict=True)
    )
    return _difference((one, other), (one, other), _Settings(tolerance, head, top, fail_over, False))


@dataclass(frozen=True)
class _Settings:
    """What a comparison was asked for."""

    tolerance: float | None
    head: str | None
    top: int
    fail_over: float | None
    force: bool


@torch.no_grad()
def _difference(
    sides: tuple[AnySide, AnySide], about: tuple[About | Dumped, About | Dumped], asked: _Settings
) -> Difference:
    first, second = sides
    wanted = None if asked.head is None else parse_head(asked.head, table_of(first.config))
    alignment = align(first, second)
    for config in (first.config, second.config):
        if wanted is not None and (wanted[0] >= config.n_layers or wanted[1] >= config.n_heads):
            sizes = f"{config.n_layers} layers × {config.n_heads} heads"
            raise AddressError(f"there is no head L{wanted[0]}H{wanted[1]}: one of the models has {sizes}")
    tolerance = max(allowed(RUN, side.dtype) for side in sides) if asked.tolerance is None else asked.tolerance
    run = _Run(first, second, alignment, wanted, tolerance)
    run.go(asked.force)
    models = [side.model for side in sides if isinstance(side, Side)]
    two = len(models) == 2 and models[0] is not models[1]
    return Difference(
        alignment,
        tolerance,
        tuple(run.steps),
        tuple(run.incomparable),
        run.attention(),
        run.positions,
        () if run.ends is None else tuple(run.ends.predictions(asked.top)),
        run.losses() if (two or len(models) < 2) and not alignment.note else None,
        moved_weights(*models) if two else (),
        about,
        asked.fail_over,
        tuple(run.missing),
        run.cause,
        _settings(*(_said(side) for side in sides)),
    )


def _said(side: AnySide) -> ModelConfig | None:
    """The configuration of a side, of a dump as it says itself."""
    return recorded_config(side.dump) if isinstance(side, Dumped) else side.config


def _settings(first: ModelConfig | None, second: ModelConfig | None) -> tuple[Setting, ...]:
    if first is None or second is None:
        return ()
    ends = ((one.name, getattr(first, one.name), getattr(second, one.name)) for one in fields(first))
    return tuple(Setting(*one) for one in ends if one[1] != one[2] and one[0] != "dropout")


def _of_dump(model: TextModel, text: str | None, dump: Dump, truncate: bool) -> Encoding:
    """The tokens that a dump is of: those of ``text``, which its ids have to be, or its own."""
    ids, said = dump.ids, dump.text if text is None else text
    if said is None and ids is None:
        raise UsageError(
            f"{dump.name} does not say which text it is of", "give TEXT, or write the token ids into it, as input_ids"
        )
    if ids is not None and (beyond := [i for i in ids if i >= model.config.vocab_size]):
        raise DumpError(f"{dump.path}: there is no token {beyond[0]:,}, {model.name} has {model.config.vocab_size:,}")
    found = None if said is None else model.encode(said, truncate=truncate)
    if ids is None or (found is not None and found.ids == ids):
        assert found is not None
        return found
    if text is not None and found is not None:
        place = next(
            (i for i, (a, b) in enumerate(zip(found.ids, ids, strict=False)) if a != b), min(len(found.ids), len(ids))
        )
        a, b = (model.tokenizer.shown(some[place]) if place < len(some) else "the end" for some in (found.ids, ids))
        raise UsageError(
            f"{dump.name} is of another text, or of another tokenizer: at token {place} it has {b}, and TEXT has {a} "
            f"({len(ids):,} and {len(found.ids):,} tokens in all)",
            "leave TEXT out, and the model is run on the ids of the dump",
        )
    return of_ids(ids, model.tokenizer.shown, said or "")


def parse_head(text: str, table: StepTable) -> tuple[int, int]:
    """The layer and head that an address such as ``L3H5`` names; AddressError for anything else."""
    where = parse_address(text, table)
    if where.cell or where.layers is None or where.heads is None or len(where.layers) * len(where.heads) != 1:
        raise AddressError(f"{text!r} is not one head", "a head is L3H5")
    if where.step is not None and where.step.name != table.weights:
        raise AddressError(f"{text!r} is a step, and the maps are of weights", "a head is L3H5")
    return where.layers[0], where.heads[0]


class _Run:
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
        heads = [config.head != "none" for config in configs]
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
                if self.cause is None and found.relative > self.tolerance:
                    self.cause = self._cause(both, (step.name, layer), b if heads is None else None)

    def _cause(self, both: Both, place: Place, theirs: Tensor | None) -> Cause | None:
        """Why the first step that differs does, where it is that of a dump and of a model."""
        trace, dumped = both
        if isinstance(trace, Dumped) or not isinstance(dumped, Dumped) or theirs is None:
            return None
        if self.alignment.positions < len(trace.tokens):
            return None
        unseen: dict[Place, None] = {}
        waiting = [place]
        while waiting:
            one = waiting.pop()
            for source in trace.steps.sources(trace.steps.at(*one), one[1]):
                if not dumped.has(*source) and source not in unseen:
                    unseen[source] = None
                    waiting.append(source)
        unseen = {one: None for one in unseen if not trace.steps.at(*one).from_stream}  # what the block before gave
        order = [(step.name, layer) for step, layer in trace.steps.rows]
        return cause_of(trace, place, theirs, sorted(unseen, key=order.index), self.tolerance)

    def _parts(self, step: Step, both: Both, layer: int | None) -> Iterator[_Pair]:
        """A step of both runs at once; of maps (H, Q, K) a few heads at a time."""
        n_heads = both[0].config.n_heads
        parts: list[tuple[int, ...] | None] = [None]
        stored = next((part for part in both if isinstance(part, Dumped)), None)
        if stored is not None:
            parts = stored.heads_of(step, layer)
        elif step.is_map and both[1].config.n_heads == n_heads:
            count = max(1, _CHUNK_BYTES // (8 * max(len(part.tokens) for part in both) ** 2))
            parts = [tuple(range(start, min(n_heads, start + count))) for start in range(0, n_heads, count)]
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
            if side.config.head != "lm" or len(side.rows()) < len(side.encoding.tokens):
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
