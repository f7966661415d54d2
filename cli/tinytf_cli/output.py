"""The only place that writes: text, data, pictures, LaTeX and tensors, to a stream or a file."""

import json
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TextIO

import click

from tinytf import outputs
from tinytf.errors import TinytfError, UsageError
from tinytf.outputs import expect_output, remedy, writing
from tinytf.report import Report
from tinytf.text.printable import printable
from tinytf_cli.command import DECLARED_BY, option
from tinytf_cli.encodings import csv_lines, json_pieces, markdown_lines, ndjson_lines, tensor_file
from tinytf_cli.host import Host, current_interrupt, host, is_typed
from tinytf_cli.interrupt import Interrupt
from tinytf_cli.pager import Pager, find_pager, is_screen
from tinytf_cli.ranges import Whole
from tinytf_cli.terminal import COLORMAPS, THEMES, WIDEST, Terminal, detect
from tinytf_cli.views.draw import Display, Shown
from tinytf_cli.working import quiet

if TYPE_CHECKING:
    from tinytf_cli.views.blocks import Block

FORMATS = ("text", "json", "ndjson", "csv", "markdown")
PRINTED = (".png", ".pdf")
"""Pictures that are drawn from SVG."""
EXTENSIONS = (".txt", ".json", ".ndjson", ".csv", ".md", ".html", ".svg", ".png", ".pdf", ".tex", ".safetensors")
FILM, CONTROL_VECTOR = ".cast", ".gguf"
"""The extensions of an asciicast, for a report that has frames, and of a control vector of llama.cpp."""
TABLES = (".jsonl", ".tsv")
"""The extensions of tables of pairs, which PairSet.read takes."""


class ReaderGone(Exception):
    """The reader of stdout has closed it."""


@dataclass(frozen=True)
class Output:
    """Where one command writes: a terminal with its streams, pager and Ctrl-C handler, or a file.

    ``pager`` is the command that shows output longer than the screen. With ``at_once`` each part is flushed as soon as
    it is made, and nothing is paged. ``number`` is the index of the result, for NDJSON events of several results.
    """

    terminal: Terminal
    format: str = "text"
    file: Path | None = None
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO | None = field(default_factory=lambda: sys.stderr)
    pager: Sequence[str] | None = None
    interrupt: Interrupt = field(default_factory=Interrupt)
    at_once: bool = False
    number: int | None = None

    @property
    def wants_data(self) -> bool:
        """Whether the output is data: JSON, NDJSON, CSV or Markdown."""
        return self.format != "text" or (self.file is not None and _form_of(self.file) != "text")

    def draw(self, report: Report, display: Display | None = None) -> None:
        """Write one report, drawn by the view for its type with the options in ``display``."""
        self.show(Shown(report, display))

    def draw_checked(self, report: Report, display: Display | None = None) -> int:
        """Write one report. Returns the exit status: 1 if a check of it fails, otherwise 0."""
        self.draw(report, display)
        return 0 if report.holds else 1

    def draw_all(self, reports: Iterable[Report], kind: str, lines: bool, display: Display | None = None) -> int:
        """Write one report, or with ``lines`` several in turn; ``kind`` is their plural.

        Ends after an interrupted report. Returns the exit status: 1 if a check of any report fails, otherwise 0.
        """
        holds = True

        def results() -> Iterator[Shown]:
            nonlocal holds
            for report in reports:
                try:
                    yield Shown(report, display)
                finally:  # even if the reader has gone
                    holds = holds and report.holds
                if report.interrupted:
                    return

        self.show_all(results(), kind, lines)
        return 0 if holds else 1

    def show_all(self, parts: Iterable[Shown], kind: str, lines: bool) -> None:
        """Write one report, or with ``lines`` several. A stream shows each at once; JSON and files join them into one.

        ``kind`` is the plural that names their list there. None is kept once it is written, but for tensors.
        """
        if lines and (self.file is not None or self.format not in ("text", "ndjson")):
            from tinytf_cli.views.joined import Joined

            twice = self.file is not None and self.file.suffix.lower() == ".safetensors"
            self.show(Shown(Joined(kind=kind, parts=tuple(parts) if twice else parts)))
            return
        with self.paged() as output:
            for number, part in enumerate(parts):
                if number and output.format == "text":
                    output.stdout.write("\n")
                replace(output, number=number if lines else None).show(part)

    def show(self, shown: Shown) -> None:
        """Write one report. A file is written whole or not at all."""
        if self.file is not None:
            self._to_file(shown, self.file)
            return
        with self.paged() as output:
            output._write(shown)

    @contextmanager
    def paged(self) -> Iterator["Output"]:
        """This output, with one pager for everything shown inside. Quitting the pager ends the block quietly."""
        if self.pager is None or self.at_once:
            yield self
            return
        with Pager(self.stdout, self.pager) as stdout, suppress(ReaderGone):
            yield replace(self, stdout=stdout, pager=None)

    def text_of(self, shown: Shown, number: int) -> str:
        """What a stream gets for one of several reports: the one with this number."""
        return "".join(replace(self, number=number)._parts(shown, self.format, self.terminal))

    def _write(self, shown: Shown) -> None:
        self.write(self._parts(shown, self.format, self.terminal))

    def write(self, parts: Iterable[str]) -> None:
        """Write text to the stream. Raises ReaderGone if nobody reads it any more."""
        try:
            for part in parts:
                quiet()
                with _to_standard_output():
                    self.stdout.write(part)
                    if self.at_once:
                        self.stdout.flush()
            with _to_standard_output():
                self.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None

    def note(self, text: str) -> None:
        """Write a note for the user to stderr; without a stderr it is lost."""
        quiet()
        if self.stderr is not None:
            print(f"tinytf: {printable(text, spaces=False)}", file=self.stderr, flush=True)

    def _parts(self, shown: Shown, form: str, terminal: Terminal) -> Iterator[str]:
        if form == "json":
            yield from map(self._safe, json_pieces(shown.report.streamed()))
            yield "\n"
        elif form == "ndjson":
            yield from (self._safe(line) + "\n" for line in ndjson_lines(shown.report, self.number))
        elif form == "csv":
            yield from csv_lines(shown.report)
        elif form == "markdown" and shown.report.PAGE:
            from tinytf_cli.paint.markdown import page

            yield from page(self.blocks(shown, replace(terminal, depth="none", cuts=False)), terminal)
        elif form == "markdown":
            yield from markdown_lines(shown.report)
        else:
            from tinytf_cli.paint.painter import paint_stream

            yield from paint_stream(self.blocks(shown, terminal), terminal)

    def blocks(self, shown: Shown, terminal: Terminal) -> "Iterable[Block]":
        """The blocks that a screen or a stream shows."""
        return shown.blocks(terminal)

    def _safe(self, text: str) -> str:
        """JSON that the stream can encode: 7-bit with --ascii, or if the stream takes no Unicode."""
        return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text) if self.terminal.ascii else text

    def _to_file(self, shown: Shown, path: Path) -> None:
        require_writable(path)
        extension = path.suffix.lower()
        table = shown.report.as_table(extension)
        if table is not None:
            data: Iterable[bytes | memoryview] = [table.encode("utf-8")]
        elif extension in TABLES:
            raise UsageError(
                f"a {extension} file is a table of pairs, and this result has none", "write to a .json file"
            )
        elif extension == ".safetensors":
            data = tensor_file(shown.report, path.name)
        elif extension == CONTROL_VECTOR:
            data = _control_vector(shown.report, path.name)
        elif extension in (".html", ".svg", FILM):
            data = iter([self._picture(shown, extension).encode("utf-8")])
        elif extension == ".tex":
            from tinytf_cli.paint.latex import document

            page = replace(self.terminal, depth="none", cuts=False, figure=True, advises=False, width=WIDEST)
            data = iter(["".join(document(shown.blocks(page), page)).encode("utf-8")])
        elif extension in PRINTED:
            from tinytf_cli.picture import printed

            data = iter([printed(self._picture(shown, extension), extension)])
        else:
            page = replace(self.terminal, depth="none", cuts=False)
            data = (part.encode("utf-8") for part in self._parts(shown, _form_of(path), page))
        size = write_file(path, data)
        self.note(f"wrote {path} ({size:,} bytes)")

    def _picture(self, shown: Shown, extension: str) -> str:
        """A true-colour screen of this width and any height, or the graph or all frames of a report with them."""
        from tinytf_cli.paint.painter import paint
        from tinytf_cli.picture import described, picture

        terminal = self.terminal
        screen = replace(terminal, depth="truecolor", cuts=not terminal.whole, ascii=False, plain=False, picture=True)
        kind = shown.report.drawn_as.KIND
        frames = shown.frames(screen) if extension != ".html" else None
        if frames is not None:
            from tinytf_cli.film import moving_picture, painted, recording

            drawn = painted(frames, screen)
            if extension == FILM:
                return recording(drawn, screen)
            about = described(kind, shown.sentence, drawn[-1])
            if extension in PRINTED:  # which do not move
                return picture(drawn[-1], ".svg", screen, about=about)
            return moving_picture(drawn, screen, about)
        if extension == FILM:
            raise UsageError(f"a {FILM} file is a film, and this result does not move", "write to an .svg file instead")
        drawing = shown.drawing() if extension != ".html" else None
        if drawing is not None:
            from tinytf_cli.drawing import graph_svg

            return graph_svg(drawing, screen, described(kind, shown.sentence, [drawing.title]))
        screen = replace(screen, height=sys.maxsize)
        lines = list(paint(shown.blocks(screen), screen))
        return picture(lines, extension, screen, about=described(kind, shown.sentence, lines))


class Outlet(Host):
    """A session that receives the results of its commands."""

    @abstractmethod
    def output(self, terminal: Terminal, form: str, file: Path | None) -> Output:
        """The output for one command."""


@contextmanager
def _to_standard_output() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise TinytfError(f"cannot write standard output: {error.strerror}", remedy(error, "")) from None


@dataclass(frozen=True)
class DrawingOptions:
    """How to draw on the terminal."""

    GROUP: ClassVar = "Output"
    SHARED: ClassVar = True

    color: str = option(type=click.Choice(["auto", "always", "never"]), shown="auto", help="When to use colour.")
    theme: str = option(type=click.Choice(THEMES), shown="auto", help="Background of the terminal; auto asks it.")
    colormap: str = option(type=click.Choice(COLORMAPS), shown="viridis", help="Colours of values from 0 to 1.")
    precision: int | None = option(type=Whole(0, 9), help="Digits after the decimal point.")
    width: int | None = option(type=Whole(20, 1000), help="Width in columns.")
    ascii: bool = option(is_flag=True, help="Draw with ASCII characters only.")
    plain: bool = option(is_flag=True, help="Write sentences instead of tables and maps, for screen readers.")

    def terminal(self) -> Terminal:
        """What stdout can show."""
        return detect(sys.stdout, **vars(self))


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The output format, its file, and how to draw."""

    GROUP: ClassVar = "Output"
    SHARED: ClassVar = True

    form: str | None = option("--format", type=click.Choice(FORMATS), default=None, help="Output format.")
    as_json: bool = option("--json", is_flag=True, help="Same as --format json.")
    file: Path | None = option(
        "-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
        help="Write to FILE: .txt .json .ndjson .csv .md .html .svg .png .pdf .tex .safetensors.",
    )  # fmt: skip
    figure: bool = option(is_flag=True, help="Leave out the lines about the model, and checks that hold.")
    no_pager: bool = option(is_flag=True, help="Never open a pager for long output.")
    drawing: DrawingOptions

    def resolved(self) -> Output:
        """The Output. Raises UsageError for two different formats, or a file that cannot be written."""
        form, terminal, session = self._format(), self.drawing.terminal(), host()
        if is_typed("all", "every", "full"):
            terminal = replace(terminal, cuts=False, whole=True)
        if self.figure:
            terminal = replace(terminal, figure=True, advises=False)
        if isinstance(session, Outlet):
            return session.output(terminal, form, self.file)
        pages = is_screen(sys.stdout) and not (self.no_pager or self.file or terminal.plain)
        pager = find_pager() if pages else None
        return Output(terminal, form, self.file, pager=pager, interrupt=current_interrupt())

    def _format(self) -> str:
        if self.as_json and self.form not in (None, "json"):
            raise UsageError(f"--json and --format {self.form} ask for two formats at once")
        form = "json" if self.as_json else self.form
        if self.file is not None:
            require_writable(self.file)
            expect_output(self.file)
            file_form = _form_of(self.file)
            if form not in (None, file_form):
                raise UsageError(
                    f"{self.file.name!r} says {file_form} and --format says {form}", "leave one of them out"
                )
        return form or "text"


DECLARED_BY[Output] = OutputOptions


def require_writable(path: Path) -> None:
    """Raise UsageError for an extension that names no format, and for a path that ``require_place`` refuses."""
    if path.suffix.lower() not in (*EXTENSIONS, FILM, CONTROL_VECTOR, *TABLES):
        raise UsageError(f"{path.name!r} has no extension that names a format", f"known: {' '.join(EXTENSIONS)}")
    require_place(path)


def require_place(path: Path) -> None:
    """Raise UsageError for a folder, a path in a missing folder, and a path that ``outputs.require_place`` refuses."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", "make it first, or write elsewhere")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "name a file in it")
    outputs.require_place(path)


def _form_of(path: Path) -> str:
    """The format, out of FORMATS, for the extension of ``path``; text for a picture."""
    form = path.suffix.lower()[1:].replace("md", "markdown")
    return form if form in FORMATS else "text"


def write_file(path: Path, data: "bytes | Iterable[bytes | memoryview]") -> int:
    """Write a whole file. Returns its size in bytes; raises TinytfError if it cannot be written."""
    with writing(path):
        return outputs.write_output(path, data)


def _control_vector(report: Report, name: str) -> Iterable[bytes]:
    """A control vector. Raises UsageError for a report that is none."""
    if not hasattr(report, "gguf"):
        raise UsageError(f"{name} would be a control vector, and this result is none", "tinytf steer makes one")
    return [report.gguf(name)]
