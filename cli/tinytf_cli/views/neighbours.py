"""The view of neighbours: how similar the words are to each other, and the nearest tokens of each."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.look.neighbours import Neighbours, Space
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Figure, Grid, Heading, Heat, Line
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import folded, note, row_limit
from tinytf_cli.views.steps import as_array


@dataclass(frozen=True)
class NeighboursDisplay(Display):
    """``rows`` is the most vectors in a table: 0 for all, None for as many as suit the terminal."""

    rows: int | None = None


@draws(Neighbours, NeighboursDisplay)
def neighbours(report: Neighbours, terminal: Terminal, display: NeighboursDisplay) -> Iterator[Block]:
    """The similarity of each pair of several vectors, then their neighbours; bars for a single vector."""
    names, several = list(report.names), len(report.names) > 1
    yield from banner(model_of(report), report.about.text if report.about else None)
    for index, space in enumerate(report.spaces):
        if several and (not report.at or not index):  # the streams are the same in every space
            pairs = "pair; the same order down and across" if report.at else f"pair of {space.title}"
            yield Heading("similarity", f"cosine of each {pairs}", "embed")
            yield Heat(as_array(space.similarity), names, names, "signed", digits=2)
        if several:
            yield from _table(report, space, row_limit(terminal, display.rows))
        else:
            yield from _bars(report, space)
    yield Line("")
    width = space.vectors.shape[1]
    yield note(f"1: the same direction; two random vectors of {width:,} dimensions: 0 ± {report.chance:.2g}")
    yield from map(note, report.notes)


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
