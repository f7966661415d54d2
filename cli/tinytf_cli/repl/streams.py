"""Where the output of a line goes: to the screen, a pager, a command of the shell or a file; and what it was."""

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tinytf.errors import TinytfError, UsageError
from tinytf.outputs import Fence
from tinytf_cli.output import EXTENSIONS, Output, require_place, write_file
from tinytf_cli.pager import page
from tinytf_cli.repl.line import Lines, Typed
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.trust import Trust
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, led
from tinytf_cli.views.draw import Shown

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Capture(io.StringIO):
    """A stream that keeps what is written, and passes it on to ``through`` if there is one.

    ``results`` are the results that were written to it, each with its format; ``live`` says that one was written as it
    was made.
    """

    def __init__(self, through: TextIO | None = None, *, terminal: bool = False, encoding: str = "utf-8") -> None:
        super().__init__()
        self.results: list[tuple[Shown, str]] = []
        self.live = False
        self._through, self._terminal, self._encoding = through, terminal, encoding

    def write(self, text: str) -> int:
        if self._through is not None and isinstance(text, str):  # click tries out whether a stream takes bytes
            self._through.write(text)
        return super().write(text)

    def flush(self) -> None:
        if self._through is not None:
            self._through.flush()

    def isatty(self) -> bool:
        return self._terminal if self._through is None else self._through.isatty()

    def fileno(self) -> int:
        return super().fileno() if self._through is None else self._through.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding if self._through is None else self._through.encoding

    @property
    def text(self) -> str:
        """Everything that was written."""
        return self.getvalue()

    def as_piped(self, settings: Settings) -> str:
        """What a pipe would have got: results are drawn again, without colours and cuts."""
        if not self.isatty() or not self.results or self.live:
            return _CODES.sub("", self.text) if self.isatty() else self.text
        paper = Capture()
        terminal = settings.terminal(paper, "never")
        for place, (result, form) in enumerate(self.results):
            if place and form == "text":
                paper.write("\n")
            Output(terminal, form, stdout=paper, stderr=None).show(result)
        return paper.text


@dataclass(frozen=True)
class CapturingOutput(Output):
    """An output that keeps the results it shows."""

    captured: Capture = field(default_factory=Capture)
    told: list[Block] = field(default_factory=list)

    def show(self, shown: Shown) -> None:
        """Write one result, and keep it; on a screen, what was ``told`` of the model last is not told again."""
        self.captured.results.append((shown, self.format))
        self.captured.live = self.captured.live or self.at_once
        super().show(shown)

    def blocks(self, shown: Shown, terminal: Terminal) -> Iterator[Block]:
        """The blocks of a result, without what was told of the model last."""
        lead, rest = led(super().blocks(shown, terminal))
        said = [block for block in lead if block != Line("")]
        if not self.captured.isatty() or said != self.told:
            yield from lead
        if said:
            self.told[:] = said
        yield from rest


class Streams:
    """The streams of a session, and the last output; ``depth`` counts the ``source`` files that the line is inside.

    ``page`` shows a long text a screen at a time; a front end may set another. ``fence`` holds what the lines may write
    while they are those of a file that may run no code.
    """

    def __init__(self, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.stdout: TextIO = sys.stdout if stdout is None else stdout
        self.stderr: TextIO | None = sys.stderr if stderr is None else stderr
        self.page: Callable[[str], None] = page
        self.depth = 0
        self.fence: Fence | None = None
        self._told: list[Block] = []
        self._last: Capture | None = None
        self._now = Capture()

    def of_file(self, lines: Lines, trust: Trust) -> Lines:
        """The lines of a file, in turn; inside a file that is not trusted with code, no other one is."""
        before = self.fence
        self.fence = before or (None if trust.allow_code else Fence(trust.write_to))
        try:
            yield from lines
        finally:
            self.fence = before

    def require_own(self, what: str) -> None:
        """Raise UsageError where a line of a file that may run no code would."""
        if self.fence is not None:
            raise UsageError(f"a file may {what} only with --allow-code", "look at it first: it would run as you")

    def write(self, text: str) -> None:
        """Write to stdout, and flush it."""
        self.stdout.write(text)
        self.stdout.flush()

    def output(self, terminal: Terminal, form: str, file: Path | None) -> Output:
        """An output to the session's streams."""
        return CapturingOutput(terminal, form, file, sys.stdout, self.stderr, captured=self._now, told=self._told)

    @contextlib.contextmanager
    def capturing(self, typed: Typed, settings: Settings, *, live: bool) -> Iterator[Capture]:
        """Keep what a line writes, and show it unless it is redirected or paged. ``live`` output is never paged."""
        stream = self._stream
        redirected = bool(typed.words) and typed.sign in ("|", ">")
        waits = redirected or self._pages(settings, live)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        through, terminal = None if waits else stream, not redirected and stream.isatty()
        before, self._now = self._now, Capture(through, terminal=terminal, encoding=encoding)
        try:
            with contextlib.redirect_stdout(self._now):
                yield self._now
        finally:
            self._now = before

    def deliver(self, captured: Capture, typed: Typed, settings: Settings, *, live: bool) -> bool:
        """Send the output where the line says. A line that is only ``| COMMAND`` or ``> FILE`` sends the last one.

        Returns whether this is the last one now.
        """
        alone = not typed.words and typed.sign in ("|", ">")
        if alone:
            if self._last is None:
                raise UsageError("there is no output yet", "such as: heat L0H0, then | head -3")
            captured = self._last
        if typed.sign == "|":
            self.require_own("run a program")
            _to_command(captured.as_piped(settings), typed.target, self._stream)
        elif typed.sign == ">":
            _to_file(captured, typed.target, self.stderr, settings)
        elif self._pages(settings, live):
            if captured.text.count("\n") >= settings.terminal(self._stream).height:
                self.page(captured.text)
            else:
                self._stream.write(captured.text)
                self._stream.flush()
        new = not alone and bool(captured.text or captured.results)
        if new:
            self._last = captured
        return new

    @property
    def _stream(self) -> TextIO:
        """Where a line writes: inside a ``source`` file, to the capture of the line that runs the file."""
        return sys.stdout if self.depth else self.stdout

    def _pages(self, settings: Settings, live: bool) -> bool:
        return settings.pager and not live and not self.depth and self.stdout.isatty()


def _to_command(text: str, command: str, stdout: TextIO) -> None:
    """Pipe a text into a command of the shell; TinytfError for a status other than 0."""
    stdout.flush()
    output = None if stdout.isatty() else subprocess.PIPE
    process = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, stdout=output)
    try:
        found, _ = process.communicate(text.encode("utf-8", "backslashreplace"))
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.kill()
        process.wait()
        raise
    if found:
        stdout.write(found.decode("utf-8", "backslashreplace"))
        stdout.flush()
    if process.returncode:
        raise TinytfError(f"{command!r} ended with status {process.returncode}")


def _to_file(captured: Capture, name: str, stderr: TextIO | None, settings: Settings) -> None:
    """Write the output of a line to a file, in the format of its extension: as -o does, or as text."""
    path = Path(name).expanduser()
    require_place(path)
    output = Output(settings.terminal(Capture()), "text", path, stderr=stderr)
    extension = path.suffix.lower()
    if extension == ".tsv":
        raise UsageError(f"{path.name!r} says TSV, which is not written", "use .csv")
    if extension in EXTENSIONS and extension != ".txt":
        if not captured.results:
            raise UsageError(f"there are no data to write to {path.name}", "a text file takes any output")
        output.show_all([shown for shown, _ in captured.results], "outputs", len(captured.results) > 1)
        return
    data = captured.as_piped(settings).encode("utf-8", "backslashreplace")
    write_file(path, data)
    output.note(f"wrote {path} ({len(data):,} bytes)")
