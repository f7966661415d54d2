"""The view of neighbours: how similar the words are to each other, and the nearest tokens of each."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tinytf.look.neighbours import Neighbours, Space
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import (
    Bar,
    Bars,
    Block,
    Column,
    Curve,
    Curves,
    Figure,
    Grid,
    Heading,
    Heat,
    Line,
    Signed,
    Table,
)
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import folded, full_scale, note, row_limit
from tinytf_cli.views.steps import as_array

_POINTS = 8
"""The points of a plane, each with a mark of its own."""


@dataclass(frozen=True)
class NeighboursDisplay(Display):
    """``rows`` is the most vectors in a table: 0 for all, None for as many as suit the terminal."""

    rows: int | None = None


@draws(Neighbours, NeighboursDisplay)
def neighbours(report: Neighbours, terminal: Terminal, display: NeighboursDisplay) -> Iterator[Block]:
    """The similarity of each pair of several vectors, then their neighbours; bars for a single vector."""
    names, several = list(report.names), len(report.names) > 1
    yield from banner(model_of(report), report.about.text if report.about else None)
    if report.toward:
        yield from _toward(report)
    for index, space in enumerate(report.spaces):
        if several and (not report.at or not index):  # the streams are the same in every space
            pairs = "pair; the same order down and across" if report.at else f"pair of {space.title}"
            yield Heading("similarity", f"cosine of each {pairs}", "embed")
            yield Heat(as_array(space.similarity), names, names, "signed", digits=2)
            if len(names) > 2:
                yield from _plane(space, names, "vectors" if report.at else space.title)
        if several:
            yield from _table(report, space, row_limit(terminal, display.rows))
        else:
            yield from _bars(report, space)
    yield Line("")
    width = space.vectors.shape[1]
    yield note(f"1: the same direction; two random vectors of {width:,} dimensions: 0 ± {report.chance:.2g}")
    yield from map(note, report.notes)


def _toward(report: Neighbours) -> Iterator[Block]:
    """The cosine of every vector with each word, as bars on both sides of 0."""
    full = full_scale([cosine for cosines in report.toward.values() for cosine in cosines])
    yield Heading("toward", f"cosine of each vector with the embedding of a word; a bar is {full:.2f}", "embed")
    words = [Column(word, [Signed(cosine, full, "%.3f") for cosine in row]) for word, row in report.toward.items()]
    yield Table([Column("", report.names, said="vector"), *words])


def _plane(space: Space, names: list[str], what: str) -> Iterator[Block]:
    """The vectors as points on the plane along which they differ most; as many as have a mark of their own."""
    points, (across, up) = space.plane
    yield Heading(
        "plane", f"where the {what} differ most (PCA): {100 * across:.0f} % of it across, {100 * up:.0f} % up", "embed"
    )
    pairs = list(zip(names, points.tolist(), strict=True))[:_POINTS]
    roles = itertools.cycle(("q", "k", "v", "output", "ffn", "residual", "attention", "embed"))
    dots = [
        Curve(name, np.array([x]), np.array([y]), role, points=True)
        for (name, (x, y)), role in zip(pairs, roles, strict=False)
    ]
    yield Curves(dots, "first component", "second", 8)
    if len(names) > _POINTS:
        yield note(f"the first {_POINTS} of {len(names)}")


def _bars(report: Neighbours, space: Space) -> Iterator[Block]:
    """The neighbours of one vector, as bars."""
    label = model_of(report).tokenizer.shown
    yield Heading(report.names[0], f"the nearest {space.title}, by cosine", "embed")
    pairs = zip(space.ids[0].tolist(), space.cosines[0].tolist(), strict=True)
    yield Bars([Bar(label(i), max(0.0, cosine), Figure(cosine, "%.3f"), "embed") for i, cosine in pairs])


def _table(report: Neighbours, space: Space, limit: int | None) -> Iterator[Block]:
    """The neighbours of several vectors, one per row; at most ``limit`` rows."""
    label = model_of(report).tokenizer.shown
    yield Heading("neighbours", f"the nearest {space.title} of each, by cosine", "embed")
    grid = Grid(
        [[label(i) for i in row] for row in space.ids.tolist()],
        as_array(space.cosines),
        report.names,
        [f"{rank + 1}." for rank in range(space.ids.shape[1])],
        many="neighbours",
        verb="is",
    )
    yield from folded(grid, report.names, limit, "vectors", "--rows 0")
