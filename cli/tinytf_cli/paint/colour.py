"""Colours: accents by role, viridis for 0…1, a diverging map about 0, and what each depth makes of them."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from rich.color import Color, ColorSystem
from rich.style import Style

# Every accent has a relative luminance of 0.18, so that its contrast is above 4.5 on black and on white alike.
ACCENTS = {
    "embed": "#10838d",
    "q": "#1274e4",
    "k": "#ba5c0a",
    "v": "#188847",
    "attention": "#d32e9c",
    "residual": "#707784",
    "ffn": "#9952e0",
    "output": "#dd3530",
}

# Viridis (Smith and van der Walt 2015, CC0) at nine places.
_VIRIDIS = ("440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725")
# Cividis (Nunez, Anderton and Renslow 2018, CC0), the same to eyes that tell red from green and to those that do not.
_CIVIDIS = ("00224e", "123570", "3b496c", "575d6d", "707173", "8a8678", "a59c74", "c3b369", "fee838")
UNIT_MAPS = {"viridis": _VIRIDIS, "cividis": _CIVIDIS, "grey": ("1a1a1a", "f5f5f5")}
# Blue below, near-black at 0, orange above: as in viridis, dark is nothing and bright is much.
_DIVERGING = ("7fd0ff", "3f9fe8", "2a6bb0", "274468", "2a2a30", "6b3f26", "b0622a", "ec8f3a", "ffcb7d")

SYSTEMS = {"16": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
LEVELS = 256
SAME = LEVELS + 1


def _ramp(anchors: tuple[str, ...]) -> NDArray[np.uint8]:
    """256 colours (256, 3) through equally spaced anchors."""
    points = np.array([[int(a[i : i + 2], 16) for i in (0, 2, 4)] for a in anchors], dtype=float)
    place = np.linspace(0, len(anchors) - 1, LEVELS)
    channels = [np.interp(place, np.arange(len(anchors)), points[:, c]) for c in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


class _Chosen:
    """The map of the scale 0…1 that is in use."""

    unit = "viridis"


def choose_unit_map(name: str) -> None:
    """Draw values in 0…1 in another of UNIT_MAPS from now on."""
    if name != _Chosen.unit:
        _Chosen.unit = name
        for cached in (ramp, role_style, cell_style, colour_codes):
            cached.cache_clear()


@lru_cache(maxsize=2)
def ramp(scale: str) -> NDArray[np.uint8]:
    """The 256 colours of a scale: ``unit`` or ``signed``."""
    return _ramp(UNIT_MAPS[_Chosen.unit] if scale == "unit" else _DIVERGING)


def level(values: NDArray[np.float32], scale: str, limit: float) -> NDArray[np.int64]:
    """Values to 0…255 along the scale; values beyond the scale take its end, NaN its start."""
    inside = np.nan_to_num(np.clip(values, -limit, limit)) / limit
    share = inside if scale == "unit" else (inside + 1) / 2
    return np.clip(share * (LEVELS - 1) + 0.5, 0, LEVELS - 1).astype(np.int64)


@lru_cache(maxsize=512)
def role_style(role: str) -> Style:
    """The style of a role; ``unit:N`` and ``signed:N`` are cells of level N (0…255); an unknown role is plain text."""
    scale, colon, place = role.partition(":")
    if colon:
        return cell_style(scale, int(place))
    if role in ACCENTS:
        return Style(color=ACCENTS[role])
    return {
        "dim": Style(dim=True),
        "strong": Style(bold=True),
        "good": Style(color="green"),
        "bad": Style(color="red", bold=True),
        "even": Style(color=ACCENTS["q"]),
        "odd": Style(color=ACCENTS["k"]),
        "special": Style(color=ACCENTS["attention"], italic=True),
    }.get(role, Style.null())


@lru_cache(maxsize=1024)
def cell_style(scale: str, index: int) -> Style:
    """A coloured cell with black or white text, whichever is easier to read on it."""
    red, green, blue = (int(c) for c in ramp(scale)[index])
    # Relative luminance (WCAG 2.2): on one above 0.179 black has the higher contrast, at least 4.5 either way.
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red / 255, green / 255, blue / 255)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return Style(color="#000000" if luminance > 0.179 else "#ffffff", bgcolor=f"#{red:02x}{green:02x}{blue:02x}")


@lru_cache(maxsize=8)
def colour_codes(scale: str, depth: str) -> tuple[NDArray[np.bytes_], NDArray[np.bytes_]]:
    """Escape codes by level, one array for foregrounds and one for backgrounds, which belong behind each other.

    At LEVELS stands the terminal's own colour, at SAME nothing at all.
    """
    system = SYSTEMS[depth]
    fore, back = [], []
    for red, green, blue in ramp(scale):
        color = Color.from_rgb(int(red), int(green), int(blue)).downgrade(system)
        fore.append(f"\x1b[{';'.join(color.get_ansi_codes(foreground=True))};")
        back.append(f"{';'.join(color.get_ansi_codes(foreground=False))}m")
    return np.array([*fore, "\x1b[39;", ""], dtype=np.bytes_), np.array([*back, "49m", ""], dtype=np.bytes_)
