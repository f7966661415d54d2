"""A film of a session, as an SVG: ``python samples/make_session.py samples/pictures/session.svg``.

Each line is run in a real session; a frame shows what its terminal holds once the line has run.
"""

import io
import os
import sys
from pathlib import Path
from unittest.mock import patch

from tinytf_cli.film import moving_picture
from tinytf_cli.picture import described
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Spec
from tinytf_cli.terminal import Terminal

WIDTH, HEIGHT, SECONDS = 100, 32, 3.0
LINES = (
    "run The cat lost the ball. The cat lost the",
    "top",
    "heat L1H0",
    "explain L1H0.weights[9,4]",
    "without L1H0",
    "top",
)
"""A prediction, the head that looks it up, its arithmetic, and what is predicted without that head."""
_PROMPT = "\x1b[1;38;2;90;162;255mtinytf>\x1b[0m "


def frames() -> list[list[str]]:
    """What the terminal holds after each line that is typed."""
    heard = io.TextIOWrapper(io.BytesIO(), "utf-8")
    session = Session(VERBS, Spec("tiny"), Settings(color="always", theme="dark", width=WIDTH), stdout=heard)
    held: list[str] = []
    shown = []
    for line in LINES:
        heard.seek(0)
        heard.truncate()
        session.execute(line)
        heard.seek(0)
        held += [_PROMPT + line, *heard.read().splitlines()]
        shown.append(held[-HEIGHT:])
    return [[*frame, *[""] * (HEIGHT - len(frame))] for frame in shown]


def film() -> str:
    """The session as a moving SVG."""
    about = described("session", f"Typed into a session of tinytf: {'; '.join(LINES)}")
    with patch.dict(os.environ, COLORTERM="truecolor"):
        screen = Terminal(width=WIDTH, height=HEIGHT, depth="truecolor")
        return moving_picture(frames(), screen, about, SECONDS)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(film(), "utf-8")
