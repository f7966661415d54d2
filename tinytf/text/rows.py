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
from tinytf.text.stream import ByteSource, decoded

MESSAGES = "messages"
"""The default name of the field that holds a conversation."""
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


def text_field(source: ByteSource, name: str, chat: bool) -> str:
    """The field that holds the documents: ``name`` if given, ``messages`` for ``chat``, else the only text field.

    Raises UsageError if the first row lacks it, or has several texts and no ``name`` is given.
    """
    _, row = next(_rows(source), (0, None))
    if row is None:
        raise UsageError(f"{source.name} has no rows")
    kind, description = (list, "list of messages") if chat else (str, "text")
    field_names = ", ".join(map(str, row)) or "no field"
    if name or chat:
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
        f"choose one, such as --field {text_fields[0]}",
    )


def row_texts(source: ByteSource, field: str, chat: bool) -> Iterator[str]:
    """Yield the documents of a table: the ``field`` of every row that has it, a conversation as JSON.

    Raises UsageError, with its number, for a row whose field has another type.
    """
    for number, (_, row) in enumerate(_rows(source), 1):
        value = row.get(field)
        if value is None:
            continue
        if not isinstance(value, list if chat else str):
            description = "list of messages" if chat else "text"
            raise UsageError(f"the field {field} in row {number:,} of {source.name} is not a {description}")
        yield json.dumps({MESSAGES: value, "tools": row.get("tools")}) if chat else str(value)
