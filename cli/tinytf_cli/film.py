"""A film as a file: an asciicast for a terminal, or an animated SVG."""

import json
from collections.abc import Iterable, Sequence

from tinytf_cli.paint.painter import paint
from tinytf_cli.picture import picture
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block
from tinytf_cli.views.draw import Frames

SECONDS = 0.8
"""How long a frame is shown; the last one three times as long."""


ROWS = 45
"""Rows of a frame in a file, at most."""


def fitting(layouts: Iterable[Iterable[Block]], terminal: Terminal, rows: int) -> list[str]:
    """A frame in the largest layout that fits in ``rows``. If none fits, the smallest is cut."""
    lines: list[str] = []
    for layout in layouts:
        lines = list(paint(layout, terminal))
        if len(lines) <= rows:
            break
    return lines[:rows]


def painted(frames: Frames, screen: Terminal) -> list[list[str]]:
    """The frames as lines, padded to the height of the tallest."""
    drawn = [fitting(layouts, screen, ROWS) for layouts in frames]
    height = max(map(len, drawn))
    return [lines + [""] * (height - len(lines)) for lines in drawn]


def recording(frames: Sequence[Sequence[str]], screen: Terminal) -> str:
    """An asciicast of version 2: a header, then one line per frame (https://docs.asciinema.org/manual/asciicast)."""
    size = {"width": screen.width, "height": max(map(len, frames))}
    lines: list[object] = [{"version": 2, **size, "env": {"TERM": "xterm-256color"}}]
    for number, frame in enumerate(frames):
        drawn = "\r\n".join(f"{line}\x1b[0m\x1b[K" for line in frame)
        lines.append([round(number * SECONDS, 3), "o", f"\x1b[H{drawn}\x1b[J"])
    lines.append([round((len(frames) + 2) * SECONDS, 3), "o", ""])
    return "".join(json.dumps(line) + "\n" for line in lines)


def moving_picture(frames: Sequence[Sequence[str]], screen: Terminal, about: str = "", seconds: float = SECONDS) -> str:
    """An SVG that loops through the frames. It opens with the last one, which a viewer without animation shows.

    ``about`` is its title and alternative text, as ``described`` makes them; a frame is shown for some ``seconds``.
    """
    total = (len(frames) + 2) * seconds
    drawn = []
    for number, frame in enumerate(frames):
        last = number == len(frames) - 1
        still = picture(frame, ".svg", screen, name=f"frame{number}")
        begin, end = (number + 3) * seconds / total, (number + 4) * seconds / total
        values, times = ["hidden", "visible", "hidden"], [0.0, begin, end]
        if last:
            values, times = ["visible", "hidden"], [0.0, 3 * seconds / total]
        elif number == len(frames) - 2:
            values, times = values[:2], times[:2]
        timing = f'values="{";".join(values)}" keyTimes="{";".join(f"{time:.4f}" for time in times)}"'
        turn = f'<animate attributeName="visibility" {timing} dur="{total:g}s" calcMode="discrete"'
        drawn.append(
            f'<g visibility="{"visible" if last else "hidden"}">\n{turn} repeatCount="indefinite"/>\n{still}</g>\n'
        )
    shape = drawn[0].split("viewBox=")[1].split('"')[1]
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{shape}" role="img">\n{about}{"".join(drawn)}</svg>\n'
