"""The derivation of a gradient at one step: its formula, and the numbers of one row put into it."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.errors import AddressError
from tinytf.gradients.by_hand import gradient_to_inputs
from tinytf.gradients.trace import GradientTrace
from tinytf.parts.row import Step
from tinytf.steps.operations import Add
from tinytf.steps.operations.operation import Consumer, Quantity, Row, Summand
from tinytf.trace.address import Address
from tinytf.trace.site import Site


@dataclass(frozen=True, eq=False)
class Derivation:
    """The gradient of one row of the ``step`` with the full ``name``; ∂x stands for ∂loss/∂x.

    ``formula`` is the formula itself, then lines that define its letters. ``inputs`` go into it, ``intermediates``
    follow from them in this order, and ``result`` is the row of the gradient. ``head`` is the query head, ``row`` the
    token or query; None if the step has no such axis.
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
            "inputs": {quantity.name: quantity.values.tolist() for quantity in self.inputs},
            "intermediates": {quantity.name: quantity.values.tolist() for quantity in self.intermediates},
            "result": self.result.tolist(),
        }


@torch.no_grad()
def derive(trace: GradientTrace, address: str | Address) -> Derivation:
    """Work out one row of the gradient at a step, from the gradients of the steps computed from it.

    ``address`` is one step of one layer (``L3.norm1``) or head (``L3H2.weights``; default head 0). Its cell is the
    row: a token, or the query of a map; default is the last position that predicts a target, or of the source. Raises
    AddressError for anything else.
    """
    step, row = _row(trace, trace.address(address) if isinstance(address, str) else address)
    if step.name == "logits" or (not step.to_loss and step.is_vocabulary):
        return _derivation(step, row, (_from_loss(trace, row),))
    consumers = _consumers(trace, row)
    if not consumers:
        width = trace.step(step.name, row.layer).shape[-1]
        zero = Summand("0: no path leads from here to the loss", trace.model_input.new_zeros(width))
        return _derivation(step, row, (zero,))
    return _derivation(step, row, _distinct_summands(consumers))


def require_gradient(address: Address) -> None:
    """Raise AddressError if the step of an address is not a tensor, and so has no gradient."""
    if address.step is not None and not address.step.is_tensor:
        raise AddressError(f"{address} has no gradient", "name a step that is a tensor, such as L0.norm1 or logits")


def _row(trace: GradientTrace, address: Address) -> tuple[Step, Row]:
    step = address.step
    require_gradient(address)
    if step is None:
        raise AddressError(
            f"{address} has no gradient of its own: it is a whole block",
            "name one step, such as L0.norm1",
        )
    for numbers, kind in ((address.layers, "layer"), (address.heads, "head")):
        if numbers is not None and len(numbers) > 1:
            raise AddressError(
                f"{address} names {len(numbers)} {kind}s", f"only one is derived at a time: name one {kind}"
            )
    if len(address.cell) > 1:
        raise AddressError(f"{address} is a cell, not one row", f"for example {step.name}[3]")
    head = (address.heads or (0,))[0] if step.is_split else None
    axis = step.axes[-2] if len(step.axes) > 1 else "token"
    layer = None if address.layers is None else address.layers[0]
    count = {**trace.config.at(layer).sizes, **trace.lengths}.get(axis, len(trace.tokens))
    last = count - 1 if axis == "source" else max(trace.targets.positions)
    position = trace.index(address.cell[0] if address.cell else str(last), axis, count)
    return step, Row(step, layer, head, position)


def _consumers(trace: GradientTrace, row: Row) -> list[Consumer]:
    """The steps computed from the row's step, with their gradients: residual sums first."""
    consumers: list[Consumer] = []
    for step, layer, number in trace.steps.consumers((row.step.name, row.layer)):
        site = Site(trace, step, layer)
        if number in site.operation.deciding:
            continue
        consumers.append(Consumer(site, gradient_to_inputs(site, trace.grad.step(step.name, layer)), number, row))
    return sorted(consumers, key=lambda consumer: not isinstance(consumer.site.operation, Add))


def _distinct_summands(parts: list[Consumer]) -> tuple[Summand, ...]:
    """The summands of a row; if two have the same formula, their letters get the name of their step."""
    summands = [part.site.operation.summand(part) for part in parts]
    expressions = Counter(summand.expression for summand in summands)
    row_names = {part.row.step.name for part in parts}
    distinct: list[Summand] = []
    for part, summand in zip(parts, summands, strict=True):
        if expressions[summand.expression] > 1:
            suffix = f" of {part.site.step.name}"
            shared_names = {*row_names, part.symbol}
            inputs, intermediates = (
                tuple(
                    Quantity(
                        quantity.name if quantity.name in shared_names else quantity.name + suffix, quantity.values
                    )
                    for quantity in quantities
                )
                for quantities in (summand.inputs, summand.intermediates)
            )
            inputs = tuple(
                quantity for quantity in inputs if quantity.name not in row_names or not distinct
            )  # the row itself only once
            definitions = tuple(f"{line}{'' if part.symbol in line else suffix}" for line in summand.where)
            summand = Summand(f"[{summand.expression}]{suffix}", summand.result, definitions, inputs, intermediates)
        distinct.append(summand)
    return tuple(distinct)


def _from_loss(trace: GradientTrace, row: Row) -> Summand:
    """The row of logits or probabilities, from the tokens to predict there."""
    logits, targets = trace.logits_at(row.place), trace.targets
    probs, total = logits.softmax(dim=-1, dtype=torch.float64), len(targets.ids)
    count = Counter(
        token for position, token in zip(targets.positions, targets.ids, strict=True) if position == row.place
    )
    onehot = torch.zeros_like(probs)
    onehot[list(count)] = torch.tensor(list(count.values()), dtype=probs.dtype, device=probs.device)
    number = Quantity("N", torch.tensor(float(total), dtype=probs.dtype))
    inputs = (Quantity("p", probs), Quantity("onehot", onehot), number)
    if not count:
        return Summand("0: nothing is to be predicted from here", torch.zeros_like(logits))
    definitions = (f"N = {total} targets in all", "p = softmax(logits)")
    if row.step.name == "probs":
        result = torch.where(onehot > 0, -onehot / (total * probs), 0.0)  # 0, not 0 / 0, where p is 0 too
        return Summand("−onehot / (N·p)", result.to(logits.dtype), definitions, inputs)
    n_targets = sum(count.values())
    expression = "(p − onehot) / N" if n_targets == 1 else f"({n_targets}·p − onehot) / N"
    difference = Quantity(expression.split(")")[0].lstrip("("), n_targets * probs - onehot)
    return Summand(expression, (difference.values / total).to(logits.dtype), definitions, inputs, (difference,))


def _derivation(step: Step, row: Row, terms: tuple[Summand, ...]) -> Derivation:
    gradient_name = "∂" + step.name
    formula = (
        f"{gradient_name} = {' + '.join(term.expression for term in terms)}",
        *(line for t in terms for line in t.where),
    )
    return Derivation(
        step.full_name(row.layer),
        step,
        row.head,
        row.place if len(step.axes) > 1 else None,
        formula,
        tuple(quantity for term in terms for quantity in term.inputs),
        tuple(quantity for term in terms for quantity in _intermediates(term, len(terms) > 1)),
        torch.stack([term.result for term in terms]).sum(dim=0),
    )


def _intermediates(term: Summand, is_summand: bool) -> tuple[Quantity, ...]:
    """The intermediates of a term; each of several summands is one too, unless it is an unchanged input."""
    if not is_summand or term.expression in {quantity.name for quantity in term.inputs}:
        return term.intermediates
    return (*term.intermediates, Quantity(term.expression, term.result))
