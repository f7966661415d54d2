"""Two runs side by side: two texts on one model, or one text on two models or in two dtypes.

Both advance together, layer by layer; only the steps of one layer of each are in memory.
Shapes: T tokens, H heads, Q queries, K keys, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from tinytf.compare.alignment import Alignment, AnySide, Side, align
from tinytf.compare.causes import Cause, Evidence, Tried
from tinytf.compare.dumps.beside import BesideSteps, beside_steps
from tinytf.compare.dumps.context import Passage, cut, row_of, texts_of
from tinytf.compare.dumps.dumped import DumpSide, of_ids, recorded_config, recorded_encoding
from tinytf.compare.dumps.fit import distance
from tinytf.compare.dumps.passes import starts_of
from tinytf.compare.dumps.read import Dump
from tinytf.compare.floor import DTYPES, Floor, Numbers, floor_of, require_floor
from tinytf.compare.gauges import Gauge, undo_gauges
from tinytf.compare.measures import BothPredict, Moved, NotFinite, Position, StepComparison, moved_weights
from tinytf.compare.merges import MergeCompared, compare_merge
from tinytf.compare.mistakes.wrong_trace import WrongTrace
from tinytf.compare.positions import at_positions
from tinytf.compare.walk import Attention, Incomparable, Rescaled, Walk
from tinytf.compare.weights import WeightsCompared, compare_weights
from tinytf.config import ENC, FIELDS, ModelConfig
from tinytf.errors import AddressError, DumpError, MemoryShortage, TinytfError, UsageError
from tinytf.report import About, Report, plain, text_data
from tinytf.sentences import first_of, percent, plural
from tinytf.steps.operations import Rotate
from tinytf.steps.table import StepTable, table_of
from tinytf.tables import Array
from tinytf.text.chat import Conversation, Written
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.tolerance import RUN, allowed
from tinytf.trace.address import parse_address
from tinytf.trace.faults import overflow_at
from tinytf.trace.record import record
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class Setting:
    """A field in which the two configurations differ."""

    name: str
    first: Any
    second: Any


@dataclass(frozen=True)
class Difference(Report):
    """Every difference between two runs, in the order of the forward pass.

    ``steps`` are compared, ``incomparable`` are not; ``predictions`` belong to the ends of the two texts, or to the
    masks of an encoder. ``losses`` (nats a token) and ``moved`` exist for two models. ``tolerance`` is relative, in
    units of the largest number of a token. ``sides`` are the two runs; ``fail_over`` is the largest relative difference
    that passes. ``missing`` are the steps that a dump does not have. ``causes`` explain the first difference of a dump,
    then what else is wrong. There are none where an earlier step of the dump, ``rescaled``, was multiplied to fit, and
    where each step ``follows`` from the dump's numbers before it, so that only rounding adds up. ``settings`` are the
    fields in which the two configurations differ; ``floor`` compares the errors with the model's own. ``tried`` is the
    record of the search for causes, empty where none ran. ``gauges`` are undone in the numbers of a dump: it is written
    differently, and predicts the same. ``parameters`` says of two models how B's are made of A's; ``merge``, whether
    B is the adapter of A, merged. ``beside`` are tensors of a dump that are no steps, such as a mask or a loss, each
    compared with the run's own. ``sources`` are what the encoders of the two runs read, in models of two stacks.
    """

    KIND = "diff"
    REPR_FIRST = ("equal", "first", "worst")
    EVENTS: ClassVar = {
        "steps": "step",
        "incomparable": "incomparable",
        "positions": "position",
        "predictions": "prediction",
        "weights": "weights",
        "attention": "attention",
        "check": "check",
    }
    ALWAYS_SAID = True

    alignment: Alignment
    tolerance: float
    steps: tuple[StepComparison, ...]
    incomparable: tuple[Incomparable, ...]
    attention: Attention | None
    positions: tuple[Position, ...]
    predictions: tuple[BothPredict, ...]
    losses: tuple[float, float] | None
    moved: tuple[Moved, ...]
    sides: tuple[About | DumpSide, ...] = field(default=(), repr=False, compare=False)
    fail_over: float | None = None
    missing: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    follows: bool = False
    rescaled: Rescaled | None = None
    settings: tuple[Setting, ...] = ()
    floor: Floor | None = None
    tried: tuple[Tried, ...] = ()
    gauges: tuple[Gauge, ...] = ()
    parameters: WeightsCompared | None = None
    passage: Passage | None = None
    passages: int = 0
    leak: str = ""
    merge: MergeCompared | None = None
    beside: tuple[BesideSteps, ...] = ()
    sources: tuple[Encoding, ...] = field(default=(), repr=False)

    @property
    def holds(self) -> bool:
        """Whether steps were compared, none differs by more than ``fail_over``, and none by more than the ``floor``.

        A run that is not finite where the other is fails without either.
        """
        is_rounding = self.floor is None or self.floor.bug is None
        asked = self.fail_over is not None or self.floor is not None
        if self.worst is None or (asked and self.not_finite is not None):
            return False
        bad = (step.not_finite for step in self.steps if step.not_finite is not None)
        return not self.failing and is_rounding and all(one.sides == "both" or one.unseen for one in bad)

    @property
    def failing(self) -> tuple[StepComparison, ...]:
        """The steps that differ by more than ``fail_over``, apart from those that only follow from others."""
        limit, worst = self.fail_over, self.worst
        if limit is None or worst is None:
            return ()
        judged = (step for step in self.steps if step.follows == worst.follows)
        return tuple(step for step in judged if not step.relative <= limit)  # also a NaN

    def before(self, found: "Difference") -> "Difference":
        """This, of the stack that ``found`` reads, and ``found``; the cause is that of the first difference."""
        begins = self.first is not None and not self.follows
        told: dict[str, Any] = {
            "causes": tuple(one.of_stack(ENC) for one in self.causes),
            "tried": tuple(replace(one, step=ENC + one.step) for one in self.tried),
            "rescaled": self.rescaled and replace(self.rescaled, step=ENC + self.rescaled.step),
            "follows": self.follows,
        }
        return replace(
            found,
            steps=(*(replace(one, name=ENC + one.name, stack=ENC) for one in self.steps), *found.steps),
            incomparable=(*(replace(one, name=ENC + one.name) for one in self.incomparable), *found.incomparable),
            missing=(*(ENC + name for name in self.missing), *found.missing),
            gauges=(*self.gauges, *found.gauges),
            **(told if begins else {}),
        )

    def in_a_sentence(self) -> str:
        """What ``_of_one_text`` says, and of which text of a dump that has several."""
        words = self._of_one_text()
        if self.merge is not None:
            return f"{self.merge.in_words()} {words}".strip()
        wrong = [one for one in self.beside if not one.agrees]
        if wrong and words:
            first = next((one for one in wrong if one.kind == "loss"), wrong[0]).in_words
            beside = f"{first[0].upper()}{first[1:]}."
            words = words.replace("No number differs.", "Every step is the same.")
            words = f"{beside} {words}" if self.first is None or self.follows else f"{words} {beside}"
        if self.passage is None or not words:
            return words
        if (self.first is None or self.follows) and self.passages > 1:
            return f"Each of {self.passages} texts, compared alone: {words}"
        where = self.passage.in_words
        told = f"{self.leak}; they differ from {self.first.name} on." if self.leak and self.first is not None else words
        return f"{where[0].upper()}{where[1:]}: {told}"

    def _of_one_text(self) -> str:
        """From which step on they differ, why if that is known, and what is most probable next in either."""
        first, worst, failing = self.first, self.worst, self.failing
        if worst is None or not self.sides:
            return ""
        if self.not_finite is not None:
            return self._in_words_of(self.not_finite)
        if self.equal:
            return "No number differs."
        cause = self.cause if self.cause is not None and self.cause.found else None
        made = self.parameters.in_words() if self.parameters is not None and self.parameters.faults else ""
        why = f": {cause.in_words if cause is not None else made}" if cause is not None or made else ""
        if self.floor is not None and (bug := self.floor.bug) is not None:
            most = self.floor.most_in_words(", the first; ")
            return f"No rounding: {bug.in_words(self.floor.dtype)}{most}{why}."
        beyond = f"; {failing[0].name} is the first to differ by more than {self.fail_over:g}" if failing else ""
        if self.floor is not None:
            words = self.floor.in_words()
            return f"{words[0].upper()}{words[1:]}{beyond}{self._next()}."
        if self.rewritten:
            same = "predictions" if self.positions else "numbers"
            return f"The same {same}; written differently: {self.rewritten}{beyond}{self._next()}."
        if first is None:
            furthest = f"{worst.name} differs most, by {worst.relative:.0e} of a token's largest number"
            within = f"No step differs by more than rounding, {self.tolerance:.0e}"
            agree = within if failing else f"All {len(self.steps):,} steps agree"
            return f"{agree}{beyond}; {furthest}." if worst.relative else "No number differs."
        if cause is not None and cause.first != first.name:
            grown = f"; what differs from {first.name} on is rounding until there"
            return f"{cause.first} is wrong: {cause.in_words}{grown}{self._next()}."
        if self.follows:
            rounding = f"rounding adds up, to {worst.relative:.0e} of a token's largest number at {worst.name}"
            return f"No step is wrong by itself: {rounding}{beyond}{self._next()}."
        number = self.pass_of(first)
        where = "" if number is None else f" of token {first.begins}, in pass {number + 1} of {len(self.passes)},"
        return f"They differ from {first.name}{where} on{why}{self._next()}."

    @property
    def rewritten(self) -> str:
        """How B writes what A computes, where steps differ and no prediction does; else empty.

        Predictions are the logits of all tokens, of a model without a vocabulary its last step. They agree within the
        tolerance, and at least a hundred times better than the step that differs most: a fault that hardly reaches
        them is none of these.
        """
        made = self.parameters
        if self.gauges and self.first is None:
            return ", ".join(gauge.words for gauge in self.gauges)
        predicted = [step for step in self.steps if step.step.is_vocabulary] or [
            step for step in self.steps[-1:] if step.name == self._last_step()
        ]
        differing = [step for step in self.steps if step.differs(self.tolerance)]
        if self.alignment.positions < _FEWEST or not differing or not predicted or self.not_finite is not None:
            return ""
        agree = max(step.relative for step in predicted)
        if agree > self.tolerance or agree * _APART > max(step.relative for step in differing):
            return ""
        if made is not None and made.faults:
            return made.in_words()
        names = list(dict.fromkeys((differing[0].name, differing[-1].name)))
        found = [one for one in self.causes if one.found]
        why = ", ".join(f"{one.step}: {one.in_words}" for one in found)
        return why or f"{plural(len(differing), 'step')}, {' … '.join(names)}"

    def _last_step(self) -> str:
        """The last step of the model before its vocabulary, if it has one."""
        side = self.sides[0]
        known = side.model if isinstance(side, About) else side
        return table_of(known.config).final if isinstance(known, TextModel | DumpSide) else ""

    @property
    def not_finite(self) -> NotFinite | None:
        """The first step that is not finite on a side; None where all are."""
        return next((step.not_finite for step in self.steps if step.not_finite is not None), None)

    def _in_words_of(self, bad: NotFinite) -> str:
        tokens = self.sides[0].text.tokens if self.sides[0].text is not None else ()
        token = (
            "" if bad.token is None or bad.token >= len(tokens) else f", at token {bad.token} {tokens[bad.token].shown}"
        )
        first = self.first
        cause = self.cause if self.cause is not None and self.cause.found else None
        why, before = bad.why, ""
        made = self.parameters.faults if self.parameters is not None else ()
        broken = next((one.sentence for one in made if one.words.startswith("not finite")), "")
        if cause is not None and cause.first == bad.name and not bad.unseen:
            why = cause.in_words
        elif broken:
            why = broken
        elif first is not None and first.name != bad.name:
            before = f"; they differ from {first.name} on{f': {cause.in_words}' if cause is not None else ''}"
        return f"{bad.who()} not finite from {bad.name} on{token}: {why}{before}."

    def _next(self) -> str:
        """What is most probable next in either; empty where nothing is predicted."""
        at = self.predictions[-1].position if self.predictions else None
        found = next((position for position in self.positions if position.index == at), None)
        if found is None:
            return ""
        (one, p), (other, q) = found.first, found.second
        if one == other:
            shares = percent(p) if percent(p) == percent(q) else f"A {percent(p)}, B {percent(q)}"
            return f"; both expect {self._named(one)} next ({shares})"
        return f"; A expects {self._named(one)} next ({percent(p)}), B {self._named(other)} ({percent(q)})"

    def _named(self, outcome: int) -> str:
        side = self.sides[0]
        return side.model.shown(outcome) if isinstance(side, About) else f"#{outcome}"

    def telling(self, count: int | None) -> list[int]:
        """The indices of the ``count`` positions that differ most (None: all), in order."""
        order = sorted(range(len(self.positions)), key=lambda index: -self.positions[index].kl)
        return sorted(order[:count])

    def fields(self) -> dict[str, Any]:
        first, worst = self.first, self.worst
        shown = self.sides[0].model.shown if self.sides and isinstance(self.sides[0], About) else self.shown
        return {
            **{name: side.to_dict() for name, side in zip(("first", "second"), self.sides, strict=False)},
            "sources": [text_data(source) for source in self.sources],
            "aligned": {name: plain(getattr(self.alignment, name)) for name in ("positions", "changed", "note")},
            **self.members("settings", "tolerance", "equal"),
            "first_difference": first and first.name,
            "passes": list(self.passes),
            "largest_difference": worst and worst.name,
            "not_finite": plain(self.not_finite),
            **({} if self.passage is None else {"passage": plain(self.passage), "leak": self.leak}),
            **self.members("cause", "causes", "tried", "follows", "rescaled", "floor", "gauges", "parameters"),
            **({} if self.merge is None else self.members("merge")),
            "beside": plain(self.beside),
            **self.members("steps", "incomparable", "missing", "attention"),
            "positions": [
                {"index": p.index, "kl": p.kl, "first": _top(p.first), "second": _top(p.second)} for p in self.positions
            ],
            "predictions": [
                {
                    "position": p.position,
                    "other_position": p.other_position,
                    "kl": p.kl,
                    "top": [
                        {"id": i, "token": shown(i), "first": a, "second": b}
                        for i, a, b in zip(p.ids, p.first, p.second, strict=True)
                    ],
                }
                for p in self.predictions
            ],
            **self.members("losses"),
            "weights": plain(self.moved),
            "check": self.members("fail_over", "holds"),
        }

    def stored(self) -> list[Array]:
        """The weights of the shown head in both runs."""
        attention, axes = self.attention, ["query", "key"]
        if attention is None:
            return []
        name = f"L{attention.layer}H{attention.head}.weights"
        return [Array.of(f"first/{name}", axes, attention.first), Array.of(f"second/{name}", axes, attention.second)]

    @property
    def cause(self) -> Cause | None:
        """Why the first step of a dump that differs does."""
        return self.causes[0] if self.causes else None

    @property
    def first(self) -> StepComparison | None:
        """The first step that differs beyond the tolerance; of a generation, the first of the first token that does."""
        differing = [step for step in self.steps if step.differs(self.tolerance)]
        return (
            min(differing, key=lambda step: step.begins or 0, default=None)
            if self.passes
            else next(iter(differing), None)
        )

    @property
    def passes(self) -> tuple[int, ...]:
        """The position of the first token of each pass of a generation; empty for a text that was read at once."""
        dumps = (side.dump for side in self.sides if isinstance(side, DumpSide))
        return next((tuple(starts_of(dump.passes)) for dump in dumps if dump.passes), ())

    def pass_of(self, step: StepComparison) -> int | None:
        """The number of the pass in which a step begins to differ; None without passes."""
        starts = [start for start in self.passes if start <= (step.begins or 0)]
        return len(starts) - 1 if starts else None

    @property
    def worst(self) -> StepComparison | None:
        """The step whose relative difference is the largest, apart from one that only follows from others."""
        return max(self.steps, key=lambda step: (not step.follows, step.relative), default=None)

    @property
    def equal(self) -> bool:
        """Whether all steps and positions were compared, and every number is the same; also beside the steps."""
        same = all(not step.largest for step in self.steps) and all(one.agrees for one in self.beside)
        return not self.alignment.note and not self.incomparable and same


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
    floor: str | None = None,
    truncate: bool = False,
    force: bool = False,
) -> Difference:
    """Compare, step by step, with another text, with another model (or dtype) on this text, or with both.

    Texts may be traces. A dump of another program is compared with the model on its text, or on its ids where ``text``
    is None; ``names`` maps the dump's names to addresses, with ``{n}`` for the layer: {"enc.{n}.query": "L{n}.q"}.
    ``head``, such as ``L3H5``, is the head whose weights are kept; by default the head whose weights are furthest
    apart. ``tolerance`` is in units of a token's largest magnitude; by default the tolerance of the coarser dtype.
    With a ``floor``, a dtype as in ``floor_of``, the errors are compared with the model's own in it.
    Raises UsageError for runs that cannot be aligned (``align``) or recorded (``walk``), AddressError for a head that
    one of the models lacks, DumpError for a dump that does not belong to the text or the model.
    """
    settings = _Settings(tolerance, head, top, fail_over, force, floor)
    if floor is not None:
        require_floor(floor)
    if isinstance(other, Dump) and (parts := list(texts_of(other))):
        parts = parts if text is None else _parts_with(model, text, other, parts, truncate)
        if parts:
            return _of_passages(model, other, parts, names, settings, truncate)
    if isinstance(other, Dump):
        encoding = text.encoding if isinstance(text, Trace) else of_dump(model, text, other, truncate)
        dumped = DumpSide.of(other, model.config, model.tokenizer, encoding, names, model.table)
        first = Side.of(model, text if isinstance(text, Trace) and not dumped.note else dumped.encoding, truncate)
        return _compared(first, dumped, (model,), settings)
    assert text is not None, "only a dump has a text of its own"
    if isinstance(other, Written | Trace):
        other = model, other
    elif not isinstance(other, tuple):
        other = other, text.encoding.text if isinstance(text, Trace) else text
    first, second = Side.of(model, text, truncate), Side.of(*other, truncate)
    found = _compared(first, second, (model, other[0]), settings)
    if model.merged is None or other[0] is model or other[0].merged is not None:
        return found
    return replace(found, merge=compare_merge(model.transformer, model.merged, other[0].transformer))


def _compared(first: Side, second: AnySide, models: Sequence[TextModel], settings: "_Settings") -> Difference:
    """The difference of two sides, of which these are models; the steps of encoders that read texts come first."""
    read = [(model.encoder, source.trace) for model in models if (source := model.transformer.reads) and source.trace]
    encoders: list[AnySide] = [Side.of(*each, False) for each in read]

    def about(second: AnySide) -> tuple[About | DumpSide, About | DumpSide]:
        other = second if isinstance(second, DumpSide) else About(models[1], second.encoding)
        return About(models[0], first.encoding), other

    try:
        if read and isinstance(second, DumpSide):
            encoder, trace = read[0]
            if (parts := second.with_encoder(encoder.config, encoder.tokenizer, trace.encoding)) is not None:
                encoders, second = [*encoders, parts[0]], parts[1]
        if len(encoders) < 2:
            return _difference((first, second), about(second), settings)
        before = _difference((encoders[0], encoders[1]), about(second), replace(settings, head=None, floor=None))
    except (UsageError, DumpError) as error:  # another source: a text of another length
        found = _difference((first, second), about(second), settings)
        return replace(found, incomparable=(Incomparable(ENC.rstrip("."), error.message), *found.incomparable))
    differs = before.first is not None and not before.follows
    return before.before(_difference((first, second), about(second), replace(settings, causes=not differs)))


def _parts_with(
    model: TextModel, text: Text, dump: Dump, parts: list[tuple[Passage, Dump]], truncate: bool
) -> list[tuple[Passage, Dump]]:
    """The texts of a dump that are ``text``; none where the dump is one row, which may be it as a whole.

    Raises UsageError where no row of a batch is.
    """
    ids = (text.encoding if isinstance(text, Trace) else model.encode(text, truncate=truncate)).ids
    matches = [(passage, part) for passage, part in parts if part.ids == ids]
    if not matches and not model.config.looks_ahead:  # a row that ends with padding, which no mask hides
        for passage, _ in parts:
            row = cut(dump, passage).ids or []
            if row[: len(ids)] == ids and len({*row[len(ids) :]}) == 1:
                short = replace(passage, end=passage.start + len(ids))
                matches.append((short, cut(dump, short)))
    if matches or parts[0][0].rows == 1:
        return matches
    rows = [f"{passage.in_words} ({_beginning(model, part.ids or [])})" for passage, part in parts]
    raise UsageError(
        f"{dump.name} has {len(parts):,} texts, and none is TEXT: {first_of(rows, 4)}",
        "leave TEXT out to compare each of them",
    )


def _beginning(model: TextModel, ids: list[int]) -> str:
    """The first tokens of a text."""
    return " ".join(map(model.tokenizer.shown, ids[:_SHOWN])) + " …" * (len(ids) > _SHOWN)


_FEWEST, _APART = 3, 100
"""The tokens that predictions need to tell a rewriting, and how many times better than a step these agree."""

_SHOWN = 6
"""The tokens that are named of a text of a dump that is another."""


def _of_passages(
    model: TextModel,
    dump: Dump,
    parts: list[tuple[Passage, Dump]],
    names: Mapping[str, str] | None,
    settings: "_Settings",
    truncate: bool,
) -> Difference:
    """Each text of a dump beside the model on it alone: the first that differs, else the one furthest off."""
    found = list[Difference]()
    for passage, part in parts:
        dumped = DumpSide.of(
            part, model.config, model.tokenizer, of_dump(model, None, part, truncate), names, model.table
        )
        dumped = dumped if passage.position == 0 else dumped.unturned()
        first = Side.of(model, dumped.encoding, truncate)
        one = _difference((first, dumped), (About(model, first.encoding), dumped), settings)
        found.append(replace(one, passage=passage, passages=len(parts)))
        if one.not_finite is not None or (one.first is not None and not one.follows):
            leak = _leak(model, dump, passage, one, dumped)
            return replace(found[-1], leak=leak, causes=() if leak else one.causes)
    return max(found, key=lambda one: one.worst.relative if one.worst is not None else -1.0)


def _leak(model: TextModel, dump: Dump, passage: Passage, found: Difference, dumped: DumpSide) -> str:
    """Whether the first step is that of a text that reads what is before it in its row: documents, or padding."""
    if passage.start == 0 or found.first is None or found.not_finite is not None:
        return ""
    whole = cut(dump, replace(passage, start=0))
    trace: Trace = record(model.transformer, of_dump(model, None, whole, False))
    given = row_of(dump, "position_ids", passage)
    every = torch.arange(passage.end)
    usual = ((every - passage.start).clamp(min=0), every) if given is None else (given[: passage.end],)
    rows = [(step, layer) for step, layer in trace.steps.rows if isinstance(step.operation, Rotate)]
    step, layer = found.first.step, found.first.layer
    own = slice(passage.start, passage.end)
    for places in usual:
        turned = at_positions(lambda _, places=places: places)  # type: ignore[misc]
        run = WrongTrace(trace, {(step.name, layer): turned for step, layer in rows})
        numbers = run.step(step.name, layer)
        numbers = numbers[tuple(own if axis in ("token", "query", "key") else slice(None) for axis in step.axes)]
        theirs = dumped.step(step.name, layer, None, lambda *_, numbers=numbers: numbers)
        if theirs is not None and theirs.shape == numbers.shape and distance(theirs, numbers) <= found.tolerance:
            if passage.number:
                return f"document {passage.number + 1} reads those before it: there is no mask between them"
            return "the padding before it is read: its attention_mask is not used"
    return ""


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
    """Compare two files of activations as ``diff`` does, without running a model.

    The model is ``model``, or the one that a file names, as files of tinytf do. Raises DumpError if the model or the
    text is unknown.
    """
    configs = [None if model is None else model.config for _ in range(2)]
    if model is None:
        configs = [recorded_config(dump) for dump in (first, second)]
    texts = [recorded_encoding(dump, None if model is None else model.tokenizer) for dump in (first, second)]
    config, text = configs[0] or configs[1], texts[0] or texts[1]
    if config is None:
        raise DumpError(f"neither {first.name} nor {second.name} says which model it is of", "name it with --model")
    if text is None:
        raise DumpError(f"neither {first.name} nor {second.name} says which tokens it is of", "write them as input_ids")
    table, tokenizer = (None, None) if model is None else (model.table, model.tokenizer)
    first_side, second_side = (
        DumpSide.of(dump, dump_config or config, tokenizer, tokens or text, names, table)
        for dump, dump_config, tokens in zip((first, second), configs, texts, strict=True)
    )
    return _difference(
        (first_side, second_side), (first_side, second_side), _Settings(tolerance, head, top, fail_over, False)
    )


@dataclass(frozen=True)
class _Settings:
    """The options of a comparison."""

    tolerance: float | None
    head: str | None
    top: int
    fail_over: float | None
    force: bool
    floor: str | None = None
    causes: bool = True


@torch.no_grad()
def _difference(
    sides: tuple[AnySide, AnySide], about: tuple[About | DumpSide, About | DumpSide], settings: _Settings
) -> Difference:
    first, second = sides
    head_at = None if settings.head is None else parse_head(settings.head, table_of(first.config))
    alignment = align(first, second)
    for config in (first.config, second.config):
        if head_at is not None and head_at[0] < config.n_layers and head_at[0] not in table_of(config).attention_layers:
            raise AddressError(
                f"layer {head_at[0]} of one of the models has no attention weights", "name another layer"
            )
        if head_at is not None and (head_at[0] >= config.n_layers or head_at[1] >= config.n_heads):
            sizes = f"{config.n_layers} layers × {config.n_heads} heads"
            message = f"there is no head L{head_at[0]}H{head_at[1]}: one of the models has {sizes}"
            raise AddressError(message, "name a head that both have")
    dtypes = [*(side.dtype for side in sides), *([DTYPES.get(settings.floor, torch.float32)] if settings.floor else [])]
    tolerance = max(allowed(RUN, dtype) for dtype in dtypes) if settings.tolerance is None else settings.tolerance
    models = [side.model for side in sides if isinstance(side, Side)]
    two_runs = len(models) == 2 and models[0] is not models[1]
    two_models = two_runs and models[0].identity is not models[1].identity
    parameters = compare_weights(*models) if two_models else None
    walk = Walk(first, second, alignment, head_at, tolerance)
    walk.run(settings.force)
    second, gauges = _as_ours(walk, first, second, settings.force)
    if gauges:
        walk = Walk(first, second, alignment, head_at, tolerance)
        walk.run(settings.force)
        about = about[0], second if isinstance(second, DumpSide) else about[1]
    floor = _floor(walk, first, second, settings.floor)
    if settings.causes:
        walk.explain(settings.force, floor)
    return Difference(
        alignment,
        tolerance,
        _with_overflow(walk.steps, first, second),
        tuple(walk.incomparable),
        walk.attention(),
        walk.positions,
        () if walk.ends is None else tuple(walk.ends.predictions(settings.top)),
        walk.losses() if (two_runs or len(models) < 2) and not alignment.note else None,
        moved_weights(*models) if two_models else (),
        about,
        settings.fail_over,
        tuple(walk.missing),
        walk.causes,
        walk.follows,
        walk.rescaled,
        _settings(*(_config_of(side) for side in sides)),
        floor,
        walk.searches(),
        gauges,
        parameters,
        beside=_beside(walk, first, second),
        sources=tuple(model.reads.trace.encoding for model in models if model.reads and model.reads.trace),
    )


def _with_overflow(steps: Sequence[StepComparison], *sides: AnySide) -> tuple[StepComparison, ...]:
    """The steps; of the first that is not finite, also how far a side in float16 is beyond its largest number."""
    found = list(steps)
    at = next((number for number, step in enumerate(found) if step.not_finite is not None), None)
    if at is not None and (bad := found[at].not_finite) is not None and not bad.unseen:
        models = [side for letter, side in zip("AB", sides, strict=True) if letter == bad.sides or bad.sides == "both"]
        traces = (side.trace or record(side.model, side.encoding) for side in models if isinstance(side, Side))
        overflow = next(filter(None, (overflow_at(trace, bad.name) for trace in traces)), "")
        found[at] = replace(found[at], not_finite=replace(bad, overflow=overflow))
    return tuple(found)


def _beside(walk: Walk, first: AnySide, second: AnySide) -> tuple[BesideSteps, ...]:
    """What a dump of one pass has beside the steps, where the model is there to compare it with."""
    if not isinstance(first, Side) or not isinstance(second, DumpSide) or walk.alignment.note:
        return ()
    if second.dump.passes or second.dump.shards:
        return ()
    found = beside_steps(
        second.dump, second.named.beside, first.config, first.encoding.ids, walk.logits, walk.tolerance
    )
    same = walk.differing is None and any(step.step.is_vocabulary for step in walk.steps)
    return tuple(one.without_effect() if same and one.is_read else one for one in found)


def _as_ours(walk: Walk, first: AnySide, second: AnySide, force: bool) -> tuple[AnySide, tuple[Gauge, ...]]:
    """A dump with the gauges undone in which it is written, and these; nothing where none differs."""
    if walk.differing is None or not isinstance(first, Side) or not isinstance(second, DumpSide):
        return second, ()
    if second.dump.passes or second.dump.shards or walk.alignment.note:
        return second, ()
    with suppress(MemoryShortage):
        return undo_gauges(
            first.trace or record(first.model, first.encoding, force=force), second, walk.places(), walk.tolerance
        )
    return second, ()


def _floor(walk: Walk, first: AnySide, second: AnySide, word: str | None) -> Floor | None:
    """The errors of the second side, beside the first model's own. Raises UsageError where the first has no model."""
    if word is None:
        return None
    if not isinstance(first, Side) or walk.alignment.changed or walk.alignment.note:
        raise UsageError("a floor is the model's own error on the whole text of both", "compare two runs of one text")
    if any(step.not_finite is not None and step.not_finite.sides != "B" for step in walk.steps):
        return Floor(word, ())  # what the model itself rounds to cannot be said
    if isinstance(second, DumpSide):
        theirs: Numbers = Evidence(second, walk.tolerance, ()).theirs
    else:
        trace = second.trace or record(second.model, second.encoding)
        theirs = lambda place, _: trace.step(*place)  # noqa: E731
    return floor_of(first.model, first.encoding, walk.places(), theirs, word)


def _config_of(side: AnySide) -> ModelConfig | None:
    """The side's configuration; for a dump, the one it declares."""
    return recorded_config(side.dump) if isinstance(side, DumpSide) else side.config


def _settings(first: ModelConfig | None, second: ModelConfig | None) -> tuple[Setting, ...]:
    if first is None or second is None:
        return ()
    both = [(at, stack, second.stacks[at]) for at, stack in first.stacks.items() if at in second.stacks]
    settings = ((at + name, *(of.setting(name) for of in stacks)) for at, *stacks in both for name in FIELDS)
    return tuple(Setting(*setting) for setting in settings if setting[1] != setting[2] and setting[0] != "dropout")


def of_dump(model: TextModel, text: Written | None, dump: Dump, truncate: bool) -> Encoding:
    """The tokens of a dump: those of ``text``, which must have the dump's ids, or the dump's own."""
    ids, written = dump.ids, dump.text if text is None else text
    if written is None and ids is None:
        raise UsageError(
            f"{dump.name} does not say which text it is of", "give TEXT, or write the token ids into it, as input_ids"
        )
    if ids is not None and (unknown := [i for i in ids if i >= model.config.vocab_size]):
        message = f"{dump.path}: there is no token {unknown[0]:,}, {model.name} has {model.config.vocab_size:,}"
        raise DumpError(message, "name the dump's model with --model")
    if ids is not None and len(ids) > model.config.context:
        message = f"{dump.path} is of {len(ids):,} tokens, and {model.name} takes at most {model.config.context:,}"
        raise DumpError(message, "write a shorter text, and its tensors")
    encoding = None if written is None else model.encode(written, truncate=truncate)
    if ids is None or (encoding is not None and encoding.ids == ids):
        assert encoding is not None
        return encoding
    if text is not None and encoding is not None:
        split_at = next(
            (i for i, (a, b) in enumerate(zip(encoding.ids, ids, strict=False)) if a != b),
            min(len(encoding.ids), len(ids)),
        )
        a, b = (
            model.tokenizer.shown(tokens[split_at]) if split_at < len(tokens) else "the end"
            for tokens in (encoding.ids, ids)
        )
        why = _why_other_ids(model, text, encoding, ids)
        raise UsageError(
            f"{dump.name} {why}"
            if why
            else f"{dump.name} is of another text, or of another tokenizer: at token {split_at} it has {b}, and TEXT "
            f"has {a} ({len(ids):,} and {len(encoding.ids):,} tokens in all)",
            "leave TEXT out to run the model on the ids of the dump",
        )
    return of_ids(ids, model.tokenizer.shown, "" if written is None or encoding is None else encoding.text)


def _why_other_ids(model: TextModel, text: Written, encoding: Encoding, ids: list[int]) -> str:
    """How the ids of a dump come from the same text: without what the tokenizer adds, or with a chat template."""
    ours, shown = encoding.ids, model.tokenizer.shown
    added = [token.id for token in encoding.tokens if token.is_added]
    if added and ids == [i for i, token in zip(ours, encoding.tokens, strict=True) if token.id not in added]:
        return f"lacks {' and '.join(map(shown, dict.fromkeys(added)))}, which this tokenizer adds to a text"
    if ids[1:] == ours and ids[0] in model.tokenizer.special_ids:
        return f"has {shown(ids[0])} before the text, which this tokenizer does not add"
    if ids[:-1] == ours and ids[-1] in model.tokenizer.special_ids:
        return f"has {shown(ids[-1])} after the text, which this tokenizer does not add"
    if isinstance(text, str):
        with suppress(TinytfError):
            if model.encode(Conversation([{"role": "user", "content": text}])).ids == ids:
                return "is of TEXT in the model's chat template: --chat writes it so"
    place = next((at for at in range(len(ids) - len(ours) + 1) if ids[at : at + len(ours)] == ours), None)
    if place is not None:
        before, after = place, len(ids) - len(ours) - place
        more = " and ".join(
            f"{count} more {side} it" for count, side in ((before, "before"), (after, "after")) if count
        )
        return f"has the tokens of TEXT, {more}, such as those of a prompt or a template"
    return ""


def parse_head(text: str, table: StepTable) -> tuple[int, int]:
    """The layer and head named by an address such as ``L3H5``. Raises AddressError for anything else."""
    address = parse_address(text, table)
    if address.cell or address.layers is None or address.heads is None or len(address.layers) * len(address.heads) != 1:
        raise AddressError(f"{text!r} is not one head", "name a head, such as L3H5")
    if address.step is not None and address.step.name != table.weights:
        raise AddressError(f"{text!r} is a step without attention weights", "name a head, such as L3H5")
    return address.layers[0], address.heads[0]
