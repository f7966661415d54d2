"""The keys of the prompt: keys that run a line, keys that edit it, and pastes."""

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
from tinytf_cli.repl.python import is_unfinished, script_lines

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
"""Keys that run a line without losing the typed text: prompt_toolkit's names, the displayed name, the line."""

_EDITING = [
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

_PASTE_START, _PASTE_END = "\x1b[200~", "\x1b[201~"
_MIN_BURST, _MAX_BURST = 1_000, 2**26  # characters
_TEXT = re.compile(r"[^\x00-\x1f\x7f]+")
_BURST = re.compile(rf"[^\x00-\x1f\x7f]{{{_MIN_BURST},}}")
_PAUSE = 0.05  # seconds


def describe_keys() -> list[tuple[str, str]]:
    """The keys as ``help keys`` lists them: pairs of names and effect."""
    lines: dict[str, list[str]] = {}
    for _, name, line in RUNS:
        lines.setdefault(line, []).append(name)
    return [_EDITING[0], *((", ".join(names), line) for line, names in lines.items()), *_EDITING[1:]]


def bindings(keep_typed: Callable[[Document], None]) -> KeyBindings:
    """The bindings of the keys; ``keep_typed`` gets the typed text when a key runs another line."""
    key_bindings = KeyBindings()

    def runs(line: str) -> Callable[[KeyPressEvent], None]:
        def run(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            keep_typed(buffer.document)
            buffer.text = line  # the screen shows the line that runs
            event.app.exit(result=line)

        return run

    typing = has_focus("DEFAULT_BUFFER")
    for keys, _, line in RUNS:
        key_bindings.add(*keys, filter=typing)(runs(line))

    @key_bindings.add("enter", filter=completion_is_selected & typing)
    def take(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @key_bindings.add("enter", filter=typing & ~completion_is_selected & Condition(_is_unfinished))
    def go_on(event: KeyPressEvent) -> None:
        """Continue Python on a new line, indented after one that opens a block."""
        buffer = event.current_buffer
        opens_block = buffer.document.current_line.rstrip().endswith(":")
        buffer.newline()
        buffer.insert_text("    " * opens_block)

    @key_bindings.add("tab", filter=typing & ~has_completions)
    def complete(event: KeyPressEvent) -> None:
        """Insert the common prefix of all completions at once, and show them if there are several."""
        buffer, request = event.current_buffer, CompleteEvent(completion_requested=True)
        completions = list(buffer.completer.get_completions(buffer.document, request))
        if len(completions) == 1:
            buffer.apply_completion(completions[0])
            return
        buffer.insert_text(get_common_complete_suffix(buffer.document, completions))
        if completions:
            buffer.start_completion()

    @key_bindings.add(Keys.Vt100MouseEvent, eager=True)
    def ignore(event: KeyPressEvent) -> None:
        """Ignore mouse events: prompt_toolkit takes a typed colour code for one, and fails on it."""

    @key_bindings.add(Keys.BracketedPaste, filter=typing, eager=True)
    def paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
        if PYTHON.match(event.current_buffer.document.text_before_cursor):  # lines pasted into Python are Python
            text = "\n".join(script_lines(text))
        if len(text) + len(event.current_buffer.text) <= LONGEST:
            event.current_buffer.insert_text(text)
            return
        message = f"{len(text):,} characters were pasted; a session takes at most {LONGEST:,}"
        run_in_terminal(lambda: say(message, "a text of that length belongs in a file: tinytf trace - < FILE"))

    return key_bindings


def _is_unfinished() -> bool:
    """Whether the typed text is Python that needs more lines, with the cursor at its end."""
    document = get_app().current_buffer.document
    return document.is_cursor_at_the_end and is_unfinished(document.text)


class PastedBursts:
    """Wraps ``reader`` (prompt_toolkit's, of standard input) and marks each burst of text as a paste.

    Some terminals do not mark pastes, and prompt_toolkit would process each character of a long text as a key. Nobody
    types that fast.
    """

    def __init__(self, reader: Any, parser: Any) -> None:
        self._reader = reader
        self._parser = parser

    @property
    def closed(self) -> bool:
        return bool(self._reader.closed)

    def read(self) -> str:
        """Read what is available; if it starts a burst, read the rest of the burst too."""
        data: str = self._reader.read()
        if _PASTE_START in data or getattr(self._parser, "_in_bracketed_paste", False):
            return data
        parts, length = [data], len(data)
        while _MIN_BURST <= length < _MAX_BURST and _TEXT.fullmatch(parts[-1]) and self._has_more():
            parts.append(self._reader.read(65536))
            length += len(parts[-1])
        return _BURST.sub(rf"{_PASTE_START}\g<0>{_PASTE_END}", "".join(parts))

    def _has_more(self) -> bool:
        return bool(select.select([self._reader.stdin_fd], [], [], _PAUSE)[0])


def mark_pastes(input: Input) -> Input:
    """Mark bursts of the input as pastes, if it is a POSIX terminal."""
    reader = getattr(input, "stdin_reader", None)
    if reader is not None and hasattr(input, "vt100_parser"):
        input.stdin_reader = PastedBursts(reader, input.vt100_parser)  # type: ignore[attr-defined]
    return input
