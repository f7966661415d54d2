"""A student's module against a reference: the same weights, step by step, the first wrong step and why."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from tinytf.lessons import NAMES, TITLES
from tinytf.loading import Model
from tinytf.report import About, Data, Report
from tinytf.student.explained import Confirmed, Explanation
from tinytf.student.invariances import Invariance, invariances
from tinytf.student.lesson import lesson_of
from tinytf.student.opened import Line, Student, StudentError, failed, open_student, split_target
from tinytf.student.process import SECONDS, Ended, apart, printed
from tinytf.student.running import Runner
from tinytf.student.seen import watch
from tinytf.student.steps import Compared, Tensors
from tinytf.student.weights import NameRow, Pair, give, guess, others, table
from tinytf.tolerance import STUDENT, allowed
from tinytf.trace.trace import Trace

TEXT = "The cat sat on the mat."
_NUMBERS = 4


@dataclass(frozen=True)
class CheckedStep(Data):
    """A step of the reference: ``state`` is ``right``, ``unseen`` (done inside another function, and right so), or
    ``wrong``, which is of the steps after a wrong one too; ``difference`` is in units of its largest number.
    """

    step: str
    formula: str
    state: Literal["right", "unseen", "wrong"]
    difference: float | None
    line: int | None


@dataclass(frozen=True)
class Trouble(Data):
    """What makes numbers of the student's code meaningless from a line on."""

    what: str
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

    ``call`` is how the module was built, ``given`` what its forward was handed beside the ids. ``unheld`` are the
    parameters of the reference that no parameter of the student's holds; ``printed`` is what the code printed until
    it had run once; ``unexplained`` is the step from which on no
    mistake explains what is wrong, empty where there is none.
    """

    KIND = "check"
    TABLE = ("steps",)
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
    printed: str
    steps: tuple[CheckedStep, ...]
    first_wrong: Wrong | None
    mistakes: tuple[Confirmed, ...]
    tried: tuple[str, ...]
    unexplained: str
    troubles: tuple[Trouble, ...]
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
            "file", "target", "call", "given", "holds", "names", "unheld", "printed", "steps", "first_wrong",
            "mistakes", "tried", "unexplained", "troubles", "invariances", "tolerance",
        )  # fmt: skip


def check(
    model: Model,
    target: str,
    *,
    text: str = TEXT,
    args: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    seconds: float = SECONDS,
) -> Checked:
    """Run the class or function ``target``, FILE:NAME, with the weights of ``model`` and compare every step of a text.

    This runs the code of the file, in a process of its own, no stretch of it longer than ``seconds``. ``args`` are
    keywords of the constructor, ``names`` the parameters that are not to be guessed. Raises UsageError for what is not
    there or cannot be built, StudentError where the code itself fails.
    """
    model.transformer.require_vocabulary("there are no logits to compare")

    encoding = model.encode(text)

    def found() -> Checked:
        trace = model.trace_of(encoding)
        limit = allowed(STUDENT, trace.last_hidden.dtype) if tolerance is None else tolerance
        student = open_student(target, model.config, args or {})
        return _Check(model, trace, student, names or {}, limit).report()

    try:
        report = apart(found, seconds)
    except Ended as end:
        raise failed(split_target(target)[0], end.message, end.frames) from None
    return replace(report, about=About(model, encoding))


class _Check:
    def __init__(
        self, model: Model, trace: Trace, student: Student, names: Mapping[str, str], tolerance: float
    ) -> None:
        self.model, self.trace, self.student, self.tolerance = model, trace, student, tolerance
        self.ids = trace.encoding.ids
        self.width = model.config.vocab_size
        self.run = Runner(student)
        self.pairs = guess(student.module, model.config, names)

    def compared(self, pairs: Sequence[Pair]) -> Compared:
        """The steps of the reference among what the student's code computes with these weights."""
        give(self.student.module, self.model.transformer, pairs)
        made, returned = watch(self.student.file, lambda: self.run(torch.tensor([self.ids])), self.width)
        if returned is None:
            raise StudentError(
                f"{self.student.file.name}: {self.student.name} returns nothing with {self.width:,} numbers a token",
                "forward should return logits, alone or first in a tuple",
            )
        return Compared(self.trace, Tensors(made, returned), self.tolerance)

    def settled(self) -> Compared:
        """The comparison with the ways of the weights, where several are possible, that go furthest."""
        best, before = self.compared(self.pairs), -1
        self.printed = printed()
        while best.first_wrong is not None and best.progress > before:
            before = best.progress
            for pairs in others(self.pairs, self.model.config):
                other = self.compared(pairs)
                if other.progress > best.progress:
                    best, self.pairs = other, pairs
        give(self.student.module, self.model.transformer, self.pairs)
        return best

    def report(self) -> Checked:
        compared = self.settled()
        rows, unheld = table(self.student.module, self.model.config, self.pairs)
        why = Explanation(compared, self.student)
        causal = not self.model.config.looks_ahead
        return Checked(
            file=str(self.student.file),
            target=self.student.name,
            call=self.student.call,
            given=self.run.given,
            names=rows,
            unheld=unheld,
            printed=self.printed,
            steps=tuple(_steps(compared)),
            first_wrong=None if compared.first_wrong is None else self.wrong(compared, why),
            mistakes=tuple(why.found),
            tried=tuple(why.tried),
            unexplained=why.unexplained,
            troubles=() if compared.first_wrong is None else tuple(self.troubles(compared, why)),
            invariances=()
            if compared.tensors.nan is not None and compared.first_wrong is not None
            else invariances(self.run, self.ids, self.width, 10 * self.tolerance, causal),
            tolerance=self.tolerance,
        )

    def troubles(self, compared: Compared, why: Explanation) -> Iterator[Trouble]:
        """The first line that makes a NaN, and the first that makes other numbers when it runs again."""
        made = compared.tensors.made
        if compared.tensors.nan is not None:
            yield Trouble("from here on there are NaN", why.line(compared.tensors.nan))
        again = self.compared(self.pairs).tensors.made
        for first, second in zip(made, again, strict=False):
            if not torch.equal(first.tensor.nan_to_num(), second.tensor.nan_to_num()):
                yield Trouble(
                    "drawn at random: dropout that evaluation does not turn off?",
                    why.line(first),
                )
                return

    def wrong(self, compared: Compared, why: Explanation) -> Wrong:
        """The first wrong step: the one that the first mistake changes, else the first that is not there."""
        assert compared.first_wrong is not None
        at, line, made = compared.first_wrong, None, None
        if why.found:
            at, line = why.found[0].at, why.found[0].line
        else:
            at, made = compared.instead()
            line = why.line(made)
        step = compared.step(at)
        number = lesson_of(self.model, self.trace, step.name)
        return Wrong(
            step.full_name(at[1]),
            step.formula,
            step.title,
            number,
            "" if number is None else TITLES[NAMES[number - 1]],
            line,
            _first_numbers(compared.value(at)),
            () if made is None else _first_numbers(made.tensor),
        )


def _steps(compared: Compared) -> Iterator[CheckedStep]:
    for place in compared.places:
        step, match = compared.step(place), compared.match(place)
        state: Literal["right", "unseen", "wrong"] = "right" if match else "unseen" if compared.fine(place) else "wrong"
        line = (match.made.line or None) if match else None
        yield CheckedStep(step.full_name(place[1]), step.formula, state, match.difference if match else None, line)


def _first_numbers(tensor: Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in tensor.detach().float().flatten()[:_NUMBERS])
