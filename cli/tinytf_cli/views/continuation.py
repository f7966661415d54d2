"""A prompt and what follows it, safe to write: in pieces as they come, or as the lines of a view."""

import unicodedata
from collections.abc import Iterable, Iterator

from rich.segment import Segment

from tinytf.text.printable import printable
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, Span


def safe_piece(before: str, text: str) -> str:
    """``text`` safe to write, its newlines real ones; ``before`` is what a combining mark may stand on."""
    start = len(before) - 1
    while start > 0 and unicodedata.combining(before[start]):
        start -= 1
    base = before[max(0, start) :]
    base = base if base.isprintable() else ""
    lines = (base + text).split("\n")
    return "\n".join(printable(line, spaces=False) for line in lines)[len(printable(base, spaces=False)) :]


def continuation(prompt: str, new: str) -> Iterator[Block]:
    """The prompt, dim, and the new text behind it."""
    *whole, last = safe_piece("", prompt).split("\n")
    first, *more = safe_piece(prompt, new).split("\n")
    yield from (Line(Span(line, "dim")) for line in whole)
    yield Line([Span(last, "dim"), Span(first, "output")])
    yield from (Line(Span(line, "output")) for line in more)


def painted(blocks: Iterable[Block], terminal: Terminal) -> Iterator[str]:
    """Blocks as text, where a view is written piece by piece."""
    from tinytf_cli.paint.painter import paint

    for line in paint(blocks, terminal):
        yield line + "\n"


def coloured(text: str, role: str, terminal: Terminal) -> str:
    """Text as it is, in a colour; blanks at the end of a piece belong to it."""
    from tinytf_cli.paint.colour import role_style
    from tinytf_cli.paint.text import render, shown

    text = shown(text, terminal)
    if terminal.depth == "none" or not role:
        return text
    core = text.rstrip()
    lines = [render([Segment(line, role_style(role))], terminal.depth) if line else "" for line in core.split("\n")]
    return "\n".join(lines) + text[len(core) :]
