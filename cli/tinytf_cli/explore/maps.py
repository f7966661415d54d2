"""The main pane: the cells of a step around the chosen cell, or the words of a step without numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.cells import cell_len

from tinytf_cli.explore.cursor import chosen_tokens, labels, matrix, window
from tinytf_cli.explore.lists import next_blocks
from tinytf_cli.explore.scene import TOP_PREDICTIONS, Look
from tinytf_cli.numbers import SHARE, number_format, widest
from tinytf_cli.views.blocks import (
    Array,
    Bar,
    Bars,
    Block,
    Column,
    Figure,
    Heading,
    Heat,
    Line,
    Miniature,
    Miniatures,
    Piece,
    Span,
    Table,
    Visible,
    Words,
)
from tinytf_cli.views.parts import full_scale
from tinytf_cli.views.steps import as_array, largest, visible_array

_LABEL_WIDTH, _NUMBER_WIDTH = 14, 8
"""The columns of a row label, and of a number."""
_NARROW = 36
"""Below so many columns, words are left out."""
_MIN_MINIATURE = 8
"""The fewest lines in which small maps of all heads, or of a whole long step, are drawn."""


@dataclass(frozen=True)
class Map:
    """The map of a step: its title and axes, the visible cells with their rows and columns, and the blocks below."""

    title: Words
    axes: Line
    heat: Heat
    rows: slice
    columns: slice
    below: tuple[Block, ...]


def step_map(look: Look, width: int, height: int) -> Map | None:
    """The cells around the chosen one, with their numbers or in colour alone; None for a step without numbers.

    When comparing, the cells are the differences from the run before, if it has the same step.
    """
    scene, cursor, small = look.scene, look.cursor, look.small
    trace = scene.trace
    step, layer = cursor.at(trace)
    numbers = matrix(trace, cursor)
    if numbers is None:
        return None
    previous = matrix(scene.previous, cursor) if look.comparing and scene.previous is not None else None
    comparable = previous is not None and previous.shape == numbers.shape
    chosen = cursor.inside(*numbers.shape)
    before = float(previous[chosen]) if comparable and previous is not None else None
    caption = _caption(look, float(numbers[chosen]), before, width)
    is_share = step.holds_shares and not comparable
    if comparable and previous is not None:
        numbers = (numbers - previous).nan_to_num(0.0)
    values, seen = as_array(numbers), visible_array(trace, step, layer) if step.is_map else None
    row, column = chosen
    row_labels, column_labels = labels(trace, cursor, values.shape[1])
    label = min(_LABEL_WIDTH, max(map(cell_len, row_labels), default=0))
    form = SHARE if is_share else number_format(values)
    longest = max(map(cell_len, column_labels), default=1) if step.is_map else _NUMBER_WIDTH
    room = (width - label - 4) // (2 if small else max(widest(values, form), min(_NUMBER_WIDTH, longest)) + 1)
    rows, columns = window(len(values), row, max(1, height - 5)), window(values.shape[1], column, max(1, room))
    if step.is_vocabulary:
        column_labels[columns] = [scene.model.shown(number) for number in range(columns.start, columns.stop)]
    heat = Heat(
        values[rows, columns],
        row_labels[rows],
        column_labels[columns],
        "unit" if is_share else "signed",
        None if seen is None else seen[rows, columns],
        1.0 if is_share else largest(values, seen),
        small=small,
        chosen=(row - rows.start, column - columns.start),
    )
    if heat.values.shape != values.shape:
        ends = [
            f"{axis} {shown.start}–{shown.stop - 1} of {size:,}"
            for axis, shown, size in zip(("rows", "columns"), (rows, columns), values.shape, strict=True)
            if shown.stop - shown.start < size
        ]
        caption.append(Span(f"   {', '.join(ends)}", "dim"))
    below: list[Block] = [Line(caption, single=True)]
    room_below = height - len(heat.values) - 7
    if step.is_map and room_below > 0 and (is_share or comparable):
        below += _row_bars(
            values[row],
            row,
            row_labels[row],
            column_labels,
            None if seen is None else seen[row],
            room_below,
            comparable,
        )
    if (
        step.is_map
        and step.is_split
        and step.holds_shares
        and (lines := room_below - len(values) - 2) >= _MIN_MINIATURE
    ):
        below.append(_head_miniatures(look, lines, width))
    if step.is_vocabulary and room_below > 0:
        below += _largest(look, values[row], row_labels[row], room_below)
    elif not step.is_map and room_below - 3 >= min(len(values), _MIN_MINIATURE) and heat.values.shape != values.shape:
        whole = replace(heat, values=values, row_labels=row_labels, column_labels=column_labels, visible=None)
        count = " × ".join(f"{size:,}" for size in values.shape)
        below += [
            Heading("the whole step", f"{count} numbers"),
            replace(whole, small=True, most=room_below - 3, chosen=(row, column)),
        ]
    title = map_title(look, "this run − the run before" if comparable else "")
    return Map(title, _axes(look, row_labels[row], column_labels[column], width), heat, rows, columns, tuple(below))


def _caption(look: Look, value: float, before: float | None, width: int) -> list[Piece]:
    """The chosen cell and its number, and what it was before; the title of a narrow pane has its step already."""
    address = str(look.cursor.cell_address(look.scene.trace))
    words: list[Piece] = [
        f"  {address if width >= _NARROW else address[address.find('[') :]} = ",
        Figure(value, "%.7g", "strong"),
    ]
    return words if before is None else [*words, Span("   was ", "dim"), Figure(before, "%.7g")]


def _axes(look: Look, row_label: str, column_label: str, width: int) -> Line:
    """What the rows and columns are, with the chosen one of each; in a narrow pane, the chosen ones alone."""
    step, _ = look.cursor.at(look.scene.trace)
    row, column = chosen_tokens(look.scene.trace, look.cursor)
    *down, across = step.axes[-2:]
    words: list[Piece] = []
    for axis, sign, token, label, role in (
        *((axis, "↓", row, row_label, "q") for axis in down),
        (across, "→", column, column_label, "k"),
    ):
        words += [
            Span(f"  {axis} {sign} " if width >= _NARROW else f"  {sign} ", "dim"),
            Span(f"{token} {label}" if token >= 0 else label, role),
        ]
    return Line(words, single=True)


def _row_bars(
    values: Array, row: int, name: str, keys: Sequence[str], visible: Visible, limit: int, comparing: bool
) -> list[Block]:
    """Bars of the keys that the chosen query looks at, or of the changes since the run before, largest first."""
    order = [k for k in np.argsort(-np.abs(values), kind="stable").tolist() if visible is None or visible[k]]
    bar_labels = [f"{k} {keys[k]}" for k in order[:limit]]
    if not comparing:
        bars = [Bar(label, float(values[k]), "", "attention") for label, k in zip(bar_labels, order, strict=False)]
        return [Heading(f"{row} {name}", "looks at"), Bars(bars)]
    bars = [
        Bar(label, float(values[k]), Figure(float(values[k]), "%+.3f"))
        for label, k in zip(bar_labels[:-1], order, strict=False)
    ]
    return [Heading(f"{row} {name}", "what it looks at more, and less"), Bars(bars, full_scale(values[order]), True)]


def _largest(look: Look, values: Array, name: str, limit: int) -> list[Block]:
    """Bars of the tokens of the vocabulary with the largest values at a token."""
    best = np.argsort(-values, kind="stable")[:limit].tolist()
    bars = [Bar(look.scene.model.shown(token), float(values[token]), Figure(float(values[token]), "%.3f"), "output")
            for token in best]  # fmt: skip
    return [Heading(name, "the largest"), Bars(bars, full_scale(values[best]), bool((values[best] < 0).any()))]


def _head_miniatures(look: Look, lines: int, width: int) -> Block:
    """Small maps of all heads of the layer, and of as many layers around it as fit."""
    trace, cursor = look.scene.trace, look.cursor
    step, layer = cursor.at(trace)
    layers = [of_layer for other, of_layer in trace.steps.rows if other.name == step.name]
    count, length = step.parts(trace.config.at(layer)), len(trace.tokens)
    per_row = max(1, width // (max(len(f"L{len(layers)}H{count}"), length) + 2))
    rows = (lines - 2) // (2 + -(-length // 2))
    shown = layers[window(len(layers), layers.index(layer), max(1, rows * per_row // count))]
    miniatures = [
        Miniature(
            f"H{head}" if len(shown) == 1 else f"L{of_layer}H{head}",
            "▶" if (of_layer, head) == (layer, cursor.by_parts(trace, 0).part) else "",
            weights,
            visible_array(trace, step, of_layer),
        )
        for of_layer in shown
        for head, weights in enumerate(as_array(trace.step(step.name, of_layer)))
    ]
    ends = f"L{shown[0]}" if len(shown) == 1 else f"L{shown[0]} to L{shown[-1]}"
    title = f"the heads of {ends}" + " in this run" * look.comparing
    return Miniatures(miniatures, lines, title, len(miniatures), "the first", "", grow=True)


def word_blocks(look: Look) -> Iterator[Block]:
    """The blocks of a step without numbers: the tokens, their ids, or the predictions."""
    trace = look.scene.trace
    step, _ = look.cursor.at(trace)
    if step.name == "next":
        predicted = look.scene.predicted
        yield from next_blocks(look.scene, predicted, TOP_PREDICTIONS * max(1, len(predicted)))
        return
    columns = [
        Column("", [str(position) for position in range(len(trace.tokens))], "right"),
        Column("token", [token.shown for token in trace.tokens], shrink=8),
        Column("id", [str(token.id) for token in trace.tokens], "right"),
    ]
    yield Table(columns)


def map_title(look: Look, label: str = "") -> Words:
    """The address of the step, with its title and formula or another ``label``."""
    step, _ = look.cursor.at(look.scene.trace)
    words = label or step.title + (f" = {step.formula}" if step.formula else "")
    return [Span(str(look.cursor.address(look.scene.trace)), step.role), Span(f"   {words}", "dim")]
