"""Explain one cell of a trace, and follow the largest terms down to the embeddings."""

import math
from collections.abc import Callable

import torch

from tinytf.errors import AddressError, UsageError
from tinytf.look.explain.cell import Cell, find_cell
from tinytf.look.explain.data import TEMPERATURES, Explained, Explanation, Input
from tinytf.look.prediction import predictions
from tinytf.parts.row import TEXT_AXES
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

_CURVES = 4
"""The tokens whose probability is followed over temperatures."""


@torch.no_grad()
def explain(
    model: TextModel,
    text: Text,
    address: str | Address | None = None,
    *,
    depth: int = 1,
    top: int = 8,
    temperature: float = 1.0,
) -> Explained:
    """Explain the number at ``address`` of a text, or of its trace, then the numbers of its largest terms.

    Without an address it is the logit of the prediction. There are ``depth`` levels, each cell once, with the ``top``
    largest terms. It ends early at the embeddings, at a masked cell, and at a value of an intervention.
    ``temperature`` divides the logits of a cell of ``probs``. Raises AddressError for an address that is not one cell
    of computed numbers, and without one if nothing is predicted; UsageError for a ``depth`` or ``top`` below 1, for a
    temperature that is not above 0, and for a temperature with another step.
    """
    trace, label = model.trace(text), model.shown
    if address is None:
        if not (predicted := predictions(trace, model, 1)):
            raise AddressError("nothing is predicted in this text", "name a cell, such as L0H0.scores[1,0]")
        address = predicted[0].address
    cell, note = find_cell(trace, address)
    if _is_exchanged(cell):
        raise AddressError(
            f"{cell} was put there by an intervention, not computed",
            "explain a step before or after it",
        )
    if temperature != 1.0 and not isinstance(cell.site.operation, VocabularySoftmax):
        raise UsageError(f"a temperature belongs to probs, and {cell} is computed without one")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise UsageError(f"a temperature of {temperature:g} is not above 0")
    for name, level_number in (("depth", depth), ("top", top)):
        if level_number < 1:
            raise UsageError(f"{name} {level_number} is below 1")
    level, seen, explanations = [cell], {str(cell)}, []
    for level_number in range(1, depth + 1):
        if not level:
            break
        next_level: list[Cell] = []
        for level_cell in level:
            operation = level_cell.site.operation
            if isinstance(operation, VocabularySoftmax):
                working = operation.arithmetic(level_cell, temperature, label)
            else:
                working = operation.arithmetic(level_cell)
            words = " ".join(part for part in (working.note, note if level_number == 1 else "") if part)
            explanations.append(
                _explanation(
                    level_cell,
                    operation.words,
                    working,
                    words,
                    level_number,
                    top,
                    _recorded(level_cell, temperature),
                    label,
                )
            )
            for lead in working.lead:
                assert isinstance(lead, Cell), "a cell's sources are of its kind"
                if str(lead) not in seen and not _is_exchanged(lead):
                    seen.add(str(lead))
                    next_level.append(lead)
        level = next_level
    fault = first_not_finite(trace) if any(math.isnan(level_cell.difference) for level_cell in explanations) else None
    curves = _by_temperature(cell, label) if isinstance(cell.site.operation, VocabularySoftmax) else {}
    return Explained(tuple(explanations), depth, fault, curves, about=About(model, trace.encoding))


def _is_exchanged(cell: Cell) -> bool:
    return cell.trace.is_exchanged(cell.step.name, cell.layer, cell.head)


def _recorded(cell: Cell, temperature: float) -> float:
    """The number of the trace, or torch's softmax at another temperature."""
    if temperature == 1.0:
        return cell.value
    token, entry = cell.index
    return float(probabilities(cell.trace.logits_at(token).double() / temperature)[entry])


def _by_temperature(cell: Cell, label: Callable[[int], str]) -> dict[str, tuple[float, ...]]:
    """The probability of the cell's token and of the likeliest others, at each of TEMPERATURES."""
    token, entry = cell.index
    logits = cell.trace.logits_at(token).double()
    shares = torch.stack([probabilities(logits / temperature) for temperature in TEMPERATURES])  # (temperature, V)
    ids = dict.fromkeys([entry, *logits.topk(min(_CURVES, len(logits))).indices.tolist()])
    return {label(i): tuple(shares[:, i].tolist()) for i in [*ids][:_CURVES]}


def _explanation(
    cell: Cell,
    kind: str,
    working: Working,
    note: str,
    depth: int,
    top: int,
    recorded: float,
    label: Callable[[int], str],
) -> Explanation:
    total, dtype = working.total, cell.trace.last_hidden.dtype
    limit = allowed(STEP, dtype) * (max(1.0, abs(recorded)) if math.isfinite(recorded) else 1.0)
    terms, rest = working.terms(top)
    inputs = ((source, n_words) for source, n_words in working.inputs if isinstance(source, Cell))
    return Explanation(
        address=str(cell),
        place=_place(cell, label),
        depth=depth,
        title=cell.step.title,
        formula=cell.step.formula,
        role=cell.step.role,
        kind=kind,
        note=note,
        before=working.before,
        factor_names=working.series.names if working.series else (),
        term_name=working.series.called if working.series else "",
        terms=terms,
        rest=rest,
        sum=working.sum,
        after=working.after,
        total=total,
        recorded=recorded,
        difference=0.0 if total == recorded else abs(total - recorded),
        allowed=max(limit, torch.finfo(dtype).eps * working.rounding),
        inputs=tuple(Input(cell.name(words), cell.step.title, cell.step.formula) for cell, words in inputs),
        leads_to=tuple(map(str, working.lead)),
    )


def _place(cell: Cell, label: Callable[[int], str]) -> str:
    """The cell's position in words: ``query 0 The, key 1 cat``; ``token 2 sat, d17``."""
    words = []
    for axis, number in zip(cell.step.axes[-2:], cell.index, strict=True):
        if axis in TEXT_AXES:
            words.append(f"{axis} {number} {cell.trace.tokens_on(axis)[number].shown}")
        else:
            words.append(label(number) if axis == "vocab" else dimension(axis, number, cell.trace.config))
    return ", ".join(words)
