"""What becomes of the output of a session: shown, kept, piped, written to a file or paged."""

import contextlib
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tinytf.errors import UsageError
from tinytf_cli.failing import say
from tinytf_cli.output import Result
from tinytf_cli.repl.changing import Changing
from tinytf_cli.repl.heard import Ear, Heard, HeardOutput
from tinytf_cli.repl.line import Typed
from tinytf_cli.repl.outcome import Outcome
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import State

if TYPE_CHECKING:
    from tinytf_cli.paint.terminal import Terminal

_LIVE = ("generate", "train", "watch")
"""Commands whose output is seen while it is made, and is never paged."""


class Writing(Changing):
    """A session with its streams; ``typed`` is the line whose output it is, ``depth`` how many files it stands in."""

    def __init__(self, state: State, stdout: TextIO | None, stderr: TextIO | None) -> None:
        from tinytf_cli.repl.pager import page

        super().__init__(state)
        self.stdout: TextIO = sys.stdout if stdout is None else stdout
        self.stderr: TextIO | None = sys.stderr if stderr is None else stderr
        self.page: Callable[[str], None] = page
        self.last_error: BaseException | None = None
        self.debug = False
        self.depth = 0
        self.typed = Typed("")
        self._last: Heard | None = None
        self._now: Heard | None = None

    def output(self, terminal: "Terminal", form: str, file: Path | None) -> HeardOutput:
        """Where results go: to the session's streams, remembered."""
        return HeardOutput(terminal, form, file, sys.stdout, self.stderr, heard=self._now)

    def terminal(self) -> "Terminal":
        """What can be shown, as the settings say."""
        from tinytf_cli.paint.terminal import detect

        chosen = self.settings
        return detect(sys.stdout, color=chosen.color, width=chosen.width, ascii=chosen.ascii, plain=chosen.plain)

    def show(self, result: Result) -> None:
        """Write a result as the settings say."""
        self.output(self.terminal(), "text", None).show(result)

    def say(self, outcome: Outcome, where: str = "") -> None:
        """Write what failed to stderr; ``where`` is the place of the line in a script."""
        if outcome.status == 130 and self.stderr is not None:
            print("tinytf: interrupted", file=self.stderr, flush=True)
        elif outcome.failure is not None:
            failure = outcome.failure
            if self.debug and self.last_error is not None and self.stderr is not None:
                self.stderr.write("".join(traceback.format_exception(self.last_error)))
            say(where + failure.message, failure.hint, failure.marked, self.stderr)

    @contextlib.contextmanager
    def _hearing(self) -> Iterator[Heard]:
        """Keep what a line writes; what is redirected or paged is not written yet."""
        from tinytf_cli.numbers import digits
        from tinytf_cli.paint.colour import choose_unit_map

        typed = self.typed
        stream: TextIO = sys.stdout if self.depth else self.stdout
        to = bool(typed.words) and typed.sign in ("|", ">")
        waits = to or self._pages()
        encoding = getattr(stream, "encoding", None) or "utf-8"
        ear = Ear(terminal=not to and stream.isatty(), encoding=encoding) if waits else Ear(stream, encoding=encoding)
        before, self._now = self._now, Heard(ear)
        precision = digits.set(self.settings.precision)
        choose_unit_map(self.settings.colormap)
        try:
            with contextlib.redirect_stdout(ear):
                yield self._now
        finally:
            digits.reset(precision)
            choose_unit_map(Settings().colormap)
            self._now = before

    def _pages(self) -> bool:
        waits = self.settings.pager and not self.depth and self.stdout.isatty()
        return waits and self._typed_name() not in _LIVE

    def _deliver(self, heard: Heard) -> None:
        """Send output where a line says; what a line wrote is the last output."""
        from tinytf_cli.repl.redirect import to_command, to_file

        typed = self.typed
        stream: TextIO = sys.stdout if self.depth else self.stdout
        alone = not typed.words and typed.sign in ("|", ">")
        if alone and self._last is None:
            raise UsageError("there is no output yet", "such as: heat L0H0, then | head -3")
        chosen = self._last if alone and self._last is not None else heard
        if typed.sign == "|":
            to_command(chosen, typed.target, stream, self.stderr, self.settings)
        elif typed.sign == ">":
            to_file(chosen, typed.target, self.stderr, self.settings, typed.words)
        elif self._pages():
            if heard.ear.text.count("\n") >= shutil.get_terminal_size().lines:
                self.page(heard.ear.text)
            else:
                stream.write(heard.ear.text)
                stream.flush()
        if not alone and (heard.ear.text or heard.results):
            self._last = heard

    def _typed_name(self) -> str:
        """What the first word of the line stands for; empty for none, and for a word that stands for nothing."""
        raise NotImplementedError
