"""What a view consists of: plain data, without colour codes, widths or printing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
Visible: TypeAlias = NDArray[np.bool_] | None


@dataclass(frozen=True)
class Span:
    """A piece of text with a role (``q``, ``residual``, ``dim``, ``strong``, ``good`` …) that colours it."""

    text: str
    role: str = ""


Words: TypeAlias = "str | Span | Sequence[Span]"


@dataclass(frozen=True)
class Line:
    """One line, or a paragraph that may wrap between spans; a ``single`` one is cut where it is too long instead.

    ``said`` is how a screen reader should hear it. What is wrapped stands ``hanging`` columns further in.
    """

    words: Words
    indent: int = 0
    said: str = ""
    single: bool = False
    hanging: int = 2


@dataclass(frozen=True)
class Heading:
    """The start of a part."""

    title: str
    note: str = ""
    role: str = "strong"


@dataclass(frozen=True)
class Histogram:
    """A cell of a table: counts drawn as small bars; ``full`` is the count of a whole bar, if not the largest."""

    counts: tuple[int, ...]
    full: int = 0
    role: str = "residual"


@dataclass(frozen=True)
class Meter:
    """A cell of a table: a number, and its share of 1 as a short bar."""

    share: float
    shown: str
    role: str = ""


Cell: TypeAlias = "str | Span | Sequence[Span] | Histogram | Meter"


@dataclass(frozen=True)
class Column:
    """A column of a table. When width is short: ``narrow`` cells replace ``cells``, a ``shrink`` column is cut,

    and columns with a ``drop`` number go, the highest first. ``said`` replaces the title in sentences.
    """

    title: str
    cells: Sequence[Cell]
    align: str = "left"
    narrow: Sequence[Cell] | None = None
    shrink: int = 0
    drop: int = 0
    said: str | None = None


@dataclass(frozen=True)
class Table:
    """Columns of equal length; ``rule_after`` are rows after which a thin gap helps the eye."""

    columns: Sequence[Column]
    header: bool = True
    rule_after: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Values:
    """One row a token, ``first`` dimensions as numbers, all of them as a strip of colour.

    Rows of ``several`` quantities have digits and a scale of their own each. ``columns`` are names of the dimensions
    that have one.
    """

    labels: Sequence[str]
    values: Array
    first: int
    role: str
    several: bool = False
    columns: Sequence[str] = ()


@dataclass(frozen=True)
class Heat:
    """A matrix with numbers in coloured cells. ``visible`` is false where a cell is masked.

    ``scale`` is ``unit`` (0…1, fixed) or ``signed`` (symmetric about 0, to ``limit``). ``asked`` asks for
    every number even where they need more width than there is; ``digits`` fixes the digits after the point.
    """

    values: Array
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    scale: str
    visible: Visible = None
    limit: float = 1.0
    asked: bool = False
    digits: int | None = None


@dataclass(frozen=True)
class Grid:
    """A word in every cell, coloured by its share of 1, which is written out where there is no colour.

    ``above`` is a first line over the columns' labels, ``beside`` are columns of text (title, cells) before the words.
    On a screen as many columns are drawn as fit, the last ones if ``keep_last``; ``many`` are what is then said to be
    left out, and ``remedy`` how to see them. ``verb`` is for sentences.
    """

    words: Sequence[Sequence[str]]
    shares: Array
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    above: Sequence[str] = ()
    beside: Sequence[tuple[str, Sequence[str]]] = ()
    keep_last: bool = False
    many: str = "columns"
    remedy: str = "--width widens"
    verb: str = ""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    shown: str
    role: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars; ``full`` is the value of a whole bar."""

    bars: Sequence[Bar]
    full: float = 1.0


@dataclass(frozen=True)
class RowBars:
    """One line a row: a label, then its largest entries, each with a short bar; values are shares of 1."""

    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]
    verb: str = "looks at"


@dataclass(frozen=True)
class Thumbnails:
    """Small maps of weights (0…1): ``maps[layer][head]`` is (T, T); ``visible`` serves them all."""

    maps: Sequence[Array]
    visible: Visible
    first_layer: int = 0


@dataclass(frozen=True)
class Curve:
    """One line of a chart: ``y`` at ``x``, which rises; what has no finite ``y`` is not drawn.

    Of one with ``points`` only these are drawn, and nothing between them.
    """

    label: str
    x: NDArray[np.int64]
    y: NDArray[np.float64]
    role: str
    points: bool = False


@dataclass(frozen=True)
class Curves:
    """Lines in one chart with axes and a legend, ``height`` rows of cells; the first is on top where they meet.

    Where several points fall on one column their mean is drawn, and straight lines where points are far apart.
    """

    curves: Sequence[Curve]
    x_title: str
    y_title: str
    height: int = 12


@dataclass(frozen=True)
class Pieces:
    """Tokens side by side, coloured alternately."""

    pieces: Sequence[str]
    special: Sequence[bool] = field(default_factory=tuple)


Block: TypeAlias = Line | Heading | Table | Values | Heat | Grid | Bars | RowBars | Thumbnails | Curves | Pieces
