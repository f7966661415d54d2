"""The tensors of a trace in full: a table of values, a map of weights, or one cell."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, product

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tinytf.parts.row import TEXT_AXES, Step
from tinytf.steps.operations.disentangled import distances_in_words, rows_in_text
from tinytf.trace.address import Address
from tinytf.trace.trace import Trace, visible
from tinytf_cli.views.blocks import (
    Array,
    Beside,
    Block,
    Column,
    Figure,
    Heading,
    Heat,
    Labels,
    Line,
    RowBars,
    Span,
    Table,
    Values,
    Visible,
)
from tinytf_cli.views.parts import Extent, fold_note, folded, middle_out, note, numbered

_TABLE = 84
"""The width of a table of values that is beside others, in columns."""
_SEEN = 9
"""The most keys that are listed in full, of those that a query sees."""
_READ = 4
"""The most keys that a row names of a map whose rows are no shares."""


def as_array(tensor: Tensor) -> Array:
    """A tensor as float32 numbers for drawing."""
    array: Array = tensor.detach().float().cpu().numpy()
    return array


def signed_role(value: float, most: float) -> str:
    """The colour role of a number between −most and most, on the diverging scale."""
    share = value / most if most and math.isfinite(value) else 0.0
    return f"signed:{round((min(1.0, max(-1.0, share)) + 1) / 2 * 255)}"


ALL = "--all shows all"
"""How a command shows the numbers that a table leaves out."""
Word = Callable[[int], str | None]
"""How a token of the vocabulary is shown."""


def labels(trace: Trace, axis: str = "token") -> list[str]:
    return [token.shown for token in trace.tokens_on(axis)]


def row_labels(trace: Trace, step: Step) -> list[str]:
    """The labels of a step's rows: tokens, or the distances from a query to its keys."""
    return distances_in_words(trace.config) if "distance" in step.axes else labels(trace, (step.axes * 2)[-2])


def visible_array(trace: Trace, step: Step, layer: int | None = None) -> Visible:
    allowed = visible(trace, step, layer)
    return None if allowed is None else allowed.cpu().numpy()


def largest(values: Array, seen: Visible = None) -> float:
    """The largest finite magnitude of the visible cells: the end of a signed scale."""
    if seen is not None:
        values = values[..., seen] if values.ndim > 2 else values[seen]
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


def down_and_across(step: Step) -> str:
    """The axes of a map, such as query ↓ key →."""
    return f"{step.axes[-2]} ↓ {step.axes[-1]} →"


def query_blocks(
    weights: Array,
    names: Sequence[str],
    seen: Visible,
    most: int | None,
    every: bool = False,
    keys: Sequence[str] | None = None,
) -> Iterator[Block]:
    """For each query its keys by falling weight, with ``every`` all of them; at most ``most`` queries.

    ``keys`` are the names of the keys where they are another text's.
    """
    of_keys = names if keys is None else keys
    keep, rows = middle_out(len(names), most), []
    for query in keep:
        order = np.argsort(-weights[query], kind="stable")
        entries = [(of_keys[k], float(weights[query, k])) for k in order if seen is None or seen[query, k]]
        rows.append((names[query], entries))
    yield RowBars(rows, every=every)
    yield from fold_note(range(len(names)), keep, "tokens")


def _sight(seen: NDArray[np.bool_], names: Sequence[str], most: int | None, every: bool) -> Iterator[Block]:
    """How many keys each query sees, and which; at most ``most`` queries."""
    keep = middle_out(len(names), most)
    keys = [[name for name, visible in zip(names, seen[query], strict=True) if visible] for query in keep]
    yield Table(
        [
            Column("", [names[query] for query in keep], said="query"),
            Column("", [f"sees {len(row)} of {len(names)}" for row in keys], "right"),
            Column("", [" ".join(row if every or len(row) <= _SEEN else [*row[:4], "…", *row[-4:]]) for row in keys]),
        ],
        header=False,
    )
    yield from fold_note(range(len(names)), keep, "tokens")


def _read(
    weights: Array, seen: NDArray[np.bool_], names: Sequence[str], most: int | None, every: bool
) -> Iterator[Block]:
    """The keys that each query reads with the largest weights, of either sign; at most ``most`` queries."""
    keep = middle_out(len(names), most)
    rounded = np.where(seen, np.round(weights, 3), 0)
    largest_keys = [np.argsort(-np.abs(rounded[query]), kind="stable") for query in keep]
    most_keys = len(names) if every else _READ
    read = [
        "   ".join(f"{names[key]} {rounded[query, key]:.3f}" for key in keys[:most_keys] if rounded[query, key])
        for query, keys in zip(keep, largest_keys, strict=True)
    ]
    label = Column("", [names[query] for query in keep], said="query")
    yield Table([label, Column("", ["reads most of"] * len(keep)), Column("", read, shrink=8)], header=False)
    yield from fold_note(range(len(names)), keep, "tokens")


def step_heading(trace: Trace, step: Step, layer: int | None, head: int | None) -> Heading:
    name = f"L{layer}{step.letter}{head}.{step.name}" if head is not None and step.is_split else step.full_name(layer)
    words = meaning(trace, step, (layer,), None if head is None else (head,))
    return Heading(name, f"{step.title}{words}", step.role)


def meaning(trace: Trace, step: Step, layers: Sequence[int | None], heads: Sequence[int] | None) -> str:
    """`` = `` and the formula of a step; where an intervention replaced some of its numbers, that it did."""
    for layer in layers:
        parts = heads or step.part_numbers(trace.config.at(layer))
        if any(trace.is_exchanged(step.name, layer, part) for part in (None, *parts)):
            return ", with numbers that were put there"
    return f" = {step.formula}" if step.formula else ""


def block_blocks(trace: Trace, layer: int, head: int, extent: Extent, width: int) -> Iterator[Block]:
    """A block in full: its steps in order, neighbours with the same axes side by side if ``width`` allows."""
    layer_steps = [step for step, step_layer in trace.steps.rows if step_layer == layer]
    for _, group in groupby(layer_steps, key=lambda step: step.axes):
        steps = list(group)
        if steps[0].is_map:
            yield from _maps(trace, steps, layer, head, extent, width)
        else:
            parts = (
                step_blocks(trace, step, layer, trace.shown_part(step, layer, head), extent, asked=False)
                for step in steps
            )
            yield Beside([list(part) for part in parts], least=_TABLE, even=True)


def _maps(trace: Trace, steps: Sequence[Step], layer: int, head: int, extent: Extent, width: int) -> Iterator[Block]:
    """From scores to weights, step by step: formulas, maps, and what each query looks at in the last map."""
    names, keys = labels(trace), labels(trace, steps[0].axes[-1])
    yield Line("")
    formulas = [(Span(step.name, step.role), Span(meaning(trace, step, (layer,), (head,)), "dim")) for step in steps]
    yield Line([span for index, pair in enumerate(formulas) for span in (Span("   " if index else ""), *pair)])
    maps: list[list[Block]] = []
    for step in steps:
        part = trace.shown_part(step, layer, head)
        values = as_array(trace.step(step.name, layer) if part is None else trace.step(step.name, layer, (part,))[0])
        seen = visible_array(trace, step, layer)
        scale, limit = ("unit", 1.0) if step.holds_shares else ("signed", largest(values, seen))
        title = Heading(f"L{layer}{'' if part is None else f'H{part}'}.{step.name}", role=step.role)
        axes, every = down_and_across(step), extent.whole(values, asked=False)
        maps.append([title, Heat(values, names, keys, scale, seen, limit, every=every, axes=axes)])
    yield Beside(maps, least=_map_width(names, keys, width), even=True)
    if step.holds_shares:
        yield from query_blocks(values, names, seen, extent.most(values, asked=False), every, keys)


def _map_width(names: Sequence[str], keys: Sequence[str], width: int) -> int:
    """The width of a map with its numbers, or with small cells if the numbers do not fit ``width``."""
    label = min(14, max(map(len, names)))
    numbers = label + 3 + 7 * len(keys)
    return numbers if numbers <= width else min(width, 12 + 2 * len(keys))


def step_blocks(
    trace: Trace, step: Step, layer: int | None, head: int | None, extent: Extent, *, asked: bool
) -> Iterator[Block]:
    """A step of one layer (and head, where it has heads) as a titled table or map."""
    yield step_heading(trace, step, layer, head)
    shares = step.holds_shares
    yield from value_blocks(trace, step, layer, head, extent, asked=asked, shares=shares)


def value_blocks(
    trace: Trace,
    step: Step,
    layer: int | None,
    head: int | None,
    extent: Extent,
    *,
    asked: bool,
    shares: bool = False,
) -> Iterator[Block]:
    """The numbers of a step; with ``shares``, its maps hold shares of 1."""
    heads = (head,) if head is not None and step.is_split else None
    names = labels(trace)
    if not step.is_tensor:
        yield Line("  " + " ".join(names if step.name == "tokens" else [str(t.id) for t in trace.tokens]))
        return
    if step.is_vocabulary:
        yield vocabulary_values(trace, step, extent)
        return
    values = as_array(trace.step(step.name, layer, heads))
    if heads is not None:
        values = values[0]
    dims, rows, every = extent.first(values, asked), extent.most(values, asked), extent.whole(values, asked)
    if step.is_map:
        seen, axes, keys = visible_array(trace, step, layer), down_and_across(step), labels(trace, step.axes[-1])
        if shares:
            yield Heat(values, names, keys, "unit", seen, asked=asked, every=every, axes=axes)
            yield from query_blocks(values, names, seen, rows, extent.dims == 0, keys)
        else:
            limit = largest(values, seen)
            yield Heat(values, names, keys, "signed", seen, limit, asked=asked, every=every, axes=axes)
            if seen is not None:
                mixes = step is trace.steps.map_of(layer or 0)
                in_full = extent.dims == 0
                yield from _read(values, seen, names, rows, in_full) if mixes else _sight(seen, names, rows, in_full)
    elif step.is_drawn:
        unit = bool(((values >= 0) & (values <= 1)).all())
        scale, limit = ("unit", 1.0) if unit else ("signed", largest(values))
        heat = Heat(values, names, numbered("E", values.shape[1]), scale, None, limit, every=every)
        yield from folded(heat, range(len(names)), rows, "tokens", "--rows 0")
    elif values.ndim == 1:
        yield Values(["[0]"], values[None], dims, step.role, axis_labels(trace, step.axes[-1], range(len(values))))
    else:
        columns = axis_labels(trace, step.axes[-1], range(values.shape[1]))
        table = Values(row_labels(trace, step), values, dims, step.role, columns, remedy=ALL)
        if "distance" not in step.axes:
            yield from folded(table, range(len(values)), rows, "tokens", "--rows 0")
        elif asked:
            yield from folded(table, table.labels, rows, "distances", "--rows 0")
        else:
            present = rows_in_text(trace.config, len(names))
            yield from folded(table.only(present), present, rows, "distances in this text", "--rows 0")
            yield note(f"{len(present)} of {len(table.labels):,} distances are in this text")


def tensors_at(
    trace: Trace, where: Address, head: int | None = None, *, backward: bool = False
) -> Iterator[tuple[Step, int | None, int | None]]:
    """Step, layer and head of every tensor at an address without a cell; of a block only ``head``, if given.

    A key or value head that several query heads share comes once, under its first query head.
    """
    for layer in where.layers if where.layers is not None else (None,):
        named = (row for row in where.among(trace.steps.layer_steps) if trace.steps.has(row.name, layer))
        steps = [trace.steps.at(row.name, layer) for row in named]
        for step in reversed(steps) if backward else steps:
            heads: Sequence[int | None] = (None,)
            if step.is_split:
                chosen = (trace.shown_part(step, layer, head),) if head is not None and where.step is None else None
                heads = where.parts_of(step) or chosen or step.part_numbers(trace.config.at(layer))
            for part in heads:
                yield step, layer, part


def address_blocks(
    trace: Trace, where: Address, head: int, extent: Extent, word: Word | None = None
) -> Iterator[Block]:
    """The tensors at an address: a cell, a step in each of its layers and heads, or a whole block.

    ``word`` names the tokens of the vocabulary.
    """
    yield from address_note(where)
    if where.cell or (where.lens is not None and not where.lens.is_step):
        assert where.step is not None
        yield address_heading(trace, where)
        yield cell_block(trace, trace[where], where, extent, word, trace.seen(where))
        return
    for step, layer, part in tensors_at(trace, where, head):
        if step.is_vocabulary:
            yield step_heading(trace, step, layer, part)
            yield vocabulary_values(trace, step, extent, word)
            continue
        yield from step_blocks(trace, step, layer, part, extent, asked=True)


def address_note(where: Address) -> Iterator[Line]:
    if where.note:
        yield Line(Span(where.note, "dim"))


def address_heading(trace: Trace, where: Address) -> Heading:
    """The heading of a part of a step, or of its TransformerLens counterpart."""
    assert where.step is not None
    of_step = where.lens is None or where.lens.is_step
    words = meaning(trace, where.step, where.layers or (None,), where.heads)
    title = f"{where.step.title}{words}" if of_step else f"of the {where.step.title}"
    return Heading(str(where), title, where.step.role)


def vocabulary_values(trace: Trace, step: Step, extent: Extent, word: Word | None = None) -> Values:
    """A step over the vocabulary at the positions that the forward pass read."""
    values, names = as_array(trace.at_logit_rows(step)), labels(trace)
    columns = axis_labels(trace, step.axes[-1], range(values.shape[1]), word)
    rows = [names[row] for row in trace.recording.logit_rows]
    return Values(rows, values, extent.first(values), step.role, columns, remedy=ALL)


def cell_block(
    trace: Trace, tensor: Tensor, where: Address, extent: Extent, word: Word | None = None, seen: Tensor | None = None
) -> Block:
    """One number, or the rows of a tensor, with the labels of their axes.

    A masked map is drawn with only its ``seen`` cells visible, as the whole map is.
    """
    if tensor.dim() == 0:
        masked = seen is not None and not bool(seen)
        return Line([Span("  "), Figure(float(tensor), "%.9g", "strong"), Span("   masked" if masked else "", "dim")])
    assert where.step is not None
    values = as_array(tensor)
    flat, (rows, columns) = values.reshape(-1, values.shape[-1]), labels_at(trace, where, values.shape, word)
    if seen is not None and not bool(seen.all()):
        visible_cells = seen.cpu().numpy().reshape(flat.shape)
        scale, limit = ("unit", 1.0) if where.step.holds_shares else ("signed", largest(flat, visible_cells))
        return Heat(flat, rows, columns, scale, visible_cells, limit, every=extent.whole(flat))
    return Values(rows, flat, extent.first(flat), where.step.role, columns, remedy=ALL)


def labels_at(trace: Trace, where: Address, shape: Sequence[int], word: Word | None = None) -> tuple[list[str], Labels]:
    """The labels of the rows and columns of a tensor of this ``shape`` at an address; leading axes are one."""
    chosen = trace.places(where)
    *leading, columns = (
        axis_labels(trace, axis, chosen.get(axis, range(size)), word)
        for axis, size in zip(where.axes, shape, strict=True)
    )
    if not leading:  # the one row is that of the indices which the address names
        leading = [axis_labels(trace, axis, at, word) for axis, at in chosen.items() if axis not in where.axes]
    return [" ".join(row) for row in product(*leading)], columns


def axis_labels(trace: Trace, axis: str, index: Sequence[int], word: Word | None = None) -> Labels:
    """The labels of some indices of an axis."""
    letter = {"layer": "L", "head": "H", "kv head": "H", "expert": "E", "vocab": "#"}.get(axis, "d")

    def name(number: int) -> str:
        if axis in TEXT_AXES:
            return trace.tokens_on(axis)[number].shown
        if axis == "label":
            return trace.config.labels[number]
        if axis == "distance":
            return distances_in_words(trace.config)[number]
        return (word(number) if word is not None and axis == "vocab" else None) or f"{letter}{number}"

    return Labels(name, index)
