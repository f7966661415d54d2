"""What becomes of the output of a session: shown, kept, piped, written to a file or paged."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from tinytf.errors import UsageError
from tinytf_cli.repl.heard import Ear, Heard, HeardOutput
from tinytf_cli.repl.line import Typed
from tinytf_cli.repl.pager import page
from tinytf_cli.repl.redirect import to_command, to_file
from tinytf_cli.repl.settings import Settings
from tinytf_cli.terminal import Terminal


class Streams:
    """The streams of a session, and the output that was last; ``depth`` is how many files a line stands in.

    ``page`` shows a long text a screen at a time; a front end may set another.
    """

    def __init__(self, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.stdout: TextIO = sys.stdout if stdout is None else stdout
        self.stderr: TextIO | None = sys.stderr if stderr is None else stderr
        self.page: Callable[[str], None] = page
        self.depth = 0
        self._last: Heard | None = None
        self._now: Heard | None = None

    def write(self, text: str) -> None:
        """Write to stdout, now."""
        self.stdout.write(text)
        self.stdout.flush()

    def output(self, terminal: Terminal, form: str, file: Path | None) -> HeardOutput:
        """Where results go: to the session's streams, remembered."""
        return HeardOutput(terminal, form, file, sys.stdout, self.stderr, heard=self._now)

    @contextlib.contextmanager
    def hearing(self, typed: Typed, settings: Settings, *, live: bool) -> Iterator[Heard]:
        """Keep what a line writes; what is redirected or paged is not written yet. ``live`` output is never paged."""
        stream = self._stream
        to = bool(typed.words) and typed.sign in ("|", ">")
        waits = to or self._pages(settings, live)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        ear = Ear(terminal=not to and stream.isatty(), encoding=encoding) if waits else Ear(stream, encoding=encoding)
        before, self._now = self._now, Heard(ear)
        try:
            with contextlib.redirect_stdout(ear):
                yield self._now
        finally:
            self._now = before

    def deliver(self, heard: Heard, typed: Typed, settings: Settings, *, live: bool) -> None:
        """Send output where a line says; what a line wrote is the last output."""
        alone = not typed.words and typed.sign in ("|", ">")
        if alone and self._last is None:
            raise UsageError("there is no output yet", "such as: heat L0H0, then | head -3")
        chosen = self._last if alone and self._last is not None else heard
        if typed.sign == "|":
            to_command(chosen, typed.target, self._stream, self.stderr, settings)
        elif typed.sign == ">":
            to_file(chosen, typed.target, self.stderr, settings, typed.words)
        elif self._pages(settings, live):
            if heard.ear.text.count("\n") >= settings.terminal(self._stream).height:
                self.page(heard.ear.text)
            else:
                self._stream.write(heard.ear.text)
                self._stream.flush()
        if not alone and (heard.ear.text or heard.results):
            self._last = heard

    @property
    def _stream(self) -> TextIO:
        """Where a line writes: inside a file, to what hears the line that runs the file."""
        return sys.stdout if self.depth else self.stdout

    def _pages(self, settings: Settings, live: bool) -> bool:
        return settings.pager and not live and not self.depth and self.stdout.isatty()
