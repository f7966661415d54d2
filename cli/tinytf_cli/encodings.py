"""A report as JSON, NDJSON, CSV, Markdown, or a file of tensors."""

import csv
import functools
import itertools
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tinytf import __version__
from tinytf.errors import UsageError
from tinytf.report import Report
from tinytf.tables import Sheet
from tinytf.text.printable import is_hidden, printable

_FORMULA = re.compile(r"'*[=+\-@]")
"""A text that a spreadsheet would evaluate as a formula, also behind leading quotes."""
_PIECE, _AT_ONCE, _PLAIN = 65_536, 1_024, frozenset({float, int, str, bool, type(None)})
"""The characters of a piece of JSON, the most items that are encoded at once, and the types that hold no others."""
_FLOAT32, _SHORT, _LARGEST = struct.Struct("f"), 8, 3.4028234663852886e38
"""The layout of a float32, the longest number that is not shortened (characters), and the largest float32."""


def ndjson_lines(report: Report, number: int | None = None) -> Iterator[str]:
    """The events of a report, one JSON object per line. ``number`` is the index of the report among several."""
    wide = False
    for event in report.events():
        wide = _is_wide(event) if "model" in event else wide
        if number is not None:
            event = {"type": event["type"], "result": number, **event}
        yield to_json(event, one_line=True, wide=wide)


def to_json(data: Mapping[str, Any], *, one_line: bool = False, wide: bool = False) -> str:
    """A JSON object, one top-level key per line, or all on ``one_line``.

    A float32 has the fewest digits that read back as the same float32. If the model computes in float64, as its data
    or ``wide`` say, numbers keep all digits.

    A masked cell (−∞) is null. NaN and +∞, for which JSON has no numbers, are the strings "NaN" and "Infinity".
    Invisible characters are escaped, so that a terminal can show the output safely.
    """
    return "".join(json_pieces(data, one_line=one_line, wide=wide))


def json_pieces(data: Mapping[str, Any], *, one_line: bool = False, wide: bool = False) -> Iterator[str]:
    """The text of ``to_json`` in pieces of some ``_PIECE`` characters; lists may be iterators."""
    texts, size = [], 0
    for text in _members(data, wide or _is_wide(data), *((", ", "{", "}") if one_line else (",\n ", "{\n ", "\n}"))):
        texts.append(text)
        size += len(text)
        if size >= _PIECE:
            yield _visible("".join(texts))
            texts, size = [], 0
    yield _visible("".join(texts))


def _members(
    data: Mapping[str, Any], wide: bool, between: str = ", ", start: str = "{", end: str = "}"
) -> Iterator[str]:
    yield start
    for number, (key, value) in enumerate(data.items()):
        yield f"{between if number else ''}{_dumps(str(key))}: "
        yield from _texts(value, wide)
    yield end


def _texts(value: Any, wide: bool) -> Iterator[str]:
    """The JSON of a value, one text for each list of up to ``_AT_ONCE`` items that holds no others."""
    if isinstance(value, Mapping):
        yield from _members(value, wide or _is_wide(value))
    elif isinstance(value, (list, tuple, Iterator)):
        items, between, size = iter(value), "", _AT_ONCE if isinstance(value, (list, tuple)) else 1
        yield "["
        while some := list(itertools.islice(items, size)):
            if _PLAIN.issuperset(map(type, some)):
                yield between + _dumps(_jsonable(some, wide))[1:-1]
                between, size = ", ", _AT_ONCE
                continue
            for item in some:
                yield between
                yield from _texts(item, wide)
                between = ", "
        yield "]"
    else:
        yield _dumps(_jsonable(value, wide))


def _visible(text: str) -> str:
    return text if text.isascii() and "\x7f" not in text else "".join(map(_escaped, text))


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _escaped(char: str) -> str:
    if char == "\x7f":
        return "\\u007f"
    return char if char.isascii() or not is_hidden(char) else json.dumps(char)[1:-1]


def _is_wide(data: Mapping[str, Any]) -> bool:
    """Whether the data come from a model that computes in float64."""
    model = data.get("model")
    return isinstance(model, Mapping) and model.get("dtype") == "float64"


def _jsonable(data: object, wide: bool = False) -> object:
    if isinstance(data, float):
        if math.isfinite(data):
            return data if wide else _shortest(data)
        return "NaN" if math.isnan(data) else ("Infinity" if data > 0 else None)
    if isinstance(data, Mapping):
        wide = wide or _is_wide(data)
        return {key: _jsonable(value, wide) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_jsonable(value, wide) for value in data]
    return data


def _shortest(value: float) -> float:
    """A float32 rounded to the fewest digits that read back as the same float32. Other numbers are unchanged."""
    if len(repr(value)) <= _SHORT or abs(value) > _LARGEST or _FLOAT32.unpack(_FLOAT32.pack(value))[0] != value:
        return value
    import numpy as np  # imported late: only numeric reports need it

    return float(str(np.float32(value)))


def tensor_file(report: Report, name: str) -> Iterator[bytes | memoryview]:
    """The tensors of a report as a safetensors file, in pieces. Raises UsageError if it has none."""
    tensors = report.stored()
    if not tensors:
        raise UsageError(f"there are no tensors to write to {name}", "write to a .json file instead")
    from tinytf.tensor_file import safetensors

    metadata = {"version": __version__, **report.metadata()}
    return safetensors(tensors, {"tinytf": _dumps(_jsonable(metadata))})


def csv_lines(report: Report) -> Iterator[str]:
    """The table of a report as CSV records. A record may contain line breaks inside quotes.

    Raises UsageError if the report has no table.
    """
    sheet = _sheet_of(report)
    writer = csv.writer(_Line(), lineterminator="\n")
    for row in itertools.chain([sheet.columns], sheet.rows):
        yield writer.writerow([_csv_cell(value) for value in row])


def _sheet_of(report: Report) -> Sheet:
    sheet = report.sheet()
    if sheet is None:
        raise UsageError("there is no table to write here", "JSON has everything: use --json or a .json file")
    return sheet


class _Line:
    """A file whose ``write`` returns its text, so that ``writerow`` of a csv.writer returns the line."""

    def write(self, text: str) -> str:
        return text


def _csv_cell(value: Any) -> str:
    """A value as a CSV cell: numbers in full, None and −∞ empty, lists as JSON."""
    if isinstance(value, str):
        return _csv_text(value)
    if value is None or isinstance(value, (bool, list, tuple)):
        return "" if value is None else _dumps(_jsonable(value))
    if isinstance(value, int) or math.isfinite(value):
        return str(_shortest(value) if type(value) is float else value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else ""


@functools.lru_cache(100_000)  # labels repeat in many rows
def _csv_text(value: str) -> str:
    """A text with control characters escaped, and a ' before one that a spreadsheet would evaluate."""
    text = printable(value, spaces=False)
    return f"'{text}" if _FORMULA.match(text) else text


def markdown_lines(report: Report) -> Iterator[str]:
    """The table of a report as lines of Markdown: the columns shown on screen, or those of the CSV.

    Raises UsageError if the report has no table.
    """
    if report.ROWS:
        records = getattr(report, report.ROWS)
        styles = type(records[0]).COLUMNS if records else {}
        titles: Iterable[str] = [style.title for style in styles.values()]
        rows: Iterable[list[str]] = (
            [style.text(getattr(record, name)) for name, style in styles.items()] for record in records
        )
    else:
        sheet = _sheet_of(report)
        titles, rows = sheet.columns, ([_markdown_cell(value) for value in row] for row in sheet.rows)
    yield from markdown_rows(list(titles), rows)


def markdown_rows(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    for row in itertools.chain([titles, ["---"] * len(titles)], rows):
        yield "| " + " | ".join(map(markdown_text, row)) + " |\n"


def _markdown_cell(value: Any) -> str:
    """A value as in CSV, but with numbers to four digits: Markdown is for readers."""
    return f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else _csv_cell(value)


def markdown_text(text: str) -> str:
    """A text with nothing that Markdown would read as a mark of a table or of HTML."""
    return printable(text, spaces=False).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
