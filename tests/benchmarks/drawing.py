"""Drawing 12 × 12 heads of 32 × 32 weights as half blocks in true colour, beside rich drawing the same cells.

The peers are what a user of rich would write: one styled Text a cell, and one Segment a cell, both with cached
styles, printed to a Console on a StringIO. What is drawn is decoded again and compared, sign by sign.

    python tests/benchmarks/drawing.py --repeat 15
"""

import sys
from collections.abc import Iterator
from functools import cache
from io import StringIO

import numpy as np
from _timing import Row, in_turns, milliseconds, options, ratio, show, show_machine, spread
from numpy.typing import NDArray
from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from tinytf_cli.paint.colour import ramp
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Thumbnails

LAYERS, HEADS, LENGTH = 12, 12, 32
LABEL = 5
WIDTH = LABEL + HEADS * (LENGTH + 1)
EMPTY = 256
Seen = tuple[str, tuple[int, ...] | None, tuple[int, ...] | None]


def causal_softmax(seed: int = 0) -> list[NDArray[np.float32]]:
    """Weights (H, T, T) a layer: softmax of wide random scores over the keys that a query may see."""
    scores = np.random.default_rng(seed).normal(0, 3, (LAYERS, HEADS, LENGTH, LENGTH))
    scores = np.where(np.tri(LENGTH, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return list((weights / weights.sum(-1, keepdims=True)).astype(np.float32))


def tinytf(block: Thumbnails, terminal: Terminal) -> str:
    return "\n".join(paint([block], terminal))


@cache
def cell(upper: int, lower: int) -> tuple[str, Style | None]:
    """The sign and style of two matrix cells, one above the other; EMPTY is a masked one or a gap."""
    colours = ramp("unit", Terminal(depth="truecolor"))
    if upper == lower == EMPTY:
        return " ", None
    if upper == EMPTY:
        return "▄", Style(color=colours[lower])
    back = None if lower == EMPTY else colours[lower]
    return "▀", Style(color=colours[upper], bgcolor=back)


def rich_cells(block: Thumbnails) -> Iterator[list[tuple[str, Style | None]]]:
    """Line by line, the cells of all heads of a layer."""
    for maps, visible in zip(block.maps, block.visible, strict=True):
        levels = np.where(visible, np.clip(maps * 255 + 0.5, 0, 255).astype(int), EMPTY)
        levels = np.pad(levels, ((0, 0), (0, 0), (0, 1)), constant_values=EMPTY)
        wide = levels.transpose(1, 0, 2).reshape(LENGTH, -1)[:, :-1].tolist()  # (T, H · (T + 1) - 1)
        for upper, lower in zip(wide[0::2], wide[1::2], strict=True):
            yield [cell(*pair) for pair in zip(upper, lower, strict=True)]


def console() -> Console:
    return Console(
        file=StringIO(), color_system="truecolor", force_terminal=True, width=WIDTH, legacy_windows=False, _environ={}
    )


def rich_text(block: Thumbnails) -> str:
    """One styled Text a cell, as one Text a line."""
    screen = console()
    for line in rich_cells(block):
        screen.print(Text.assemble(*(Text(sign, style or "") for sign, style in line)), soft_wrap=True, highlight=False)
    return screen.file.getvalue()  # type: ignore[attr-defined]


def rich_segments(block: Thumbnails) -> str:
    """One Segment a cell."""
    screen = console()
    for line in rich_cells(block):
        screen.print(Segments([*(Segment(sign, style) for sign, style in line), Segment.line()]), soft_wrap=True)
    return screen.file.getvalue()  # type: ignore[attr-defined]


def seen(line: str, start: int = 0) -> list[Seen]:
    """Sign, foreground and background of each cell of a line with escape codes; a blank has no foreground."""
    cells: list[Seen] = []
    for segment in Text.from_ansi(line).render(console()):
        colours = [
            None if one is None or one.is_default else tuple(one.get_truecolor())
            for one in (segment.style.color, segment.style.bgcolor)
        ] if segment.style else [None, None]  # fmt: skip
        cells += [(sign, None if sign == " " else colours[0], colours[1]) for sign in segment.text if sign != "\n"]
    cells = cells[start:]
    while cells and cells[-1] == (" ", None, None):
        cells.pop()
    return cells


def require_same_picture(ours: str, theirs: str) -> None:
    """The maps, without header, labels and scale, show the same signs in the same colours."""
    drawn = [seen(line, LABEL) for line in ours.splitlines()[1:-1]]
    peer = [seen(line) for line in theirs.splitlines() if line]
    if len(drawn) != len(peer):
        raise SystemExit(f"{len(drawn)} lines are drawn, and rich draws {len(peer)}")
    for number, (mine, yours) in enumerate(zip(drawn, peer, strict=True)):
        if mine != yours:
            raise SystemExit(f"line {number} differs:\n{mine}\n{yours}")


def main() -> int:
    chosen = options(__doc__, repeat=9).parse_args()
    show_machine("rich", "numpy")
    block = Thumbnails(causal_softmax(), [np.tri(LENGTH, dtype=bool)] * LAYERS)
    terminal = Terminal(width=WIDTH, depth="truecolor", cuts=True)
    picture = tinytf(block, terminal)
    for peer in (rich_text(block), rich_segments(block)):
        require_same_picture(picture, peer)
    print(f"{LAYERS} × {HEADS} heads of {LENGTH} × {LENGTH}: rich draws the same signs and colours, {len(picture):,} B")
    runs = {
        "tinytf": lambda: tinytf(block, terminal),
        "rich Text": lambda: rich_text(block),
        "rich Segments": lambda: rich_segments(block),
    }
    seconds = in_turns(runs, chosen.repeat)
    rows = [Row("tinytf", milliseconds(seconds, "tinytf"), "ms", goal=25.0, note=spread(seconds, "tinytf"))]
    rows += [
        Row(f"{name} / tinytf", ratio(seconds, name, "tinytf"), note=spread(seconds, name))
        for name in ("rich Text", "rich Segments")
    ]
    return 1 if show(f"Drawing, median of {chosen.repeat}", rows) else 0


if __name__ == "__main__":
    sys.exit(main())
