"""Texts in the rows of tables: JSON lines, CSV and Parquet, one field of each row a document."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tinytf.errors import UsageError
from tinytf.text.stream import ByteSource, decoded

MESSAGES = "messages"
"""The usual name of the field that holds a conversation."""
_BUFFER, _ROWS = 1 << 16, 256
Row = Mapping[str, Any]


def _lines(source: ByteSource) -> Iterator[str]:
    rest = ""
    for text in decoded(source.name, source.read(_BUFFER)):
        *whole, rest = (rest + text).split("\n")
        yield from whole
    yield rest


def _json_lines(source: ByteSource) -> Iterator[Row]:
    for number, line in enumerate(_lines(source), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise UsageError(f"line {number:,} of {source.name} is no JSON object", "each line is one object")
        yield row


def _separated(separator: str) -> Callable[[ByteSource], Iterator[Row]]:
    def rows(source: ByteSource) -> Iterator[Row]:
        lines = (f"{line}\n" for line in _lines(source))
        try:
            yield from csv.DictReader(lines, delimiter=separator)
        except csv.Error as error:
            raise UsageError(f"{source.name} is no table: {error}") from None

    return rows


def _parquet(source: ByteSource) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            f"{source.name} takes pyarrow to read, and it is not installed", 'pip install "tinytf[parquet]"'
        ) from None
    try:
        with parquet.ParquetFile(source.path or io.BytesIO(source.data)) as file:
            for batch in file.iter_batches(_ROWS):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{source.name} is no Parquet file: {error}") from None


TABLES: Mapping[str, Callable[[ByteSource], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _separated(","),
    ".tsv": _separated("\t"),
    ".parquet": _parquet,
}
"""How the rows of a file are read, by the end of its name."""


def is_table(source: ByteSource) -> bool:
    """Whether a source holds rows, by its name."""
    return Path(source.name).suffix.lower() in TABLES


def text_field(source: ByteSource, asked: str, chat: bool) -> str:
    """The field that holds the documents: the one asked for, that of messages, or the only one that is a text.

    Raises UsageError where the first row does not have it, or has several texts and none is asked for.
    """
    row = next(TABLES[Path(source.name).suffix.lower()](source), None)
    if row is None:
        raise UsageError(f"{source.name} has no row in it")
    wanted, what = (list, "list of messages") if chat else (str, "text")
    named = ", ".join(map(str, row)) or "no field"
    if asked or chat:
        asked = asked or MESSAGES
        if not isinstance(row.get(asked), wanted):
            hint = f"it has {named}" + (", and --objective chat learns conversations" if MESSAGES in row else "")
            raise UsageError(f"the field {asked} of {source.name} is no {what}", hint)
        return asked
    found = [str(name) for name, value in row.items() if isinstance(value, str)]
    if len(found) == 1:
        return found[0]
    if not found:
        hint = "--objective chat learns conversations" if MESSAGES in row else f"it has {named}"
        raise UsageError(f"{source.name} has no field that is a text", hint)
    raise UsageError(f"{source.name} has several texts in a row: {', '.join(found)}", f"name one, --field {found[0]}")


def row_texts(source: ByteSource, field: str, chat: bool) -> Iterator[str]:
    """The documents of a table: of every row its ``field``, a conversation as JSON; rows without one are left out.

    Raises UsageError with the number of a row whose field is of another kind.
    """
    for number, row in enumerate(TABLES[Path(source.name).suffix.lower()](source), 1):
        value = row.get(field)
        if value is None:
            continue
        if not isinstance(value, list if chat else str):
            what = "list of messages" if chat else "text"
            raise UsageError(f"the field {field} in row {number:,} of {source.name} is no {what}")
        yield json.dumps({MESSAGES: value, "tools": row.get("tools")}) if chat else str(value)
