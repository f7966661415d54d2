"""A session at a terminal: a prompt with keys, completion, colours, history and a bar, or a plain prompt."""

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
from rich.cells import cell_len

from tinytf.text.printable import is_hidden, printable
from tinytf_cli.numbers import in_bytes, plural
from tinytf_cli.paint.painter import paint
from tinytf_cli.repl.colouring import LineLexer, prompt_style
from tinytf_cli.repl.completing import SessionCompleter
from tinytf_cli.repl.history import FileHistory, history_path
from tinytf_cli.repl.keys import bindings, describe_keys, mark_pastes
from tinytf_cli.repl.line import MORE_MARK, PROMPT
from tinytf_cli.repl.python import is_unfinished, statements
from tinytf_cli.repl.session import Outcome, Session
from tinytf_cli.repl.session_verbs import echo_line
from tinytf_cli.repl.welcome import greet, shortened
from tinytf_cli.screen import clean_exit
from tinytf_cli.views.blocks import Line

_DEPTHS = {
    "none": ColorDepth.DEPTH_1_BIT,
    "16": ColorDepth.DEPTH_4_BIT,
    "256": ColorDepth.DEPTH_8_BIT,
    "truecolor": ColorDepth.DEPTH_24_BIT,
}
_MIN_TEXT = 8
_DEFAULT_TERM = "windows" if sys.platform == "win32" else ""  # where TERM is not set
_JOIN_TIMEOUT = 0.2  # seconds
_MOST_CHARACTERS = 1_000


def interact(session: Session) -> int:
    """Run the session at the terminal until the user leaves, and return the exit status.

    A thread imports slow modules while the first line is typed. Ctrl-C must not interrupt it: an extension module whose
    import was interrupted cannot be imported again. The thread imports nothing of tinytf, so that neither thread waits
    for a module that the other is importing.
    """
    imports = threading.Thread(target=_import_slow, name="imports")

    def start_imports(*_: object) -> None:
        if imports.ident is None:
            imports.start()

    with terminal_restored(), clean_exit():
        if os.environ.get("TERM", _DEFAULT_TERM) in ("", "dumb", "unknown"):
            start_imports()
            greet(session)
            status = talk_plainly(session)
        else:
            session.keys = describe_keys()
            prompt = Prompt(session)
            prompt.app.after_render += start_imports
            try:
                greet(session)
                status = prompt.talk()
            finally:  # prompt_toolkit resets only a prompt that it has drawn completely
                with contextlib.suppress(OSError):
                    prompt.app.renderer.reset()
    if imports.ident is not None:
        imports.join(_JOIN_TIMEOUT)
    if imports.is_alive():  # an import cannot be stopped, and Python would wait seconds for it
        sys.stdout.flush()
        os._exit(status)
    return status


def _import_slow() -> None:
    for name in ("torch", "tokenizers", "safetensors.torch"):
        with contextlib.suppress(Exception):  # the command that needs it will report the error
            importlib.import_module(name)


def talk_plainly(session: Session) -> int:
    """Read lines without prompt_toolkit; Ctrl-C drops a line or stops a command, Ctrl-D leaves. Returns 0."""
    while True:
        try:
            line = input(PROMPT)
            while is_unfinished(line):
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


class _VisibleCharacters(dict[str, str]):
    """prompt_toolkit's display of characters, with an escape for every character that a terminal could act on."""

    def __contains__(self, char: object) -> bool:
        return super().__contains__(char) or (isinstance(char, str) and len(char) == 1 and is_hidden(char))

    def __missing__(self, char: str) -> str:
        return printable(char, spaces=False)


Char.display_mappings = _VisibleCharacters(Char.display_mappings)


class Prompt:
    """The prompt of a session; tests pass their own ``input`` and ``output``."""

    def __init__(self, session: Session, input: Input | None = None, output: Output | None = None) -> None:
        self.session = session
        self.history = FileHistory(history_path())
        self._unfinished = Document()
        self._bar = Bar("")
        self._trouble_reported = False
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
            key_bindings=bindings(self._keep_typed),
            enable_suspend=True,
            prompt_continuation=lambda width, line, wrapped: "" if wrapped else " " * width,
            input=mark_pastes(input or create_input()),
            output=output,
        )

    @property
    def app(self) -> Application[str]:
        """prompt_toolkit's application."""
        return self._prompt.app

    def talk(self) -> int:
        """Read and run lines until the user leaves."""
        while True:
            try:
                if self._read_and_run():
                    return 0
            except EOFError:
                return 0
            except KeyboardInterrupt:  # while typing, or between two lines
                self.session.interrupt.happened = False

    def _read_and_run(self) -> bool:
        """Read one input and run its lines; returns whether the session ends."""
        self._bar = bar_of(self.session)
        terminal = self.session.terminal()
        self._prompt.color_depth, self._prompt.style = _DEPTHS[terminal.depth], prompt_style(terminal.theme)
        self._prompt.editing_mode = EditingMode.VI if self.session.settings.vi else EditingMode.EMACS
        unfinished, self._unfinished = self._unfinished, Document()
        typed = self._prompt.prompt(default=unfinished)
        self._report_trouble()
        lines = [line for _, line in statements(enumerate(typed.split("\n"))) if line.strip()] or [""]
        for number, line in enumerate(lines, start=1):
            if len(lines) > 1:
                echo_line(self.session, line)
            with terminal_restored():
                outcome = self.session.execute(line)
            if outcome.leave:
                return True
            self.session.say(outcome)
            self._say_again(outcome)
            if outcome.failure is not None or outcome.status == 130:
                if number < len(lines):
                    self._write_note(f"not run: {plural(len(lines) - number, 'more line')}")
                break
        return False

    def _say_again(self, outcome: Outcome) -> None:
        """Repeat the sentence that an answer began with, where it has left the screen above."""
        sentence = next((result.report.sentence for result in outcome.results), "")
        if (
            sentence
            and not self.session.settings.pager
            and outcome.text.count("\n") >= self._prompt.output.get_size().rows
        ):
            lines = paint([Line(f"in short: {sentence}", hanging=2)], self.session.terminal())
            self.session.streams.write("".join(f"{line}\n" for line in lines))

    def _keep_typed(self, document: Document) -> None:
        self._unfinished = document

    def _fitted_bar(self) -> StyleAndTextTuples | None:
        if self.session.settings.plain:
            return None  # a screen reader would repeat it at every key
        return self._bar.fitted(self._prompt.output.get_size().columns)

    def _report_trouble(self) -> None:
        """Report, once, why the history cannot be written."""
        if self.history.trouble and not self._trouble_reported:
            self._trouble_reported = True
            self._write_note(f"the history of this session is not saved: {self.history.trouble}")

    def _write_note(self, words: str) -> None:
        if self.session.streams.stderr is not None:
            self.session.streams.stderr.write(f"tinytf: note: {printable(words, spaces=False)}\n")


@dataclass(frozen=True)
class Bar:
    """The line under the prompt: model, text, present step and its role, memory, and the time of the last line."""

    model: str
    text: str = ""
    step: str = ""
    role: str = ""
    memory: str = ""
    took: str = ""
    ascii: bool = False

    def fitted(self, width: int) -> StyleAndTextTuples:
        """The bar in at most ``width`` cells: the text is cut first, then the least important parts go."""
        separator = " | " if self.ascii else " · "
        model = shortened(self.model, max(_MIN_TEXT, width // 2), self.ascii)
        parts = {"model": model, "text": self.text, "step": self.step, "memory": self.memory, "took": self.took}
        parts = {name: text for name, text in parts.items() if text}
        for part in ("took", "memory", "text", "model", "step"):
            if "text" in parts:
                rest = sum(cell_len(text) + len(separator) for name, text in parts.items() if name != "text")
                parts["text"] = shortened(self.text, max(_MIN_TEXT, width - 1 - rest), self.ascii)
            line = separator.join(parts.values())
            if cell_len(line) <= width:
                break
            parts.pop(part, None)
        else:  # a very narrow screen has the step alone
            return [("class:bar", shortened(line, width, self.ascii))]
        fragments: StyleAndTextTuples = []
        for name, text in parts.items():
            style = f"class:bar class:role.{self.role}" if name == "step" and self.role else f"class:bar.{name}"
            fragments += [("class:bar", separator if fragments else ""), (style, text)]
        return fragments


def bar_of(session: Session) -> Bar:
    """The bar of the session's present state."""
    spec, run, step, seconds = session.state.spec, session.run, session.step_words, session.last_seconds
    nbytes = session.models.nbytes if session.is_open else 0
    return Bar(
        printable(spec.short[:_MOST_CHARACTERS], spaces=False),
        printable(str(run.text)[:_MOST_CHARACTERS], spaces=False) if run else "",
        step,
        session.table.rows[session.row][0].role if step and session.row is not None else "",
        in_bytes(nbytes) if nbytes else "",
        "" if not seconds else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s",
        session.settings.ascii,
    )


@contextlib.contextmanager
def terminal_restored() -> Iterator[None]:
    """Restore the terminal's modes afterwards, whatever a command or an error changed."""
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
