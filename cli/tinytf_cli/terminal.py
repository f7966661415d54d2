"""What the output stream can show, detected once and passed to everything that draws."""

import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TextIO

PIPE_WIDTH = 100
WIDEST = 1000
DEPTHS = ("none", "16", "256", "truecolor")
SMALLEST = (40, 10)
"""The fewest columns and rows of a program that fills the terminal."""
COLORMAPS = ("viridis", "cividis", "grey")
THEMES = ("auto", "dark", "light")


@dataclass(frozen=True)
class Terminal:
    """What the output can show. ``depth`` is one of DEPTHS, ``ascii`` means 7 bits, ``plain`` means sentences.

    ``cuts`` is true on a screen, where wide lines are shortened; elsewhere nothing is cut. ``palette`` is the colour
    map for values in 0…1 (one of COLORMAPS). ``theme`` is the background, ``dark`` or ``light``. ``digits`` is the
    number of digits after the point; with None each number chooses its own. A ``picture`` is written to a file whole.
    Only where it ``advises`` are options of the command line named. With ``whole``, all numbers and words are written,
    at any length: nothing is cut, folded or pooled. A ``figure`` is without the lines about the model, the checks that
    hold, and advice.
    """

    width: int = PIPE_WIDTH
    depth: str = "none"
    ascii: bool = False
    plain: bool = False
    cuts: bool = False
    height: int = 24
    palette: str = "viridis"
    digits: int | None = None
    theme: str = "dark"
    picture: bool = False
    advises: bool = True
    whole: bool = False
    figure: bool = False

    @property
    def coloured(self) -> bool:
        return self.depth != "none"

    def form(self, usual: str) -> str:
        """The printf format of a number: ``usual``, with the requested digits if any. Exponential formats stay so."""
        if self.digits is None:
            return usual
        return f"%{'+' * usual.startswith('%+')}.{self.digits}{'e' if usual.endswith('e') else 'f'}"


def too_small(columns: int, rows: int) -> list[str]:
    """The lines that stand in for a full screen in a terminal that is too small for one; none in others."""
    if columns >= SMALLEST[0] and rows >= SMALLEST[1]:
        return []
    return [f"too small: {columns} × {rows}", f"needs {SMALLEST[0]} × {SMALLEST[1]}"]


def _is_off(value: str) -> bool:
    return value.lower() in ("", "0", "false", "no")


def colour_depth(choice: str, environ: Mapping[str, str], is_terminal: bool) -> str:
    """The colour depth. ``--color`` wins over NO_COLOR, then FORCE_COLOR (``0`` is off), TERM=dumb, isatty."""
    best = _depth_of_terminal(environ)
    if choice != "auto":
        return best if choice == "always" else "none"
    if environ.get("NO_COLOR"):
        return "none"
    forced = environ.get("FORCE_COLOR")
    if forced:
        return "none" if _is_off(forced) else {"1": "16", "2": "256", "3": "truecolor"}.get(forced, best)
    if environ.get("TERM") == "dumb":
        return "none"
    return best if is_terminal else "none"


def _depth_of_terminal(environ: Mapping[str, str]) -> str:
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or "WT_SESSION" in environ:
        return "truecolor"
    term = environ.get("TERM", "")
    if term.endswith(("-direct", "-truecolor")) or term.startswith(("xterm-kitty", "alacritty", "xterm-ghostty")):
        return "truecolor"
    if "256color" in term:
        return "256"
    return "16" if term not in ("", "dumb", "unknown") else "truecolor"


_UNASKED = ("CI", "SSH_CONNECTION", "SSH_TTY")
"""If one of these is set, do not query the terminal.

Under CI nobody is watching. Over SSH a reply can take longer than the timeout, and a late reply would be typed into
whatever reads the terminal next; a longer timeout would delay every command.
"""
_BACKGROUND = re.compile(
    rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})[^\x07\x1b]*(?:\x07|\x1b\\)"
)
_ATTRIBUTES = re.compile(rb"\x1b\[\?[0-9;]*c")
_TIMEOUT = 0.1  # seconds


def detect_theme(environ: Mapping[str, str], *, ask: bool) -> str:
    """``dark`` or ``light``: the terminal's own reply if ``ask`` is true, else COLORFGBG, else dark."""
    term = environ.get("TERM", "dumb")
    if ask and term not in ("", "dumb", "unknown", "linux") and not any(environ.get(name) for name in _UNASKED):
        theme = _ask_background()
        if theme is not None:
            return theme
    # Such as "15;0" or "15;default;0": the last number is the background, one of the 16 colours.
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if background in ("7", "9", "10", "11", "12", "13", "14", "15") else "dark"


@cache
def _ask_background() -> str | None:
    """The theme for the background colour that the terminal reports (OSC 11), queried once per process.

    None if stdin or stdout is not a terminal, if keys are waiting to be read, or if no reply comes in time. The query
    ends with DA1, which every terminal answers, so a terminal without OSC 11 does not cost the whole timeout.
    """
    try:
        import fcntl
        import select
        import termios
        import tty

        source, target = sys.stdin.fileno(), sys.stdout.fileno()
        if not (os.isatty(source) and os.isatty(target)) or os.tcgetpgrp(source) != os.getpgrp():
            return None
        attributes = termios.tcgetattr(source)
    except (ImportError, AttributeError, OSError, ValueError):  # Windows, or a stream without a file descriptor
        return None
    reply, end = b"", time.monotonic() + _TIMEOUT
    try:
        tty.setcbreak(source, termios.TCSANOW)  # TCSANOW discards no input
        if select.select([source], [], [], 0)[0]:
            return None
        os.write(target, b"\x1b]11;?\x1b\\\x1b[c")
        while not _ATTRIBUTES.search(reply) and select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
            reply += os.read(source, 256)
    finally:
        termios.tcsetattr(source, termios.TCSANOW, attributes)
    match = _BACKGROUND.search(reply)
    with suppress(OSError):  # put back keys pressed meanwhile, if the system allows it
        for key in _ATTRIBUTES.sub(b"", _BACKGROUND.sub(b"", reply)):
            fcntl.ioctl(source, termios.TIOCSTI, bytes([key]))
    if match is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in match.groups())
    return "light" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "dark"


def _encodes_unicode(stream: TextIO) -> bool:
    """Whether a stream takes more than 7 bits: Python's says so in the locale C too, where a terminal may not."""
    locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    if locale in ("C", "POSIX"):
        return False
    try:
        "·▀█√⊙".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _behind_pipe(stream: TextIO) -> int | None:
    """The columns of the terminal at which a pipe, as to ``tee`` or ``less``, probably ends: where errors or keys are.

    None where the stream is no pipe, such as a file, and where there is no terminal.
    """
    with suppress(AttributeError, OSError, ValueError):  # a stream without a file descriptor
        if stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
            for end in (2, 0):
                with suppress(OSError):
                    return os.get_terminal_size(end).columns or None
    return None


def detect(
    stream: TextIO,
    *,
    color: str = "auto",
    width: int | None = None,
    ascii: bool = False,
    plain: bool = False,
    precision: int | None = None,
    colormap: str = "viridis",
    theme: str = "auto",
) -> Terminal:
    """What ``stream`` can show, given the user's options."""
    is_terminal = stream.isatty()
    size = shutil.get_terminal_size((PIPE_WIDTH, 24))
    if width is None:
        columns = os.environ.get("COLUMNS", "")
        if re.fullmatch("[0-9]{1,9}", columns) and int(columns):
            width = min(WIDEST, int(columns))
        else:
            width = size.columns if is_terminal else _behind_pipe(stream) or PIPE_WIDTH
    depth = "none" if plain else colour_depth(color, os.environ, is_terminal)
    return Terminal(
        width=max(20, width),
        depth=depth,
        ascii=ascii or not _encodes_unicode(stream),
        plain=plain,
        cuts=is_terminal,
        height=size.lines,
        palette=colormap,
        digits=precision,
        theme=detect_theme(os.environ, ask=is_terminal and depth != "none") if theme == "auto" else theme,
    )
