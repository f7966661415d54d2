"""What the place that output goes to can show; decided once, here."""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

PIPE_WIDTH = 100
WIDEST = 1000
DEPTHS = ("none", "16", "256", "truecolor")


@dataclass(frozen=True)
class Terminal:
    """``depth`` of colour (one of DEPTHS), ``ascii`` for 7-bit signs only, ``plain`` for sentences.

    ``cuts`` is true for a screen, where what is too wide is shortened; elsewhere nothing asked for is cut.
    """

    width: int = PIPE_WIDTH
    depth: str = "none"
    ascii: bool = False
    plain: bool = False
    cuts: bool = False

    @property
    def coloured(self) -> bool:
        return self.depth != "none"


def _is_off(value: str) -> bool:
    return value.lower() in ("", "0", "false", "no")


def colour_depth(choice: str, environ: Mapping[str, str], is_terminal: bool) -> str:
    """The colour depth by ``--color``, over NO_COLOR, over FORCE_COLOR (``0`` is off), over TERM=dumb, over isatty."""
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


def _encodes_unicode(stream: TextIO) -> bool:
    try:
        "·▀█√⊙".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def detect(
    stream: TextIO, *, color: str = "auto", width: int | None = None, ascii: bool = False, plain: bool = False
) -> Terminal:
    """The capabilities of ``stream``, under the options that a user gave."""
    is_terminal = stream.isatty()
    if width is None:
        columns = os.environ.get("COLUMNS", "")
        if re.fullmatch("[0-9]{1,9}", columns) and int(columns):
            width = min(WIDEST, int(columns))
        else:
            width = shutil.get_terminal_size((PIPE_WIDTH, 24)).columns if is_terminal else PIPE_WIDTH
    depth = "none" if plain else colour_depth(color, os.environ, is_terminal)
    return Terminal(
        width=max(20, width),
        depth=depth,
        ascii=ascii or not _encodes_unicode(stream),
        plain=plain,
        cuts=is_terminal,
    )
