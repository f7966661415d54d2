"""Colours: an accent per role, a map for 0…1 and one around 0, for each theme and colour depth."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from rich.color import Color, ColorSystem
from rich.style import Style

from tinytf_cli.terminal import Terminal

SYSTEMS = {"truecolor": ColorSystem.TRUECOLOR, "256": ColorSystem.EIGHT_BIT, "16": ColorSystem.STANDARD}
LEVELS = 256
SAME = LEVELS + 1

BACKGROUNDS = {"dark": "#16181d", "light": "#ffffff"}
FOREGROUNDS = {"dark": "#d8dbe2", "light": "#1c1f24"}
"""The colours of SVG and HTML files; a terminal has its own."""


# First the dark theme, then the light one; each in true colour, 256 and 16 colours. Contrast with the background is at
# least 4.5 : 1. Of the 16 colours only five reach that on white in both the xterm and the VGA palette.
_ACCENTS: dict[str, tuple[tuple[str, int, int | None], tuple[str, int, int | None]]] = {
    "embed": (("#2bb5c0", 37, 6), ("#0b7a83", 23, 12)),
    "q": (("#5aa2ff", 75, 14), ("#0b62cc", 26, 4)),
    "k": (("#f0903c", 208, 11), ("#a84e00", 130, 1)),
    "v": (("#3fbf6f", 71, 2), ("#127a3c", 28, 5)),
    "attention": (("#f266bd", 205, 13), ("#b81e84", 162, 12)),
    "cross": (("#e3c34a", 179, 11), ("#7c6a00", 94, 1)),
    "residual": (("#9aa3b2", 247, 7), ("#5b6270", 241, 0)),
    "ffn": (("#b988f5", 141, 10), ("#7f38c8", 92, 5)),
    "output": (("#ff6b63", 203, 9), ("#c4221d", 160, 1)),
    "dim": (("#8b919c", 245, None), ("#686e7a", 242, None)),
}
_SAME_AS = {"advice": "dim", "good": "v", "bad": "output", "even": "q", "odd": "k", "special": "attention"}

# A map: anchors to interpolate in true colour, then the exact colours in 256 and in 16. In the dark theme dark means 0
# and bright means 1; in the light theme it is the reverse.
_UNIT_MAPS: dict[tuple[str, str], tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    # Viridis (Smith and van der Walt 2015, CC0) at nine points; the light theme has a paler yellow.
    ("viridis", "dark"): (
        "440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725",
        (53, 54, 25, 31, 36, 77, 148, 220),
        (4, 12, 6, 10, 11),
    ),
    ("viridis", "light"): (
        "f8f8ee e4efae a9d974 5cc06f 2ba583 21858d 2f668d 3f4789 46206a 3a0150",
        (230, 193, 149, 36, 31, 25, 54, 53),
        (15, 14, 6, 12, 4),
    ),
    # Cividis (Nunez, Anderton and Renslow 2018, CC0) looks the same with and without red-green colour blindness.
    ("cividis", "dark"): (
        "00224e 123570 3b496c 575d6d 707173 8a8678 a59c74 c3b369 fee838",
        (17, 60, 243, 101, 143, 179, 220),
        (4, 12, 7, 11),
    ),
    ("cividis", "light"): (
        "faf7ea f1e3a4 d3c075 b0a274 8f8a78 707173 575d6d 3b496c 123570 00224e",
        (230, 222, 179, 143, 101, 243, 60, 17),
        (15, 11, 7, 12, 4),
    ),
    ("grey", "dark"): ("1f2126 f5f5f5", (234, 237, 240, 243, 246, 249, 252, 255), (0, 7, 15)),
    ("grey", "light"): ("f4f4f4 1a1a1a", (255, 252, 249, 246, 243, 240, 237, 234), (15, 7, 0)),
}
# Blue below 0, orange above; 0 itself is close to the background.
_SIGNED_MAPS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "dark": (
        "7fd0ff 3f9fe8 2a6bb0 274468 2a2a30 6b3f26 b0622a ec8f3a ffcb7d",
        (117, 75, 32, 24, 235, 94, 166, 208, 222),
        (14, 12, 4, 0, 1, 9, 11),
    ),
    "light": (
        "08306b 1f63ad 5a9bd5 b3d3ee f5f5f5 f7cfa4 e8964a b85c12 6b2f04",
        (17, 25, 74, 153, 255, 223, 208, 130, 52),
        (4, 12, 14, 15, 11, 9, 1),
    ),
}
_WHITE_TEXT = (0, 1, 4, 5, 12)
"""Among the 16 colours, those on which white is easier to read than black, in the xterm and VGA palettes."""


@lru_cache(maxsize=64)
def ramp(scale: str, terminal: Terminal) -> tuple[Color, ...]:
    """The colours of the 256 levels of a scale: ``unit`` or ``signed``."""
    colour_map = _SIGNED_MAPS[terminal.theme] if scale == "signed" else _UNIT_MAPS[terminal.palette, terminal.theme]
    if terminal.depth in ("256", "16"):
        codes = colour_map[1] if terminal.depth == "256" else colour_map[2]
        return tuple(Color.from_ansi(codes[index * len(codes) // LEVELS]) for index in range(LEVELS))
    anchors = np.array([Color.parse(f"#{anchor}").get_truecolor() for anchor in colour_map[0].split()])
    positions = np.linspace(0, len(anchors) - 1, LEVELS)
    channels = [np.interp(positions, np.arange(len(anchors)), channel).round() for channel in anchors.T]
    return tuple(Color.from_rgb(*rgb) for rgb in np.stack(channels, axis=-1).astype(int).tolist())


def level(values: NDArray[np.float32], scale: str, limit: float) -> NDArray[np.int64]:
    """Map values to 0…255 along the scale; clip values beyond its ends, and put NaN at 0."""
    inside = np.nan_to_num(np.clip(values, -limit, limit)) / limit
    share = inside if scale == "unit" else (inside + 1) / 2
    return np.clip(share * (LEVELS - 1) + 0.5, 0, LEVELS - 1).astype(np.int64)


def accents(theme: str) -> dict[str, str]:
    """The accents of a theme in true colour, by role."""
    return {role: by_theme[theme == "light"][0] for role, by_theme in _ACCENTS.items()}


@lru_cache(maxsize=1024)
def role_style(role: str, terminal: Terminal) -> Style:
    """The style of a role; ``unit:N`` and ``signed:N`` are cells of level N (0…255); an unknown role is plain text."""
    if not terminal.coloured:
        return Style.null()
    scale, colon, index = role.partition(":")
    if colon:
        return cell_style(scale, int(index), terminal)
    by_theme, colour = _ACCENTS.get(_SAME_AS.get(role, role)), None
    if by_theme is not None:
        accent = by_theme[terminal.theme == "light"][tuple(SYSTEMS).index(terminal.depth)]
        colour = Color.from_ansi(accent) if isinstance(accent, int) else accent
    return Style(
        color=colour,
        dim=True if role in ("dim", "advice") and colour is None else None,
        bold=True if role in ("strong", "bad") else None,
        italic=True if role == "special" else None,
    )


@lru_cache(maxsize=2048)
def cell_style(scale: str, index: int, terminal: Terminal) -> Style:
    """A coloured cell with black or white text, whichever is easier to read on it."""
    colour = ramp(scale, terminal)[index]
    if terminal.depth == "16":
        return Style(color=Color.from_ansi(15 if colour.number in _WHITE_TEXT else 0), bgcolor=colour)
    return Style(color=Color.parse(text_on(colour)).downgrade(SYSTEMS[terminal.depth]), bgcolor=colour)


def text_on(colour: Color) -> str:
    """Black or white, whichever contrasts more with a colour.

    Above a relative luminance (WCAG 2.2) of 0.179 it is black; either way the contrast is at least 4.5 : 1.
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.get_truecolor().normalized]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


@lru_cache(maxsize=16)
def colour_codes(scale: str, terminal: Terminal) -> tuple[NDArray[np.bytes_], NDArray[np.bytes_]]:
    """Escape codes by level, one array for foregrounds and one for backgrounds, which follow each other.

    LEVELS gives the terminal's own colour, SAME the empty string.
    """
    fore = [f"\x1b[{';'.join(colour.get_ansi_codes(foreground=True))};" for colour in ramp(scale, terminal)]
    back = [f"{';'.join(colour.get_ansi_codes(foreground=False))}m" for colour in ramp(scale, terminal)]
    return np.array([*fore, "\x1b[39;", ""], dtype=np.bytes_), np.array([*back, "49m", ""], dtype=np.bytes_)
