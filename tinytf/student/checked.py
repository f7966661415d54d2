"""A student's module against a reference: the same weights, step by step, the first wrong step and why."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.lessons import NAMES, TITLES
from tinytf.loading import Model
from tinytf.report import About, Data, Report
from tinytf.steps.table import Place
from tinytf.student.invariances import Invariance, invariances
from tinytf.student.lesson import lesson_of
from tinytf.student.mistakes import MISTAKES, Mistake, Mistaken, places
from tinytf.student.opened import Place as Line
from tinytf.student.opened import Student, StudentError, open_student, running
from tinytf.student.seen import Made, outcome, watch
from tinytf.student.steps import Compared, Tensors
from tinytf.student.weights import NameRow, Pair, give, guess, table
from tinytf.tolerance import STUDENT, allowed
from tinytf.trace.trace import Trace

TEXT = "The cat sat on the mat."
_MOST_MISTAKES = 6
_NUMBERS = 4


@dataclass(frozen=True)
class CheckedStep(Data):
    """A step of the reference: ``state`` is ``right``, ``unseen`` (done inside another function, and right so), or
    ``wrong``, which is of the steps after a wrong one too; ``difference`` is in units of its largest number.
    """

    step: str
    formula: str
    state: str
    difference: float | None
    line: int | None


@dataclass(frozen=True)
class Confirmed(Data):
    """A mistake with which the reference computes what the student's code does, up to the next one.

    ``step`` is the first that it changes, ``places`` how many; ``difference`` is that of the tensors which it explains.
    """

    mistake: str
    step: str
    formula: str
    places: int
    explained: int
    difference: float
    lesson: int | None
    line: Line | None


@dataclass(frozen=True)
class Wrong(Data):
    """The first step that is wrong. ``yours`` are its first numbers in the student's code, where they are known."""

    step: str
    formula: str
    title: str
    lesson: int | None
    lesson_title: str
    line: Line | None
    reference: tuple[float, ...]
    yours: tuple[float, ...]


@dataclass(frozen=True)
class Checked(Report):
    """The answer: names, steps, the first wrong one, the mistakes that were tried and confirmed, and invariances.

    ``unheld`` are the parameters of the reference that no parameter of the student's holds.
    """

    KIND = "check"
    EVENTS: ClassVar[Mapping[str, str]] = {
        "names": "name",
        "steps": "step",
        "first_wrong": "wrong",
        "mistakes": "mistake",
        "invariances": "invariance",
    }

    file: str
    target: str
    call: str
    given: tuple[str, ...]
    names: tuple[NameRow, ...]
    unheld: tuple[str, ...]
    steps: tuple[CheckedStep, ...]
    first_wrong: Wrong | None
    mistakes: tuple[Confirmed, ...]
    tried: int
    explained: bool
    invariances: tuple[Invariance, ...]
    tolerance: float

    @property
    def right(self) -> int:
        """How many steps are right, seen or not."""
        return sum(step.state != "wrong" for step in self.steps)

    @property
    def holds(self) -> bool:
        return self.first_wrong is None and all(one.holds for one in self.invariances)

    def fields(self) -> dict[str, Any]:
        return self.members(
            "file", "target", "call", "given", "holds", "names", "unheld", "steps", "first_wrong", "mistakes", "tried",
            "explained", "invariances", "tolerance",
        )  # fmt: skip


class _Runner:
    """Runs the student's module; ``given`` says what it was handed beside the ids."""

    def __init__(self, student: Student) -> None:
        self.student = student
        self.given: tuple[str, ...] = ()
        forward = inspect.signature(student.module.forward).parameters.values()
        self.required = [
            one.name for one in forward
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ][1:]  # fmt: skip

    def __call__(self, ids: Tensor, **more: Any) -> Any:
        for name in self.required:
            if name not in more:
                more[name] = self._fill(name, ids)
        with running(self.student.file):
            return self.student.module(ids, **more)

    def _fill(self, name: str, ids: Tensor) -> Any:
        length = ids.shape[1]
        if "mask" in name:
            value: Any = torch.ones(length, length).tril()[None, None]
            said = f"{name}: ones up to each token, 0 after it"
        elif name in ("start_pos", "pos", "position", "offset", "start", "input_pos"):
            value, said = 0, f"{name} = 0"
        elif "target" in name or "label" in name or name == "y":
            value, said = ids, f"{name} = the ids"
        else:
            raise UsageError(f"forward takes {name}, which tinytf cannot say", "give it a default")
        self.given = tuple(dict.fromkeys((*self.given, said)))
        return value


def check(
    model: Model,
    target: str,
    *,
    text: str = TEXT,
    args: Mapping[str, Any] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    tolerance: float | None = None,
) -> Checked:
    """Run the class or function ``target``, FILE:NAME, with the weights of ``model`` and compare every step of a text.

    This runs the code of the file. ``args`` are keywords of the constructor, ``names`` the parameters that are not to
    be guessed. Raises UsageError for what is not there or cannot be built, StudentError where the code itself fails.
    """
    trace = model.trace(text)
    limit = allowed(STUDENT, trace.last_hidden.dtype) if tolerance is None else tolerance
    student = open_student(target, model.config, args or {})
    student.module.to(torch.float32)
    return _Check(model, trace, student, names or {}, limit).report()


class _Check:
    def __init__(
        self, model: Model, trace: Trace, student: Student, names: Mapping[str, Sequence[str]], tolerance: float
    ) -> None:
        self.model, self.trace, self.student, self.tolerance = model, trace, student, tolerance
        self.ids = trace.encoding.ids
        self.run = _Runner(student)
        self.pairs = guess(student.module, model.config, names)

    def compared(self, pairs: Sequence[Pair]) -> Compared:
        """The steps of the reference among what the student's code computes with these weights."""
        give(self.student.module, self.model.transformer, pairs)
        made, result = watch(self.student.file, lambda: self.run(torch.tensor([self.ids])))
        returned = outcome(result, self.model.config.vocab_size)
        if returned is None:
            raise StudentError(
                f"{self.student.file.name}: {self.student.name} returns nothing with {self.model.config.vocab_size:,} "
                "numbers a token",
                "forward should return logits, alone or first in a tuple",
            )
        return Compared(self.trace, Tensors(made, returned), self.tolerance)

    def settled(self) -> Compared:
        """The comparison with the ways of the weights, where several are possible, that go furthest."""
        best = self.compared(self.pairs)
        for place, pair in enumerate(self.pairs):
            for way in pair.ways[1:] if best.first_wrong is not None else ():
                pairs = [*self.pairs]
                pairs[place] = replace(pair, ways=(way, *(one for one in pair.ways if one is not way)))
                other = self.compared(pairs)
                if other.progress > best.progress:
                    best, self.pairs = other, pairs
        give(self.student.module, self.model.transformer, self.pairs)
        return best

    def report(self) -> Checked:
        compared = self.settled()
        rows, unheld = table(self.student.module, self.model.config, self.pairs)
        found, last, tried = self.explained(compared) if compared.first_wrong is not None else ([], compared, 0)
        student = self.student
        held = invariances(
            student.module, self.run, self.ids, self.model.config.vocab_size, 10 * self.tolerance,
            not self.model.config.looks_ahead,
        )  # fmt: skip
        return Checked(
            about=About(self.model, self.trace.encoding),
            file=str(student.file),
            target=student.name,
            call=student.call,
            given=self.run.given,
            names=rows,
            unheld=unheld,
            steps=tuple(self.steps(compared)),
            first_wrong=self.wrong(compared, found),
            mistakes=tuple(found),
            tried=tried,
            explained=last.first_wrong is None,
            invariances=held,
            tolerance=self.tolerance,
        )

    def steps(self, compared: Compared) -> Iterator[CheckedStep]:
        for place in compared.places:
            step, match = compared.step(place), compared.match(place)
            state = "right" if match else "unseen" if compared.fine(place) else "wrong"
            line = match.made.line if match and match.made else None
            name = step.full_name(place[1])
            yield CheckedStep(name, step.formula, state, match.difference if match else None, line)

    def explained(self, compared: Compared) -> tuple[list[Confirmed], Compared, int]:
        """The mistakes that explain what is wrong, one after the other, as far as they do."""
        found: list[Confirmed] = []
        tried = 0
        while (at := compared.first_wrong) is not None and len(found) < _MOST_MISTAKES:
            best: tuple[Compared, Mistake, dict[Place, Any]] | None = None
            for mistake in MISTAKES:
                for scope in ("all", "name", "one"):
                    changed = self._candidate(mistake, compared, at, scope)
                    if changed is None:
                        continue
                    tried += scope == "all"
                    try:
                        other = Compared(Mistaken(compared.trace, changed), compared.tensors, self.tolerance)
                        better = other.progress > (best[0] if best else compared).progress
                        if better and self._told(compared, other, changed):
                            best = (other, mistake, changed)
                    except (RuntimeError, IndexError):
                        continue
            if best is None:
                break
            found.append(self._confirmed(compared, *best))
            compared = best[0]
        return found, compared, tried

    def _candidate(self, mistake: Mistake, compared: Compared, at: Place, scope: str) -> dict[Place, Any] | None:
        table = compared.trace.steps
        layer_places = [place for place in compared.places if place[1] == at[1] and not compared.fine(place)]
        for place in layer_places:
            if type(compared.step(place).operation) is mistake.at:
                return places(mistake, table, place, scope)
        if any(type(compared.step(place).operation) is mistake.at for place in compared.places if place[1] == at[1]):
            first = next(p for p in compared.places if type(compared.step(p).operation) is mistake.at and p[1] == at[1])
            return places(mistake, table, first, scope)
        return None

    def _told(self, before: Compared, after: Compared, changed: Mapping[Place, Any]) -> bool:
        """Whether a student's tensor was explained that says more than that a step was passed over."""
        return bool(list(self._newly(before, after, changed)))

    def _newly(self, before: Compared, after: Compared, changed: Mapping[Place, Any]) -> Iterator[Place]:
        end = after.progress
        for place in after.places[:end]:
            match = after.match(place)
            if match is None or before.match(place) is not None:
                continue
            sources = after.trace.steps.sources(after.step(place), place[1])
            same = [after.match(source) for source in sources if source in after.order]
            if match.made is None or all(one is None or one.made is not match.made for one in same):
                yield place

    def _confirmed(
        self, before: Compared, after: Compared, mistake: Mistake, changed: Mapping[Place, Any]
    ) -> Confirmed:
        newly = list(self._newly(before, after, changed))
        first = min(changed, key=lambda place: after.order.get(place, 0))
        at = before.first_wrong
        assert at is not None
        shown = next((place for place in sorted(changed, key=lambda p: after.order[p]) if place in newly), None)
        step = after.step(first)
        matches = [one for place in newly if (one := after.match(place))]
        seen = after.match(shown or newly[0])
        return Confirmed(
            mistake.words,
            step.full_name(first[1]),
            step.formula,
            len(changed),
            len(newly),
            max(one.difference for one in matches),
            lesson_of(self.model, self.trace, first[0]),
            self._line(seen.made if seen else None),
        )

    def _line(self, made: Made | None) -> Line | None:
        return self.student.place(made.file, made.line) if made is not None and made.line else None

    def wrong(self, compared: Compared, found: Sequence[Confirmed]) -> Wrong | None:
        at = compared.first_wrong
        if at is None:
            return None
        line = found[0].line if found else None
        if found:
            at = next(place for place in compared.places if compared.step(place).full_name(place[1]) == found[0].step)
        step = compared.step(at)
        made = None if found else self._instead(compared, at)
        number = lesson_of(self.model, self.trace, at[0])
        return Wrong(
            step.full_name(at[1]),
            step.formula,
            step.title,
            number,
            "" if number is None else TITLES[NAMES[number - 1]],
            line or self._line(made),
            _first_numbers(compared.value(at)),
            () if made is None else _first_numbers(made.tensor),
        )

    def _instead(self, compared: Compared, at: Place) -> Made | None:
        """What the student's code made where the step should be: of its size, after all that it is made of."""
        sources = compared.trace.steps.sources(compared.step(at), at[1])
        orders = [match.made.order for one in sources if one in compared.order
                  and (match := compared.match(one)) and match.made]  # fmt: skip
        after = max(orders, default=-1)
        size = compared.value(at).numel()
        known = {match.made for place in compared.places if (match := compared.match(place)) and match.made}
        candidates = [one for one in compared.tensors.made if one.order > after and one not in known]
        return next((one for one in candidates if one.tensor.numel() == size), next(iter(candidates), None))


def _first_numbers(tensor: Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in tensor.detach().float().flatten()[:_NUMBERS])
