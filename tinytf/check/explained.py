"""Why a step is wrong: the mistakes that make the reference compute what the student's code computes."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor

from tinytf.check.consistency import Consistency
from tinytf.check.opened import Line, Student, line_of
from tinytf.check.seen import Output
from tinytf.check.steps import Comparison, Signature, difference
from tinytf.compare.causes import Evidence, Trial, reaching, scopes_of, trials_of, unseen_before
from tinytf.compare.mistakes import MISTAKES
from tinytf.compare.mistakes.mistake import Mistake, Wrong
from tinytf.compare.mistakes.wrong_trace import WrongTrace, wrong_formulas
from tinytf.report import Data
from tinytf.sentences import listed
from tinytf.steps.operations import Rotate, Scale
from tinytf.steps.table import StepKey

_MAX_MISTAKES = 6
"""Cap on the mistakes confirmed; what is still wrong after them stays unexplained."""
_MOST_STEPS, _MOST_TENSORS = 3, 3
"""Cap on the wrong steps, and on the tensors for each, that are searched for a mistake that gives them."""
_LEAST = 1e-4
"""Factors below this make nothing of a step: that it does not matter is no cause."""
SCOPES = ("all", "name", "one")


@dataclass(frozen=True)
class ConfirmedMistake(Data):
    """A mistake that makes the reference compute what the student's code computes, up to the next mistake.

    ``step`` is the first step that it changes, of ``places`` in all. ``explained`` counts the tensors of the student's
    code that it explains; they differ by at most ``difference``, relative to the largest number of each. ``line``
    computes the step or, inside a function, the first that shows; of one that ``is_left_out``, what is in its place.
    """

    LESS: ClassVar = ("at",)

    mistake: str
    step: str
    formula: str
    places: int
    explained: int
    difference: float
    is_left_out: bool
    line: Line | None
    at: StepKey


@dataclass(frozen=True, eq=False)
class _Attempt:
    """A reference with some mistakes: the steps that each of them changes, and the comparison that results."""

    mistakes: tuple[tuple[Mistake, dict[StepKey, Wrong]], ...]
    comparison: Comparison

    @property
    def merit(self) -> tuple[int, int, int, int]:
        """Rank by steps explained, steps with a tensor of their own, fewest names changed, then most steps changed."""
        changed = {key for _, changes in self.mistakes for key in changes}
        return self.comparison.progress, self.comparison.visible, -len({name for name, _ in changed}), len(changed)

    def beside(self, others: Sequence["_Attempt"]) -> "_Attempt":
        """This attempt, with the words of others that explain as much by other numbers: nothing tells them apart."""
        ((mistake, changes),) = self.mistakes
        words = {mistake.words: self.comparison}
        for other in others:
            ((another, changed),) = other.mistakes
            as_much = other.merit == self.merit and changed.keys() == changes.keys() and another.words not in words
            if as_much and all(any(_changed(one, other.comparison, key) for key in changes) for one in words.values()):
                words[another.words] = other.comparison
        return replace(self, mistakes=((replace(mistake, words=", or ".join(words)), changes),))


class Explanation:
    """The mistakes that explain what is wrong, added one by one, and all mistakes that were tried.

    A mistake is one only if it is ``consistent`` with what the module does not depend on, and if later steps follow
    from it: a tensor that happens to be there is no evidence. ``relaid`` gives comparisons with the weights in other
    layouts, which are no mistakes. ``unexplained`` is the first step that the mistakes do not explain; empty where they
    explain everything.
    """

    def __init__(
        self,
        comparison: Comparison,
        student: Student,
        consistent: Consistency,
        relaid: Callable[[Comparison], Iterator[Comparison]],
    ) -> None:
        self.student, self.consistent = student, consistent
        self.confirmed: list[ConfirmedMistake] = []
        self.tried: dict[str, None] = {}
        self.made: list[Mistake] = []
        consequences: list[bool] = []
        while comparison.first_wrong is not None and len(self.confirmed) < _MAX_MISTAKES:
            others = list(relaid(comparison)) if self.confirmed else []
            further = max(others, key=lambda other: other.progress, default=comparison)
            if further.progress > comparison.progress:
                comparison = further
                continue
            base = comparison
            best = self._best(comparison)
            wrong = comparison.first_wrong
            if best is None and wrong is not None and isinstance(comparison.step(wrong).operation, Rotate):
                for other in relaid(comparison):
                    if best is None and other.progress == comparison.progress:
                        base, best = other, self._best(other)
            if best is None:
                break
            new = list(_new_matches(base, best.comparison))
            self.confirmed += [self._confirm(base, best, *mistake) for mistake in best.mistakes]
            self.made += [mistake for mistake, _ in best.mistakes]
            consequences += [any(key not in changes for key in new) for *_, changes in best.mistakes]
            comparison = best.comparison
        self.comparison, wrong = comparison, comparison.first_wrong
        if wrong is not None and comparison.tensors.not_finite is None:
            while self.confirmed and not consequences.pop():
                wrong = self.confirmed.pop().at
        self.confirmed = list(_in_all_layers(self.confirmed))
        lost = wrong is None or (bool(self.confirmed) and comparison.tensors.not_finite is not None)
        self.unexplained = "" if lost or wrong is None else comparison.step(wrong).full_name(wrong[1])

    def _best(self, comparison: Comparison) -> _Attempt | None:
        """The mistake that explains most, or the two."""
        told = list(self._told(comparison))
        if not any(attempt.comparison.first_wrong is None for attempt in told):
            told += self._singles(comparison)
        best = max(told, key=lambda attempt: attempt.merit, default=None)
        if best is not None:
            return best.beside(told)
        return max(self._pairs(comparison), key=lambda attempt: attempt.merit, default=None)

    def _told(self, comparison: Comparison) -> Iterator[_Attempt]:
        """What gives the tensor that stands in the place of a wrong step, as ``diff`` looks for it in a dump."""
        trace, rows = comparison.trace, comparison.trace.steps.rows
        order = {(step.name, layer): number for number, (step, layer) in enumerate(rows)}
        searched, explained = Counter[StepKey](), False
        for key, output in comparison.candidates():
            searched[key] += 1
            theirs = comparison.in_our_axes(key, output)
            if explained or len(searched) > _MOST_STEPS:
                return
            if theirs is None or searched[key] > _MOST_TENSORS:
                continue
            seen = [place for place in comparison.keys[: comparison.order[key]] if comparison.match(place)]
            evidence = Evidence(None, comparison.limit(key), seen, {key: theirs})  # type: ignore[arg-type]
            sources = [
                place for place in trace.steps.sources(comparison.step(key), key[1]) if place in comparison.order
            ]
            unseen = sorted({*unseen_before(trace, evidence, key), *sources}, key=order.__getitem__)
            with torch.no_grad():
                for trial in trials_of(trace, evidence, key, theirs, unseen, order):
                    factor = re.match(r"it is (\S+) times", trial.words)
                    for scope in () if factor and abs(float(factor[1])) < _LEAST else scopes_of(trial):
                        changes = {
                            place: wrong
                            for place, wrong in reaching(trace, trial, scope, order).items()
                            if place in comparison.order
                        }
                        mistake = _known(trial, type(comparison.step(key).operation))
                        for attempt in self._attempts(comparison, comparison, (mistake, changes)):
                            explained = explained or attempt.comparison.first_wrong is None
                            yield attempt
            for words in evidence.tried.values():
                self.tried.update(words)

    def _candidates(self, comparison: Comparison) -> Iterator[tuple[Mistake, list[StepKey]]]:
        """The mistakes possible in the layer of the first wrong step, each with the steps it fits, wrong ones first.

        For the first layer, the steps before it count too: a mistake there may only show inside the layer.
        """
        wrong = comparison.first_wrong
        assert wrong is not None
        earlier = comparison.keys[: comparison.order[wrong]] if wrong[1] == 0 else []
        keys = list(dict.fromkeys((*earlier, *(key for key in comparison.keys if key[1] == wrong[1]))))
        keys.sort(key=comparison.is_right)  # wrong steps first
        for mistake in MISTAKES:
            fitting = [key for key in keys if mistake.fits(comparison.step(key))]
            if fitting:
                self.tried[mistake.words] = None
                yield mistake, fitting
        yield from _scaled(comparison, wrong)

    def _singles(self, comparison: Comparison) -> Iterator[_Attempt]:
        """Each mistake at all steps of its operation, at those of one name, or, if neither suffices, at one step."""
        table = comparison.trace.steps
        for mistake, keys in self._candidates(comparison):
            all_steps, same_name, single_step = (wrong_formulas(mistake, table, keys[0], scope) for scope in SCOPES)
            scopes = [all_steps] if all_steps.keys() == same_name.keys() else [all_steps, same_name]
            attempts = [
                attempt for changes in scopes for attempt in self._attempts(comparison, comparison, (mistake, changes))
            ]
            yield from attempts
            if attempts and all(attempt.comparison.first_wrong for attempt in attempts):
                yield from self._attempts(comparison, comparison, (mistake, single_step))
            for key in keys[1:] if not attempts else ():  # such as the values alone, of a joint matrix
                if not comparison.is_right(key):
                    named = wrong_formulas(mistake, table, key, "name")
                    yield from self._attempts(comparison, comparison, (mistake, named))

    def _pairs(self, comparison: Comparison) -> Iterator[_Attempt]:
        """Two mistakes of attention at once, for a file that shows no step between them."""
        core = {type(step.operation) for step in comparison.trace.steps.layer_steps if step.core} | {Rotate}
        wrong = comparison.first_wrong
        if wrong is None or type(comparison.step(wrong).operation) not in core:
            return
        candidates = [(mistake, wrong_formulas(mistake, comparison.trace.steps, keys[0], "all"))
                for mistake, keys in self._candidates(comparison) if mistake.at in core]  # fmt: skip
        for first, second in combinations(candidates, 2):
            if first[0].at is not second[0].at:
                yield from self._attempts(comparison, comparison.with_mistakes(first[1]), first, second)

    def _attempts(
        self, earlier: Comparison, base: Comparison, *mistakes: tuple[Mistake, dict[StepKey, Wrong]]
    ) -> Iterator[_Attempt]:
        """Add the last of ``mistakes`` to ``base``; yield the attempt if it explains more steps than ``earlier``."""
        try:
            later = base.with_mistakes(mistakes[-1][1])
            if later.goes_beyond(earlier) and any(_new_matches(earlier, later)):
                made = [*self.made, *(mistake for mistake, _ in mistakes)]
                wrong = getattr(later.trace, "wrong", {})
                if not self.consistent.refuted_by(made, wrong):
                    yield _Attempt(mistakes, later)
        except (RuntimeError, IndexError):  # a formula that does not fit these shapes
            return

    def _confirm(
        self, earlier: Comparison, best: _Attempt, mistake: Mistake, changes: Mapping[StepKey, Wrong]
    ) -> ConfirmedMistake:
        later = best.comparison
        new_keys = list(_new_matches(earlier, later))
        in_order = sorted(changes, key=lambda key: later.order[key])
        changed = [key for key in in_order if _changed(earlier, later, key)] or in_order
        kept = (key for key in changed if later.value(key).shape == earlier.value(key).shape)  # it is there in both
        first = next(kept, changed[0])
        step = later.step(first)
        matches = [match for key in new_keys if (match := later.match(key))]
        first_match = later.match(first)
        stands_in = first_match is not None and first not in new_keys
        if first_match is None or first_match.output.order in later.tensors.constant:
            first_match, stands_in = (
                later.match(next((key for key in new_keys if later.order[key] >= later.order[first]), new_keys[-1])),
                False,
            )
        if first_match is not None and (made := _made_again(earlier, first_match.output)) is not None:
            first_match, stands_in = replace(first_match, output=made), False
        elif first_match is not None and not stands_in:
            first_match = replace(first_match, output=_changed_before(earlier, first, first_match.output))
        words = mistake.words
        if isinstance(step.operation, Scale) and (size := float(later.value(first).norm())):
            right = later.trace.config.score_divisor
            by = f"by {right * float(earlier.value(first).norm()) / size:.4g}, not by {right:.4g}"
            if words.startswith("it is "):
                words = f"divided {by}"
            elif not any(character.isdigit() for character in words):
                words = f"{words} ({by})"
        return ConfirmedMistake(
            words,
            step.full_name(first[1]),
            step.formula,
            len(changes),
            len(new_keys),
            max(match.difference for match in matches),
            stands_in,
            self.line(first_match.output if first_match else None),
            first,
        )

    def line(self, output: Output | None) -> Line | None:
        """The line of the student's code that made a tensor."""
        return line_of(self.student.file, output.file, output.line) if output is not None and output.line else None


def _made_again(earlier: Comparison, output: Output) -> Output | None:
    """Another tensor with the numbers of a right step: the one that stands in the place of a wrong one."""
    taken = {match.output.order for key in earlier.keys if (match := earlier.match(key))}
    alike = (one for one, _ in earlier.tensors.by_size.get(output.tensor.numel(), ()) if one.order not in taken)
    return next((one for one in alike if output.order in taken and torch.equal(one.tensor, output.tensor)), None)


def _changed_before(earlier: Comparison, key: StepKey, output: Output) -> Output:
    """The tensor that makes a step wrong: one that, read in the place of a right step, gives it; else the step's own.

    So a cap before a mask is blamed, and not the mask.
    """
    theirs, limit = earlier.in_our_axes(key, output), earlier.limit(key)
    if theirs is None:
        return output
    for source in earlier.trace.steps.sources(earlier.step(key), key[1]):
        match = earlier.match(source) if source in earlier.order else None
        if match is None:
            continue
        for one in earlier.tensors.outputs[match.output.order + 1 : output.order]:
            between = one.order in output.ancestors and match.output.order in one.ancestors
            fits = between and one.tensor.numel() == earlier.value(source).numel()
            numbers = earlier.in_our_axes(source, one) if fits else None
            if numbers is not None and _gives(earlier, source, numbers, key, theirs, limit):
                return one
    return output


def _gives(earlier: Comparison, source: StepKey, numbers: Tensor, key: StepKey, theirs: Tensor, limit: float) -> bool:
    """Whether a step has these numbers if it reads others from a source."""
    given = WrongTrace(earlier.trace, {source: lambda _: numbers}).step(*key)
    ours, wanted = (Signature.of(one).tensor.nan_to_num(neginf=0.0) for one in (given, theirs))
    return ours.shape == wanted.shape and difference(wanted, ours) <= limit


def _known(trial: Trial, at: type) -> Mistake:
    """The mistake of an attempt; of the table, where it is there."""
    return next((one for one in MISTAKES if one.words == trial.words), Mistake(trial.words, at, trial.attempt.wrong))


def _of_layer(text: str) -> str:
    return re.sub(r"\bL\d+\.", "", text)


def _in_all_layers(confirmed: Sequence[ConfirmedMistake]) -> Iterator[ConfirmedMistake]:
    """The mistakes, with one that is made in several places as one."""
    groups: dict[str, list[ConfirmedMistake]] = {}
    for one in confirmed:
        groups.setdefault(_of_layer(one.mistake), []).append(one)
    for words, alike in groups.items():
        steps = dict.fromkeys(_of_layer(one.step) for one in alike)
        layers = f"the same in layers {listed([str(one.at[1]) for one in alike])}"
        where = layers if len(steps) == 1 else f"in {listed(list(steps))}"
        yield replace(
            alike[0],
            mistake=f"{words}, {where}" if len(alike) > 1 else alike[0].mistake,
            places=sum(one.places for one in alike),
            explained=sum(one.explained for one in alike),
            difference=max(one.difference for one in alike),
        )


def _changed(earlier: Comparison, later: Comparison, key: StepKey) -> bool:
    """Whether a mistake gives a step other numbers."""
    before, after = (one.value(key) for one in (earlier, later))
    if before.shape != after.shape or not torch.equal(before.isneginf(), after.isneginf()):
        return True
    return difference(*(one.nan_to_num(neginf=0.0) for one in (after, before))) > later.limit(key)


def _scaled(comparison: Comparison, wrong: StepKey) -> Iterator[tuple[Mistake, list[StepKey]]]:
    """Candidates that scale the first wrong step, or a source of it, by the factor found in the student's tensors."""
    keys = [wrong, *comparison.trace.steps.sources(comparison.step(wrong), wrong[1])]
    keys = [key for key in keys if key in comparison.order]
    for key in sorted(keys, key=lambda key: not isinstance(comparison.step(key).operation, Scale)):
        operation = comparison.step(key).operation
        assert operation is not None
        for factor in comparison.factors(key):
            words = f"{factor:.4g} times what it should be"
            if isinstance(operation, Scale):
                words = f"divided by {comparison.trace.config.score_divisor / factor:.4g}, not by √d_head"
            yield Mistake(words, type(operation), lambda site, factor=factor: site.derive() * factor), [key]  # type: ignore[misc]


def _new_matches(earlier: Comparison, later: Comparison) -> Iterator[StepKey]:
    """The steps that the student's code matches only with the mistakes.

    A step whose match is also the match of one of its sources does not count, nor does a tensor of NaN alone.
    """
    for key in later.keys[: later.progress]:
        match = later.match(key)
        if match is None or earlier.match(key) is not None or bool(match.output.tensor.isnan().all()):
            continue
        sources = later.trace.steps.sources(later.step(key), key[1])
        source_matches = (later.match(source) for source in sources if source in later.order)
        if all(source_match is None or source_match.output is not match.output for source_match in source_matches):
            yield key
