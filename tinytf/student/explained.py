"""Why a step is wrong: the mistakes that make the reference compute what the student's code computes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

from tinytf.compare.mistakes import MISTAKES
from tinytf.compare.mistakes.mistake import Mistake, Wrong
from tinytf.compare.mistakes.wrong_trace import wrong_formulas
from tinytf.report import Data
from tinytf.steps.operations import Rotate, Scale
from tinytf.steps.table import StepKey
from tinytf.student.opened import Line, Student, line_of
from tinytf.student.seen import Output
from tinytf.student.steps import Comparison

_MAX_MISTAKES = 6
"""Cap on the mistakes confirmed; what is still wrong after them stays unexplained."""
SCOPES = ("all", "name", "one")


@dataclass(frozen=True)
class ConfirmedMistake(Data):
    """A mistake that makes the reference compute what the student's code computes, up to the next mistake.

    ``step`` is the first step that it changes, of ``places`` in all. ``explained`` counts the tensors of the student's
    code that it explains; they differ by at most ``difference``, relative to the largest number of each, and ``line``
    computes the first of them. ``certain`` is False where no later step confirms the changed ones.
    """

    LESS: ClassVar = ("at",)

    mistake: str
    step: str
    formula: str
    places: int
    explained: int
    difference: float
    certain: bool
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


class Explanation:
    """The mistakes that explain what is wrong, added one by one, and all mistakes that were tried.

    ``unexplained`` is the first step that they do not explain; empty where they explain everything.
    """

    def __init__(self, comparison: Comparison, student: Student) -> None:
        self.student = student
        self.confirmed: list[ConfirmedMistake] = []
        self.tried: dict[str, None] = {}
        while comparison.first_wrong is not None and len(self.confirmed) < _MAX_MISTAKES:
            best = max(self._singles(comparison), key=lambda attempt: attempt.merit, default=None)
            best = best or max(self._pairs(comparison), key=lambda attempt: attempt.merit, default=None)
            if best is None:
                break
            self.confirmed += [self._confirm(comparison, best, *mistake) for mistake in best.mistakes]
            self.has_consequences = any(
                key not in changes for key in _new_matches(comparison, best.comparison) for *_, changes in best.mistakes
            )
            comparison = best.comparison
        wrong = comparison.first_wrong
        if wrong is not None and self.confirmed and comparison.tensors.nan is None:
            self.confirmed[-1] = replace(self.confirmed[-1], certain=self.has_consequences)
        self.unexplained = "" if wrong is None else comparison.step(wrong).full_name(wrong[1])

    def _candidates(self, comparison: Comparison) -> Iterator[tuple[Mistake, StepKey]]:
        """The mistakes possible in the layer of the first wrong step, each with the first step where it fits.

        For the first layer, the steps before it count too: a mistake there may only show inside the layer.
        """
        wrong = comparison.first_wrong
        assert wrong is not None
        earlier = comparison.keys[: comparison.order[wrong]] if wrong[1] == 0 else []
        keys = list(dict.fromkeys((*earlier, *(key for key in comparison.keys if key[1] == wrong[1]))))
        keys.sort(key=comparison.is_right)  # wrong steps first
        for mistake in MISTAKES:
            key = next((key for key in keys if mistake.fits(comparison.step(key))), None)
            if key is not None:
                self.tried[mistake.words] = None
                yield mistake, key
        yield from _scaled(comparison, wrong)

    def _singles(self, comparison: Comparison) -> Iterator[_Attempt]:
        """Each mistake at all steps of its operation, at those of one name, or, if neither suffices, at one step."""
        table = comparison.trace.steps
        for mistake, key in self._candidates(comparison):
            all_steps, same_name, single_step = (wrong_formulas(mistake, table, key, scope) for scope in SCOPES)
            scopes = [all_steps] if all_steps.keys() == same_name.keys() else [all_steps, same_name]
            attempts = [
                attempt for changes in scopes for attempt in self._attempts(comparison, comparison, (mistake, changes))
            ]
            yield from attempts
            if attempts and all(attempt.comparison.first_wrong for attempt in attempts):
                yield from self._attempts(comparison, comparison, (mistake, single_step))

    def _pairs(self, comparison: Comparison) -> Iterator[_Attempt]:
        """Two mistakes of attention at once, for a file that shows no step between them."""
        core = {type(step.operation) for step in comparison.trace.steps.layer_steps if step.core} | {Rotate}
        wrong = comparison.first_wrong
        if wrong is None or type(comparison.step(wrong).operation) not in core:
            return
        candidates = [(mistake, wrong_formulas(mistake, comparison.trace.steps, key, "all"))
                for mistake, key in self._candidates(comparison) if mistake.at in core]  # fmt: skip
        for first, second in combinations(candidates, 2):
            if first[0].at is not second[0].at:
                yield from self._attempts(comparison, comparison.with_mistakes(first[1]), first, second)

    def _attempts(
        self, earlier: Comparison, base: Comparison, *mistakes: tuple[Mistake, dict[StepKey, Wrong]]
    ) -> Iterator[_Attempt]:
        """Add the last of ``mistakes`` to ``base``; yield the attempt if it explains more steps than ``earlier``."""
        try:
            later = base.with_mistakes(mistakes[-1][1])
            if later.progress > earlier.progress and any(_new_matches(earlier, later)):
                yield _Attempt(mistakes, later)
        except (RuntimeError, IndexError):  # a formula that does not fit these shapes
            return

    def _confirm(
        self, earlier: Comparison, best: _Attempt, mistake: Mistake, changes: Mapping[StepKey, Wrong]
    ) -> ConfirmedMistake:
        later = best.comparison
        new_keys = list(_new_matches(earlier, later))
        first = min(changes, key=lambda key: later.order[key])
        step = later.step(first)
        matches = [match for key in new_keys if (match := later.match(key))]
        first_match = later.match(next((key for key in new_keys if key in changes), new_keys[0]))
        return ConfirmedMistake(
            mistake.words,
            step.full_name(first[1]),
            step.formula,
            len(changes),
            len(new_keys),
            max(match.difference for match in matches),
            True,
            self.line(first_match.output if first_match else None),
            first,
        )

    def line(self, output: Output | None) -> Line | None:
        """The line of the student's code that made a tensor."""
        return line_of(self.student.file, output.file, output.line) if output is not None and output.line else None


def _scaled(comparison: Comparison, wrong: StepKey) -> Iterator[tuple[Mistake, StepKey]]:
    """Candidates that scale the first wrong step, or a source of it, by the factor found in the student's tensors."""
    for key in (wrong, *comparison.trace.steps.sources(comparison.step(wrong), wrong[1])):
        if key not in comparison.order:
            continue
        operation = comparison.step(key).operation
        assert operation is not None
        for factor in comparison.factors(key):
            words = f"{factor:.4g} times what it should be"
            if isinstance(operation, Scale):
                words = f"divided by {comparison.trace.config.score_divisor / factor:.4g}, not by √d_head"
            yield Mistake(words, type(operation), lambda site, factor=factor: site.derive() * factor), key  # type: ignore[misc]


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
