"""Texts in the rows of tables: JSON lines, CSV and Parquet, one field of each row a document."""

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tinytf.errors import UsageError
from tinytf.files import parse_json, reading
from tinytf.text.printable import printable
from tinytf.text.stream import ByteSource, decoded

MESSAGES, PAIR = "messages", "source,target"
"""The default names of the field that holds a conversation, and of the two that hold a text and its translation."""
FORMS = {"text": (str, "text"), "chat": (list, "list of messages"), "pair": (str, "text")}
"""What the documents of a table may be, with the type of a field that holds one, in words too."""
_BUFFER, _ROWS = 1 << 16, 256
Row = Mapping[str, Any]
Numbered = tuple[int, Row]
"""A row, and the line of its file on which it ends, from 1; in a Parquet file, its number."""


def _lines(source: ByteSource) -> Iterator[str]:
    rest, is_first = "", True
    for text in decoded(source.name, source.read(_BUFFER)):
        if is_first and text:
            text, is_first = text.removeprefix("\ufeff"), False  # a byte-order mark, as spreadsheets write
        *complete, rest = (rest + text).split("\n")
        yield from complete
    yield rest


def _json_lines(source: ByteSource) -> Iterator[Numbered]:
    for number, line in enumerate(_lines(source), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise UsageError(f"line {number:,} of {source.name} is not a JSON object", "each line has to be one object")
        yield number, row


def _delimited(separator: str) -> Callable[[ByteSource], Iterator[Numbered]]:
    def rows(source: ByteSource) -> Iterator[Numbered]:
        reader = csv.DictReader((f"{line}\n" for line in _lines(source)), delimiter=separator)
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise UsageError(f"{source.name} is not a table: {error}") from None

    return rows


def _parquet(source: ByteSource) -> Iterator[Numbered]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            f"reading {source.name} needs pyarrow, which is not installed", 'pip install "tinytf[parquet]"'
        ) from None
    try:
        with parquet.ParquetFile(source.path or io.BytesIO(source.data)) as file:
            batches = (batch.to_pylist() for batch in file.iter_batches(_ROWS))
            yield from enumerate(itertools.chain.from_iterable(batches), 1)
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{source.name} is not a Parquet file: {error}") from None


TABLES: Mapping[str, Callable[[ByteSource], Iterator[Numbered]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".parquet": _parquet,
}
"""The reader of the rows of a file with their line numbers, by its suffix."""


def read_table(path: str | Path, of: str, hint: str) -> tuple[str, Iterator[Numbered]]:
    """The name of a table, and its rows. Raises UsageError for a file that is none, or, with ``hint``, cannot be read.

    ``of`` is what its rows are, in the plural.
    """
    try:
        source = ByteSource.of(reading(Path(path)))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from None
    if not is_table(source):
        raise UsageError(f"{source.name} is not a table of {of}", f"it ends in one of {', '.join(TABLES)}")
    return source.name, _rows(source)


def _rows(source: ByteSource) -> Iterator[Numbered]:
    return TABLES[Path(source.name).suffix.lower()](source)


def is_table(source: ByteSource) -> bool:
    """Whether a source is a table, by its suffix."""
    return Path(source.name).suffix.lower() in TABLES


def text_field(source: ByteSource, name: str, form: str) -> str:
    """The field that holds the documents: ``name`` if given, ``messages`` for chat, else the only text field.

    Of pairs it is two, with a comma between them: ``source,target`` unless given. Raises UsageError if the first row
    lacks it, or has several texts and no ``name`` is given.
    """
    _, row = next(_rows(source), (0, None))
    if row is None:
        raise UsageError(f"{source.name} has no rows")
    kind, description = FORMS[form]
    field_names = ", ".join(map(str, row)) or "no field"
    if form == "pair":
        sides = (name or PAIR).split(",")
        if len(sides) != 2 or not all(isinstance(row.get(side), kind) for side in sides):
            raise UsageError(
                f"{source.name} has no texts {' and '.join(map(printable, sides))} in its rows",
                f"it has {printable(field_names, spaces=False)}; --field A,B takes columns of other names",
            )
        return ",".join(sides)
    if name or form == "chat":
        name = name or MESSAGES
        if not isinstance(row.get(name), kind):
            hint = f"it has {field_names}" + (", and --objective chat learns conversations" if MESSAGES in row else "")
            raise UsageError(f"the field {name} of {source.name} is not a {description}", hint)
        return name
    text_fields = [str(key) for key, value in row.items() if isinstance(value, str)]
    if len(text_fields) == 1:
        return text_fields[0]
    if not text_fields:
        hint = "--objective chat learns conversations" if MESSAGES in row else f"it has {field_names}"
        raise UsageError(f"{source.name} has no text field", hint)
    raise UsageError(
        f"{source.name} has several text fields: {', '.join(text_fields)}",
        f"choose one, such as --field {text_fields[0]}; --objective translate learns pairs",
    )


def row_texts(source: ByteSource, field: str, form: str) -> Iterator[str]:
    """Yield the documents of a table: the ``field`` of every row that has it, conversations and pairs as JSON.

    Raises UsageError, with its number, for a row whose field has another type, and for a pair without its source.
    """
    kind, description = FORMS[form]
    sides = field.split(",") if form == "pair" else [field]
    for number, (_, row) in enumerate(_rows(source), 1):
        values = [row.get(side) for side in sides]
        if values == [None] * len(sides):
            continue
        for side, value in zip(sides, values, strict=True):
            if not isinstance(value, kind):
                raise UsageError(f"the field {side} in row {number:,} of {source.name} is not a {description}")
        if form == "pair" and not str(values[0]).strip():
            raise UsageError(f"the field {sides[0]} in row {number:,} of {source.name} is blank")
        if form == "chat":
            yield json.dumps({MESSAGES: values[0], "tools": row.get("tools")})
        else:
            yield json.dumps(values) if form == "pair" else str(values[0])
