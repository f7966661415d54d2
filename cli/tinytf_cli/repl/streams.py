"""Delivery of the output of a line, to the screen, a pager, a shell command or a file; the last output is kept."""

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
from tinytf.outputs import Fence, current_fence
from tinytf_cli.output import EXTENSIONS, TABLES, Output, require_place, write_file
from tinytf_cli.pager import page
from tinytf_cli.repl.line import Lines, Typed
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.trust import Trust
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, led
from tinytf_cli.views.draw import Shown

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Capture(io.StringIO):
    """A stream that keeps what is written, and passes it on to ``through`` if given.

    ``results`` are the results written to it, each with its format; ``live`` is true once one was written while made.
    """

    def __init__(self, through: TextIO | None = None, *, terminal: bool = False, encoding: str = "utf-8") -> None:
        super().__init__()
        self.results: list[tuple[Shown, str]] = []
        self.live = False
        self._through, self._terminal, self._encoding = through, terminal, encoding

    def write(self, text: str) -> int:
        if self._through is not None and isinstance(text, str):  # click probes whether a stream takes bytes
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
        """The text written so far."""
        return self.getvalue()

    def as_piped(self, settings: Settings) -> str:
        """The output as a pipe would get it: results are drawn again, without colours and cuts."""
        if not self.isatty() or not self.results or self.live:
            return _ESCAPES.sub("", self.text) if self.isatty() else self.text
        pipe = Capture()
        terminal = settings.terminal(pipe, "never")
        for index, (result, form) in enumerate(self.results):
            if index and form == "text":
                pipe.write("\n")
            Output(terminal, form, stdout=pipe, stderr=None).show(result)
        return pipe.text


@dataclass(frozen=True)
class CapturingOutput(Output):
    """An output that keeps the results that it shows."""

    captured: Capture = field(default_factory=Capture)
    lead: list[Block] = field(default_factory=list)

    def show(self, shown: Shown) -> None:
        """Write a result and keep it."""
        self.captured.results.append((shown, self.format))
        self.captured.live = self.captured.live or self.at_once
        super().show(shown)

    def blocks(self, shown: Shown, terminal: Terminal) -> Iterator[Block]:
        """The blocks of a result; on a screen without lines about the model that equal the last shown (``lead``)."""
        sentence, blocks, rest = led(super().blocks(shown, terminal))
        yield from sentence
        visible = [block for block in blocks if block != Line("")]
        if not self.captured.isatty() or visible != self.lead:
            yield from blocks
        if visible:
            self.lead[:] = visible
        yield from rest


class Streams:
    """The streams of a session, and its last output. ``depth`` counts the nested ``source`` files around the line.

    ``page`` shows a long text a screen at a time; a front end may replace it. ``fence`` limits what may be written
    while the lines are those of a file that may run no code.
    """

    def __init__(self, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.stdout: TextIO = sys.stdout if stdout is None else stdout
        self.stderr: TextIO | None = sys.stderr if stderr is None else stderr
        self.page: Callable[[str], None] = page
        self.depth = 0
        self.fence: Fence | None = None
        self._lead: list[Block] = []
        self._last: Capture | None = None
        self._capture = Capture()

    def of_file(self, lines: Lines, trust: Trust) -> Lines:
        """Yield the lines of a file under its fence; a file inside an untrusted file is untrusted too."""
        outer_fence = self.fence
        self.fence = outer_fence or (None if trust.allow_code else Fence(trust.write_to))
        try:
            yield from lines
        finally:
            self.fence = outer_fence

    def require_own(self, what: str) -> None:
        """Raise UsageError if what is running was made by a file that may run no code; ``what`` says what it does."""
        if (fence := current_fence()) is not None:
            if fence.page:
                raise fence.refusal(what)
            raise UsageError(
                f"a file may {what} only with --allow-code", "read it first: it would run with your rights"
            )

    def write(self, text: str) -> None:
        """Write to stdout, and flush it."""
        self.stdout.write(text)
        self.stdout.flush()

    def output(self, terminal: Terminal, form: str, file: Path | None) -> Output:
        """An output to the session's streams."""
        return CapturingOutput(terminal, form, file, sys.stdout, self.stderr, captured=self._capture, lead=self._lead)

    @contextlib.contextmanager
    def capturing(self, typed: Typed, settings: Settings, *, live: bool) -> Iterator[Capture]:
        """Capture what a line writes, and show it unless it is redirected or paged. ``live`` output is never paged."""
        stream = self._stream
        redirected = bool(typed.words) and typed.sign in ("|", ">")
        is_delayed = redirected or self._is_paged(settings, live)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        through, terminal = None if is_delayed else stream, not redirected and stream.isatty()
        outer_capture, self._capture = self._capture, Capture(through, terminal=terminal, encoding=encoding)
        try:
            with contextlib.redirect_stdout(self._capture):
                yield self._capture
        finally:
            self._capture = outer_capture

    def deliver(self, captured: Capture, typed: Typed, settings: Settings, *, live: bool) -> bool:
        """Send the output where the line says. A line that is only ``| COMMAND`` or ``> FILE`` sends the last output.

        Returns whether the output of this line becomes the last output.
        """
        sends_last = not typed.words and typed.sign in ("|", ">")
        if sends_last:
            if self._last is None:
                raise UsageError("there is no output yet", "such as: heat L0H0, then | head -3")
            captured = self._last
        if typed.sign == "|":
            self.require_own("run a program")
            _pipe_to_command(captured.as_piped(settings), typed.target, self._stream)
        elif typed.sign == ">":
            _write_to_file(captured, typed.target, self.stderr, settings)
        elif self._is_paged(settings, live):
            if captured.text.count("\n") >= settings.terminal(self._stream).height:
                self.page(captured.text)
            else:
                self._stream.write(captured.text)
                self._stream.flush()
        is_new = not sends_last and bool(captured.text or captured.results)
        if is_new:
            self._last = captured
        return is_new

    @property
    def _stream(self) -> TextIO:
        """The stream of a line: inside a ``source`` file, the capture of the line that runs the file."""
        return sys.stdout if self.depth else self.stdout

    def _is_paged(self, settings: Settings, live: bool) -> bool:
        wanted = settings.pager and "pager" not in settings.fences  # a pager is a program: no stranger's line starts it
        return wanted and not live and not self.depth and self.stdout.isatty()


def _pipe_to_command(text: str, command: str, stdout: TextIO) -> None:
    """Pipe a text into a shell command; TinytfError if its exit status is not 0."""
    stdout.flush()
    output = None if stdout.isatty() else subprocess.PIPE
    process = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, stdout=output)
    try:
        piped, _ = process.communicate(text.encode("utf-8", "backslashreplace"))
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.kill()
        process.wait()
        raise
    if piped:
        stdout.write(piped.decode("utf-8", "backslashreplace"))
        stdout.flush()
    if process.returncode:
        raise TinytfError(f"{command!r} ended with status {process.returncode}")


def _write_to_file(captured: Capture, name: str, stderr: TextIO | None, settings: Settings) -> None:
    """Write the output of a line to a file: in the format of its extension, as -o does, or as text."""
    path = Path(name).expanduser()
    require_place(path)
    output = Output(settings.terminal(Capture()), "text", path, stderr=stderr)
    extension = path.suffix.lower()
    if extension in (*EXTENSIONS, *TABLES) and extension != ".txt":
        if not captured.results:
            raise UsageError(f"the output has no data to write to {path.name}", "a .txt file takes any output")
        output.show_all([shown for shown, _ in captured.results], "outputs", len(captured.results) > 1)
        return
    data = captured.as_piped(settings).encode("utf-8", "backslashreplace")
    write_file(path, data)
    output.note(f"wrote {path} ({len(data):,} bytes)")
