"""What a view is made of: plain data, without colour codes, widths or printing."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
Visible: TypeAlias = NDArray[np.bool_] | None

ABOVE, BELOW = "k", "q"
"""The roles of numbers above and below 0: orange and blue, as in every map."""


@dataclass(frozen=True)
class Span:
    """A piece of text with a role (``q``, ``residual``, ``dim``, ``strong``, ``good`` …) that colours it."""

    text: str
    role: str = ""


@dataclass(frozen=True)
class Figure:
    """A number in a printf format (if empty, one that suits it), or with the digits asked for."""

    value: float
    form: str = ""
    role: str = ""


Piece: TypeAlias = "str | Span | Figure"
Words: TypeAlias = "str | Span | Sequence[Piece]"


@dataclass(frozen=True)
class Line:
    """One line, or a paragraph that wraps; with ``single`` it is cut instead of wrapped.

    ``said`` is what a screen reader should read; of a ``verbatim`` text, no sign is read as a word. Wrapped lines are
    indented by another ``hanging`` columns. A ``lead`` is one of the first lines, about the model.
    """

    words: Words
    indent: int = 0
    said: str = ""
    single: bool = False
    hanging: int = 2
    verbatim: bool = False
    lead: bool = False


@dataclass(frozen=True)
class Heading:
    """The title of a section."""

    title: str
    note: str = ""
    role: str = "strong"


@dataclass(frozen=True)
class Histogram:
    """A cell of a table: counts as small bars; ``full`` is the count of a whole bar, by default the largest."""

    counts: tuple[int, ...]
    full: int = 0
    role: str = "residual"


@dataclass(frozen=True)
class Meter:
    """A cell of a table: a number, with its share of 1 as a short bar."""

    share: float
    shown: "str | Figure"
    role: str = ""


@dataclass(frozen=True)
class Signed:
    """A cell of a table: a number, and a bar to the left of a zero axis if it is negative, else to the right.

    A bar of ``full`` is whole; a column has one ``full``, which its title says.
    """

    value: float
    full: float
    form: str = ""


Cell: TypeAlias = "str | Span | Sequence[Piece] | Figure | Histogram | Meter | Signed"


@dataclass(frozen=True)
class Column:
    """A column of a table; ``said`` replaces the title in sentences.

    If the table is too wide, bars go and ``narrow`` cells replace ``cells``, columns with a ``drop`` number go, highest
    first, and a ``shrink`` column is cut to no less than that width. It is at least ``least`` wide.
    """

    title: str
    cells: Sequence[Cell]
    align: str = "left"
    narrow: Sequence[Cell] | None = None
    shrink: int = 0
    drop: int = 0
    said: str | None = None
    least: int = 0


@dataclass(frozen=True)
class Table:
    """Columns of equal length; an empty line follows each row in ``rule_after``."""

    columns: Sequence[Column]
    header: bool = True
    rule_after: frozenset[int] = frozenset()

    def only(self, keep: Sequence[int]) -> "Table":
        """A block of these rows alone."""

        def of(cells: Sequence[Cell]) -> list[Cell]:
            return [cells[row] for row in keep]

        columns = [
            replace(one, cells=of(one.cells), narrow=None if one.narrow is None else of(one.narrow))
            for one in self.columns
        ]
        rules = frozenset(place for place, row in enumerate(keep) if row in self.rule_after)
        return replace(self, columns=columns, rule_after=rules)


@dataclass(frozen=True)
class Values:
    """One row per token: the ``first`` dimensions as numbers, all of them as a strip of colour.

    With ``several`` quantities each row has its own digits and scale. ``columns`` names dimensions that have a name.
    """

    labels: Sequence[str]
    values: Array
    first: int
    role: str
    several: bool = False
    columns: Sequence[str] = ()

    def only(self, keep: Sequence[int]) -> "Values":
        """A block of these rows alone."""
        return replace(self, labels=[self.labels[row] for row in keep], values=self.values[list(keep)])


@dataclass(frozen=True)
class Heat:
    """A matrix with numbers in coloured cells. ``visible`` is false where a cell is ``hidden``, a point.

    ``scale`` is ``unit`` (from 0 to ``limit``) or ``signed`` (from −limit to ``limit``). ``asked`` keeps the
    numbers off a screen even if they need several strips. ``digits`` is the usual number of digits after the point.
    A map of more than ``most`` rows, where that is not 0, is drawn small and pooled to as many; ``small`` draws any so.
    The ``chosen`` cell (row, column) stands in brackets. ``every`` number is written at any size, in several strips.
    """

    values: Array
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    scale: str
    visible: Visible = None
    limit: float = 1.0
    asked: bool = False
    digits: int | None = None
    most: int = 0
    small: bool = False
    chosen: tuple[int, int] | None = None
    every: bool = False
    hidden: str = "masked"

    def only(self, keep: Sequence[int]) -> "Heat":
        """A block of these rows alone."""
        rows = list(keep)
        visible = None if self.visible is None else self.visible[rows]
        return replace(
            self, values=self.values[rows], visible=visible, row_labels=[self.row_labels[row] for row in rows]
        )


@dataclass(frozen=True)
class Grid:
    """A word in every cell, coloured by its share of 1; without colour the share is written.

    ``above`` is a line above the column labels; ``beside`` are columns of numbers (title, cells) before the words. As
    many columns are shown as fit, the last ones with ``keep_last``; a line says how many of ``many`` are omitted, and
    with ``remedy`` how to see them. ``asked`` shows all of them off a screen. ``verb`` is used in sentences.
    """

    words: Sequence[Sequence[str]]
    shares: Array
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    above: Sequence[str] = ()
    beside: Sequence[tuple[str, Sequence[Figure]]] = ()
    keep_last: bool = False
    asked: bool = False
    many: str = "columns"
    remedy: str = "--width widens"
    verb: str = ""

    def only(self, keep: Sequence[int]) -> "Grid":
        """A block of these rows alone."""
        rows = list(keep)
        return replace(
            self,
            words=[self.words[row] for row in rows],
            shares=self.shares[rows],
            row_labels=[self.row_labels[row] for row in rows],
            beside=[(title, [cells[row] for row in rows]) for title, cells in self.beside],
        )


@dataclass(frozen=True)
class Bar:
    """``shown`` is written beside the bar; if it is empty, the value is, as a share of 1."""

    label: str
    value: float
    shown: "str | Figure" = ""
    role: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars; ``full`` is the value of a whole bar.

    ``signed`` bars have a scale above them and a zero axis: negative ones go to the left of it. With ``track`` the rest
    of a whole bar is drawn too.
    """

    bars: Sequence[Bar]
    full: float = 1.0
    signed: bool = False
    track: bool = False

    def only(self, keep: Sequence[int]) -> "Bars":
        """A block of these rows alone."""
        return replace(self, bars=[self.bars[row] for row in keep])


@dataclass(frozen=True)
class RowBars:
    """One line per row: a label, then its largest entries, each with a short bar; values are shares of 1."""

    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]
    verb: str = "looks at"


@dataclass(frozen=True)
class Thumbnails:
    """Small maps of weights (0…1) of ``layers``, or all: ``maps[i][head]`` is (T, T), ``visible[i]`` of its layer."""

    maps: Sequence[Array]
    visible: Sequence[Visible]
    layers: Sequence[int] = ()


@dataclass(frozen=True)
class Miniature:
    """A small map of weights (0…1), (Q, K), under a title and a word."""

    title: str
    word: str
    weights: Array
    visible: Visible = None


@dataclass(frozen=True)
class Miniatures:
    """Small maps in rows, as many as fit ``lines`` lines and the width, under a title that says how many ``of`` all.

    ``which`` they are, what ``marks`` in their captions mean, and with ``remedy`` how to see the others.
    """

    maps: Sequence[Miniature]
    lines: int
    title: str
    of: int
    which: str
    remedy: str
    marks: str = ""


@dataclass(frozen=True)
class Fan:
    """A rail, right of ``before``, that branches to small maps and joins again; as many fit as the width allows.

    Lines above and below the maps have a title, and a cell for each map. ``left_out`` says which maps are shown, where
    not all ``of`` them are, and how to see the others.
    """

    maps: Sequence[Miniature]
    title: str
    above: Sequence[tuple[str, Sequence[Words]]]
    below: Sequence[tuple[str, Sequence[Words]]]
    before: str
    left_out: str


@dataclass(frozen=True)
class Beside:
    """Parts side by side, as many in a row as the width allows, each at least ``least`` columns wide.

    ``even`` parts share the width alike; of others the first takes what it needs, but for the ``least`` of the next.
    """

    parts: "Sequence[Sequence[Block]]"
    least: int
    even: bool = False


@dataclass(frozen=True)
class Scale:
    """The scale that words are coloured by: ``unit`` from 0 to ``limit``, ``signed`` from −limit to ``limit``."""

    scale: str
    limit: float
    unit: str = ""


@dataclass(frozen=True)
class Curve:
    """One line of a chart: ``y`` at increasing ``x``; points without a finite ``y`` are not drawn.

    With ``points`` only the points are drawn, and no line between them; with ``band`` what lies between the lowest and
    the highest of a column.
    """

    label: str
    x: NDArray[np.int64] | NDArray[np.float64]
    y: NDArray[np.float64]
    role: str
    points: bool = False
    band: bool = False


@dataclass(frozen=True)
class Curves:
    """Lines in one chart, ``height`` rows high, each with its name at its right end.

    Where lines meet, the first is on top. Points that share a column are drawn as their mean; straight lines connect
    points that are further apart. ``log_x`` counts whole numbers in powers of ten, from 0. A line stands at ``cursor``.
    """

    curves: Sequence[Curve]
    x_title: str
    y_title: str
    height: int = 12
    log_x: bool = False
    cursor: float | None = None


@dataclass(frozen=True)
class Pieces:
    """Tokens side by side, each in the colour of its role."""

    pieces: Sequence[str]
    roles: Sequence[str]


@dataclass(frozen=True)
class Running:
    """A piece of running text, shown exactly as it is, with its own spaces and line ends."""

    text: str
    role: str = ""


Block: TypeAlias = (
    Line
    | Running
    | Heading
    | Table
    | Values
    | Heat
    | Grid
    | Bars
    | RowBars
    | Thumbnails
    | Miniatures
    | Fan
    | Beside
    | Scale
    | Curves
    | Pieces
)


def led(blocks: Iterable[Block]) -> tuple[list[Block], Iterator[Block]]:
    """The lines about the model that a view begins with, with the blank one after them, and what follows."""
    lead, rest = list[Block](), iter(blocks)
    for block in rest:
        if not (isinstance(block, Line) and (block.lead or (lead and block == Line("")))):
            return lead, itertools.chain([block], rest)
        lead.append(block)
    return lead, rest
