"""The blocks that views are made of: plain data, without colour codes, widths or printing."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
Visible: TypeAlias = NDArray[np.bool_] | None

ABOVE, BELOW = "k", "q"
"""The colour roles of numbers above and below 0: orange and blue, as in every map."""


@dataclass(frozen=True)
class Span:
    """A piece of text with a colour role (``q``, ``residual``, ``dim``, ``strong``, ``good`` …)."""

    text: str
    role: str = ""


@dataclass(frozen=True)
class Figure:
    """A number in a printf format; empty, one is chosen. Requested digits override either."""

    value: float
    form: str = ""
    role: str = ""


Piece: TypeAlias = "str | Span | Figure"
Words: TypeAlias = "str | Span | Sequence[Piece]"


@dataclass(frozen=True)
class Line:
    """One line, or a paragraph that wraps; with ``single`` it is cut instead, and a ``whole`` one stays as it is.

    ``said`` is the text for a screen reader. In a ``verbatim`` text, signs are not replaced by words. Wrapped lines are
    indented by another ``hanging`` columns. A ``lead`` is one of the first lines, which describe the model, and the
    ``first`` is the sentence before them. A ``sound`` one says that a check holds.
    """

    words: Words
    indent: int = 0
    said: str = ""
    single: bool = False
    hanging: int = 2
    verbatim: bool = False
    whole: bool = False
    lead: bool = False
    first: bool = False
    sound: bool = False


@dataclass(frozen=True)
class Heading:
    """The title of a section. ``advice`` names options of the command line."""

    title: str
    note: str = ""
    role: str = "strong"
    advice: str = ""


@dataclass(frozen=True)
class Histogram:
    """A table cell: counts as small bars. ``full`` is the count of a whole bar; by default, the largest count."""

    counts: tuple[int, ...]
    full: int = 0
    role: str = "residual"


@dataclass(frozen=True)
class Meter:
    """A table cell: a number, and a short bar for its share of 1."""

    share: float
    shown: "str | Figure"
    role: str = ""


@dataclass(frozen=True)
class Signed:
    """A table cell: a number, and a bar to the left of a zero axis if it is negative, otherwise to the right.

    ``full`` is the value of a whole bar. All cells of a column share it, and the title names it.
    """

    value: float
    full: float
    form: str = ""


Cell: TypeAlias = "str | Span | Sequence[Piece] | Figure | Histogram | Meter | Signed"


@dataclass(frozen=True)
class Column:
    """A column of a table; ``said`` replaces the title in sentences.

    If the table is too wide, bars go and ``narrow`` cells replace ``cells``, then columns with a ``drop`` number go,
    highest first, and a ``shrink`` column is cut to no less than that width. A column is at least ``least`` wide.
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
    """Columns of equal length. An empty line follows each row in ``rule_after``.

    In a ``matrix`` the first column holds the labels of the rows.
    """

    columns: Sequence[Column]
    header: bool = True
    rule_after: frozenset[int] = frozenset()
    matrix: bool = False

    def only(self, keep: Sequence[int]) -> "Table":
        """This block with only these rows."""

        def pick(cells: Sequence[Cell]) -> list[Cell]:
            return [cells[row] for row in keep]

        columns = [
            replace(column, cells=pick(column.cells), narrow=None if column.narrow is None else pick(column.narrow))
            for column in self.columns
        ]
        rules = frozenset(index for index, row in enumerate(keep) if row in self.rule_after)
        return replace(self, columns=columns, rule_after=rules)


@dataclass(frozen=True)
class Labels(Sequence[str]):
    """The labels of some indices of an axis, each made by ``name`` when it is read: a vocabulary has very many."""

    name: Callable[[int], str]
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> "Labels": ...
    def __getitem__(self, at: "int | slice") -> "str | Labels":
        return Labels(self.name, self.numbers[at]) if isinstance(at, slice) else self.name(self.numbers[at])


@dataclass(frozen=True)
class Values:
    """One row per token: the ``first`` numbers, wrapped over lines; ``columns`` are the labels of all its numbers.

    Of a row that is cut, the largest number comes after the first ones, if any, and all are a strip of colour. A line
    says how many are shown, and ``remedy`` how to see the others. With ``several`` quantities, each row has its own
    digits and scale.
    """

    labels: Sequence[str]
    values: Array
    first: int
    role: str
    columns: Sequence[str]
    several: bool = False
    remedy: str = ""

    def only(self, keep: Sequence[int]) -> "Values":
        """This block with only these rows."""
        return replace(self, labels=[self.labels[row] for row in keep], values=self.values[list(keep)])


@dataclass(frozen=True)
class Heat:
    """A matrix with numbers in coloured cells. Where ``visible`` is false, the cell is ``hidden`` and drawn as a point.

    ``scale`` is ``unit`` (from 0 to ``limit``) or ``signed`` (from −limit to ``limit``). With ``asked``, output that is
    not a screen has all numbers, in strips if needed. ``digits`` is the usual number of digits after the point. A map
    with more than ``most`` rows (0: no limit) is drawn small and pooled to that many rows; with ``small`` any map is.
    The ``chosen`` cell (row, column) is in brackets. With ``every``, all numbers are written at any size, in strips.
    ``axes`` says below the map what is down and what is across.
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
    axes: str = ""

    def only(self, keep: Sequence[int]) -> "Heat":
        """This block with only these rows."""
        rows = list(keep)
        visible = None if self.visible is None else self.visible[rows]
        return replace(
            self, values=self.values[rows], visible=visible, row_labels=[self.row_labels[row] for row in rows]
        )


@dataclass(frozen=True)
class Grid:
    """A word in every cell, coloured by its share of 1; without colour, the share is written.

    ``above`` is a line above the column labels; ``beside`` holds columns of numbers (title, cells) before the words. As
    many columns are shown as fit: the first ones, or with ``keep_last`` the last. A line says how many of ``many`` are
    omitted, and with ``remedy`` how to see them. With ``asked``, output that is not a screen shows all. ``verb`` is for
    sentences.
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
        """This block with only these rows."""
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
    """A labelled bar. ``shown`` is written beside it; if empty, the value as a share of 1."""

    label: str
    value: float
    shown: "str | Figure" = ""
    role: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars; ``full`` is the value of a whole bar.

    ``signed`` bars have a scale above them and a zero axis; negative bars point left. With ``track``, the rest of a
    whole bar is drawn too.
    """

    bars: Sequence[Bar]
    full: float = 1.0
    signed: bool = False
    track: bool = False

    def only(self, keep: Sequence[int]) -> "Bars":
        """This block with only these rows."""
        return replace(self, bars=[self.bars[row] for row in keep])


@dataclass(frozen=True)
class RowBars:
    """One line per row: a label, then its largest entries, each with a short bar. Values are shares of 1.

    As many entries as fit are shown, and how many are left out; with ``every``, all, wrapped over lines.
    """

    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]
    verb: str = "looks at"
    every: bool = False


@dataclass(frozen=True)
class Links:
    """Lines from ``left`` tokens to the ``right`` ones that they look at: (index left, index right, share of 1).

    ``strong`` lines alone are drawn, and those that are the strongest of their token.
    """

    left: Sequence[str]
    right: Sequence[str]
    links: Sequence[tuple[int, int, float]]
    strong: bool = False


@dataclass(frozen=True)
class Thumbnails:
    """Small maps of weights (0…1) for ``layers``, or all. ``maps[i][head]`` is (T, T); ``visible[i]`` is per layer.

    ``names`` are those of the tokens; a screen reader says where the ``readers`` look, by default the last.
    """

    maps: Sequence[Array]
    visible: Sequence[Visible]
    layers: Sequence[int] = ()
    names: Sequence[str] = ()
    readers: Sequence[int] = ()


@dataclass(frozen=True)
class Miniature:
    """A small map of weights (0…1), (Q, K), below a title and a word.

    ``names`` are those of the tokens; a screen reader says where the ``readers`` look, by default the last.
    """

    title: str
    word: str
    weights: Array
    visible: Visible = None
    names: Sequence[str] = ()
    readers: Sequence[int] = ()


@dataclass(frozen=True)
class Miniatures:
    """Small maps in rows, as many as fit in ``lines`` lines and the width, below a title with their number ``of`` all.

    The title also says ``which`` maps they are, what the ``marks`` in captions mean, and with ``remedy`` how to see the
    others. Maps that ``grow`` are as large as the lines allow for all of them.
    """

    maps: Sequence[Miniature]
    lines: int
    title: str
    of: int
    which: str
    remedy: str
    marks: str = ""
    grow: bool = False


@dataclass(frozen=True)
class Fan:
    """A rail, right of ``before``, that branches into small maps and joins again; as many maps as fit the width.

    Each line above or below the maps has a title, and a cell for each map. If not all maps fit, ``left_out`` says which
    are shown, and ``remedy`` how to see the others.
    """

    maps: Sequence[Miniature]
    title: str
    above: Sequence[tuple[str, Sequence[Words]]]
    below: Sequence[tuple[str, Sequence[Words]]]
    before: str
    left_out: str
    remedy: str


@dataclass(frozen=True)
class Beside:
    """Parts side by side, as many per row as fit the width, each at least ``least`` columns wide.

    ``even`` parts share the width equally. Otherwise the first takes what it needs, and leaves ``least`` for the next.
    """

    parts: "Sequence[Sequence[Block]]"
    least: int
    even: bool = False


@dataclass(frozen=True)
class Scale:
    """The colour scale of words: ``unit`` from 0 to ``limit``, ``signed`` from −limit to ``limit``."""

    scale: str
    limit: float
    unit: str = ""


@dataclass(frozen=True)
class Curve:
    """One line of a chart: ``y`` at increasing ``x``. Points without a finite ``y`` are not drawn.

    With ``points``, only points are drawn, without lines; with ``band``, the area from the lowest to the highest point
    of each column.
    """

    label: str
    x: NDArray[np.int64] | NDArray[np.float64]
    y: NDArray[np.float64]
    role: str
    points: bool = False
    band: bool = False


@dataclass(frozen=True)
class Curves:
    """Lines in one chart, ``height`` rows high, each named at its right end.

    Where lines meet, the first is on top. Points in the same column are averaged; straight lines connect points further
    apart. ``log_x`` makes the axis of whole numbers from 0 logarithmic, ``log_y`` that of positive values. A vertical
    line marks ``cursor``.
    """

    curves: Sequence[Curve]
    x_title: str
    y_title: str
    height: int = 12
    log_x: bool = False
    log_y: bool = False
    cursor: float | None = None


@dataclass(frozen=True)
class Pieces:
    """Tokens side by side, each in the colour of its role."""

    pieces: Sequence[str]
    roles: Sequence[str]


@dataclass(frozen=True)
class Running:
    """A piece of running text, shown exactly as it is, with its spaces and line ends."""

    text: str
    role: str = ""


@dataclass(frozen=True)
class DrawnNode:
    """A node of a Drawing, in a ``row`` from the bottom; ``value`` is its signed colour, None for a plain one."""

    name: str
    row: int
    value: float | None


@dataclass(frozen=True)
class DrawnEdge:
    """An edge of a Drawing, as wide as its ``value`` is large; ``port`` names the input of its target, q, k or v."""

    source: str
    target: str
    value: float
    port: str = ""


@dataclass(frozen=True)
class Drawing:
    """A graph to draw as a picture: its rows by label from the bottom, nodes and edges, a title and a key."""

    title: str
    key: str
    rows: Sequence[str]
    nodes: Sequence[DrawnNode]
    edges: Sequence[DrawnEdge]


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
    | Links
    | Thumbnails
    | Miniatures
    | Fan
    | Beside
    | Scale
    | Curves
    | Pieces
)


def led(blocks: Iterable[Block]) -> tuple[list[Block], list[Block], Iterator[Block]]:
    """Split a view into its sentence, the lines about the model with the blank line after them, and the rest."""
    sentence, lead, rest = list[Block](), list[Block](), iter(blocks)
    for block in rest:
        if isinstance(block, Line) and block.first:
            sentence.append(block)
        elif isinstance(block, Line) and (block.lead or (lead and block == Line(""))):
            lead.append(block)
        else:
            return sentence, lead, itertools.chain([block], rest)
    return sentence, lead, rest


def as_figure(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield a view without the lines about the model and the checks that hold, nor the blank lines around these."""
    blank, begun = False, False
    for block in blocks:
        if isinstance(block, Line) and (block.lead or block.sound or block == Line("")):
            blank = blank or block == Line("")
            continue
        if blank and begun:
            yield Line("")
        blank, begun = False, True
        yield block
