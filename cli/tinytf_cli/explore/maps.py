"""The main pane: the cells of a step around the chosen one, or the words of a step without numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len

from tinytf_cli.explore.lists import next_blocks
from tinytf_cli.explore.place import matrix, names, window
from tinytf_cli.explore.scene import TOP, Look
from tinytf_cli.numbers import SHARE, number_format, widest
from tinytf_cli.views.blocks import (
    Array,
    Bar,
    Bars,
    Block,
    Figure,
    Heading,
    Heat,
    Line,
    Miniature,
    Miniatures,
    Piece,
    Span,
    Visible,
    Words,
)
from tinytf_cli.views.parts import full_scale
from tinytf_cli.views.steps import as_array, largest, visible_array

_LABEL, _NUMBER = 14, 8
"""Columns of the name of a row, and of a number."""
_MINIATURE = 8
"""The least lines that small maps of all heads need."""


@dataclass(frozen=True)
class Map:
    """A step around the chosen cell: its title, the cells in sight, which they are, and what follows."""

    title: Words
    heat: Heat
    rows: slice
    columns: slice
    below: tuple[Block, ...]


def step_map(look: Look, width: int, height: int) -> Map | None:
    """The cells around the chosen one, with their numbers or in colour alone; None without numbers.

    Against the run before they are by how much each is larger, where that has the same step.
    """
    scene, place, small = look.scene, look.place, look.small
    trace = scene.trace
    step, layer = place.at(trace)
    found = matrix(trace, place)
    if found is None:
        return None
    before = matrix(scene.before, place) if look.against and scene.before is not None else None
    compared = before is not None and before.shape == found.shape
    unit = step.is_distribution and not compared
    if compared and before is not None:
        found = (found - before).nan_to_num(0.0)
    values, seen = as_array(found), visible_array(trace, step, layer) if step.is_map else None
    row, column = place.inside(*values.shape)
    down, across = names(trace, place, values.shape[1])
    label = min(_LABEL, max(map(cell_len, down), default=0))
    form = SHARE if unit else number_format(values)
    longest = max(map(cell_len, across), default=1) if step.is_map else _NUMBER
    room = (width - label - 4) // (2 if small else max(widest(values, form), min(_NUMBER, longest)) + 1)
    rows, columns = window(len(values), row, max(1, height - 4)), window(values.shape[1], column, max(1, room))
    if step.is_vocabulary:
        across[columns] = [scene.model.shown(number) for number in range(columns.start, columns.stop)]
    heat = Heat(
        values[rows, columns],
        down[rows],
        across[columns],
        "unit" if unit else "signed",
        None if seen is None else seen[rows, columns],
        1.0 if unit else largest(values, seen),
        small=small,
        chosen=(row - rows.start, column - columns.start),
    )
    said: list[Piece] = [f"  {place.cell_address(trace)} = ", Figure(float(values[row, column]), "%.7g", "strong")]
    if heat.values.shape != values.shape:
        ends = [
            f"{what} {part.start}–{part.stop - 1} of {size:,}"
            for what, part, size in zip(("rows", "columns"), (rows, columns), values.shape, strict=True)
            if part.stop - part.start < size
        ]
        said.append(Span(f"   {', '.join(ends)}", "dim"))
    below: list[Block] = [Line(said, single=True)]
    left = height - len(heat.values) - 6
    if step.is_map and left > 0 and (unit or compared):
        below += _row_bars(values[row], row, down[row], across, None if seen is None else seen[row], left, compared)
    if step.is_map and step.is_split and unit and (lines := left - len(values) - 2) > _MINIATURE:
        below.append(_other_heads(look, lines))
    return Map(map_title(look, "this run − the run before" if compared else ""), heat, rows, columns, tuple(below))


def _row_bars(
    values: Array, row: int, name: str, keys: Sequence[str], seen: Visible, most: int, compared: bool
) -> list[Block]:
    """The keys that the chosen query looks at, or those where that changed, the strongest first."""
    known = [k for k in np.argsort(-np.abs(values), kind="stable").tolist() if seen is None or seen[k]]
    labels = [f"{k} {keys[k]}" for k in known[:most]]
    if not compared:
        bars = [Bar(label, float(values[k]), "", "attention") for label, k in zip(labels, known, strict=False)]
        return [Heading(f"{row} {name}", "looks at"), Bars(bars)]
    bars = [
        Bar(label, float(values[k]), Figure(float(values[k]), "%+.3f"))
        for label, k in zip(labels[:-1], known, strict=False)
    ]
    return [Heading(f"{row} {name}", "what it looks at more, and less"), Bars(bars, full_scale(values[known]), True)]


def _other_heads(look: Look, lines: int) -> Block:
    """The maps of all heads of the layer, small."""
    trace, place = look.scene.trace, look.place
    step, layer = place.at(trace)
    maps = as_array(trace.step(step.name, layer))
    seen = visible_array(trace, step, layer)
    small = [
        Miniature(f"H{head}", "▶" if head == place.in_part(trace, 0).part else "", weights, seen)
        for head, weights in enumerate(maps)
    ]
    return Miniatures(small, lines, f"the heads of L{layer}", len(small), "the first", "")


def word_blocks(look: Look) -> Iterator[Block]:
    """A step without numbers: the tokens, their ids, or what is predicted."""
    trace = look.scene.trace
    step, _ = look.place.at(trace)
    if step.name == "next":
        yield from next_blocks(look.scene, TOP * max(1, len(look.scene.predicted)))
        return
    ids = step.name == "ids"
    yield Line("  " + " ".join(str(one.id) if ids else one.shown for one in trace.tokens))


def map_title(look: Look, instead: str = "") -> Words:
    """The address of the step, and what it is."""
    step, _ = look.place.at(look.scene.trace)
    said = instead or step.title + (f" = {step.formula}" if step.formula else "")
    return [Span(str(look.place.address(look.scene.trace)), step.role), Span(f"   {said}", "dim")]
