"""Check a student's module against a reference: the same weights, step by step, to the first wrong step and why."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from tinytf.check.consistency import Consistency
from tinytf.check.explained import ConfirmedMistake, Explanation
from tinytf.check.invariances import Invariance, invariances
from tinytf.check.opened import Line, Student, StudentError, open_student, split_target, student_error
from tinytf.check.process import SECONDS, Ended, captured_output, run_in_subprocess
from tinytf.check.running import Runner
from tinytf.check.seen import Output, record_outputs
from tinytf.check.steps import Comparison, Tensors
from tinytf.check.weights import IN_PAIRS, NameRow, Pair, alternatives, copy_weights, guess_pairs, table
from tinytf.errors import UsageError
from tinytf.learn import NAMES, TITLES
from tinytf.learn.about import lesson_of
from tinytf.learn.live import Live
from tinytf.loading import Model
from tinytf.report import About, Data, Report
from tinytf.sentences import first_of, sign_of
from tinytf.text.printable import printable
from tinytf.tolerance import STUDENT, allowed
from tinytf.trace.faults import overflow_in_words, require_finite
from tinytf.trace.trace import Trace

TEXT = "The cat sat on the mat."
_NUMBERS = 4
_AT_RANDOM = "drawn at random"


@dataclass(frozen=True)
class CheckedStep(Data):
    """A step of the reference: ``state`` is ``right``, ``unseen`` (hidden inside a function whose result is right), or
    ``wrong`` (also after another wrong step); ``difference`` is relative to the step's largest number.
    """

    step: str
    formula: str
    state: Literal["right", "unseen", "wrong"]
    difference: float | None
    line: int | None


@dataclass(frozen=True)
class Trouble(Data):
    """A line of the student's code from which on the numbers mean nothing."""

    what: str
    line: Line | None


@dataclass(frozen=True)
class WrongStep(Data):
    """The first wrong step. ``yours`` are its first numbers in the student's code, where they are known."""

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
    """The result of a check: names, steps, the first wrong step, mistakes tried and confirmed, and invariances.

    ``call`` is how the module was built, ``given`` the arguments of its forward besides the ids. ``unheld`` are the
    parameters of the reference that no parameter of the student's holds; ``printed`` is what the code printed up to
    the end of its first run; ``unexplained`` is the first step that no mistake explains, empty if there is none.
    ``not_finite`` is the line from which on the logits are not, and what it makes.
    """

    KIND = "check"
    TABLE = ("steps",)
    ALWAYS_SAID = True
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
    first_wrong: WrongStep | None
    mistakes: tuple[ConfirmedMistake, ...]
    tried: tuple[str, ...]
    unexplained: str
    troubles: tuple[Trouble, ...]
    invariances: tuple[Invariance, ...]
    tolerance: float
    not_finite: Trouble | None = None

    @property
    def right(self) -> int:
        """How many steps are right, hidden ones included."""
        return sum(step.state != "wrong" for step in self.steps)

    @property
    def in_pairs(self) -> bool:
        """Whether the rows of queries and keys are the reference's only in another order: rotary pairs side by side."""
        return any(row.way.endswith(IN_PAIRS) for row in self.names)

    def in_a_sentence(self) -> str:
        """Whether all steps are right, and else the first that is wrong."""
        name, wrong = f"{self.file}:{self.target}", self.first_wrong
        pairs = "with the rows of queries and keys in rotary pairs (2i, 2i+1), " * self.in_pairs
        verdict = (
            f"{pairs}wrong at {wrong.step}, {wrong.title}: {wrong.formula}"
            if wrong
            else (f"{pairs}right: all {len(self.steps):,} steps are the reference's")
        )
        if wrong and (bad := self.not_finite) is not None:
            where = f" from line {bad.line.number} on" if bad.line is not None else ""
            verdict = f"not finite{where}: {bad.what}; {verdict}"
        failing = [invariance.what for invariance in self.invariances if not invariance.holds]
        but = f"; but this fails: {failing[0]}" if failing and not wrong else ""
        return printable(f"{name} is {verdict}{but}.", spaces=False)

    @property
    def holds(self) -> bool:
        return self.first_wrong is None and all(invariance.holds for invariance in self.invariances)

    def fields(self) -> dict[str, Any]:
        return self.members(
            "file", "target", "call", "given", "holds", "names", "unheld", "printed", "steps", "first_wrong",
            "mistakes", "tried", "unexplained", "not_finite", "troubles", "invariances", "tolerance",
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

    A decoder that reads a source gets the states of its encoder as an argument of forward; ``model.encoder`` is a
    reference of its own, whose last states are compared.
    This runs the code of the file, in a process of its own; each call into it may take at most ``seconds``. ``args``
    are keywords of the constructor; ``names`` maps parameters by hand instead of guessing. Raises UsageError for a
    target that does not exist or cannot be built, StudentError where the code itself fails, and TinytfError for a model
    whose own logits are not finite.
    """
    if not (is_encoder := model.transformer.head is None):
        model.transformer.require_vocabulary("there are no logits to compare")
    encoding = model.encode(text)

    def work() -> Checked:
        trace = model.trace_of(encoding)
        require_finite(trace, trace.last_hidden if is_encoder else trace.step("logits"))
        limit = allowed(STUDENT, trace.last_hidden.dtype) if tolerance is None else tolerance
        student = open_student(target, model.config, args or {})
        return _Check(model, trace, student, names or {}, limit).report()

    try:
        report = run_in_subprocess(work, seconds)
    except Ended as end:
        raise student_error(split_target(target)[0], end.message, end.frames) from None
    return replace(report, about=About(model, encoding))


class _Check:
    def __init__(
        self, model: Model, trace: Trace, student: Student, names: Mapping[str, str], tolerance: float
    ) -> None:
        self.model, self.trace, self.student, self.tolerance = model, trace, student, tolerance
        self.ids = trace.encoding.ids
        self.other = [(number + 1) % model.config.vocab_size for number in self.ids]
        kept = 2 * len(self.ids) // 3
        self.shorter = model.trace_of(model.encode_ids(self.other[:kept])) if kept > 1 else None
        self.width = model.config.d_model if model.transformer.head is None else model.config.vocab_size
        self.run = Runner(student, None if trace.source is None else trace.source.last_hidden)
        self.call: Callable[..., Any] = self.run
        self.printed: str | None = None
        self.pairs = guess_pairs(student.module, model.config, names)

    def compare(self, pairs: Sequence[Pair]) -> Comparison:
        """Run the student's code with these weights and look for the steps of the reference in it."""
        copy_weights(self.student.module, self.model.transformer, pairs)
        tensors = Tensors(*self.outputs(self.ids), pairs, self.outputs(self.other)[0])
        twin = None
        if self.shorter is not None:
            with suppress(StudentError):  # it takes one length alone
                twin = Comparison(
                    self.shorter, Tensors(*self.outputs(self.shorter.encoding.ids), pairs), self.tolerance
                )
        return Comparison(self.trace, tensors, self.tolerance, twin)

    def outputs(self, ids: Sequence[int]) -> tuple[list[Output], Output]:
        """Every tensor of a pass over some ids, and the logits that it returns."""
        student, call = self.student, lambda: self.call(torch.tensor([ids]))
        outputs, returned = record_outputs(student.file, student.module, call, self.width)
        self.printed = captured_output() if self.printed is None else self.printed
        if returned is None:
            raise StudentError(
                f"{student.file.name}: {student.name} returns nothing with {self.width:,} numbers a token",
                "forward should return logits, an encoder its last states, alone or first in a tuple",
            )
        return outputs, returned

    def best_comparison(self) -> Comparison:
        """The comparison that goes furthest, over the possible layouts of the weights."""
        best, progress = self.compare(self.pairs), -1
        while best.first_wrong is not None and best.progress > progress:
            progress = best.progress
            for candidate in self.relaid(best):
                if candidate.progress > best.progress:
                    best = candidate
        return best

    def relaid(self, comparison: Comparison) -> Iterator[Comparison]:
        """Comparisons with other layouts of the weights, with the mistakes of this one."""
        wrong = getattr(comparison.trace, "wrong", {})
        for pairs in list(alternatives(comparison.tensors.pairs, self.model.config)):
            yield self.compare(pairs).with_mistakes(wrong)

    def report(self) -> Checked:
        comparison = self.best_comparison()
        if comparison.first_wrong is None and self.run.takes_targets:  # a file computes its logits in two places
            self.call = self.run.at_all_positions
            comparison = self.best_comparison()
        copy_weights(self.student.module, self.model.transformer, comparison.tensors.pairs)
        found = self.invariances(comparison)
        explanation = Explanation(comparison, self.student, Consistency(self.model, self.trace, found), self.relaid)
        pairs, first_wrong = explanation.comparison.tensors.pairs, comparison.first_wrong
        troubles = () if first_wrong is None else tuple(self.troubles(comparison, explanation))
        rows, unheld = table(self.student.module, self.model.config, pairs)
        return Checked(
            file=str(self.student.file),
            target=self.student.name,
            call=self.student.call,
            given=self.run.filled_arguments,
            names=rows,
            unheld=unheld,
            printed=self.printed or "",
            steps=tuple(_steps(comparison)),
            first_wrong=None if first_wrong is None else self.first_wrong_step(comparison, explanation, troubles),
            mistakes=tuple(explanation.confirmed),
            tried=tuple(explanation.tried),
            unexplained=explanation.unexplained,
            not_finite=None if first_wrong is None else self.not_finite(comparison, explanation),
            troubles=troubles,
            invariances=found,
            tolerance=self.tolerance,
        )

    def invariances(self, comparison: Comparison) -> tuple[Invariance, ...]:
        """What the logits should not depend on; nothing where they are not numbers."""
        if comparison.tensors.not_finite is not None and comparison.first_wrong is not None:
            return ()
        causal = not self.model.config.looks_ahead
        return invariances(self.run, self.ids, self.width, 10 * self.tolerance, causal)

    def not_finite(self, comparison: Comparison, explanation: Explanation) -> Trouble | None:
        """The line that makes the first NaN or ∞ of the logits; in float16 with the number that it rounds to ∞."""
        output = comparison.tensors.not_finite
        if output is None:
            return None
        bad = output.tensor[~output.tensor.isfinite()]
        what = sign_of(float(bad[~bad.isneginf()][0] if not bool(bad.isneginf().all()) else bad[0]))
        before = [comparison.tensors.outputs[order].tensor for order in output.parents]
        most = max((float(x[x.isfinite()].abs().max()) for x in before if bool(x.isfinite().any())), default=0.0)
        overflow = overflow_in_words(most) if output.tensor.dtype == torch.float16 else ""
        return Trouble(f"{what}{f', since {overflow}' if overflow else ''}", explanation.line(output))

    def troubles(self, comparison: Comparison, explanation: Explanation) -> Iterator[Trouble]:
        """Parameters that nothing reads, and the first line whose numbers change from run to run."""
        outputs = comparison.tensors.outputs
        read, unread = comparison.tensors.read, []
        for pair in comparison.tensors.pairs:
            paths = [path for path in pair.theirs.paths.values() if path not in read]
            unread += [pair.theirs.template] if len(paths) == len(pair.theirs.paths) else paths
        if unread:
            yield Trouble(f"never read in the forward pass: {first_of(unread, 3)}", None)
        repeated = self.compare(comparison.tensors.pairs).tensors.outputs
        for first, second in zip(outputs, repeated, strict=False):
            if not torch.equal(first.tensor.nan_to_num(), second.tensor.nan_to_num()):
                yield Trouble(
                    f"{_AT_RANDOM}: dropout that evaluation does not turn off?",
                    explanation.line(first),
                )
                return

    def first_wrong_step(
        self, comparison: Comparison, explanation: Explanation, troubles: Sequence[Trouble]
    ) -> WrongStep:
        """The first wrong step: the one that the first confirmed mistake changes, else the first missing one."""
        assert comparison.first_wrong is not None
        key, line, output = comparison.first_wrong, None, None
        if explanation.confirmed:
            key, line = explanation.confirmed[0].at, explanation.confirmed[0].line
        else:
            key, output = comparison.first_visible_wrong()
            drawn = next((trouble.line for trouble in troubles if trouble.what.startswith(_AT_RANDOM)), None)
            line = drawn or explanation.line(output)
        step = comparison.step(key)
        try:
            lesson = lesson_of(Live(self.model, trace=self.trace), step.name)
        except UsageError:  # the lessons do not fit the model
            lesson = None
        return WrongStep(
            step.full_name(key[1]),
            step.formula,
            step.title,
            lesson,
            "" if lesson is None else TITLES[NAMES[lesson - 1]],
            line,
            _first_numbers(comparison.value(key)),
            () if output is None else _first_numbers(output.tensor),
        )


def _steps(comparison: Comparison) -> Iterator[CheckedStep]:
    for key in comparison.keys:
        step, match = comparison.step(key), comparison.match(key)
        state: Literal["right", "unseen", "wrong"] = (
            "right" if match else "unseen" if comparison.is_right(key) else "wrong"
        )
        line = (match.output.line or None) if match else None
        yield CheckedStep(step.full_name(key[1]), step.formula, state, match.difference if match else None, line)


def _first_numbers(tensor: Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in tensor.detach().float().flatten()[:_NUMBERS])
