"""How a gradient comes about at one step: the formula, and the numbers of one row put into it."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.errors import AddressError
from tinytf.gradients.by_hand import passed_on, step_gradients
from tinytf.gradients.loss import Targets, require_targets
from tinytf.gradients.trace import GradientTrace
from tinytf.steps.operations import Add
from tinytf.steps.operations.operation import Consumer, Quantity, Row, Summand
from tinytf.steps.table import Place, Step
from tinytf.trace.address import Address
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Derivation:
    """The gradient of one row of the ``step`` called ``name``: ∂ before a name is the loss's gradient for it.

    ``formula`` is the whole in its first line, then what its letters are. ``inputs`` go into it, ``intermediates``
    follow from them in this order, ``result`` is the row of the gradient. ``head`` is the query head, and ``row`` the
    token or query; None where the step has no such axis.
    """

    name: str
    step: Step
    head: int | None
    row: int | None
    formula: tuple[str, ...]
    inputs: tuple[Quantity, ...]
    intermediates: tuple[Quantity, ...]
    result: Tensor

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "head": self.head,
            "row": self.row,
            "formula": list(self.formula),
            "inputs": {one.name: one.values.tolist() for one in self.inputs},
            "intermediates": {one.name: one.values.tolist() for one in self.intermediates},
            "result": self.result.tolist(),
        }


@torch.no_grad()
def derive(trace: Trace, targets: Targets, address: str | Address, row: int | None = None) -> Derivation:
    """Work out one row of the gradient at a step, from the gradients of the steps that were computed from it.

    Those are autograd's where the trace has them for these targets, else they are worked out by hand.
    ``address`` is one step of one layer (``L3.norm1``), of one head (``L3H2.weights``; head 0 unless it says), with the
    row as its cell or as ``row``: a token, or a query of a map. Without either it is the last position that predicts
    a target. Raises AddressError for anything else, and what ``backward`` raises.
    """
    require_targets(trace.model, len(trace.tokens), targets)
    where = _row(trace, targets, trace.address(address) if isinstance(address, str) else address, row)
    name = where.step.full_name(where.layer)
    if where.step.name == "logits" or (not where.step.to_loss and where.step.is_vocabulary):
        return _derivation(name, where, (_from_loss(trace, targets, where),))
    parts = _parts(trace, targets, where)
    if not parts:
        width = trace.step(where.step.name, where.layer).shape[-1]
        zero = Summand("0: no path leads from here to the loss", trace.model_input.new_zeros(width))
        return _derivation(name, where, (zero,))
    return _derivation(name, where, _told_apart(parts))


def require_gradient(address: Address) -> None:
    """Raise AddressError where the step of an address is made of words or numbers that nothing can be derived by."""
    if address.step is not None and not address.step.is_tensor:
        raise AddressError(f"{address} has no gradient", "name a step that is a tensor, such as L0.norm1 or logits")


def _row(trace: Trace, targets: Targets, address: Address, row: int | None) -> Row:
    step = address.step
    require_gradient(address)
    if step is None:
        raise AddressError(
            f"{address} has no gradient of its own: it is a whole block",
            "one step is derived at a time, such as L0.norm1",
        )
    for numbers, what in ((address.layers, "layer"), (address.heads, "head")):
        if numbers is not None and len(numbers) > 1:
            raise AddressError(f"{address} is of {len(numbers)} {what}s", f"one is derived at a time: name one {what}")
    if len(address.cell) > 1 or (address.cell and row is not None):
        raise AddressError(f"{address} is to be one row", f"for example {step.name}[3]")
    head = (address.heads or (0,))[0] if step.has_heads else None
    word = address.cell[0] if address.cell else str(max(targets.positions) if row is None else row)
    place = trace.index(word, "query" if "query" in step.axes else "token", len(trace.tokens))
    return Row(step, None if address.layers is None else address.layers[0], head, place)


def _parts(trace: Trace, targets: Targets, row: Row) -> list[Consumer]:
    """The steps that were computed from the row's step, with their gradients: residual sums, then the others."""
    wanted: dict[Place, list[int]] = {}
    for step, layer, number in trace.steps.consumers((row.step.name, row.layer)):
        wanted.setdefault((step.name, layer), []).append(number)
    found: list[Consumer] = []
    if isinstance(trace, GradientTrace) and trace.targets == targets:
        for (name, layer), numbers in wanted.items():
            site = Site(trace, trace.steps.at(name, layer), layer)
            behind = passed_on(site, trace.grad.step(name, layer))
            found += [Consumer(site, behind, number, row) for number in numbers]
        return sorted(found, key=lambda part: not isinstance(part.site.step.operation, Add))
    for site, gradient in step_gradients(trace, targets):
        numbers = wanted.pop((site.step.name, site.layer), [])
        found += [Consumer(site, passed_on(site, gradient), number, row) for number in numbers if gradient is not None]
        if not wanted:
            break
    found.reverse()
    return sorted(found, key=lambda part: not isinstance(part.site.step.operation, Add))


def _told_apart(parts: list[Consumer]) -> tuple[Summand, ...]:
    """The summands of a row; where two have the same formula, their letters are those of the step that each is of."""
    summands = [part.site.operation.summand(part) for part in parts]
    expressions = Counter(summand.expression for summand in summands)
    own = {part.row.step.name for part in parts}
    found: list[Summand] = []
    for part, summand in zip(parts, summands, strict=True):
        if expressions[summand.expression] > 1:
            of = f" of {part.site.step.name}"
            known = {*own, part.symbol}
            given, follows = (
                tuple(Quantity(one.name if one.name in known else one.name + of, one.values) for one in some)
                for some in (summand.inputs, summand.intermediates)
            )
            given = tuple(one for one in given if one.name not in own or not found)  # the row itself, once
            where = tuple(f"{line}{'' if part.symbol in line else of}" for line in summand.where)
            summand = Summand(f"[{summand.expression}]{of}", summand.result, where, given, follows)
        found.append(summand)
    return tuple(found)


def _from_loss(trace: Trace, targets: Targets, row: Row) -> Summand:
    """The row of logits or probabilities, from the tokens that are to be predicted there."""
    logits = trace.logits_at(row.place)
    probs, total = logits.softmax(dim=-1, dtype=torch.float64), len(targets.ids)
    count = Counter(token for place, token in zip(targets.positions, targets.ids, strict=True) if place == row.place)
    onehot = torch.zeros_like(probs)
    onehot[list(count)] = torch.tensor(list(count.values()), dtype=probs.dtype, device=probs.device)
    number = Quantity("N", torch.tensor(float(total), dtype=probs.dtype))
    given = (Quantity("p", probs), Quantity("onehot", onehot), number)
    if not count:
        return Summand("0: nothing is to be predicted from here", torch.zeros_like(logits))
    where = (f"N = {total} targets in all", "p = softmax(logits)")
    if row.step.name == "probs":
        result = torch.where(onehot > 0, -onehot / (total * probs), 0.0)  # where p is 0 too, 0 / 0 is no answer
        return Summand("−onehot / (N·p)", result.to(logits.dtype), where, given)
    times = sum(count.values())
    expression = "(p − onehot) / N" if times == 1 else f"({times}·p − onehot) / N"
    difference = Quantity(expression.split(")")[0].lstrip("("), times * probs - onehot)
    return Summand(expression, (difference.values / total).to(logits.dtype), where, given, (difference,))


def _derivation(name: str, row: Row, terms: tuple[Summand, ...]) -> Derivation:
    own = "∂" + row.step.name
    formula = (f"{own} = {' + '.join(term.expression for term in terms)}", *(line for t in terms for line in t.where))
    return Derivation(
        name,
        row.step,
        row.head,
        row.place if len(row.step.axes) > 1 else None,
        formula,
        tuple(quantity for term in terms for quantity in term.inputs),
        tuple(quantity for term in terms for quantity in _intermediates(term, len(terms) > 1)),
        torch.stack([term.result for term in terms]).sum(dim=0),
    )


def _intermediates(term: Summand, is_summand: bool) -> tuple[Quantity, ...]:
    """Those of one term; a summand is one itself, unless it is passed on as it came."""
    if not is_summand or term.expression in {given.name for given in term.inputs}:
        return term.intermediates
    return (*term.intermediates, Quantity(term.expression, term.result))
