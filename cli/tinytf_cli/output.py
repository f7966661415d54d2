"""The only place that writes: text, JSON, NDJSON, CSV, HTML, SVG and tensors, to a stream or a file."""

import csv
import functools
import itertools
import json
import math
import re
import struct
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import click

from tinytf import __version__, outputs
from tinytf.errors import TinytfError, UsageError
from tinytf.outputs import expect_output, remedy, writing
from tinytf.report import Report
from tinytf.text.printable import is_hidden, printable
from tinytf_cli.command import DECLARED_BY, option
from tinytf_cli.host import Host, host
from tinytf_cli.pager import Pager, find_pager, is_screen
from tinytf_cli.terminal import COLORMAPS, THEMES, Terminal, detect
from tinytf_cli.views.draw import Display, blocks_of
from tinytf_cli.working import quiet

if TYPE_CHECKING:
    from tinytf.tables import Array, Sheet
    from tinytf_cli.views.blocks import Block, Span

FORMATS = ("text", "json", "ndjson", "csv")
EXTENSIONS = (".txt", ".json", ".ndjson", ".csv", ".html", ".svg", ".safetensors")
_FORMULA = re.compile(r"'*[=+\-@]")
"""A text that a spreadsheet would compute, or that looks like one that was kept from that."""
_FLOAT32, _SHORT, _LARGEST = struct.Struct("f"), 8, 3.4028234663852886e38
"""How a float32 is stored, the longest text of a number that is left as it is, and the largest float32."""
FILM = ".cast"
"""The extension of a film for a terminal, which a result that moves can be written to."""


class ReaderGone(Exception):
    """Whoever read stdout has had enough."""


@dataclass(frozen=True)
class Result:
    """What a command found, in every form that it can be asked for; each is made only when it is.

    ``blocks`` is the view, ``data`` the JSON object, ``events`` its parts one by one for NDJSON,
    ``stored`` the tensors for a file of them, ``metadata`` what it says. ``text`` stands for
    the view wherever it is written without pictures: blocks, and spans of running text with line ends of their own.
    ``sheet`` makes the table for CSV, in its long form if it is called with true; it gives None where there is none.
    Each part of a ``live`` result is seen as soon as it is there. ``film`` are the painted screens of one that moves.
    """

    blocks: "Callable[[Terminal], Iterable[Block]]"
    data: Callable[[], Mapping[str, Any]]
    events: Callable[[], Iterator[Mapping[str, Any]]]
    stored: "Callable[[], list[Array]] | None" = None
    text: "Callable[[Terminal], Iterator[Block | Span]] | None" = None
    live: bool = False
    metadata: Callable[[], Mapping[str, Any]] | None = None
    sheet: "Callable[[bool], Sheet | None] | None" = None
    film: "Callable[[Terminal], Iterable[Sequence[str]]] | None" = None

    @classmethod
    def of(cls, report: Report, display: Display | None = None) -> "Result":
        """A report in every form, drawn by the view of its type with the options of ``display``."""
        return cls(
            partial(blocks_of, report, display=display),
            report.to_dict,
            report.events,
            report.stored,
            metadata=report.metadata,
            sheet=lambda long: report.sheet(long=long),
        )


@dataclass(frozen=True)
class Output:
    """Where results go and in which form; ``pager`` is the command that shows what is longer than the screen."""

    terminal: Terminal
    format: str = "text"
    file: Path | None = None
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO | None = field(default_factory=lambda: sys.stderr)
    pager: Sequence[str] | None = None

    @property
    def wants_data(self) -> bool:
        """Whether what is written is JSON, NDJSON or CSV."""
        return self.format != "text" or (self.file is not None and _form_of(self.file) != "text")

    def draw(self, report: Report, display: Display | None = None) -> None:
        """Write one report, drawn by the view of its type with the options of ``display``."""
        self.show(Result.of(report, display))

    def show(self, result: Result) -> None:
        """Write one result; a file appears whole or not at all."""
        if self.file is not None:
            self._to_file(result, self.file)
            return
        with self.paged() as output:
            output._write(result)

    @contextmanager
    def paged(self) -> Iterator["Output"]:
        """This output, with one pager for all that is shown inside it; leaving the pager ends the block quietly."""
        if self.pager is None:
            yield self
            return
        with Pager(self.stdout, self.pager) as stdout, suppress(ReaderGone):
            yield replace(self, stdout=stdout, pager=None)

    def _write(self, result: Result) -> None:
        if result.live and isinstance(self.stdout, Pager):
            self.stdout.release()
        try:
            for part in self._parts(result, self.format, self.terminal):
                quiet()
                with _to_standard_output():
                    self.stdout.write(part)
                    if result.live:
                        self.stdout.flush()
            with _to_standard_output():
                self.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None

    def note(self, text: str) -> None:
        """A line for the user that is not data; lost when there is no stderr."""
        quiet()
        if self.stderr is not None:
            print(f"tinytf: {printable(text, spaces=False)}", file=self.stderr, flush=True)

    def _parts(self, result: Result, form: str, terminal: Terminal) -> Iterator[str]:
        if form == "json":
            yield self._safe(to_json(result.data())) + "\n"
        elif form == "ndjson":
            wide = False
            for event in result.events():
                wide = _is_wide(event) if "model" in event else wide
                yield self._safe(to_json(event, one_line=True, wide=wide)) + "\n"
        elif form == "csv":
            yield from csv_lines(result)
        elif result.text is not None:
            from tinytf_cli.paint.painter import paint_running

            yield from paint_running(result.text(terminal), terminal)
        else:
            from tinytf_cli.paint.painter import paint

            for line in paint(result.blocks(terminal), terminal):
                yield line + "\n"

    def _safe(self, text: str) -> str:
        """JSON that the stream can encode: with --ascii, or where it takes no more, 7 bits."""
        return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text) if self.terminal.ascii else text

    def _to_file(self, result: Result, path: Path) -> None:
        require_writable(path)
        extension = path.suffix.lower()
        paper = replace(self.terminal, depth="none", cuts=False)
        if extension == ".safetensors":
            size = write_file(path, _tensor_file(result, path))
        elif extension == FILM or (extension == ".svg" and result.film is not None):
            size = write_file(path, _film(result, extension, self.terminal).encode("utf-8"))
        elif extension in (".html", ".svg"):
            size = write_file(path, _picture(result, extension, self.terminal).encode("utf-8"))
        else:
            size = write_file(path, (part.encode("utf-8") for part in self._parts(result, _form_of(path), paper)))
        self.note(f"wrote {path} ({size:,} bytes)")


class Outlet(Host):
    """A host that takes the results of its commands."""

    @abstractmethod
    def output(self, terminal: Terminal, form: str, file: Path | None) -> Output:
        """Where results go."""


@contextmanager
def _to_standard_output() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise TinytfError(f"cannot write standard output: {error.strerror}", remedy(error, "")) from None


@dataclass(frozen=True)
class Drawing:
    """How to draw."""

    GROUP: ClassVar = "Output"

    color: str = option(type=click.Choice(["auto", "always", "never"]), shown="auto", help="When to use colour.")
    theme: str = option(type=click.Choice(THEMES), shown="auto", help="Background: auto asks the terminal.")
    colormap: str = option(type=click.Choice(COLORMAPS), shown="viridis", help="Colours of values from 0 to 1.")
    precision: int | None = option(type=click.IntRange(0, 9), help="Digits after the point.")
    width: int | None = option(type=click.IntRange(20, 1000), help="Columns to draw in.")
    ascii: bool = option(is_flag=True, help="Draw with 7-bit characters only.")
    plain: bool = option(is_flag=True, help="Sentences instead of tables and maps, for screen readers.")

    def terminal(self) -> Terminal:
        """What stdout can show."""
        return detect(sys.stdout, **vars(self))


@dataclass(frozen=True, kw_only=True)
class Destination:
    """In which form to write, where to, and how to draw."""

    GROUP: ClassVar = "Output"

    form: str | None = option("--format", type=click.Choice(FORMATS), default=None, help="Output format.")
    as_json: bool = option("--json", is_flag=True, help="Same as --format json.")
    file: Path | None = option(
        "-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
        help="Write to FILE: .txt .json .ndjson .csv .html .svg .safetensors.",
    )  # fmt: skip
    no_pager: bool = option(is_flag=True, help="Do not page output that is longer than the screen.")
    drawing: Drawing

    def resolved(self) -> Output:
        """The Output; UsageError where two formats are asked for, or the file cannot be written."""
        form, terminal, lender = self._format(), self.drawing.terminal(), host()
        if isinstance(lender, Outlet):
            return lender.output(terminal, form, self.file)
        pages = is_screen(sys.stdout) and not (self.no_pager or self.file or terminal.plain)
        return Output(terminal, form, self.file, pager=find_pager() if pages else None)

    def _format(self) -> str:
        if self.as_json and self.form not in (None, "json"):
            raise UsageError(f"--json and --format {self.form} ask for two formats at once")
        form = "json" if self.as_json else self.form
        if self.file is not None:
            require_writable(self.file)
            expect_output(self.file)
            wanted = _form_of(self.file)
            if form not in (None, wanted):
                raise UsageError(f"{self.file.name!r} says {wanted} and --format says {form}", "leave one of them out")
        return form or "text"


DECLARED_BY[Output] = Destination


def require_writable(path: Path) -> None:
    """UsageError for an extension without a format and for what ``require_place`` refuses."""
    if path.suffix.lower() not in (*EXTENSIONS, FILM):
        raise UsageError(f"{path.name!r} has no extension that says a format", f"known: {' '.join(EXTENSIONS)}")
    require_place(path)


def require_place(path: Path) -> None:
    """UsageError for a folder, a file in a folder that is not there, and what ``outputs.require_place`` refuses."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", "make it first, or write elsewhere")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "name a file in it")
    outputs.require_place(path)


def _form_of(path: Path) -> str:
    """The one of FORMATS that an extension means; text for a picture."""
    form = path.suffix.lower()[1:]
    return form if form in FORMATS else "text"


def write_file(path: Path, data: "bytes | Iterable[bytes | memoryview]") -> int:
    """Write a file whole, and return how many bytes it has; TinytfError where it cannot be written."""
    with writing(path):
        return outputs.write_output(path, data)


def _tensor_file(result: Result, path: Path) -> "Iterator[bytes | memoryview]":
    found = [] if result.stored is None else result.stored()
    if not found:
        raise UsageError(f"there are no tensors to write to {path.name}", "write to a .json file instead")
    from tinytf.tensor_file import safetensors

    said = {"version": __version__, **({} if result.metadata is None else result.metadata())}
    return safetensors(found, {"tinytf": _dumps(_jsonable(said))})


def csv_lines(result: Result) -> Iterator[str]:
    """A table as the lines of CSV, one by one. A line may have line ends inside quotes.

    Raises UsageError where the result has no table.
    """
    sheet = None if result.sheet is None else result.sheet(False)
    if sheet is None:
        raise UsageError("there is no table here to write as CSV", "JSON holds all of it: --json, or a .json file")
    writer = csv.writer(_Line(), lineterminator="\n")
    for row in itertools.chain([sheet.columns], sheet.rows):
        yield writer.writerow([_csv_cell(value) for value in row])


class _Line:
    """A file whose ``write`` returns what it is given, and with it the ``writerow`` of a csv.writer."""

    def write(self, text: str) -> str:
        return text


def _csv_cell(value: Any) -> str:
    """A value as CSV has it: a number in full, nothing for None and −∞, lists as JSON."""
    if isinstance(value, str):
        return _csv_text(value)
    if value is None or isinstance(value, (bool, list, tuple)):
        return "" if value is None else _dumps(_jsonable(value))
    if isinstance(value, int) or math.isfinite(value):
        return str(_shortest(value) if type(value) is float else value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else ""


@functools.lru_cache(100_000)  # a label stands in many rows
def _csv_text(value: str) -> str:
    """A text without what a terminal could act on; one that a spreadsheet would compute has a ' before it."""
    text = printable(value, spaces=False)
    return f"'{text}" if _FORMULA.match(text) else text


def _picture(result: Result, extension: str, terminal: Terminal) -> str:
    """What a true-colour screen of this width, and of any height, would show."""
    from tinytf_cli.paint.painter import paint
    from tinytf_cli.picture import picture

    screen = replace(terminal, depth="truecolor", cuts=True, ascii=False, plain=False, height=sys.maxsize)
    return picture(paint(result.blocks(screen), screen), extension, screen)


def _film(result: Result, extension: str, terminal: Terminal) -> str:
    """What a true-colour screen of this width would show, one picture after the other."""
    if result.film is None:
        raise UsageError(f"a {FILM} file is a film, and this does not move", "write to an .svg file instead")
    from tinytf_cli.film import moving_picture, recording

    screen = replace(terminal, depth="truecolor", cuts=True, ascii=False, plain=False)
    return (recording if extension == FILM else moving_picture)(list(result.film(screen)), screen)


def to_json(data: Mapping[str, Any], *, one_line: bool = False, wide: bool = False) -> str:
    """A JSON object, one line a top-level key unless ``one_line``.

    A number of float32 has as many digits as it takes to read that float32 back, unless the model is of float64, as
    its data say or ``wide`` does.

    A masked cell (−∞) is null; NaN and +∞, which JSON has no number for, are the strings "NaN" and "Infinity".
    Invisible characters are escaped, so that the output is safe to look at in a terminal.
    """
    wide = wide or _is_wide(data)
    members = [f"{_dumps(str(key))}: {_dumps(_jsonable(value, wide))}" for key, value in data.items()]
    text = "{" + ", ".join(members) + "}" if one_line else "{\n " + ",\n ".join(members) + "\n}"
    return text if text.isascii() and "\x7f" not in text else "".join(map(_escaped, text))


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _escaped(char: str) -> str:
    if char == "\x7f":
        return "\\u007f"
    return char if char.isascii() or not is_hidden(char) else json.dumps(char)[1:-1]


def _is_wide(data: Mapping[str, Any]) -> bool:
    """Whether data are of a model that computes in float64."""
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
    """A number that is one of float32 with the fewest digits that mean that float32; any other as it is."""
    if len(repr(value)) <= _SHORT or abs(value) > _LARGEST or _FLOAT32.unpack(_FLOAT32.pack(value))[0] != value:
        return value
    import numpy as np  # where such numbers come from

    return float(str(np.float32(value)))
