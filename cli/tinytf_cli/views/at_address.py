"""What is at an address of a trace: its shape, its figures, its numbers, its map."""

from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.look.values import figures, single_addresses, tensor_at
from tinytf.trace.address import Address
from tinytf.trace.trace import Trace
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import (
    Array,
    Block,
    Cell,
    Column,
    Figure,
    Heat,
    Histogram,
    Line,
    Span,
    Table,
    Values,
)
from tinytf_cli.views.steps import (
    Word,
    address_blocks,
    address_heading,
    as_array,
    labels,
    largest,
    places,
    row_labels,
    step_heading,
    visible_array,
)

_LABEL = 18
"""Columns that the name of a row takes beside a map."""


def value_blocks(
    trace: Trace, where: Address, head: int, dims: int, rows: int | None, word: Word | None = None
) -> Iterator[Block]:
    """The numbers at an address, as a table or a map."""
    if where.step is not None and where.step.name == "next":
        yield Line("next is not a tensor: top shows the prediction")
        return
    yield from address_blocks(trace, where, head, dims=dims, rows=rows, word=word)


def shape_blocks(trace: Trace, where: Address) -> Iterator[Block]:
    """The axes of every tensor at an address, with their sizes."""
    yield from _noted(where)
    names: list[Cell] = []
    shapes: list[str] = []
    for one in single_addresses(trace, where):
        assert one.step is not None
        names.append(Span(str(one), one.step.role))
        sizes = zip(one.axes, tensor_at(trace, one).shape, strict=True)
        shapes.append(" × ".join(f"{axis} {size:,}" for axis, size in sizes) or "1")
    yield Table([Column("", names), Column("", shapes)], header=False)


def statistics_blocks(trace: Trace, where: Address) -> Iterator[Block]:
    """The figures of every tensor at an address, a line each."""
    yield from _noted(where)
    found = figures(trace, where)
    if not found:
        yield Line("this is not a tensor, and has no figures")
        return
    steps: list[Cell] = [Span(str(one.where), one.where.step.role if one.where.step else "") for one in found]
    columns = [Column("step", steps, said="")]
    for name in dict.fromkeys(name for one in found for name in one.values):
        columns.append(Column(name, [Figure(one.values[name]) if name in one.values else "" for one in found], "right"))
    columns.append(Column("", [Histogram(one.histogram) for one in found], drop=1))
    yield Table(columns)


def heat_blocks(trace: Trace, where: Address, terminal: Terminal) -> Iterator[Block]:
    """Every tensor at an address as a map: tokens down; keys, or dimensions, across."""
    yield from _noted(where)
    for one in single_addresses(trace, where):
        step, layer = one.step, one.layers[0] if one.layers else None
        assert step is not None
        if one.cell or (one.lens is not None and not one.lens.is_step):
            yield address_heading(one)
            values, some = np.atleast_1d(as_array(trace[one])), trace.places(one)
            sizes = dict(zip(one.axes, values.shape, strict=False))
            values = values.reshape(-1, values.shape[-1])
            named = [places(trace, axis, size, some=some.get(axis)) for axis, size in sizes.items()]
            rows = named[0] if len(named) == 2 and named[0] else [str(row) for row in range(len(values))]
            rows = rows if len(values) > 1 else [""]
            yield _map(values, rows, step.role, terminal, named[-1] if named else ())
            continue
        every: Sequence[int | None] = one.heads or (None,)
        if step.is_split and not one.heads:
            every = step.part_numbers(trace.config.at(one.layers[0] if one.layers else None))
        for head in every:
            yield step_heading(trace, step, layer, head)
            yield _heat(trace, Address(step, one.layers, None if head is None else (head,)), terminal)


def _heat(trace: Trace, where: Address, terminal: Terminal) -> Block:
    step, names = where.step, labels(trace)
    assert step is not None
    values = as_array(tensor_at(trace, where))
    if step.is_vocabulary:
        return _map(values, [names[row] for row in trace.recording.logit_rows], step.role, terminal)
    if step.is_map:
        seen = visible_array(trace, step, where.layers[0] if where.layers else None)
        if step.is_distribution:
            return Heat(values, names, names, "unit", seen)
        return Heat(values, names, names, "signed", seen, largest(values, seen))
    names = row_labels(trace, step)
    return _map(np.atleast_2d(values), names if values.ndim > 1 else ["[0]"], step.role, terminal)


def _map(values: Array, names: Sequence[str], role: str, terminal: Terminal, columns: Sequence[str] = ()) -> Block:
    """A cell per number; where that is wider than the screen, each row as a strip of colour."""
    if 2 * values.shape[1] > terminal.width - _LABEL:
        return Values(list(names), values, 0, role)
    columns = columns or [f"d{d}" for d in range(values.shape[1])]
    return Heat(values, list(names), columns, "signed", None, largest(values))


def _noted(where: Address) -> Iterator[Block]:
    if where.note:
        yield Line(Span(where.note, "dim"))
