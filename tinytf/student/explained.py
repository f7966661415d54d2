"""Why a step is wrong: the mistakes with which a reference computes what the student's code does."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

from tinytf.compare.mistakes import MISTAKES
from tinytf.compare.mistakes.mistake import Mistake, Wrong
from tinytf.compare.mistakes.wrong_trace import places
from tinytf.report import Data
from tinytf.steps.operations import Rotate, Scale
from tinytf.steps.table import Place
from tinytf.student.opened import Line, Student, line_of
from tinytf.student.seen import Made
from tinytf.student.steps import Compared

_MOST = 6
"""Mistakes after which a file is called wrong without an explanation of the rest."""
SCOPES = ("all", "name", "one")


@dataclass(frozen=True)
class Confirmed(Data):
    """A mistake with which the reference computes what the student's code does, up to the next one.

    ``step`` is the first that it changes, of ``places`` in all. It explains that many tensors of the student's, which
    differ by at most ``difference``, in units of the largest number of each; ``line`` makes the first of them. It is
    not ``certain`` where nothing that comes of the changed steps is the student's too.
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
    at: Place


@dataclass(frozen=True, eq=False)
class _Try:
    """The mistakes that were made, the steps that they change, and what comes of it."""

    mistakes: tuple[tuple[Mistake, dict[Place, Wrong]], ...]
    compared: Compared

    @property
    def merit(self) -> tuple[int, int, int, int]:
        """How far the reference goes with it, how much of that is seen, how few steps of a block change, how often."""
        changed = {place for _, places in self.mistakes for place in places}
        return self.compared.progress, self.compared.seen, -len({name for name, _ in changed}), len(changed)


class Explanation:
    """The mistakes that explain what is wrong, one after the other as far as they do, and those that were tried.

    ``unexplained`` is the step where they leave off; empty where they explain everything.
    """

    def __init__(self, compared: Compared, student: Student) -> None:
        self.student = student
        self.found: list[Confirmed] = []
        self.tried: dict[str, None] = {}
        while compared.first_wrong is not None and len(self.found) < _MOST:
            best = max(self._singles(compared), key=lambda one: one.merit, default=None)
            best = best or max(self._pairs(compared), key=lambda one: one.merit, default=None)
            if best is None:
                break
            self.found += [self._confirmed(compared, best, *one) for one in best.mistakes]
            self.reaches = any(
                place not in made for place in _newly(compared, best.compared) for *_, made in best.mistakes
            )
            compared = best.compared
        at = compared.first_wrong
        if at is not None and self.found and compared.tensors.nan is None:
            self.found[-1] = replace(self.found[-1], certain=self.reaches)
        self.unexplained = "" if at is None else compared.step(at).full_name(at[1])

    def _candidates(self, compared: Compared) -> Iterator[tuple[Mistake, Place]]:
        """The mistakes of the layer with the first wrong step, each with the first step that it could be made at.

        What is before the first layer may show there alone.
        """
        wrong = compared.first_wrong
        assert wrong is not None
        before = compared.places[: compared.order[wrong]] if wrong[1] == 0 else []
        here = list(dict.fromkeys((*before, *(place for place in compared.places if place[1] == wrong[1]))))
        here.sort(key=compared.fine)  # those that are wrong first
        for mistake in MISTAKES:
            at = next((place for place in here if mistake.fits(compared.step(place))), None)
            if at is not None:
                self.tried[mistake.words] = None
                yield mistake, at
        yield from _multiplied(compared, wrong)

    def _singles(self, compared: Compared) -> Iterator[_Try]:
        """Each mistake at all steps of its operation, at those of one name, and if that does not do, at one alone."""
        table = compared.trace.steps
        for mistake, at in self._candidates(compared):
            everywhere, named, alone = (places(mistake, table, at, scope) for scope in SCOPES)
            wide = [everywhere] if everywhere.keys() == named.keys() else [everywhere, named]
            found = [one for changed in wide for one in self._tried(compared, compared, (mistake, changed))]
            yield from found
            if found and all(one.compared.first_wrong for one in found):
                yield from self._tried(compared, compared, (mistake, alone))

    def _pairs(self, compared: Compared) -> Iterator[_Try]:
        """Two mistakes of attention at once, in a file that lets no step between them be seen."""
        core = {type(step.operation) for step in compared.trace.steps.layer_steps if step.core} | {Rotate}
        wrong = compared.first_wrong
        if wrong is None or type(compared.step(wrong).operation) not in core:
            return
        some = [(mistake, places(mistake, compared.trace.steps, at, "all"))
                for mistake, at in self._candidates(compared) if mistake.at in core]  # fmt: skip
        for first, second in combinations(some, 2):
            if first[0].at is not second[0].at:
                yield from self._tried(compared, compared.mistaken(first[1]), first, second)

    def _tried(self, before: Compared, base: Compared, *made: tuple[Mistake, dict[Place, Wrong]]) -> Iterator[_Try]:
        """The reference with the last of some mistakes made too, where that goes further than ``before``."""
        try:
            after = base.mistaken(made[-1][1])
            if after.progress > before.progress and any(_newly(before, after)):
                yield _Try(made, after)
        except (RuntimeError, IndexError):  # a formula that does not fit these shapes
            return

    def _confirmed(self, before: Compared, best: _Try, mistake: Mistake, changed: Mapping[Place, Wrong]) -> Confirmed:
        after = best.compared
        newly = list(_newly(before, after))
        first = min(changed, key=lambda place: after.order[place])
        step = after.step(first)
        matches = [one for place in newly if (one := after.match(place))]
        shown = after.match(next((place for place in newly if place in changed), newly[0]))
        return Confirmed(
            mistake.words,
            step.full_name(first[1]),
            step.formula,
            len(changed),
            len(newly),
            max(one.difference for one in matches),
            True,
            self.line(shown.made if shown else None),
            first,
        )

    def line(self, made: Made | None) -> Line | None:
        """The line of the student's that made a tensor."""
        return line_of(self.student.file, made.file, made.line) if made is not None and made.line else None


def _multiplied(compared: Compared, wrong: Place) -> Iterator[tuple[Mistake, Place]]:
    """The first wrong step, and those that it is made of, times the factor of a tensor of the student's."""
    for place in (wrong, *compared.trace.steps.sources(compared.step(wrong), wrong[1])):
        if place not in compared.order:
            continue
        operation = compared.step(place).operation
        assert operation is not None
        for factor in compared.factors(place):
            words = f"{factor:.4g} times what it should be"
            if isinstance(operation, Scale):
                words = f"divided by {compared.trace.config.score_divisor / factor:.4g}, not by √d_head"
            yield Mistake(words, type(operation), lambda site, factor=factor: site.derive() * factor), place  # type: ignore[misc]


def _newly(before: Compared, after: Compared) -> Iterator[Place]:
    """The steps that only the mistaken reference has in common with the student's code.

    Not a step that is passed over, whose tensor is the one that it should have been made of, and no NaN alone.
    """
    for place in after.places[: after.progress]:
        match = after.match(place)
        if match is None or before.match(place) is not None or bool(match.made.tensor.isnan().all()):
            continue
        sources = after.trace.steps.sources(after.step(place), place[1])
        same = (after.match(source) for source in sources if source in after.order)
        if all(one is None or one.made is not match.made for one in same):
            yield place
