"""The keys of each mode, for the last line of the screen."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.cells import cell_len

from tinytf_cli.repl.state import Spec
from tinytf_cli.views.blocks import Span

HINTS = {
    "map": (
        ("↑↓", "step"), ("←→", "head"), ("hjkl", "cell"), ("Enter", "arithmetic"), ("Ctrl-P", "find"),
        ("PgUp PgDn", "layer"), ("w", "without"), ("=", "set"), ("t", "text"), ("u", "undo"), (":", "line"),
        ("L", "lens"), ("a", "attribution"), ("g", "gradient"), ("d", "against"), ("Tab z", "panes"),
    ),
    "module": (
        ("↑↓", "module"), ("←→", "token"), ("Ctrl-P", "find"), ("PgUp PgDn", "layer"), ("w", "weights"), ("t", "text"),
        (":", "line"), ("?", "keys"), ("n", "next unproved"), ("q", "leave"),
    ),
    "tour": (
        (">", "next stop"), ("<", "stop before"), ("↑↓", "step"), ("←→", "head"), ("hjkl", "cell"),
        ("Enter", "arithmetic"), ("u", "undo"), ("t", "text"), ("q", "leave"),
    ),
    "arithmetic": (
        ("Enter", "largest term"), ("Backspace", "back"), ("Esc", "map"), ("Space", "scroll"), ("z", "large"),
        ("hjkl", "cell"),
    ),
    "what": (("?", "all keys"), ("Esc", "map"), ("Space", "scroll"), ("z", "large"), ("↑↓", "step")),
    "pane": (("Esc", "map"), ("Space", "scroll"), ("z", "large"), ("Tab", "next pane"), ("↑↓", "step")),
    "text": (("Enter", "keep the text"), ("Ctrl-U", "clear it")),
    ":": (("↑↓", "choose"), ("Tab", "take"), ("Enter", "run"), ("Esc", "cancel")),
    "/": (("↑↓", "choose"), ("Enter", "go"), ("Tab", "take"), ("Esc", "cancel")),
}  # fmt: skip
"""The keys of each mode, the most useful first: of the map, of an active pane, and of the lines."""
_WHAT = "? what is this"
_LINE_WIDTH = 30
"""The fewest columns of an input line that leaves room for its keys."""


def changes(spec: Spec) -> Iterator[Span]:
    """What is changed in the model; of several numbers, the last one set and how many there are."""
    if spec.without is not None:
        yield Span(f"without {spec.without.words}  ", "bad")
    if spec.numbers:
        at, number = spec.numbers[-1]
        more = f", the last of {len(spec.numbers)}" if len(spec.numbers) > 1 else ""
        yield Span(f"set {at} = {number:g}{more}  ", "bad")


def slider(checkpoints: Sequence[Path], present: str) -> Iterator[Span]:
    """The position of the present model among the checkpoints of a training run."""
    names = [str(path) for path in checkpoints]
    if present not in names:
        return
    index = names.index(present)
    rail = "".join("●" if n == index else "─" for n in range(len(names)))
    name = "the run" if index == len(names) - 1 else checkpoints[index].name
    yield Span(f"< {rail} > ", "attention")
    yield Span(f"{name}, {index + 1} of {len(names)}   ", "strong")


def hints(mode: str, width: int) -> Iterator[Span]:
    """The keys of a mode that fit; of the map and panes, the key that explains always."""
    explains = mode in ("map", "tour", "arithmetic", "pane")
    room = width - cell_len(_WHAT) * explains
    for hint in _words(mode):
        if (room := room - cell_len(hint)) < 0:
            break
        yield Span(hint, "dim")
    if explains:
        yield Span(_WHAT, "dim")


def line_width(sign: str, width: int) -> int:
    """The columns of an input line, left of its keys; all where there is little room."""
    keys = sum(map(cell_len, _words(sign)))
    return width - 2 - (keys if width >= keys + _LINE_WIDTH else 0)


def _words(mode: str) -> list[str]:
    return [f"{keys} {words}  " for keys, words in HINTS[mode]]
