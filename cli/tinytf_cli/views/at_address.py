"""The views of an address of a trace: its shape, its figures, its numbers, its map."""

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
from tinytf_cli.views.parts import Extent
from tinytf_cli.views.steps import (
    Word,
    address_blocks,
    address_heading,
    address_note,
    as_array,
    axis_labels,
    down_and_across,
    labels,
    labels_at,
    largest,
    row_labels,
    step_heading,
    visible_array,
)

_LABEL = 18
"""The width of a row label beside a map, in columns."""


def value_blocks(trace: Trace, where: Address, head: int, extent: Extent, word: Word | None = None) -> Iterator[Block]:
    """The numbers at an address, as a table or a map."""
    if where.step is not None and where.step.name == "next":
        yield Line("next is not a tensor: top shows the prediction")
        return
    yield from address_blocks(trace, where, head, extent, word)


def shape_blocks(trace: Trace, where: Address) -> Iterator[Block]:
    """The axes of every tensor at an address, with their sizes."""
    yield from address_note(where)
    names: list[Cell] = []
    shapes: list[str] = []
    for address in single_addresses(trace, where):
        assert address.step is not None
        names.append(Span(str(address), address.step.role))
        sizes = zip(address.axes, tensor_at(trace, address).shape, strict=True)
        shapes.append(" × ".join(f"{axis} {size:,}" for axis, size in sizes) or "1")
    yield Table([Column("", names), Column("", shapes)], header=False)


def statistics_blocks(trace: Trace, where: Address) -> Iterator[Block]:
    """The figures of every tensor at an address, a line each."""
    yield from address_note(where)
    rows = figures(trace, where)
    if not rows:
        yield Line("this is not a tensor, and has no figures")
        return
    steps: list[Cell] = [Span(str(row.where), row.where.step.role if row.where.step else "") for row in rows]
    columns = [Column("step", steps, said="")]
    for name in dict.fromkeys(name for row in rows for name in row.values):
        columns.append(Column(name, [Figure(row.values[name]) if name in row.values else "" for row in rows], "right"))
    columns.append(Column("", [Histogram(row.histogram) for row in rows], drop=1))
    yield Table(columns)


def heat_blocks(trace: Trace, where: Address, terminal: Terminal, word: Word | None = None) -> Iterator[Block]:
    """Every tensor at an address as a map: tokens down; keys, or dimensions, across."""
    yield from address_note(where)
    for address in single_addresses(trace, where):
        step, layer = address.step, address.layers[0] if address.layers else None
        assert step is not None
        if address.cell or (address.lens is not None and not address.lens.is_step):
            yield address_heading(trace, address)
            values = as_array(trace[address])
            rows, columns = labels_at(trace, address, values.shape, word) if values.ndim else ([""], [""])
            yield _map(values.reshape(len(rows), -1), rows, step.role, terminal, columns)
            continue
        heads: Sequence[int | None] = address.heads or (None,)
        if step.is_split and not address.heads:
            heads = step.part_numbers(trace.config.at(address.layers[0] if address.layers else None))
        for head in heads:
            yield step_heading(trace, step, layer, head)
            yield _heat(trace, Address(step, address.layers, None if head is None else (head,)), terminal, word)


def _heat(trace: Trace, where: Address, terminal: Terminal, word: Word | None) -> Block:
    step, names = where.step, labels(trace)
    assert step is not None
    values = as_array(tensor_at(trace, where))
    columns = axis_labels(trace, step.axes[-1], range(values.shape[-1]), word)
    if step.is_vocabulary:
        return _map(values, [names[row] for row in trace.recording.logit_rows], step.role, terminal, columns)
    if step.is_map:
        seen, axes = visible_array(trace, step, where.layers[0] if where.layers else None), down_and_across(step)
        keys = labels(trace, step.axes[-1])
        if step.holds_shares:
            return Heat(values, names, keys, "unit", seen, axes=axes)
        return Heat(values, names, keys, "signed", seen, largest(values, seen), axes=axes)
    names = row_labels(trace, step)
    return _map(np.atleast_2d(values), names if values.ndim > 1 else ["[0]"], step.role, terminal, columns)


def _map(values: Array, names: Sequence[str], role: str, terminal: Terminal, columns: Sequence[str]) -> Block:
    """A cell per number; if that is wider than the screen, each row as a strip of colour."""
    if 2 * values.shape[1] > terminal.width - _LABEL:
        return Values(list(names), values, 0, role, columns)
    return Heat(values, list(names), columns, "signed", None, largest(values))
