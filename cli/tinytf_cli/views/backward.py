"""The backward pass: one line a step, last step first, and the gradients of one block in full."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from tinytf.gradients.by_hand import Matched
from tinytf.gradients.derivation import Derivation, derive
from tinytf.gradients.report import GradientRow
from tinytf.gradients.trace import GradientTrace
from tinytf.steps.operations.operation import Quantity
from tinytf.steps.table import Step
from tinytf.text.tokenizer import Tokenizer
from tinytf.trace.address import Address
from tinytf_cli.numbers import number
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Histogram, Line, Span, Table, Values
from tinytf_cli.views.steps import as_array, labels, largest, left_out, shown_rows, signed_role, value_blocks


def figure(value: float | None) -> str:
    """A figure of any size in about as many columns."""
    if value is None:
        return ""
    return number(value, "%.3f" if 0.1 <= abs(value) < 1e3 else "%.1e") if value else "0"


def _off(compared: Matched | None) -> str:
    """How far a formula is from autograd, in units of the largest entry."""
    if compared is None:
        return ""
    return f"{compared.relative:.0e}" if compared.relative else "equal"


def backward_blocks(trace: GradientTrace, rows: Sequence[GradientRow]) -> Iterator[Block]:
    """The table of all gradients."""
    total = len(trace.steps.rows)
    numbers = {(step.name, layer): place for place, (step, layer) in enumerate(trace.steps.rows, start=1)}
    names: list[Cell] = [Span(f"∂{row.name}", row.step.role) for row in rows]
    layers = [row.layer for row in rows]
    gaps = frozenset(i for i in range(len(rows) - 1) if layers[i] != layers[i + 1])
    shapes = [" × ".join(f"{axis} {size:,}" for axis, size in row.shape) for row in rows]
    missing = [row.statistics.not_finite for row in rows]
    lost: list[Cell] = [Span(f"{count:,}" if count else "", "bad") for count in missing]
    not_finite = [Column("not finite", lost, "right")] if any(missing) else []
    yield Heading("backward", f"{len(rows)} of {total} steps have a gradient; the last comes first")
    yield Table(
        [
            Column("#", [str(numbers[row.step.name, row.layer]) for row in rows], "right", drop=3, said="step"),
            Column("gradient of", names, said=""),
            Column("shape", shapes, narrow=["×".join(f"{size}" for _, size in row.shape) for row in rows], drop=2),
            Column("‖∂‖", [figure(row.norm) for row in rows], "right", said="norm"),
            Column("÷ step", [figure(row.ratio) for row in rows], "right", said="divided by the step's norm"),
            Column("mean", [figure(row.statistics.mean) for row in rows], "right", drop=1),
            Column("min", [figure(row.statistics.min) for row in rows], "right"),
            Column("", [Histogram(row.statistics.histogram) for row in rows]),
            Column("max", [figure(row.statistics.max) for row in rows], "left"),
            *not_finite,
            Column(
                "by hand",
                [_off(row.by_hand) for row in rows],
                "right",
                drop=4,
                said="by hand off by",
            ),
        ],
        rule_after=gaps,
    )


def gradient_blocks(
    trace: GradientTrace, step: Step, layer: int | None, head: int | None, *, dims: int, rows: int | None, asked: bool
) -> Iterator[Block]:
    """The gradient at one step of a layer (and head), under its formula."""
    where = Address(step, None if layer is None else (layer,), (head,) if step.has_heads and head is not None else None)
    yield Heading(f"∂loss/∂{where}", derive(trace, where).formula[0], step.role)
    yield from value_blocks(trace.grad, step, layer, head, dims=dims, rows=rows, asked=asked, signed=True)


def vocabulary_blocks(
    trace: GradientTrace, step: Step, tokenizer: Tokenizer, dims: int, limit: int | None
) -> Iterator[Block]:
    """The gradient of logits or probabilities at each position that predicts, for the ``dims`` largest tokens."""
    yield Heading(f"∂loss/∂{step.name}", derive(trace, Address(step)).formula[0], step.role)
    places = sorted(set(trace.targets.positions))
    keep = shown_rows(len(places), limit)
    values = trace.grad.step(step.name)[places]  # (N, V)
    names = [trace.tokens[places[i]].shown for i in keep]
    yield from _largest_tokens(values[keep], values, names, tokenizer, dims)
    yield _token_note(values, dims)
    yield from left_out(len(places), keep)


def _largest_tokens(
    rows: Tensor, ranked_by: Tensor, names: Sequence[str], tokenizer: Tokenizer, dims: int, *, several: bool = False
) -> Iterator[Block]:
    """Rows over the vocabulary (N, V): the tokens with the largest entries in ``ranked_by`` (…, V), by name.

    Rows of ``several`` quantities have a scale of their own each.
    """
    tokens = _ranked(ranked_by, dims)
    columns: list[Column] = [Column("", list(names), shrink=8, said="")]
    chosen = as_array(rows[:, tokens])
    limits = [largest(row if several else chosen) for row in chosen]
    for place, token in enumerate(tokens.tolist()):
        cells: list[Cell] = [
            Span(figure(float(value)), signed_role(float(value), limit))
            for value, limit in zip(chosen[:, place], limits, strict=True)
        ]
        columns.append(Column(tokenizer.shown(token), cells, "right", drop=place))
    yield Table(columns)


def _ranked(values: Tensor, dims: int) -> Tensor:
    """Up to ``dims`` tokens, the one with the largest entry of (…, V) first; after the first none without any."""
    most = values.reshape(-1, values.shape[-1]).abs().amax(dim=0).nan_to_num(nan=math.inf)
    return most.topk(max(1, min(dims, int(most.count_nonzero())))).indices


def _token_note(values: Tensor, dims: int) -> Line:
    count = len(_ranked(values, dims))
    rest = "--dims shows more" if count == dims else "the others are 0"
    return Line(Span(f"the largest {count} of {values.shape[-1]:,} tokens; {rest}", "dim"), indent=2)


def cell_blocks(trace: GradientTrace, where: Address, dims: int, tokenizer: Tokenizer) -> Iterator[Block]:
    """One cell of a gradient, or one row."""
    assert where.step is not None
    tensor = trace.grad[where]
    yield Heading(f"∂loss/∂{where}", where.step.title, where.step.role)
    if tensor.dim() == 0:
        yield Line([Span("  "), Span(number(float(tensor), "%.9g"), "strong")])
        return
    values = as_array(tensor)
    flat = values.reshape(-1, values.shape[-1])
    if where.step.is_vocabulary:
        yield from _largest_tokens(tensor.reshape(flat.shape), tensor, [""] * len(flat), tokenizer, dims)
        yield _token_note(tensor, dims)
        return
    yield Values([str(i) if len(flat) > 1 else "" for i in range(len(flat))], flat, dims, where.step.role)


def derivation_blocks(trace: GradientTrace, found: Derivation, dims: int, tokenizer: Tokenizer) -> Iterator[Block]:
    """A formula and the numbers of one row put into it."""
    place = "" if found.row is None else f"row {found.row}, {trace.tokens[found.row].shown}"
    head = "" if found.head is None else f"head {found.head}"
    yield Heading(f"∂loss/∂{found.name}", ", ".join(part for part in (head, place) if part))
    for line in found.formula:
        yield Line(Span(line, "strong" if line == found.formula[0] else ""), indent=2)
    for title, quantities in (("goes in", found.inputs), ("follows", found.intermediates)):
        if quantities:
            yield Line(Span(title, "dim"), indent=2)
            yield from _quantities(trace, quantities, found, dims, tokenizer)
    yield Line(Span("result", "dim"), indent=2)
    if found.step.is_vocabulary:
        own = [found.formula[0].partition(" = ")[0]]
        yield from _largest_tokens(found.result[None], found.result, own, tokenizer, dims)
        yield _token_note(found.result, dims)
        return
    keys = labels(trace) if found.step.is_map else ()
    result = as_array(found.result).reshape(1, -1)
    yield Values([found.formula[0].partition(" = ")[0]], result, dims, "output", columns=keys)


def _quantities(
    trace: GradientTrace, quantities: Sequence[Quantity], found: Derivation, dims: int, tokenizer: Tokenizer
) -> Iterator[Block]:
    """Scalars a line each, vectors of one kind in one table; a row of a map has a number for each key."""

    def kind(quantity: Quantity) -> tuple[int, bool]:
        step = trace.steps.by_name.get(quantity.name.removeprefix("∂"))
        is_row = (found.step if step is None else step).is_map and quantity.values.numel() == len(trace.tokens)
        return quantity.values.numel(), is_row

    for (size, is_row), group in groupby(quantities, key=kind):
        several = list(group)
        if size == 1:
            for one in several:
                yield Line([Span(f"  {one.name} = "), Span(number(float(one.values), "%.6g"), "strong")])
        elif found.step.is_vocabulary:
            rows = torch.stack([one.values for one in several])
            yield from _largest_tokens(rows, found.result, [one.name for one in several], tokenizer, dims, several=True)
        else:
            values = np.stack([as_array(one.values) for one in several])
            columns = labels(trace) if is_row else ()
            yield Values([one.name for one in several], values, dims, "residual", several=True, columns=columns)
