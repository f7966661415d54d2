"""What stands at an address of a trace: its shape, its figures, its numbers, its map."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tinytf.steps.table import Step
from tinytf.trace.address import Address
from tinytf.trace.conditions import MEASURES, measure
from tinytf.trace.summary import statistics, visible
from tinytf.trace.trace import Trace
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Heat, Histogram, Line, Span, Table, Values
from tinytf_cli.views.steps import address_blocks, as_array, labels, largest, step_heading, visible_array

_LABEL = 18
"""Columns that the name of a row takes beside a map."""


def places(trace: Trace, where: Address) -> Iterator[tuple[Step, int | None, int | None]]:
    """Step, layer and head of every tensor that an address without a cell names; a head axis is kept whole where no

    head is named."""
    steps: Sequence[Step] = [where.step] if where.step is not None else trace.steps.layer_steps
    for layer in where.layers if where.layers is not None else (None,):
        for step in steps:
            for head in where.heads if where.heads is not None and step.has_heads else (None,):
                yield step, layer, head


def named(step: Step, layer: int | None, head: int | None) -> str:
    """``L0H1.weights``."""
    return step.full_name(layer) if head is None else f"L{layer}H{head}.{step.name}"


def value_blocks(trace: Trace, where: Address, head: int, dims: int, rows: int | None) -> Iterator[Block]:
    """The numbers at an address, as a table or a map."""
    if where.step is not None and where.step.name == "next":
        yield Line("next is no tensor: top shows the prediction")
        return
    yield from address_blocks(trace, where, head, dims=dims, rows=rows)


def shape_blocks(trace: Trace, where: Address) -> Iterator[Block]:
    """The axes of an address, and how many there are along each."""
    yield from _noted(where)
    names: list[Cell] = []
    shapes: list[str] = []
    for name, role, axes, tensor in _tensors(trace, where):
        names.append(Span(name, role))
        shapes.append(" × ".join(f"{axis} {size:,}" for axis, size in zip(axes, tensor.shape, strict=True)) or "1")
    yield Table([Column("", names), Column("", shapes)], header=False)


def _tensors(trace: Trace, where: Address) -> Iterator[tuple[str, str, list[str], torch.Tensor]]:
    """Name, role, axes and tensor of everything that an address names."""
    if where.cell:
        assert where.step is not None
        yield str(where), where.step.role, where.axes, trace[where]
        return
    for step, layer, head in places(trace, where):
        one = Address(step, None if layer is None else (layer,), None if head is None else (head,))
        if step.is_tensor:
            yield named(step, layer, head), step.role, one.axes, _tensor(trace, one)


def _tensor(trace: Trace, where: Address) -> torch.Tensor:
    """As the pipeline has it: logits and probabilities of the positions that the forward pass read."""
    assert where.step is not None
    return trace.at_logit_rows(where.step) if where.step.is_vocabulary else trace[where]


def statistics_blocks(trace: Trace, where: Address) -> Iterator[Block]:
    """The figures of an address, a line each tensor: over what is finite and not masked."""
    yield from _noted(where)
    found = list(_figures(trace, where))
    if not found:
        yield Line("this is no tensor, and has no figures")
        return
    columns = [Column("step", [Span(name, role) for name, role, _, _ in found], said="")]
    for one in dict.fromkeys(name for *_, figures, _ in found for name in figures):
        cells = [Figure(figures[one]) if one in figures else "" for *_, figures, _ in found]
        columns.append(Column(one, cells, "right"))
    columns.append(Column("", [Histogram(counts) for *_, counts in found], drop=1))
    yield Table(columns)


def _figures(trace: Trace, where: Address) -> Iterator[tuple[str, str, dict[str, float], tuple[int, ...]]]:
    if where.cell:
        for name, role, _, tensor in _tensors(trace, where):
            yield name, role, _of(tensor), statistics(tensor).histogram
        return
    for step, layer, head in places(trace, where):
        if not step.is_tensor:
            continue
        heads = None if head is None else (head,)
        one = Address(step, None if layer is None else (layer,), heads)
        figures = {
            name: measure(trace, name, step, layer, heads)
            for name in MEASURES
            if name != "entropy" or step.is_distribution
        }
        for name in ("nan", "inf"):  # said where there are any
            if not figures[name]:
                del figures[name]
        counts = statistics(_tensor(trace, one), visible(trace, step, layer)).histogram
        yield named(step, layer, head), step.role, figures, counts


def _of(tensor: torch.Tensor) -> dict[str, float]:
    return {name: MEASURES[name][0](tensor.flatten()) for name in ("mean", "max", "min", "std", "norm")}


def heat_blocks(trace: Trace, where: Address, terminal: Terminal) -> Iterator[Block]:
    """Every tensor of an address as a map: tokens down; keys, or dimensions, across."""
    yield from _noted(where)
    if where.cell:
        assert where.step is not None
        yield Heading(str(where), f"{where.step.title} = {where.step.formula}", where.step.role)
        flat = np.atleast_1d(as_array(trace[where]))
        flat = flat.reshape(-1, flat.shape[-1])
        yield _map(flat, [str(i) if len(flat) > 1 else "" for i in range(len(flat))], where.step.role, terminal)
        return
    kv = trace.config.heads_per_kv
    for step, layer, head in places(trace, where):
        every = range(0, trace.config.n_heads, kv if "kv head" in step.axes else 1)
        for one in every if step.has_heads and head is None else (head,):
            yield step_heading(trace, step, layer, one)
            yield _heat(trace, step, layer, one, terminal)


def _heat(trace: Trace, step: Step, layer: int | None, head: int | None, terminal: Terminal) -> Block:
    names = labels(trace)
    if step.is_vocabulary:
        place = Address(step)
        return _map(
            as_array(_tensor(trace, place)), [names[row] for row in trace.recording.logit_rows], step.role, terminal
        )
    values = as_array(trace.step(step.name, layer, None if head is None else (head,)))
    values = values[0] if head is not None else values
    if step.is_map:
        seen = visible_array(trace, step, layer)
        if step.is_distribution:
            return Heat(values, names, names, "unit", seen)
        return Heat(values, names, names, "signed", seen, largest(values, seen))
    return _map(values if values.ndim > 1 else values[None], names if values.ndim > 1 else ["[0]"], step.role, terminal)


def _map(values: Any, names: Sequence[str], role: str, terminal: Terminal) -> Block:
    """A cell a number; where that is wider than the screen, each row as a strip of colour."""
    if 2 * values.shape[1] > terminal.width - _LABEL:
        return Values(list(names), values, 0, role)
    return Heat(values, list(names), [f"d{d}" for d in range(values.shape[1])], "signed", None, largest(values))


def _noted(where: Address) -> Iterator[Block]:
    if where.note:
        yield Line(Span(where.note, "dim"))


def address_data(trace: Trace, where: Address) -> dict[str, Any]:
    """The tensors of an address as data, each with its axes."""
    found = {name: {"axes": axes, "values": tensor.tolist()} for name, _, axes, tensor in _tensors(trace, where)}
    if where.step is not None and where.step.name == "ids":
        found = {"ids": {"axes": ["token"], "values": [token.id for token in trace.tokens]}}
    if where.step is not None and where.step.name == "tokens":
        found = {"tokens": {"axes": ["token"], "values": labels(trace)}}
    return {"address": str(where), "note": where.note, "values": found}


def tensors(trace: Trace, where: Address) -> dict[str, torch.Tensor]:
    """The tensors of an address, by name."""
    return {name: tensor for name, _, _, tensor in _tensors(trace, replace(where, cell=where.cell))}
