"""A report as a table, for CSV: a row a record; a tensor as a map, or with a row for each number."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Row = Sequence[Any]
Label = Callable[[str, int], str]
"""How a place on an axis is named: ``1 ·cat`` of a token."""


def in_bytes(number: int) -> str:
    """A size in the largest binary unit that fits: ``4.0 MiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number} B"


def count(number: int) -> str:
    """A number of parameters in three digits: ``1.08 M``."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.2f} {unit}" if number < 100 * size else f"{number / size:.0f} {unit}"
    return str(number)


@dataclass(frozen=True)
class ColumnStyle:
    """How a member of a record is shown as a column, on a screen and in Markdown.

    ``form`` makes text of a value: a printf format, or a function. Numbers are aligned to the right, and whatever else
    has ``align`` "right". A share of 1 with the role ``bar`` has a bar of that colour. ``role`` colours text; as a
    function it does so by the value. Where a table is too wide, columns with a ``drop`` number go, the highest first,
    and a ``shrink`` column is cut to no less than that width. ``spoken`` replaces the title in sentences.
    """

    title: str
    form: str | Callable[[Any], str] = ""
    align: str = ""
    bar: str = ""
    role: str | Callable[[Any], str] = ""
    drop: int = 0
    shrink: int = 0
    spoken: str | None = None

    def text(self, value: Any) -> str:
        """A value as text; nothing for None."""
        if value is None:
            return ""
        if callable(self.form):
            return self.form(value)
        return self.form % value if self.form else str(value)


@dataclass(frozen=True)
class Sheet:
    """Rows under ``columns``, made one by one. A number has the type that it was computed in; None is an empty cell."""

    columns: Sequence[str]
    rows: Iterable[Row]


@dataclass(frozen=True)
class Array:
    """A tensor of a report, read when its turn comes: its address, its axes, and what it reads.

    ``places`` are the places on an axis of which it holds only some. ``one_part`` is how many parts its first axis has,
    and reads one of them, where that tells the shape with less work.
    """

    name: str
    axes: Sequence[str]
    read: "Callable[[], Tensor]"
    places: Mapping[str, Sequence[int]] = field(default_factory=dict)
    one_part: "tuple[int, Callable[[], Tensor]] | None" = None

    @classmethod
    def of(cls, name: str, axes: Sequence[str], tensor: "Tensor") -> "Array":
        """A tensor that is there already."""
        return cls(name, axes, lambda: tensor)

    def form(self) -> "tuple[tuple[int, ...], torch.dtype]":
        """Its shape, and the type of its numbers."""
        count, read = self.one_part or (None, self.read)
        tensor = read()
        return ((*(() if count is None else (count,)), *tensor.shape), tensor.dtype)

    def labelled(self, label: Label) -> tuple[Any, list[list[str]]]:
        """Its numbers as an array of numpy, and the names of the places on each axis; narrow floats as float32."""
        tensor = self.read().detach().cpu()
        numbers = (tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor).numpy()
        sizes = zip(self.axes, numbers.shape, strict=True)
        return numbers, [[label(axis, at) for at in self.places.get(axis, range(size))] for axis, size in sizes]


def of_arrays(arrays: Sequence[Array], label: Label, *, long: bool = False) -> Sheet:
    """One array with two axes as a map, unless ``long``; else a row a number: its address, its places, its value."""
    if len(arrays) == 1 and len(arrays[0].axes) == 2 and not long:
        numbers, (rows, columns) = arrays[0].labelled(label)
        return Sheet(
            ["/".join(arrays[0].axes), *columns], ([name, *row] for name, row in zip(rows, numbers, strict=True))
        )
    axes = list(dict.fromkeys(axis for one in arrays for axis in _distinct(one.axes)))
    return Sheet(["address", *axes, "value"], itertools.chain.from_iterable(_cells(one, axes, label) for one in arrays))


def _distinct(axes: Sequence[str]) -> list[str]:
    """The axes, the second of one name with its number."""
    return [
        f"{axis} {axes[:place].count(axis) + 1}" if axis in axes[:place] else axis for place, axis in enumerate(axes)
    ]


def _cells(array: Array, axes: Sequence[str], label: Label) -> Iterator[Row]:
    numbers, names = array.labelled(label)
    at = [1 + axes.index(axis) for axis in _distinct(array.axes)]
    for labels, value in zip(itertools.product(*names), numbers.flat, strict=True):
        row: list[Any] = [array.name, *[None] * len(axes), value]
        for place, name in zip(at, labels, strict=True):
            row[place] = name
        yield row


def of_records(records: Iterable[Mapping[str, Any]]) -> Sheet | None:
    """A row a record, its members as columns, those of an object in it as ``object.member``; None without records."""
    flat = [dict(_flat(one)) for one in records]
    columns = list(dict.fromkeys(name for one in flat for name in one))
    return Sheet(columns, ([one.get(name) for name in columns] for one in flat)) if columns else None


def _flat(record: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def records_in(data: Mapping[str, Any], path: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The records in the list that ``path`` leads to; of a list in the records of another, with all but their lists.

    Columns side by side are records too.
    """
    head, *rest = path
    found = data.get(head) or ()
    if isinstance(found, Mapping):
        found = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
    for one in found:
        if not rest:
            yield one
            continue
        around = {name: value for name, value in one.items() if not isinstance(value, list)}
        yield from ({**around, **inner} for inner in records_in(one, rest))


def joined(sheets: Iterable[Sheet]) -> Sheet:
    """Sheets under one another, with the number of each in a first column."""
    every = list(sheets)
    columns = list(dict.fromkeys(name for one in every for name in one.columns))
    rows = (
        [number, *(found.get(name) for name in columns)]
        for number, one in enumerate(every)
        for found in (dict(zip(one.columns, row, strict=True)) for row in one.rows)
    )
    return Sheet(["result", *columns], rows)
