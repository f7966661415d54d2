"""A report as a table, for CSV: a row a record; a tensor as a map, or with a row for each number."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from tinytf.sentences import apart

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Row = Sequence[Any]
Label = Callable[[str, int], str]
"""Makes the label of an index on an axis: ``1 ·cat`` for a token."""


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
        return apart(value, self.form) if isinstance(value, float) and self.form else str(value)


@dataclass(frozen=True)
class Sheet:
    """Rows under ``columns``, made lazily. Numbers have the type they were computed in; None is an empty cell."""

    columns: Sequence[str]
    rows: Iterable[Row]


def partial_places(places: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """The indices on each axis as plain data, without axes that count from 0."""
    indices = {axis: list(index) for axis, index in places.items()}
    return {axis: index for axis, index in indices.items() if index != list(range(len(index)))}


@dataclass(frozen=True)
class Array:
    """A tensor of a report that is read when it is needed: its address, its axes, and a function that reads it.

    ``places`` are the indices that it holds of an axis, where it does not hold all. ``one_part`` is the size of the
    first axis and a function that reads one part of it, if that gives the shape with less work.
    """

    name: str
    axes: Sequence[str]
    read: "Callable[[], Tensor]"
    places: Mapping[str, Sequence[int]] = field(default_factory=dict)
    one_part: "tuple[int, Callable[[], Tensor]] | None" = None

    @classmethod
    def of(cls, name: str, axes: Sequence[str], tensor: "Tensor") -> "Array":
        """An array of a tensor in memory."""
        return cls(name, axes, lambda: tensor)

    @property
    def partial(self) -> dict[str, list[int]]:
        return partial_places(self.places)

    def form(self) -> "tuple[tuple[int, ...], torch.dtype]":
        """Its shape and dtype."""
        count, read = self.one_part or (None, self.read)
        tensor = read()
        return ((*(() if count is None else (count,)), *tensor.shape), tensor.dtype)

    def numbers(self) -> Any:
        """Its numbers as a numpy array, narrow floats as float32."""
        tensor = self.read().detach().cpu()
        return (tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor).numpy()

    def labelled(self, label: Label) -> tuple[Any, list[list[str]]]:
        """Its numbers, and the labels of each axis."""
        numbers = self.numbers()
        sizes = zip(self.axes, numbers.shape, strict=True)
        return numbers, [[label(axis, at) for at in self.places.get(axis, range(size))] for axis, size in sizes]


def of_arrays(arrays: Sequence[Array], label: Label, *, long: bool = False) -> Sheet:
    """One array with two axes as a map, unless ``long``; else a row for each number: address, indices, value."""
    if len(arrays) == 1 and len(arrays[0].axes) == 2 and not long:
        numbers, (rows, columns) = arrays[0].labelled(label)
        return Sheet(
            ["/".join(arrays[0].axes), *columns], ([name, *row] for name, row in zip(rows, numbers, strict=True))
        )
    axes = list(dict.fromkeys(axis for array in arrays for axis in _distinct(array.axes)))
    return Sheet(
        ["address", *axes, "value"], itertools.chain.from_iterable(_cells(array, axes, label) for array in arrays)
    )


def _distinct(axes: Sequence[str]) -> list[str]:
    """The axes; a repeated name gets a number."""
    return [
        f"{axis} {axes[:index].count(axis) + 1}" if axis in axes[:index] else axis for index, axis in enumerate(axes)
    ]


def _cells(array: Array, axes: Sequence[str], label: Label) -> Iterator[Row]:
    numbers, names = array.labelled(label)
    at = [1 + axes.index(axis) for axis in _distinct(array.axes)]
    for labels, value in zip(itertools.product(*names), numbers.flat, strict=True):
        row: list[Any] = [array.name, *[None] * len(axes), value]
        for column, name in zip(at, labels, strict=True):
            row[column] = name
        yield row


def of_records(records: Iterable[Mapping[str, Any]]) -> Sheet | None:
    """A row for each record, with its members as columns (``object.member`` for nested ones); None without records."""
    rows = [dict(_flat(record)) for record in records]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Sheet(columns, ([row.get(name) for name in columns] for row in rows)) if columns else None


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def records_in(data: Mapping[str, Any], path: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The records in the list at ``path``. Nested lists repeat the other members of their outer record.

    A mapping of columns is a list of records too.
    """
    head, *rest = path
    records = data.get(head) or ()
    if isinstance(records, Mapping):
        records = [dict(zip(records, row, strict=True)) for row in zip(*records.values(), strict=True)]
    for record in records:
        if not rest:
            yield record
            continue
        outer = {name: value for name, value in record.items() if not isinstance(value, list)}
        yield from ({**outer, **inner} for inner in records_in(record, rest))


def joined(sheets: Iterable[Sheet]) -> Sheet | None:
    """Sheets stacked into one, with the number of each in a first column; None for no sheets.

    Until all columns are known, the rows wait in a temporary file: however many sheets there are, one is in memory.
    """
    columns: list[str] = []
    waiting = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - the rows close it
    for number, sheet in enumerate(sheets):
        columns += [name for name in dict.fromkeys(sheet.columns) if name not in columns]
        for row in sheet.rows:
            cells = dict(zip(sheet.columns, row, strict=True))
            print(json.dumps([number, *map(cells.get, columns)], default=_of_numpy), file=waiting)
    return Sheet(["result", *columns], _waiting_rows(waiting, 1 + len(columns))) if columns else None


def _of_numpy(value: Any) -> Any:
    """A number of numpy as one of Python, with as many digits as it has."""
    import numpy as np

    return float(str(value)) if isinstance(value, np.floating) else value.item()


def _waiting_rows(file: IO[str], width: int) -> Iterator[Row]:
    decoder = json.JSONDecoder()  # of what was written here
    with file:
        file.seek(0)
        for line in file:
            row = decoder.decode(line)
            yield row + [None] * (width - len(row))
