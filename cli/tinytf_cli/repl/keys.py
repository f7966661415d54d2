"""The keys of the prompt: those that run a line, those that change what is typed, and pastes."""

import re
import select
from collections.abc import Callable
from typing import Any

from prompt_toolkit.application.current import get_app
from prompt_toolkit.application.run_in_terminal import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, get_common_complete_suffix
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, completion_is_selected, has_completions, has_focus
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from tinytf_cli.failing import say
from tinytf_cli.repl.line import LONGEST, PYTHON
from tinytf_cli.repl.python import spelled, unfinished

RUNS: list[tuple[tuple[str, ...], str, str]] = [
    (("escape", "down"), "Alt-Down", "step"),
    (("f8",), "F8", "step"),
    (("escape", "up"), "Alt-Up", "back"),
    (("f7",), "F7", "back"),
    (("escape", "right"), "Alt-Right", "next"),
    (("f9",), "F9", "next"),
    (("f5",), "F5", "continue"),
    (("f1",), "F1", "help keys"),
    (("f2",), "F2", "explore"),
]
"""Keys that run a line and keep what is being typed: prompt_toolkit's names, the user's name, the line."""

_OTHERS = [
    ("Enter", "run the line; an empty one repeats the last movement"),
    ("Tab", "complete; again, or the arrows, to choose; Enter takes the choice"),
    ("Right", "take the suggestion, at the end of the line; Alt-F takes a word of it"),
    ("Up, Down", "earlier lines that begin like this one"),
    ("Ctrl-R", "search the lines of this session and of earlier ones"),
    ("Ctrl-L", "clear the screen"),
    ("Ctrl-C", "give up the line, or stop the command that is running"),
    ("Ctrl-Z", "to the shell; fg comes back"),
    ("Ctrl-D", "leave"),
]

_BEGIN, _END = "\x1b[200~", "\x1b[201~"
_LEAST, _MOST = 1_000, 2**26  # characters of a burst
_TEXT = re.compile(r"[^\x00-\x1f\x7f]+")
_BURST = re.compile(rf"[^\x00-\x1f\x7f]{{{_LEAST},}}")
_WAIT = 0.05  # seconds


def listed() -> list[tuple[str, str]]:
    """What ``help keys`` lists."""
    lines: dict[str, list[str]] = {}
    for _, name, line in RUNS:
        lines.setdefault(line, []).append(name)
    return [_OTHERS[0], *((", ".join(names), line) for line, names in lines.items()), *_OTHERS[1:]]


def bindings(keep: Callable[[Document], None]) -> KeyBindings:
    """The keys; ``keep`` gets what is being typed when one of them runs a line."""
    found = KeyBindings()

    def runs(line: str) -> Callable[[KeyPressEvent], None]:
        def run(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            keep(buffer.document)
            buffer.text = line  # so that the screen shows what was run
            event.app.exit(result=line)

        return run

    typing = has_focus("DEFAULT_BUFFER")
    for keys, _, line in RUNS:
        found.add(*keys, filter=typing)(runs(line))

    @found.add("enter", filter=completion_is_selected & typing)
    def take(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @found.add("enter", filter=typing & ~completion_is_selected & Condition(_unfinished))
    def go_on(event: KeyPressEvent) -> None:
        """A block of Python goes on, as deep as its last line says."""
        buffer = event.current_buffer
        opens = buffer.document.current_line.rstrip().endswith(":")
        buffer.newline()
        buffer.insert_text("    " * opens)

    @found.add("tab", filter=typing & ~has_completions)
    def complete(event: KeyPressEvent) -> None:
        """Insert what all completions have in common before the next key, and show them if there are several."""
        buffer, asked = event.current_buffer, CompleteEvent(completion_requested=True)
        completions = list(buffer.completer.get_completions(buffer.document, asked))
        if len(completions) == 1:
            buffer.apply_completion(completions[0])
            return
        buffer.insert_text(get_common_complete_suffix(buffer.document, completions))
        if completions:
            buffer.start_completion()

    @found.add(Keys.Vt100MouseEvent, eager=True)
    def ignore(event: KeyPressEvent) -> None:
        """No mouse is used here; prompt_toolkit takes a typed colour code for a mouse event, and fails on it."""

    @found.add(Keys.BracketedPaste, filter=typing, eager=True)
    def paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
        if PYTHON.match(event.current_buffer.document.text_before_cursor):  # what is pasted into Python is Python
            text = "\n".join(spelled(text))
        if len(text) + len(event.current_buffer.text) <= LONGEST:
            event.current_buffer.insert_text(text)
            return
        message = f"{len(text):,} characters were pasted; a session takes at most {LONGEST:,}"
        run_in_terminal(lambda: say(message, "a text of that length belongs in a file: tinytf trace - < FILE"))

    return found


def _unfinished() -> bool:
    """Whether what is typed is Python that needs more lines, and the cursor is at its end."""
    document = get_app().current_buffer.document
    return document.is_cursor_at_the_end and unfinished(document.text)


class PastedBursts:
    """What ``reader`` (prompt_toolkit's, of standard input) reads, with each burst of text marked as a paste.

    Nobody types that fast, and prompt_toolkit would look at each key of a long text by itself. Some terminals do not
    mark pastes.
    """

    def __init__(self, reader: Any, parser: Any) -> None:
        self._reader = reader
        self._parser = parser

    @property
    def closed(self) -> bool:
        return bool(self._reader.closed)

    def read(self) -> str:
        """What there is to read, and the rest of a burst that it is the beginning of."""
        data: str = self._reader.read()
        if _BEGIN in data or getattr(self._parser, "_in_bracketed_paste", False):
            return data
        parts, length = [data], len(data)
        while _LEAST <= length < _MOST and _TEXT.fullmatch(parts[-1]) and self._waits():
            parts.append(self._reader.read(65536))
            length += len(parts[-1])
        return _BURST.sub(rf"{_BEGIN}\g<0>{_END}", "".join(parts))

    def _waits(self) -> bool:
        return bool(select.select([self._reader.stdin_fd], [], [], _WAIT)[0])


def bracketed(input: Input) -> Input:
    """The input with its bursts marked as pastes, if it is a POSIX terminal."""
    reader = getattr(input, "stdin_reader", None)
    if reader is not None and hasattr(input, "vt100_parser"):
        input.stdin_reader = PastedBursts(reader, input.vt100_parser)  # type: ignore[attr-defined]
    return input
