"""Check a worked example: put every claimed cell beside the true one."""

import time
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tinytf.errors import UsageError
from tinytf.report import Report
from tinytf.sentences import first_of, several
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Tokenizer
from tinytf.verify.claims import Claim, Numbers, compare
from tinytf.verify.evaluate import ByTinytf, Evaluation, cells, largest_difference
from tinytf.verify.example import ClaimedStep, Edit, Example, ExampleError, in_words
from tinytf.verify.language import BUDGET, Budget, LanguageError, NeedsTokenizer

AGREEMENT = 1e-9
"""The most that tinytf and numpy may differ, relative to the number or, below 1, absolute."""
GRADIENT_AGREEMENT = 1e-7
"""The most that gradients may differ, since numpy takes finite differences."""
SECONDS = 60.0
"""The default time limit of one example."""
_NAMED = 3
"""The most edits that the sentence names."""


@dataclass(frozen=True)
class CheckedStep:
    """A step with the ``true`` cells; for each claimed cell, whether it ``holds``, and ``off``, claimed − true.

    ``carried`` is true for a cell that does not hold but follows from the author's own earlier numbers. ``apart`` is
    the difference of the two computations, and ``allowed`` its limit. A step that could not be checked has no cells,
    and ``skipped`` says why. ``after`` are the cells with the edits of an edited example.
    """

    step: ClaimedStep
    true: NDArray[Any] | None = None
    holds: NDArray[np.bool_] | None = None
    off: Numbers | None = None
    carried: NDArray[np.bool_] | None = None
    apart: float = 0.0
    allowed: float = AGREEMENT
    skipped: str = ""
    after: NDArray[Any] | None = None

    @cached_property
    def moved(self) -> NDArray[np.bool_]:
        """Which cells an edit moves: by more than the two computations may differ."""
        if self.after is None or self.true is None:
            return np.zeros(0, dtype=np.bool_)
        if self.true.dtype.kind in "US":
            return np.asarray(self.after != self.true)
        return ~np.isclose(self.after, self.true, rtol=AGREEMENT, atol=AGREEMENT, equal_nan=True)

    @property
    def claims(self) -> int:
        return 0 if self.holds is None else self.holds.size

    @property
    def holding(self) -> int:
        return 0 if self.holds is None else int(self.holds.sum())

    @property
    def carrying(self) -> int:
        return 0 if self.carried is None else int(self.carried.sum())

    @property
    def wrong(self) -> int:
        """The number of claimed cells that neither hold nor are carried."""
        return self.claims - self.holding - self.carrying

    @property
    def of_one_shape(self) -> bool:
        """Whether the claim has as many cells as the truth along every axis: a claim that omits some does not hold."""
        return self.holds is None or self.true is None or self.holds.shape == self.true.shape

    @property
    def right(self) -> bool:
        """Whether every claimed cell holds and none is omitted."""
        return self.holding == self.claims and self.of_one_shape

    @property
    def agrees(self) -> bool:
        """Whether both computations give the same numbers."""
        return self.apart <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        """The step as JSON data; a difference is None if there is nothing to subtract."""
        step, claim = self.step, self.step.claim
        off = None if self.off is None else np.where(np.isnan(self.off), np.array(None), self.off.astype(object))

        def listed(array: NDArray[Any] | None) -> Any:
            return None if array is None else array.tolist()

        return {
            "name": step.name,
            "title": step.title,
            "formula": step.formula.text,
            "claimed": None if claim is None else (claim.shown if claim.words else claim.values).tolist(),
            "as_written": None if claim is None else claim.shown.tolist(),
            "tolerance": None if claim is None or claim.words else claim.tolerance.tolist(),
            "true": listed(self.true),
            "difference": listed(off),
            "holds": listed(self.holds),
            "carried": listed(self.carried),
            "computations_differ_by": self.apart,
            "skipped": self.skipped or None,
            "note": step.note or None,
            "line": step.line,
            **({} if self.after is None else {"after": listed(self.after), "moved": listed(self.moved)}),
        }


@dataclass(frozen=True)
class Verification(Report):
    """An example with all of its steps checked."""

    KIND = "verify"
    EVENTS: ClassVar = {"steps": "step", "check": "check"}
    ALWAYS_SAID = True

    example: Example
    steps: tuple[CheckedStep, ...]
    edits: tuple[Edit, ...] = ()

    def in_a_sentence(self) -> str:
        """How many of the claimed numbers are wrong, and from which step on; of an edited example, what moves."""
        if self.edits:
            edited = first_of([str(edit) for edit in self.edits], _NAMED)
            moved = sum(int(step.moved.sum()) for step in self.moved)
            where = f"numbers change, in {len(self.moved):,} of {len(self.steps):,} steps"
            said = f"With {edited}, {f'{moved:,} {where}' if moved else 'no number changes'}."
        elif not self.claims:
            said = ""
        elif not self.wrong:
            said = f"None of the {self.claims:,} numbers of {self.example.name} is wrong."
        else:
            first = next(step.step.name for step in self.steps if step.wrong)
            wrong = f"{self.wrong:,} {'is' if self.wrong == 1 else 'are'} wrong, the first in {first}"
            follow = f"; {several(self.carrying, 'follow')} from wrong ones" if self.carrying else ""
            said = f"Of the {self.claims:,} numbers of {self.example.name}, {wrong}{follow}."
        return printable(said, spaces=False)

    @cached_property
    def claims(self) -> int:
        """The number of claimed cells that were checked."""
        return sum(step.claims for step in self.steps)

    @cached_property
    def holding(self) -> int:
        return sum(step.holding for step in self.steps)

    @cached_property
    def carrying(self) -> int:
        return sum(step.carrying for step in self.steps)

    @cached_property
    def wrong(self) -> int:
        return sum(step.wrong for step in self.steps)

    @cached_property
    def skipped(self) -> int:
        """The number of claimed cells that were not checked."""
        return sum(step.step.claim.shown.size for step in self.steps if step.skipped and step.step.claim is not None)

    @cached_property
    def worst(self) -> CheckedStep:
        """The step on which tinytf and numpy differ most, relative to the allowed difference."""
        return max(self.steps, key=lambda step: step.apart / step.allowed)

    @property
    def moved(self) -> list[CheckedStep]:
        """The steps with cells that the edits move."""
        return [step for step in self.steps if step.moved.any()]

    @property
    def holds(self) -> bool:
        """Whether every claim that could be checked holds, and both computations agree on every step."""
        return all(step.right for step in self.steps) and self.worst.agrees

    def summary(self) -> dict[str, Any]:
        """The example's name and titles, and how many of its claims hold."""
        example = self.example
        return {
            "name": example.name,
            "title": example.title,
            "source": example.source,
            "claims": self.claims,
            "hold": self.holding,
            "carried": self.carrying,
            "wrong": self.wrong,
            "not_checked": self.skipped,
            "holds": self.holds,
        }

    def fields(self) -> dict[str, Any]:
        worst = self.worst
        return {
            **self.summary(),
            **({"edits": [str(edit) for edit in self.edits]} if self.edits else {}),
            "steps": [checked.to_dict() for checked in self.steps],
            "check": {
                "holds": self.holds,
                "agrees": worst.agrees,
                "largest_difference": worst.apart,
                "at": worst.step.name,
            },
        }


@dataclass(frozen=True)
class ExampleScores(Report):
    """The scores of several examples: how many of their claims hold. ``papers`` are names of papers to measure."""

    KIND = "worked_examples"
    EVENTS: ClassVar = {"worked_examples": "worked_example"}
    ALWAYS_SAID = True

    examples: tuple[Verification, ...]
    papers: tuple[str, ...] = ()

    def in_a_sentence(self) -> str:
        """How many of all claimed numbers are wrong, and in which example most."""
        claims, wrong = (sum(getattr(score, name) for score in self.examples) for name in ("claims", "wrong"))
        if not wrong:
            return f"None of the {claims:,} claimed numbers is wrong."
        most = max(self.examples, key=lambda score: score.wrong)
        name = printable(most.example.name, spaces=False)
        are = "is" if wrong == 1 else "are"
        return f"Of {claims:,} claimed numbers {wrong:,} {are} wrong, the most in {name} ({most.wrong:,})."

    def fields(self) -> dict[str, Any]:
        summaries = [verification.summary() for verification in self.examples]
        return {"papers": list(self.papers), "worked_examples": summaries}


def verify(
    example: Example,
    tokenizer: Tokenizer | None = None,
    *,
    seconds: float = SECONDS,
    budget: int = BUDGET,
    edit: Example | None = None,
) -> Verification:
    """Recompute every step, with tinytf and with numpy, and compare the claims with the result.

    ``edit`` is the example with other numbers (``edited``), which is computed beside it.

    ``tokenizer`` is for steps that need token ids; without one those are skipped. Raises ExampleError, with line and
    field, for a step that cannot be computed within ``seconds`` and ``budget`` numbers (both for the whole example,
    finite differences included), and for a claim with more cells than the value; UsageError for a tokenizer whose
    vocabulary is not the example's.
    """
    vocabulary = example.vocabulary
    if tokenizer is not None and vocabulary is not None and not vocabulary.fits(tokenizer):
        message = (
            f"the token ids of {example.name} are from {vocabulary.name}, but this tokenizer has another vocabulary"
        )
        raise UsageError(message, "leave out --tokenizer to skip the steps with token ids")
    total_budget = Budget(budget, time.monotonic() + seconds)
    edit_budget = replace(total_budget)
    claims = {step.name: step.claim for step in example.steps if step.claim is not None}
    claimed = {name: claim.values for name, claim in claims.items() if not claim.words}
    ours, theirs = (evaluation(example, tokenizer, budget=total_budget) for evaluation in (ByTinytf, Evaluation))
    author = Evaluation(example, tokenizer, claimed, budget=replace(total_budget))
    with np.errstate(all="ignore"), warnings.catch_warnings():  # infinities and NaN are shown as such
        warnings.simplefilter("ignore")
        steps = tuple(_check(step, ours, theirs, author) for step in example.steps)
        if edit is None:
            return Verification(example, steps)
        ours, theirs = (evaluation(edit, tokenizer, budget=edit_budget) for evaluation in (ByTinytf, Evaluation))
        return Verification(example, tuple(_with_edit(checked, ours, theirs) for checked in steps), edit.edits)


def _with_edit(checked: CheckedStep, ours: Evaluation, theirs: Evaluation) -> CheckedStep:
    """The step with its cells in an edited example."""
    name, where = checked.step.name, ours.example.edits[0].where
    if checked.true is None:
        return checked
    try:
        after, by_numpy = cells(ours[name]), cells(theirs[name])
    except LanguageError as error:
        hint = error.hint or "take the number back, or change others with it"
        raise ExampleError(f"{where}: with this, {name} cannot be computed: {error.message}", hint) from None
    if after.shape != checked.true.shape:
        message = f"{where}: with this, {name} is {in_words(after.shape)}, and was {in_words(checked.true.shape)}"
        raise ExampleError(message, "change numbers that are not sizes")
    return replace(checked, after=after, apart=max(checked.apart, largest_difference(after, by_numpy)))


def _check(step: ClaimedStep, ours: Evaluation, theirs: Evaluation, author: Evaluation) -> CheckedStep:
    try:
        true, by_numpy = cells(ours[step.name]), cells(theirs[step.name])
    except NeedsTokenizer as error:
        return CheckedStep(step, skipped=error.message)
    except LanguageError as error:
        raise _fault(ours.example, step, "value", error.message, error.hint) from None
    allowed = GRADIENT_AGREEMENT if "gradient" in step.formula.calls else AGREEMENT
    checked = CheckedStep(step, true=true, apart=largest_difference(true, by_numpy), allowed=allowed)
    if step.claim is None:
        return checked
    if step.claim.surplus(true.shape):
        message = f"{in_words(step.claim.shape)} claimed, but the value is {in_words(true.shape)}"
        raise _fault(ours.example, step, "claim", message)
    holds, off = compare(step.claim, true)
    carried = ~holds if holds.all() else ~holds & _follows(step, step.claim, author)
    return replace(checked, holds=holds, off=off, carried=carried)


def _fault(example: Example, step: ClaimedStep, field: str, message: str, hint: str = "") -> ExampleError:
    line = step.claim_line if field == "claim" else step.line
    return ExampleError(f"{example.path}, line {line}, field {field!r} of step {step.name!r}: {message}", hint)


def _follows(step: ClaimedStep, claim: Claim, author: Evaluation) -> NDArray[np.bool_]:
    """Which claimed cells follow from the author's earlier claims."""
    try:
        return compare(claim, cells(step.formula.compute(author)))[0]
    except LanguageError:
        return np.zeros(claim.shape, dtype=bool)
