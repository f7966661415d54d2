"""Running text: pieces that are written one by one, as they come."""

from rich.segment import Segment

from tinytf_cli.paint.colour import role_style
from tinytf_cli.paint.painter import paint
from tinytf_cli.paint.text import render, shown
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Fragment, Span


def written(piece: Fragment, terminal: Terminal) -> str:
    """A block as whole lines, words as they are in their colour; blanks at the end of words stay."""
    if isinstance(piece, str):
        return piece
    if not isinstance(piece, Span):
        return "".join(f"{line}\n" for line in paint([piece], terminal))
    text = shown(piece.text, terminal)
    if terminal.depth == "none" or not piece.role:
        return text
    core, style = text.rstrip(), role_style(piece.role)
    lines = [render([Segment(line, style)], terminal.depth) if line else "" for line in core.split("\n")]
    return "\n".join(lines) + text[len(core) :]
