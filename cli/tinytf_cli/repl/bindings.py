"""The keys of the prompt: a table of those that run a line, and a few that change what is typed."""

from collections.abc import Callable

from prompt_toolkit.application import get_app
from prompt_toolkit.application.run_in_terminal import run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, get_common_complete_suffix
from prompt_toolkit.document import Document
from prompt_toolkit.filters import completion_is_selected, has_completions, has_focus
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from tinytf_cli.failing import say as say_error
from tinytf_cli.repl.line import LONGEST

RUNS: list[tuple[tuple[str, ...], str, str]] = [
    (("escape", "down"), "Alt-Down", "step"),
    (("f8",), "F8", "step"),
    (("escape", "up"), "Alt-Up", "back"),
    (("f7",), "F7", "back"),
    (("escape", "right"), "Alt-Right", "next"),
    (("f9",), "F9", "next"),
    (("f5",), "F5", "continue"),
    (("f1",), "F1", "help keys"),
]
"""Keys that run a line, and leave what was being typed as it is: as prompt_toolkit calls them, their name, the line."""

_OTHERS = [
    ("Enter", "run the line; an empty one repeats the last movement"),
    ("Tab", "complete; again, or the arrows, to choose; Enter takes what is chosen"),
    ("Right", "take the suggestion, at the end of the line; Alt-F takes a word of it"),
    ("Up, Down", "earlier lines that begin as this one does"),
    ("Ctrl-R", "search in what was typed, also in earlier sessions"),
    ("Ctrl-L", "clear the screen"),
    ("Ctrl-C", "give up the line, or stop the command that is running"),
    ("Ctrl-Z", "to the shell; fg comes back"),
    ("Ctrl-D", "leave"),
]


def listed() -> list[tuple[str, str]]:
    """What ``help keys`` lists."""
    lines: dict[str, list[str]] = {}
    for _, name, line in RUNS:
        lines.setdefault(line, []).append(name)
    return [_OTHERS[0], *((", ".join(names), line) for line, names in lines.items()), *_OTHERS[1:]]


def bindings(keep: Callable[[Document], None]) -> KeyBindings:
    """The keys; ``keep`` is given what was being typed when one of them runs a line."""
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

    @found.add("tab", filter=typing & ~has_completions)
    def complete(event: KeyPressEvent) -> None:
        _complete(event.current_buffer)

    @found.add(Keys.Vt100MouseEvent, eager=True)
    def ignore(event: KeyPressEvent) -> None:
        """There is no mouse here; colour codes that are typed look like one to prompt_toolkit, which fails on them."""

    @found.add(Keys.BracketedPaste, filter=typing, eager=True)
    def paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
        if len(text) + len(event.current_buffer.text) > LONGEST:
            refuse(len(text))
        else:
            event.current_buffer.insert_text(text)

    return found


def _complete(buffer: Buffer) -> None:
    """Type what all completions have in common, before the next key, and show them where there are several."""
    asked = CompleteEvent(completion_requested=True)
    completions = list(buffer.completer.get_completions(buffer.document, asked))
    if len(completions) == 1:
        buffer.apply_completion(completions[0])
        return
    common = get_common_complete_suffix(buffer.document, completions)
    if common:
        buffer.insert_text(common)
    if completions:
        buffer.start_completion()


def refuse(length: int) -> None:
    """Say above the prompt that what was pasted is too much for it."""

    def say() -> None:
        say_error(
            f"{length:,} characters were pasted; a session takes at most {LONGEST:,}",
            "a text of that length belongs in a file: tinytf trace - < FILE",
        )

    if get_app().is_running:
        run_in_terminal(say)
