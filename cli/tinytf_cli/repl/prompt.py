"""A session at a terminal: a prompt with keys, completion, colours, history and a bar, or a plain one."""

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.layout.screen import Char
from prompt_toolkit.output import ColorDepth, Output
from rich.cells import cell_len, set_cell_size

from tinytf import __version__
from tinytf.text.printable import is_hidden, printable
from tinytf_cli.numbers import in_bytes, plural
from tinytf_cli.repl.colouring import LineLexer, prompt_style
from tinytf_cli.repl.completing import SessionCompleter
from tinytf_cli.repl.history import FileHistory, history_path
from tinytf_cli.repl.keys import bindings, bracketed, listed
from tinytf_cli.repl.line import MORE_MARK, PROMPT
from tinytf_cli.repl.python import statements, unfinished
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import echoed
from tinytf_cli.screen import clean_exit

_DEPTHS = {
    "none": ColorDepth.DEPTH_1_BIT,
    "16": ColorDepth.DEPTH_4_BIT,
    "256": ColorDepth.DEPTH_8_BIT,
    "truecolor": ColorDepth.DEPTH_24_BIT,
}
_LEAST_TEXT = 8
_USUAL_TERM = "windows" if sys.platform == "win32" else ""  # where TERM is not set
_PATIENCE = 0.2  # seconds
_SHOWN = 1_000


def interact(session: Session) -> int:
    """Talk to the user at the terminal until they leave, and return the exit status.

    A thread imports what is slow while the first line is typed. Ctrl-C cannot interrupt it: an extension module whose
    import was interrupted cannot be imported again. The thread imports nothing of tinytf, so that neither waits for a
    module that the other is importing.
    """
    imports = threading.Thread(target=_import_slow, name="imports")

    def begin(*_: object) -> None:
        if imports.ident is None:
            imports.start()

    with terminal_restored(), clean_exit():
        if os.environ.get("TERM", _USUAL_TERM) in ("", "dumb", "unknown"):
            begin()
            status = plainly(session)
        else:
            session.keys = listed()
            prompt = Prompt(session)
            prompt.app.after_render += begin
            try:
                status = prompt.talk()
            finally:  # prompt_toolkit itself does so only for a prompt that it has drawn to the end
                with contextlib.suppress(OSError):
                    prompt.app.renderer.reset()
    if imports.ident is not None:
        imports.join(_PATIENCE)
    if imports.is_alive():  # an import cannot be stopped, and Python would wait some seconds for its end
        sys.stdout.flush()
        os._exit(status)
    return status


def _import_slow() -> None:
    for name in ("torch", "tokenizers", "safetensors.torch"):
        with contextlib.suppress(Exception):  # the command that needs it will say what is wrong
            importlib.import_module(name)


def plainly(session: Session) -> int:
    """Read lines without prompt_toolkit; Ctrl-C gives up a line or the running command, Ctrl-D leaves. Returns 0."""
    while True:
        try:
            line = input(PROMPT)
            while unfinished(line):
                line += "\n" + input(MORE_MARK)
        except EOFError:
            session.streams.write("\n")
            return 0
        except KeyboardInterrupt:
            session.interrupt.happened = False
            session.streams.write("\n")
            continue
        outcome = session.execute(line)
        if outcome.leave:
            return 0
        session.say(outcome)


class _Visible(dict[str, str]):
    """What prompt_toolkit draws for a character, and for any that a terminal could act on, its number."""

    def __contains__(self, char: object) -> bool:
        return super().__contains__(char) or (isinstance(char, str) and len(char) == 1 and is_hidden(char))

    def __missing__(self, char: str) -> str:
        return printable(char, spaces=False)


Char.display_mappings = _Visible(Char.display_mappings)


class Prompt:
    """The prompt of one session; tests give their own ``input`` and ``output``."""

    def __init__(self, session: Session, input: Input | None = None, output: Output | None = None) -> None:
        self.session = session
        self.history = FileHistory(history_path())
        self._begun = Document()
        self._bar = Bar("")
        self._trouble_said = False
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
        """prompt_toolkit's application."""
        return self._prompt.app

    def talk(self) -> int:
        """Read and run lines until the user leaves."""
        if self.session.run is None:
            self.session.streams.write(f"{banner(self.session, self._prompt.output.get_size().columns)}\n")
        while True:
            try:
                if self._one():
                    return 0
            except EOFError:
                return 0
            except KeyboardInterrupt:  # while typing, or between two lines
                self.session.interrupt.happened = False

    def _one(self) -> bool:
        """Read once, and run what was typed; whether that ends the session."""
        self._bar = bar_of(self.session)
        terminal = self.session.terminal()
        self._prompt.color_depth, self._prompt.style = _DEPTHS[terminal.depth], prompt_style(terminal.theme)
        self._prompt.editing_mode = EditingMode.VI if self.session.settings.vi else EditingMode.EMACS
        begun, self._begun = self._begun, Document()
        typed = self._prompt.prompt(default=begun)
        self._say_trouble()
        lines = [line for _, line in statements(enumerate(typed.split("\n"))) if line.strip()] or [""]
        for number, line in enumerate(lines, start=1):
            if len(lines) > 1:
                echoed(self.session, line)
            with terminal_restored():
                outcome = self.session.execute(line)
            if outcome.leave:
                return True
            self.session.say(outcome)
            if outcome.failure is not None or outcome.status == 130:
                if number < len(lines):
                    self._note(f"not run: {plural(len(lines) - number, 'more line')}")
                break
        return False

    def _keep(self, document: Document) -> None:
        self._begun = document

    def _fitted_bar(self) -> StyleAndTextTuples | None:
        if self.session.settings.plain:
            return None  # a screen reader would read it again and again
        return self._bar.fitted(self._prompt.output.get_size().columns)

    def _say_trouble(self) -> None:
        """Say, once, that the history is not kept."""
        if self.history.trouble and not self._trouble_said:
            self._trouble_said = True
            self._note(f"the history of this session is not kept: {self.history.trouble}")

    def _note(self, words: str) -> None:
        if self.session.streams.stderr is not None:
            self.session.streams.stderr.write(f"tinytf: note: {printable(words, spaces=False)}\n")


def banner(session: Session, width: int) -> str:
    """The first line, as much of it as fits."""
    model = printable(session.state.spec.words, spaces=False)
    whole = f"tinytf {__version__}, {model}: run TEXT begins, help lists what there is, Ctrl-D leaves"
    short = f"tinytf {__version__}: help lists what there is"
    return whole if cell_len(whole) < width else _cut(short, width - 1, session.settings.ascii)


@dataclass(frozen=True)
class Bar:
    """The line under the prompt: model, text, present step, memory, and the time of the last line.

    ``role`` is that of the present step.
    """

    model: str
    text: str = ""
    place: str = ""
    role: str = ""
    memory: str = ""
    took: str = ""
    ascii: bool = False

    def fitted(self, width: int) -> StyleAndTextTuples:
        """The bar in at most ``width`` cells: the text is cut first, then the least important parts are omitted."""
        between = " | " if self.ascii else " · "
        model = _cut(self.model, max(_LEAST_TEXT, width // 2), self.ascii)
        parts = {"model": model, "text": self.text, "place": self.place, "memory": self.memory, "took": self.took}
        parts = {name: words for name, words in parts.items() if words}
        for omitted in ("took", "memory", "text", "model", "place"):
            if "text" in parts:
                others = sum(cell_len(words) + len(between) for name, words in parts.items() if name != "text")
                parts["text"] = _cut(self.text, max(_LEAST_TEXT, width - 1 - others), self.ascii)
            whole = between.join(parts.values())
            if cell_len(whole) <= width:
                break
            parts.pop(omitted, None)
        else:  # the step alone, on a very narrow screen
            return [("class:bar", _cut(whole, width, self.ascii))]
        fragments: StyleAndTextTuples = []
        for name, words in parts.items():
            role = f"class:bar class:role.{self.role}" if name == "place" and self.role else f"class:bar.{name}"
            fragments += [("class:bar", between if fragments else ""), (role, words)]
        return fragments


def bar_of(session: Session) -> Bar:
    """The bar of the session's present state."""
    spec, run, place, took = session.state.spec, session.run, session.place_words, session.last_seconds
    held = session.models.nbytes if session.is_open else 0
    return Bar(
        printable(spec.short[:_SHOWN], spaces=False),
        printable(str(run.text)[:_SHOWN], spaces=False) if run else "",
        place,
        session.table.rows[session.place][0].role if place and session.place is not None else "",
        in_bytes(held) if held else "",
        "" if not took else f"{took * 1000:.0f} ms" if took < 1 else f"{took:.1f} s",
        session.settings.ascii,
    )


def _cut(text: str, width: int, ascii: bool) -> str:
    if cell_len(text) <= width:
        return text
    sign = "..." if ascii else "…"
    return set_cell_size(text, max(0, width - len(sign))) + sign if width > len(sign) else set_cell_size(text, width)


@contextlib.contextmanager
def terminal_restored() -> Iterator[None]:
    """Restore the terminal's modes afterwards, whatever a command or an error has changed."""
    if sys.platform == "win32":
        yield
        return
    import termios

    try:
        descriptor = sys.stdin.fileno()
        modes = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):  # not a terminal
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)
