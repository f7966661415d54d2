"""A session at a terminal: a prompt with keys, completion, colours, history and a bar."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.output import ColorDepth, Output
from rich.cells import cell_len

from tinytf import __version__
from tinytf.text.printable import printable
from tinytf_cli.repl import keys
from tinytf_cli.repl.bindings import bindings, listed
from tinytf_cli.repl.bottom_bar import Bar, bar_of
from tinytf_cli.repl.bursts import bracketed
from tinytf_cli.repl.colouring import LineLexer, style_of
from tinytf_cli.repl.completing import SessionCompleter
from tinytf_cli.repl.history_file import FileHistory, history_path
from tinytf_cli.repl.script import PROMPT
from tinytf_cli.repl.session import Session

_DEPTHS = {
    "none": ColorDepth.DEPTH_1_BIT,
    "16": ColorDepth.DEPTH_4_BIT,
    "256": ColorDepth.DEPTH_8_BIT,
    "truecolor": ColorDepth.DEPTH_24_BIT,
}


def interact(session: Session, ready: Callable[[], None]) -> int:
    """Talk until whoever sits there leaves; ``ready`` is called when the prompt is there. The answer is the status."""
    keys.KEYS[:] = listed()
    with as_it_was():
        prompt = Prompt(session)
        prompt.app.after_render += lambda app: ready()
        return prompt.talk()


class Prompt:
    """The prompt of one session; ``input`` and ``output`` are those of the terminal until tests give others."""

    def __init__(self, session: Session, input: Input | None = None, output: Output | None = None) -> None:
        self.session = session
        self.history = FileHistory(history_path())
        self._begun = Document()
        self._bar = Bar("")
        self._said_trouble = False
        self._prompt: PromptSession[str] = PromptSession(
            [("class:prompt", PROMPT)],
            history=self.history,
            completer=SessionCompleter(session),
            complete_while_typing=False,
            auto_suggest=AutoSuggestFromHistory(),
            enable_history_search=True,
            lexer=LineLexer(session),
            include_default_pygments_style=False,
            bottom_toolbar=self._fitted_bar,
            key_bindings=bindings(self._keep),
            enable_suspend=True,
            prompt_continuation=lambda width, line, wrapped: "" if wrapped else " " * width,
            input=bracketed(input or create_input()),
            output=output,
        )

    @property
    def app(self) -> Application[str]:
        """What reads and draws."""
        return self._prompt.app

    def talk(self) -> int:
        """Read and run lines until the end."""
        if self.session.run is None:
            self.session.streams.write(f"{banner(self.session, self._prompt.output.get_size().columns)}\n")
        with ending() as end:
            while not end.told:
                try:
                    if self._one(end):
                        break
                except EOFError:
                    break
                except KeyboardInterrupt:  # of the line, or between two
                    self.session.interrupt.happened = False
        return end.status

    def _one(self, end: "End") -> bool:
        """Read once, and run what was typed; whether that was the end."""
        self._bar = bar_of(self.session)
        terminal = self.session.terminal()
        self._prompt.color_depth, self._prompt.style = _DEPTHS[terminal.depth], style_of(terminal.theme)
        begun, self._begun = self._begun, Document()
        typed = self._prompt.prompt(default=begun)
        self._say_trouble()
        lines = [line for line in typed.split("\n") if line.strip()] or [""]
        for line in lines:
            if len(lines) > 1:
                self.session.streams.write(f"{PROMPT}{printable(line, spaces=False)}\n")
            with as_it_was():
                outcome = self.session.execute(line)
            if outcome.leave or end.told:
                return True
            self.session.say(outcome)
            if outcome.status == 130:
                break
        return False

    def _keep(self, document: Document) -> None:
        self._begun = document

    def _fitted_bar(self) -> StyleAndTextTuples | None:
        if self.session.settings.plain:
            return None  # it would be read out again and again
        return self._bar.fitted(self._prompt.output.get_size().columns)

    def _say_trouble(self) -> None:
        """Say, once, that lines are not kept."""
        if self.history.trouble and not self._said_trouble:
            self._said_trouble = True
            if self.session.streams.stderr is not None:
                said = printable(self.history.trouble, spaces=False)
                self.session.streams.stderr.write(f"tinytf: note: what is typed is not kept for later: {said}\n")


def banner(session: Session, width: int) -> str:
    """One line to begin with, as much of it as fits."""
    name = f"tinytf {__version__}"
    model = f"{name}, {printable(session.model_words, spaces=False)}"
    lines = (
        f"{model}: run TEXT begins, help lists what there is, Ctrl-D leaves",
        f"{model}: help lists what there is",
        f"{name}: help lists what there is",
    )
    return next((line for line in lines if cell_len(line) < width), name)


class End:
    """Whether the program was told to end, which Python that a user typed can have caught."""

    def __init__(self) -> None:
        self.told = False

    @property
    def status(self) -> int:
        return 128 + signal.SIGTERM if self.told else 0

    def __call__(self, *_: object) -> None:
        self.told = True
        raise SystemExit(self.status)


@contextlib.contextmanager
def ending() -> Iterator[End]:
    """End as usual, the terminal clean, when the program is told to end."""
    end = End()
    if threading.current_thread() is not threading.main_thread():
        yield end
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield end
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """Give the terminal its modes back afterwards, whatever a command or an error has left."""
    if sys.platform == "win32":
        yield
        return
    import termios

    try:
        descriptor = sys.stdin.fileno()
        modes = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):  # no terminal
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)
