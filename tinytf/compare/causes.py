"""Why a step of another program has other numbers: a mistake that gives them, and how much of the rest it explains.

A mistake that gives the other program's numbers is the cause, as far as these numbers can tell. The run is continued
with it: of several, the one that explains more of the steps that follow is the cause; those that explain as much are
given together. What then still differs is another mistake.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from torch import Tensor

from tinytf.compare.altered import Altering
from tinytf.compare.attempts import Attempt, Unknown, attempts, kind_of, linked_unknowns, unknowns
from tinytf.compare.attended import solved_attention
from tinytf.compare.constants import nearest
from tinytf.compare.dumps.dumped import DumpSide
from tinytf.compare.dumps.fit import distance
from tinytf.compare.later import later_attempts
from tinytf.compare.mapped import mapped
from tinytf.compare.measures import StepComparison, Sums, token_error
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.compare.mistakes.wrong_trace import WrongTrace
from tinytf.compare.readings import (
    keys_otherwise,
    read_otherwise,
    scaled_otherwise,
    streams_of_others,
    widths_otherwise,
)
from tinytf.compare.rewired import rewired
from tinytf.compare.solved import Solved, solved_weights
from tinytf.errors import ConfigError
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.sentences import first_of, listed
from tinytf.steps.operations import (
    Activate,
    Add,
    Concat,
    Difference,
    HeadNorm,
    Linear,
    Lookup,
    Mask,
    Mix,
    Norm,
    Operation,
    Positions,
    Rotate,
    Scale,
    Scores,
    Softmax,
)
from tinytf.steps.table import StepKey
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

Formulas = Mapping[StepKey, Wrong]
_Gives = Callable[[Sequence[float]], Tensor]
UNFIT = (RuntimeError, LookupError, TypeError, ValueError, AttributeError)
"""What a formula raises that does not fit the shapes or settings of a step."""
_ALONE = ", for "
_EQUAL = 1e-6
"""How far apart the numbers of one formula may be that is computed in two ways."""
_MOST = 5
"""The most faults that are looked for, one after the other."""


@dataclass(frozen=True)
class Cause(Data):
    """The mistake at ``step``, in words; ``found`` if it gives the other program's numbers.

    ``unseen`` are the steps between the last equal and the first different one that the dump lacks; the mistake may be
    in any of them. ``first`` is the step that differs. With the mistake, ``explained`` of the ``later`` steps that
    differ are the same. ``others`` are mistakes that give all these numbers too. Of a long text, it was tried on the
    first ``tokens`` (0: on all of it). It is made in these ``layers``, of ``n_layers``.
    """

    step: str
    words: str
    found: bool
    unseen: tuple[str, ...] = ()
    first: str = ""
    explained: int = 0
    later: int = 0
    others: tuple[str, ...] = ()
    tokens: int = 0
    layers: tuple[int, ...] = ()
    n_layers: int = 0

    def of_stack(self, begins: str) -> "Cause":
        """With what the addresses of its stack begin with."""
        unseen = tuple(begins + name for name in self.unseen)
        return replace(self, step=begins + self.step, first=begins + self.first, unseen=unseen)

    @property
    def in_words(self) -> str:
        """The mistake, those that cannot be told from it, and in which layers it is made, if in several."""
        words = ", or ".join((self.words, *self.others))
        if len(self.layers) < 2:
            return words
        if len(self.layers) == self.n_layers:
            return f"{words}, the same in all {self.n_layers} layers"
        return f"{words}, the same in layers {listed([str(layer) for layer in self.layers])}"


@dataclass(frozen=True)
class Tried(Data):
    """The record of a search: all ``words`` of mistakes that were tried at a ``step`` that differs."""

    step: str
    words: tuple[str, ...]

    def in_words(self) -> str:
        """How many, and of which kinds: their words without numbers and names of steps."""
        kinds = Counter(map(kind_of, self.words))
        named = [f"{kind} ({times})" if times > 1 else kind for kind, times in kinds.items()]
        return f"{len(self.words):,} tried at {self.step}: {first_of(named, 8)}"


@dataclass
class Evidence:
    """The steps that a dump has, in order, beside a run of the model: which of them are the same.

    ``tried`` is the record of the search: by step that differs, the words of all that was tried there.

    ``fixed`` are numbers that are taken as they are in the dump, although a factor would make them fit. ``allowed`` are
    the errors that count as rounding, by step, where these are known; else ``tolerance`` holds for all. A generation
    differs from the pass on that begins at the token ``start``.
    """

    dumped: DumpSide
    tolerance: float
    places: Sequence[StepKey]
    fixed: Mapping[StepKey, Tensor] = field(default_factory=dict)
    allowed: Mapping[StepKey, float] = field(default_factory=dict)
    start: int = 0
    tried: dict[str, dict[str, None]] = field(default_factory=dict)

    def theirs(self, place: StepKey, trace: Trace) -> Tensor | None:
        """The dump's numbers of a step, in the reading nearest to those of ``trace``; None if it has none."""
        if place in self.fixed:
            return self.fixed[place]
        beside = lambda step, layer, heads: trace.step(step.name, layer, heads)  # noqa: E731
        theirs = self.dumped.step(*place, None, beside)
        return None if theirs is None or theirs.shape != trace.step(*place).shape else theirs

    def differs(self, place: StepKey, trace: Trace) -> bool:
        """Whether a step differs beyond the tolerance; false where it cannot be compared."""
        with suppress(RuntimeError, IndexError):
            theirs = self.theirs(place, trace)
            if theirs is not None and place in self.allowed:
                return token_error(trace.step(*place), theirs, trace.steps.at(*place)) > self.allowed[place]
            return theirs is not None and compared_with(trace, place, theirs).differs(self.tolerance)
        return True  # the steps after a mistake may have other shapes

    def after(self, place: StepKey, order: Mapping[StepKey, int]) -> list[StepKey]:
        return [other for other in self.places if order[other] > order[place]]


def compared_with(trace: Trace, place: StepKey, theirs: Tensor) -> StepComparison:
    """A step of a run beside the numbers of another program."""
    step = trace.steps.at(*place)
    sums = Sums(step)
    sums.add(trace.step(*place), theirs, 0)
    return sums.compared(step.full_name(place[1]), place[1])


def causes_of(
    trace: Trace, evidence: Evidence, differing: StepKey, theirs: Tensor, unseen: Sequence[StepKey]
) -> list[Cause]:
    """Why ``differing`` is ``theirs``, then why another step is wrong in a run with that mistake, and so on.

    A step is wrong if it does not follow from the dump's own numbers before it: small differences grow in a model, and
    are no mistake. There are no causes where no step is wrong. The ``unseen`` steps before the first are tried first,
    in order.
    """
    found: list[Cause] = []
    order = {(step.name, layer): number for number, (step, layer) in enumerate(trace.steps.rows)}
    later_on = [place for place in evidence.after(differing, order) if evidence.differs(place, trace)]
    fault = _first_fault(trace, evidence, [differing, *later_on], order)
    if fault is None:
        return []
    if fault[0] != differing:
        unseen = unseen_before(trace, evidence, fault[0])
        differing, theirs, _ = fault
    run, (_, _, beside), wrong_at_first = trace, fault, {*later_on}
    while True:
        repeated = next((one for one in found if _is_of(one, trace, differing)), None)
        search = partial(trials_of, beside, evidence, differing, theirs, unseen, order)
        trials = [] if repeated is None else list(search(repeated.words))
        if not trials:
            repeated = None
            if len(found) == _MOST:
                break
            trials = list(search())
        if not trials:
            return [*found, _likely(trace, differing, unseen)]
        best, is_whole = _most_telling(beside, evidence, differing, trials, order)
        if not is_whole and repeated is None:
            best, _ = _most_telling(beside, evidence, differing, [*trials, *search(further=True)], order)
        formulas = dict(_furthest(run, evidence, differing, best[0], order))
        continued = WrongTrace(run, formulas)
        wrong = [place for place in evidence.after(differing, order) if evidence.differs(place, continued)]
        # what is rounded otherwise is not the same after the next rounding
        fault = None if best[0].attempt.rounding else _first_fault(continued, evidence, wrong, order)
        if fault is not None and (unmade := _not_made(continued, evidence, best[0], formulas, order)):
            formulas = {place: made for place, made in formulas.items() if place not in unmade}
            continued = WrongTrace(run, formulas)
            wrong = [place for place in evidence.after(differing, order) if evidence.differs(place, continued)]
            fault = _first_fault(continued, evidence, wrong, order)
        run = continued
        layers = _layers_of(formulas, run)
        if repeated is not None:
            later = [place for place in wrong_at_first if order[place] > order[_place_of(trace, repeated.first)]]
            layers = tuple(sorted({*repeated.layers, *layers}))
            explained = len(set(later) - set(wrong))
            found[found.index(repeated)] = replace(repeated, layers=layers, explained=explained)
        else:
            later = [place for place in wrong_at_first if order[place] > order[differing]]
            names = [trace.steps.at(*place).full_name(place[1]) for place in unseen]
            others = tuple(other.words for other in best[1:])
            first = trace.steps.at(*differing).full_name(differing[1])
            explained = len(set(later) - set(wrong))
            found.append(
                Cause(best[0].at, best[0].words, True, tuple(names), first, explained, len(later), others,
                      layers=layers, n_layers=trace.config.n_layers)
            )  # fmt: skip
        if fault is None:
            break
        differing, theirs, beside = fault
        unseen = unseen_before(run, evidence, differing)
    return found


def _layers_of(formulas: Formulas, run: Trace) -> tuple[int, ...]:
    """The layers in which a mistake gives a step other numbers."""
    found = set()
    for (name, layer), wrong in formulas.items():
        if layer is not None and layer not in found:
            site = Site(run, run.steps.at(name, layer), layer)
            numbers, right = wrong(site), site.derive()
            if numbers.shape != right.shape or not numbers.equal(right):
                found.add(layer)
    return tuple(sorted(found))


def _is_of(cause: Cause, trace: Trace, differing: StepKey) -> bool:
    """Whether a cause is of the step that differs, in another layer."""
    return cause.found and _place_of(trace, cause.first)[0] == differing[0]


def _place_of(trace: Trace, name: str) -> StepKey:
    return next((step.name, layer) for step, layer in trace.steps.rows if step.full_name(layer) == name)


def _first_fault(
    run: Trace, evidence: Evidence, places: Sequence[StepKey], order: Mapping[StepKey, int]
) -> tuple[StepKey, Tensor, Trace] | None:
    """The first of some steps that does not follow from the dump's numbers before it, and a run with these numbers.

    A step that cannot be computed from them says nothing: the dump has it where a mistake left out what it reads.
    """
    for place in places:
        beside = given_theirs(run, evidence, place, order)
        with suppress(*UNFIT):
            if evidence.differs(place, beside) and (theirs := evidence.theirs(place, beside)) is not None:
                return place, theirs, beside
    return None


def given_theirs(run: Trace, evidence: Evidence, place: StepKey, order: Mapping[StepKey, int]) -> Trace:
    """A run in which the steps before ``place`` that the dump has are the dump's."""
    before = [other for other in evidence.places if order[other] < order[place]]
    return WrongTrace(run, {other: partial(_as_dumped, evidence, other, run) for other in before})


def _as_dumped(evidence: Evidence, place: StepKey, run: Trace, site: Site) -> Tensor:
    theirs = evidence.theirs(place, run)
    return run.step(*place) if theirs is None else theirs.to(run.step(*place).dtype)


def unseen_before(trace: Trace, evidence: Evidence, differing: StepKey) -> list[StepKey]:
    """The steps on the way to ``differing`` that the dump lacks, back to those that it has, in order."""
    has, found, waiting = {*evidence.places}, dict[StepKey, None](), [differing]
    while waiting:
        place = waiting.pop()
        for source in trace.steps.sources(trace.steps.at(*place), place[1]):
            if source in has or source in found:
                continue
            if not trace.steps.at(*source).from_stream:
                found[source] = None
                waiting.append(source)
            elif place[1] == differing[1]:  # what the layer reads, and no layer before that
                waiting.append(source)
    rows = [(step.name, layer) for step, layer in trace.steps.rows]
    return sorted(found, key=rows.index)


@dataclass(frozen=True)
class Trial:
    """A mistake that ``gives`` the numbers of the step that differs: its words, where it is, the formulas with it."""

    words: str
    at: str
    formulas: Formulas
    attempt: Attempt
    gives: Tensor
    operations: tuple[Operation | None, ...] = ()


def trials_of(
    trace: Trace,
    evidence: Evidence,
    differing: StepKey,
    theirs: Tensor,
    unseen: Sequence[StepKey],
    order: Mapping[StepKey, int],
    only: str = "",
    *,
    further: bool = False,
) -> Iterator[Trial]:
    """The mistakes that give the numbers of the step that differs; ``only`` those of these words, if given.

    Those by construction are tried if no other gives them; if ``further``, those that read another tensor alone.
    """
    limit = min(evidence.tolerance, distance(theirs, trace.step(*differing)) / 10)
    candidates = [(trace.steps.at(*place), place) for place in (*unseen, differing)]
    tokens = _tokens_apart(trace, differing, theirs, limit)
    # What a dump has before is explained; a tensor of a file that has such numbers may stand for another step.
    before = {place for place in evidence.places if order[place] < order[differing]} if evidence.dumped else {}
    groups: dict[tuple[type, str], dict[StepKey, Attempt]] = {}  # queries and keys are turned alike, permuted alike
    for step, place in candidates:
        if step.operation is not None:
            site, known = Site(trace, step, place[1]), theirs if place == differing else None
            usual = _sums_and_others(site, known, tokens)
            for attempt in later_attempts(site, evidence.start, usual) if evidence.start else usual:
                if only.startswith(attempt.words) or not only:
                    groups.setdefault((type(step.operation), attempt.words), {})[place] = attempt
    record = evidence.tried.setdefault(trace.steps.at(*differing).full_name(differing[1]), {})
    found = False
    usual_ones = ((words, together) for (_, words), together in groups.items())
    searches: tuple[Callable[[], Iterable[Solved]], ...] = (
        lambda: streams_of_others(trace, differing, unseen),
        lambda: usual_ones,
        lambda: _solved(trace, differing, theirs, unseen),
        lambda: _numbered(trace, differing, theirs, unseen, linked_unknowns),
        lambda: _further(
            trace, differing, unseen, (rewired,) if further else (rewired, partial(mapped, hidden=unseen))
        ),
    )
    # No function of finite numbers gives NaN.
    is_known = not evidence.start and not bool(theirs.isnan().any())
    kept = searches[-1:] if further and is_known else searches if is_known else () if further else searches[1:2]
    for plain, together in (one for search in kept if not found for one in search()):
        alone = [{place: attempt} for place, attempt in together.items()] if len(together) > 1 else []
        for tried in (*alone, *_alike(trace, together), together):
            words = plain + _of_whom(trace, tried, together)
            if only not in ("", words):
                continue
            record[words] = None
            formulas = {place: attempt.wrong for place, attempt in tried.items()}
            for place, attempt in tried.items():
                beside = {(name, place[1]): wrong for name, wrong in attempt.beside.items()}
                formulas |= {other: wrong for other, wrong in beside.items() if other not in before}
                also = _also(trace, place, attempt, order)
                formulas |= {other: wrong for other, wrong in also.items() if other not in formulas}
            if any(attempt.also for attempt in tried.values()) and len(formulas) == len(tried):
                continue  # the layer has no step that would change with it
            with suppress(*UNFIT):  # it does not fit these shapes
                result = WrongTrace(trace, formulas).step(*differing)
                if result.shape == theirs.shape and distance(theirs, result) <= limit:
                    names = " and ".join(trace.steps.at(*place).full_name(place[1]) for place in tried)
                    found = True
                    operations = tuple(trace.steps.at(*place).operation for place in tried)
                    yield Trial(words, names, formulas, next(iter(tried.values())), result, operations)


def _of_whom(trace: Trace, tried: Iterable[StepKey], together: Iterable[StepKey]) -> str:
    """Of which of queries, keys and values a mistake is made, where it may be made of others too."""
    roles = [{trace.steps.at(*place).role for place in places} & _WHOM.keys() for places in (tried, together)]
    return (
        f"{_ALONE}{listed([_WHOM[role] for role in sorted(roles[0])])} alone"
        if roles[0] and roles[0] != roles[1]
        else ""
    )


_WHOM = {"q": "queries", "k": "keys", "v": "values"}
"""What steps of a role are."""


def _alike(trace: Trace, together: dict[StepKey, Attempt]) -> list[dict[StepKey, Attempt]]:
    """Some of the steps in which a mistake is tried: those that take their inputs from steps of the same operations."""
    groups: dict[tuple[type, ...], dict[StepKey, Attempt]] = {}
    for place, attempt in together.items():
        sources = trace.steps.sources(trace.steps.at(*place), place[1])
        groups.setdefault(tuple(type(trace.steps.at(*source).operation) for source in sources), {})[place] = attempt
    return [group for group in groups.values() if 1 < len(group) < len(together)]


def _solved(
    trace: Trace, differing: StepKey, theirs: Tensor, unseen: Sequence[StepKey]
) -> Iterator[tuple[str, dict[StepKey, Attempt]]]:
    """Mistakes that are solved for from the step that differs, and readings of what is right before it."""
    with suppress(*UNFIT):
        yield from solved_attention(trace, differing, theirs, unseen)
    yield from read_otherwise(trace, differing, unseen)
    yield from keys_otherwise(trace, unseen)
    yield from widths_otherwise(trace, unseen)
    yield from scaled_otherwise(trace, differing, theirs, unseen)
    yield from _numbered(trace, differing, theirs, unseen, unknowns)
    with suppress(*UNFIT):
        yield from solved_weights(trace, differing, theirs, unseen)


def _numbered(
    trace: Trace,
    differing: StepKey,
    theirs: Tensor,
    unseen: Sequence[StepKey],
    of: Callable[[Site], Iterator[Unknown]],
) -> Iterator[Solved]:
    """Mistakes with numbers, solved for from the step that differs: at unseen steps of one operation, and there."""
    sites = [Site(trace, trace.steps.at(*place), place[1]) for place in (*unseen, differing)]
    done = set[str]()
    for kind in {type(site.operation): None for site in sites if site.step.operation is not None}:
        places = {(site.step.name, site.layer): site for site in sites if type(site.operation) is kind}
        found = list[tuple[float, Unknown, _Gives, Sequence[float]]]()
        for unknown in of(next(iter(places.values()))):
            gives: _Gives = partial(_given, trace, differing, unknown, places)
            starts = sorted((_off(gives, theirs, start), start) for start in unknown.starts)
            found += [(off, unknown, gives, start) for off, start in starts[:2]]
        of_part = Counter[str]()  # of many values of one setting, only those that begin nearest
        for _, unknown, gives, start in sorted(found, key=lambda one: one[0]):
            of_part[unknown.beside] += 1
            if unknown.beside and of_part[unknown.beside] > _MOST_BESIDE:
                continue
            with suppress(*UNFIT, ConfigError):
                solved = unknown.of(nearest(gives, theirs, start))
                if solved.words not in done and not _SAME_TWICE.search(solved.words):
                    done.add(solved.words)
                    yield solved.words, dict.fromkeys(places, solved)


_SAME_TWICE = re.compile(r"(\S+) instead of \1(?!\S)")
"""Words of a setting that is at its own value: another that it needs was changed, and is not said."""
_MOST_BESIDE = 6
"""The most values of a setting beside which a number is solved for."""


def _further(
    trace: Trace,
    differing: StepKey,
    unseen: Sequence[StepKey],
    kinds: Sequence[Callable[[Site], Iterator[Altering]]],
) -> Iterator[Solved]:
    """Mistakes by construction, where none of the usual ones gives these numbers: other inputs, functions of them."""
    groups: dict[tuple[type, str], dict[StepKey, Attempt]] = {}
    for place in (*unseen, differing):
        site = Site(trace, trace.steps.at(*place), place[1])
        for words, wrong in chain(*(of(site) for of in kinds)) if site.step.operation is not None else ():
            groups.setdefault((type(site.operation), words), {})[place] = Attempt(words, wrong)
    for (_, words), together in groups.items():
        yield words, together


def _given(
    trace: Trace, differing: StepKey, unknown: Unknown, places: Iterable[StepKey], numbers: Sequence[float]
) -> Tensor:
    """The step that differs, in a run with a mistake of these numbers."""
    attempt, (first, *_) = unknown.of(numbers), places
    beside = {(name, first[1]): wrong for name, wrong in attempt.beside.items()}
    return WrongTrace(trace, beside | dict.fromkeys(places, attempt.wrong)).step(*differing)


def _off(gives: _Gives, theirs: Tensor, start: Sequence[float]) -> float:
    with suppress(*UNFIT, ConfigError):
        return distance(theirs, gives(start))
    return math.inf


def _also(trace: Trace, place: StepKey, attempt: Attempt, order: Mapping[StepKey, int]) -> dict[StepKey, Wrong]:
    """The formulas of the later steps of a layer that change with an attempt, where they fit."""
    steps, found = trace.steps.in_layer(place[1]) if place[1] is not None else (), dict[StepKey, Wrong]()
    for step in steps:
        for kind, wrong in attempt.also:
            if type(step.operation) is kind and order[step.name, place[1]] > order[place]:
                with suppress(*UNFIT):
                    wrong(Site(trace, step, place[1]))
                    found[step.name, place[1]] = wrong
    return found


def _tokens_apart(trace: Trace, differing: StepKey, theirs: Tensor, limit: float) -> range:
    """From the first token of a step that differs by more than ``limit`` to the last."""
    step, ours = trace.steps.at(*differing), trace.step(*differing)
    if step.token_axis is None or theirs.shape != ours.shape:
        return range(len(trace.encoding.ids))
    rows = [one.double().movedim(step.token_axis, 0).flatten(1).nan_to_num(neginf=0.0) for one in (ours, theirs)]
    apart = ((rows[0] - rows[1]).abs().amax(-1) > limit * rows[0].abs().amax(-1)).nonzero().flatten()
    return range(int(apart[0]), int(apart[-1]) + 1) if len(apart) else range(len(rows[0]))


def _sums_and_others(site: Site, theirs: Tensor | None, tokens: range) -> Iterator[Attempt]:
    """Attempts at a step; first, a summand of a sum that is left out."""
    if isinstance(site.operation, Add) and len(site.sources) > 1:
        for index, (name, layer) in enumerate(site.sources):
            omitted = site.trace.steps.at(name, layer).full_name(layer)
            yield Attempt(f"{omitted} not added", partial(_without, index))
    yield from attempts(site, theirs, tokens)


def _without(index: int, site: Site) -> Tensor:
    first, *others = (summand for number, summand in enumerate(site.inputs()) if number != index)
    return sum(others, first)


def _most_telling(
    trace: Trace, evidence: Evidence, differing: StepKey, trials: Sequence[Trial], order: Mapping[StepKey, int]
) -> tuple[list[Trial], bool]:
    """The mistakes that explain most of the steps that follow in this layer and the next, each as far as it reaches.

    And whether they explain all of these.
    """
    layer = differing[1]
    near = [place for place in evidence.after(differing, order) if layer is None or place[1] in (layer, layer + 1)]
    scores: list[tuple[int, Trial]] = []
    for trial in trials:
        for scope in scopes_of(trial):
            run = WrongTrace(trace, reaching(trace, trial, scope, order))
            scores.append((sum(not evidence.differs(place, run) for place in near), trial))
    most = max(right for right, _ in scores)
    best = [trial for right, trial in scores if right == most]
    best = [trial for trial in best if not trial.attempt.vague] or best
    fewest = min(trial.attempt.digits for trial in best)
    best = [trial for trial in best if trial.attempt.digits <= fewest + 1]
    alike: dict[str, Trial] = {}
    for trial in sorted(best, key=lambda one: _ALONE in one.words):
        if not any(_is_same(trial, one) for one in alike.values()):
            alike.setdefault(trial.words, trial)
    return list(alike.values()), most == len(near)


def _is_same(trial: Trial, other: Trial) -> bool:
    """Whether two trials are one mistake: one setting at two values, or one formula by two names.

    What is made of queries alone is implied by what is made of queries and keys. Two settings may give equal numbers.
    """
    whole, alone = (kind_of(one.words).split(_ALONE) for one in (other, trial))
    settings = [one.attempt.setting for one in (trial, other)]
    if trial.words.startswith(other.words) or whole == alone or whole == alone[:1]:
        return True
    if all(settings):
        return settings[0] == settings[1] and len(whole) == len(alone)
    told_alike = not any(settings) or all("left out" in one.words for one in (trial, other))
    return told_alike and trial.at == other.at and distance(trial.gives, other.gives) <= _EQUAL


def scopes_of(trial: Trial) -> tuple[str, ...]:
    """Where a mistake may be made: ``kind`` are the steps of its operation that have heads where its own step has."""
    if trial.attempt.local:
        return ("here",)
    is_norm = any(isinstance(operation, Norm) for operation in trial.operations)
    return ("here", "name", "kind", *(("all",) if is_norm else ()))


def _furthest(
    run: Trace, evidence: Evidence, differing: StepKey, trial: Trial, order: Mapping[StepKey, int]
) -> Formulas:
    """The formulas of a mistake, made in as many steps as explains most of those that follow."""
    later = evidence.after(differing, order)

    def right(scope: str) -> int:
        one = WrongTrace(run, reaching(run, trial, scope, order))  # which keeps all its steps, so one at a time
        return sum(not evidence.differs(place, one) for place in later)

    scopes = scopes_of(trial)
    scope = scopes[0] if len(scopes) == 1 else max(scopes, key=right)
    return reaching(run, trial, scope, order)


def reaching(trace: Trace, trial: Trial, scope: str, order: Mapping[StepKey, int]) -> Formulas:
    """The formulas of a mistake: here alone, in the steps of these names in all later layers, or of its operation."""
    kind = _kind if scope == "kind" else lambda step: type(step.operation)
    if scope == "here":
        return trial.formulas
    first = min(order[place] for place in trial.formulas)
    kinds = {kind(trace.steps.at(*place)): wrong for place, wrong in trial.formulas.items()}
    names = {(place[0], type(trace.steps.at(*place).operation)): wrong for place, wrong in trial.formulas.items()}
    formulas = dict(trial.formulas)
    for step, layer in trace.steps.rows:
        wrong = names.get((step.name, type(step.operation))) if scope == "name" else kinds.get(kind(step))
        place = (step.name, layer)
        if (
            wrong is not None
            and order[place] > first
            and place not in formulas
            and not (step.from_stream and step.in_layer)
        ):
            formulas[place] = _if_it_fits(wrong)
    return formulas


def _not_made(
    run: Trace, evidence: Evidence, trial: Trial, formulas: Formulas, order: Mapping[StepKey, int]
) -> set[StepKey]:
    """Where a mistake that reaches other steps is not made: with it, they do not follow from the dump's numbers."""
    further = [place for place in evidence.places if place in formulas and place not in trial.formulas]
    return {place for place in further if _first_fault(run, evidence, [place], order) is not None}


def _kind(step: Step) -> tuple[type, bool]:
    """What steps have in common that a mistake is made in alike: one of queries is none of the output's map."""
    return type(step.operation), step.has_heads


def _if_it_fits(wrong: Wrong) -> Wrong:
    """A wrong formula; the right one where it does not fit, such as in the other layers of a model with windows."""

    def formula(site: Site) -> Tensor:
        try:
            return wrong(site)
        except RecursionError:
            raise
        except UNFIT:
            return site.derive()

    return formula


def _likely(trace: Trace, differing: StepKey, unseen: Sequence[StepKey]) -> Cause:
    """The step that differs, with the usual mistakes of its operation, where none that was tried gives its numbers."""
    step, full = trace.steps.at(*differing), trace.steps.at(*differing).full_name(differing[1])
    usual = next((words for kind, words in _USUAL.items() if isinstance(step.operation, kind)), "")
    names = tuple(trace.steps.at(*place).full_name(place[1]) for place in unseen)
    return Cause(full, "" if unseen else usual, False, names, full)


_USUAL: dict[type[Operation], str] = {
    Norm: "the settings of the norm: eps, a gain with 1 added, the mean subtracted or not",
    Difference: "which heads are subtracted, or the share of the second",
    HeadNorm: "the settings of the norm of queries and keys: in each head, or over all heads",
    Rotate: "the rotary settings: base, scaling, halves or pairs of rows, the first position",
    Linear: "a weight: another matrix, transposed, its rows in another order, without its bias",
    Scores: "which key head serves which query head",
    Mix: "which value head serves which query head",
    Concat: "the order of the heads",
    Mask: "the mask: which keys a query sees, up to itself or in a window",
    Scale: "the divisor of the scores",
    Softmax: "the axis of the softmax",
    Activate: "the activation function, or whether the gate or the hidden units are activated",
    Add: "which tensors are added to the stream",
    Lookup: "the tokens, or the scale of the embeddings",
    Positions: "the first position, or the offset of the table",
}
"""The usual mistakes of each operation, named if none that was tried gives the numbers."""
