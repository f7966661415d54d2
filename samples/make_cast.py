"""Record 40 seconds of the explorer as an asciinema cast, in a real pseudo-terminal, and one frame as SVG.

    python samples/make_cast.py samples/pictures/explore.cast samples/pictures/explore.svg

Open a text, edit it, find the induction head, look at its arithmetic, take it away, see the prediction fall.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect

WIDTH, HEIGHT = 120, 40
TEXT = "The cat lost the ball. The cat"
KEYS: list[tuple[float, str]] = [
    (3.0, "t"), *((0.18, letter) for letter in " lost the"), (1.5, "\r"),
    (1.5, "/"), *((0.15, letter) for letter in "L1H0.weights[9,4]"), (1.0, "\r"), (2.0, "\r"),
    (3.5, "\r"), (2.5, "\x7f"), (1.0, "\x1b"), (0.6, "\x1b"),
    (1.5, "w"), (4.5, "\x1b[6~"), (2.0, "d"), (1.5, "w"), (1.5, "L"), (3.0, "\x1b"), (1.0, "?"), (3.0, "q"),
]  # fmt: skip
"""Seconds to wait before each key, and the key: Page Up, arrows, Page Down and Backspace as a terminal sends them."""


def recorded() -> Iterator[tuple[float, str]]:
    """What the explorer writes, and when, while the keys are typed."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "CI": "1"}
    child = pexpect.spawn(
        sys.executable, ["-m", "tinytf_cli", "explore", TEXT], dimensions=(HEIGHT, WIDTH), env=environment,
        encoding="utf-8", timeout=60,
    )  # fmt: skip
    began: float | None = None
    keys = iter(KEYS)
    wait, key = next(keys)
    due = 0.0
    while True:
        try:
            found = child.read_nonblocking(65536, timeout=0.02)
            if began is None and "heads" in found:
                began = time.monotonic()
                due = wait
            yield (0.0 if began is None else time.monotonic() - began), found
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF:
            return
        if began is not None and time.monotonic() - began >= due:
            child.send(key)
            wait, key = next(keys, (10.0, ""))
            due += wait


def write_cast(path: Path) -> None:
    """Format: asciinema's version 2, a header and a line for each output."""
    head = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": "tinytf explore"}
    lines = [json.dumps(head), *(json.dumps([round(at, 3), "o", text]) for at, text in recorded())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


async def write_frame(path: Path) -> None:
    """The explorer at the induction head, the arithmetic of its strongest cell below the map."""
    from tinytf_cli.explore.acting import screen_of
    from tinytf_cli.explore.app import Explorer
    from tinytf_cli.explore.keys import KEYS
    from tinytf_cli.repl.session import Session
    from tinytf_cli.repl.session_verbs import VERBS
    from tinytf_cli.repl.settings import Settings
    from tinytf_cli.repl.state import Spec
    from tinytf_cli.terminal import Terminal

    session = Session(VERBS, Spec("tiny"), Settings(color="always", theme="dark"))
    session.begin(f"{TEXT} lost the")
    terminal = Terminal(width=WIDTH, height=HEIGHT, depth="truecolor", cuts=True)
    app = Explorer(KEYS, session, terminal)
    async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
        await pilot.press("enter")
        while app.engine.waiting:
            await pilot.pause(0.05)
        await pilot.pause()
        path.write_text(screen_of(app), encoding="utf-8")


if __name__ == "__main__":
    cast, frame = map(Path, sys.argv[1:])
    write_cast(cast)
    asyncio.run(write_frame(frame))
