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
    """One line, or a paragraph that may wrap between spans. ``said`` is how a screen reader should hear it."""

    words: Words
    indent: int = 0
    said: str = ""


@dataclass(frozen=True)
class Heading:
    """The start of a part."""

    title: str
    note: str = ""
    role: str = "strong"


@dataclass(frozen=True)
class Histogram:
    """A cell of a table: counts drawn as small bars."""

    counts: tuple[int, ...]


Cell: TypeAlias = "str | Span | Sequence[Span] | Histogram"


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
    """One row a token, ``first`` dimensions as numbers, all of them as a strip of colour."""

    labels: Sequence[str]
    values: Array
    first: int
    role: str


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
class Pieces:
    """Tokens side by side, coloured alternately."""

    pieces: Sequence[str]
    special: Sequence[bool] = field(default_factory=tuple)


Block: TypeAlias = Line | Heading | Table | Values | Heat | Bars | RowBars | Thumbnails | Pieces
