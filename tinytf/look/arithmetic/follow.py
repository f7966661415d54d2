"""Explain one cell of a trace, and follow the largest terms down to the embeddings."""

import math
from collections.abc import Callable

import torch

from tinytf.errors import AddressError, UsageError
from tinytf.look.arithmetic.cell import Cell, find_cell
from tinytf.look.arithmetic.data import Explained, Explanation, Input
from tinytf.report import About
from tinytf.steps.operations import VocabularySoftmax
from tinytf.steps.operations.operation import dimension
from tinytf.steps.operations.softmax import probabilities
from tinytf.steps.operations.working import Working
from tinytf.text_model import TextModel
from tinytf.tolerance import STEP, allowed
from tinytf.trace.address import Address
from tinytf.trace.faults import first_not_finite
from tinytf.trace.trace import Text


@torch.no_grad()
def explain(
    model: TextModel,
    text: Text,
    address: str | Address,
    *,
    depth: int = 1,
    top: int = 8,
    temperature: float = 1.0,
) -> Explained:
    """The arithmetic behind the one number at ``address`` of a text, or of its trace; then that of its largest terms.

    There are ``depth`` levels, each cell once, with the ``top`` largest terms. It ends early at the embeddings, and
    where a cell is masked, or put there by an intervention. ``temperature`` divides the logits of a cell of ``probs``.
    Raises AddressError for an address that is not one cell of computed numbers, UsageError for a depth or ``top`` below
    1, for a temperature that is not above 0, and for one of another step.
    """
    trace, label = model.trace(text), model.shown
    cell, note = find_cell(trace, address)
    if _is_exchanged(cell):
        raise AddressError(
            f"{cell} was put there by an intervention, and not computed",
            "the steps before and after it have their arithmetic",
        )
    if temperature != 1.0 and not isinstance(cell.site.operation, VocabularySoftmax):
        raise UsageError(f"a temperature is of probs, and {cell} is computed without one")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise UsageError(f"a temperature of {temperature:g} is not above 0")
    for what, number in (("depth", depth), ("top", top)):
        if number < 1:
            raise UsageError(f"{what} {number} is below 1")
    level, seen, found = [cell], {str(cell)}, []
    for number in range(1, depth + 1):
        if not level:
            break
        below: list[Cell] = []
        for one in level:
            done = one.site.operation
            if isinstance(done, VocabularySoftmax):
                made = done.arithmetic(one, temperature, label)
            else:
                made = done.arithmetic(one)
            said = " ".join(part for part in (made.note, note if number == 1 else "") if part)
            found.append(_explanation(one, done.words, made, said, number, top, _recorded(one, temperature), label))
            for lead in made.lead:
                assert isinstance(lead, Cell), "a cell's sources are of its kind"
                if str(lead) not in seen and not _is_exchanged(lead):
                    seen.add(str(lead))
                    below.append(lead)
        level = below
    broken = first_not_finite(trace) if any(math.isnan(one.difference) for one in found) else None
    return Explained(tuple(found), depth, broken, about=About(model, trace.encoding))


def _is_exchanged(cell: Cell) -> bool:
    return cell.trace.is_exchanged(cell.step.name, cell.layer, cell.head)


def _recorded(cell: Cell, temperature: float) -> float:
    """The number of the trace, or torch's softmax where a temperature was asked for."""
    if temperature == 1.0:
        return cell.value
    token, entry = cell.index
    return float(probabilities(cell.trace.logits_at(token).double() / temperature)[entry])


def _explanation(
    cell: Cell,
    kind: str,
    made: Working,
    note: str,
    depth: int,
    top: int,
    recorded: float,
    label: Callable[[int], str],
) -> Explanation:
    total, dtype = made.total, cell.trace.last_hidden.dtype
    limit = allowed(STEP, dtype) * (max(1.0, abs(recorded)) if math.isfinite(recorded) else 1.0)
    terms, rest = made.terms(top)
    inputs = (one.address(given) for one, given in made.inputs if isinstance(one, Cell))
    return Explanation(
        address=str(cell),
        place=_place(cell, label),
        depth=depth,
        title=cell.step.title,
        formula=cell.step.formula,
        role=cell.step.role,
        kind=kind,
        note=note,
        before=made.before,
        factor_names=made.series.names if made.series else (),
        term_name=made.series.called if made.series else "",
        terms=terms,
        rest=rest,
        sum=made.sum,
        after=made.after,
        total=total,
        recorded=recorded,
        difference=0.0 if total == recorded else abs(total - recorded),
        allowed=max(limit, torch.finfo(dtype).eps * made.rounding),
        inputs=tuple(Input(str(one), one.step.title, one.step.formula) for one in inputs if one.step),
        leads_to=tuple(map(str, made.lead)),
    )


def _place(cell: Cell, label: Callable[[int], str]) -> str:
    """Where the cell is, in words: ``query 0 The, key 1 cat``; ``token 2 sat, d17``."""
    words = []
    for axis, number in zip(cell.step.axes[-2:], cell.index, strict=True):
        if axis in ("token", "query", "key"):
            words.append(f"{axis} {number} {cell.token(number)}")
        else:
            words.append(label(number) if axis == "vocab" else dimension(axis, number, cell.trace.config))
    return ", ".join(words)
