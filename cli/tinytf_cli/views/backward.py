"""Gradients in full: at a step, over the vocabulary, in one cell, and how one row is derived."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from tinytf.gradients.derivation import Derivation
from tinytf.gradients.grad import Backward
from tinytf.gradients.trace import GradientTrace
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Quantity
from tinytf.trace.address import Address
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Labels, Line, Span, Table, Values
from tinytf_cli.views.parts import Extent, fold_note, middle_out, note, one_form
from tinytf_cli.views.steps import (
    ALL,
    as_array,
    axis_labels,
    cell_block,
    labels_at,
    largest,
    signed_role,
    value_blocks,
)

Shown = Callable[[int], str]
"""The printable name of a predicted token or class."""


def gradient_blocks(
    report: Backward, step: Step, layer: int | None, head: int | None, extent: Extent, *, asked: bool
) -> Iterator[Block]:
    """The gradient at one step of a layer (and head), under its formula."""
    where = Address(step, None if layer is None else (layer,), (head,) if step.is_split and head is not None else None)
    yield Heading(f"∂loss/∂{where}", report.formula(where), step.role)
    yield from value_blocks(report.trace.grad, step, layer, head, extent, asked=asked)


def vocabulary_blocks(report: Backward, step: Step, shown: Shown, extent: Extent) -> Iterator[Block]:
    """The gradient of logits or probabilities at each position that predicts, for the largest tokens."""
    trace = report.trace
    yield Heading(f"∂loss/∂{step.name}", report.formula(Address(step)), step.role)
    positions = sorted(set(trace.targets.positions))
    values = trace.grad.step(step.name)[positions]  # (N, V)
    keep = middle_out(len(positions), extent.most(as_array(values)))
    names = [trace.tokens[positions[i]].shown for i in keep]
    yield from _largest_tokens(values[keep], values, names, shown, extent)
    yield from fold_note(positions, keep, "tokens")


def _largest_tokens(
    rows: Tensor, ranked_by: Tensor, names: Sequence[str], shown: Shown, extent: Extent, *, several: bool = False
) -> Iterator[Block]:
    """Rows over the vocabulary (N, V): the tokens with the largest entries in ``ranked_by`` (…, V), by name.

    Rows of ``several`` quantities have a scale each; otherwise a line says how many tokens are shown.
    """
    dims = extent.first(as_array(rows))
    tokens = _ranked(ranked_by, dims)
    columns: list[Column] = [Column("", list(names), shrink=8, said="")]
    chosen = as_array(rows[:, tokens])
    limits = [largest(row if several else chosen) for row in chosen]
    for column, token in enumerate(tokens.tolist()):
        values = chosen[:, column].tolist()
        cells: list[Cell] = [
            Figure(value, one_form([value] if several else values), signed_role(value, limit))
            for value, limit in zip(values, limits, strict=True)
        ]
        columns.append(Column(shown(token), cells, "right", drop=column))
    yield Table(columns)
    if not several and len(tokens) < rows.shape[-1]:
        rest = "--dims shows more" if len(tokens) == dims else "the others are 0"
        yield note(f"the largest {len(tokens)} of {rows.shape[-1]:,} tokens; {rest}")


def _ranked(values: Tensor, dims: int) -> Tensor:
    """Up to ``dims`` tokens by falling magnitude over (…, V), at least one; tokens of 0 are omitted."""
    most = values.reshape(-1, values.shape[-1]).abs().amax(dim=0).nan_to_num(nan=math.inf)
    return most.topk(max(1, min(dims, int(most.count_nonzero())))).indices


def cell_blocks(trace: GradientTrace, where: Address, extent: Extent, shown: Shown) -> Iterator[Block]:
    """One cell of a gradient, or one row."""
    assert where.step is not None
    tensor = trace.grad[where]
    yield Heading(f"∂loss/∂{where}", where.step.title, where.step.role)
    if tensor.dim() and where.step.is_vocabulary:
        rows = tensor.reshape(-1, tensor.shape[-1])  # (N, V)
        names, columns = labels_at(trace.grad, where, tensor.shape, shown)
        yield from _largest_tokens(rows, tensor, names, columns.__getitem__, extent)
    else:
        yield cell_block(trace.grad, tensor, where, extent)


def derivation_blocks(trace: GradientTrace, derivation: Derivation, extent: Extent, shown: Shown) -> Iterator[Block]:
    """A formula, and the numbers of one row in it."""
    tokens = trace.tokens_on((derivation.step.axes * 2)[-2])
    row = "" if derivation.row is None else f"row {derivation.row}, {tokens[derivation.row].shown}"
    head = "" if derivation.head is None else f"head {derivation.head}"
    yield Heading(f"∂loss/∂{derivation.name}", ", ".join(part for part in (head, row) if part))
    for line in derivation.formula:
        yield Line(Span(line, "strong" if line == derivation.formula[0] else ""), indent=2)
    for title, quantities in (("inputs", derivation.inputs), ("then", derivation.intermediates)):
        if quantities:
            yield note(title)
            yield from _quantities(trace, quantities, derivation, extent, shown)
    yield note("result")
    if derivation.step.is_vocabulary:
        own = [derivation.formula[0].partition(" = ")[0]]
        yield from _largest_tokens(derivation.result[None], derivation.result, own, shown, extent)
        return
    result = as_array(derivation.result).reshape(1, -1)
    columns = _columns(trace, result.shape[1], derivation.step if derivation.step.is_map else None)
    own = [derivation.formula[0].partition(" = ")[0]]
    yield Values(own, result, extent.first(result), "output", columns, remedy=ALL)


def _columns(trace: GradientTrace, size: int, map_step: Step | None) -> Labels:
    """The labels of a row of ``size`` numbers: the keys of a map, or dimensions."""
    return axis_labels(trace, "d" if map_step is None else map_step.axes[-1], range(size))


def _quantities(
    trace: GradientTrace, quantities: Sequence[Quantity], derivation: Derivation, extent: Extent, shown: Shown
) -> Iterator[Block]:
    """A line per scalar, a table per kind of vector; a row of a map has a number for each key."""

    def kind(quantity: Quantity) -> tuple[int, Step | None]:
        step = trace.steps.by_name.get(quantity.name.removeprefix("∂")) or derivation.step
        is_row = step.is_map and quantity.values.numel() == len(trace.tokens_on(step.axes[-1]))
        return quantity.values.numel(), step if is_row else None

    for (size, map_step), group in groupby(quantities, key=kind):
        several = list(group)
        if size == 1:
            for q in several:
                yield Line([Span(f"  {q.name} = "), Figure(float(q.values), "%.6g", "strong")])
        elif derivation.step.is_vocabulary:
            rows = torch.stack([q.values for q in several])
            yield from _largest_tokens(rows, derivation.result, [q.name for q in several], shown, extent, several=True)
        else:
            values = np.stack([as_array(q.values) for q in several])
            columns, names = _columns(trace, size, map_step), [q.name for q in several]
            yield Values(names, values, extent.first(values), "residual", columns, several=True, remedy=ALL)
