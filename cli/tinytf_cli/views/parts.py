"""Blocks that many views share: a note, a verdict, bars on both sides of 0, a map of every head."""

import math
from collections.abc import Iterable, Sequence

from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Array, Column, Heat, Line, Meter, Span, Visible

ABOVE, BELOW = "k", "q"  # orange and blue, as above and below 0 in every map


def note(text: str) -> Line:
    """What a reader should know about the numbers above or below."""
    return Line(Span(text, "dim"), indent=2)


def titled(title: str, said: str, role: str = "strong") -> Line:
    """A line that begins with what it is about."""
    return Line([Span(title, role), Span(said)])


def verdict(holds: bool, said: str, good: str = "checked", bad: str = "check failed", indent: int = 0) -> Line:
    """The outcome of a check in one line."""
    return Line([Span(good, "good") if holds else Span(bad, "bad"), Span(f": {said}")], indent)


def first_of(names: Sequence[object], most: int) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(map(str, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def row_limit(terminal: Terminal, asked: int | None, screen: int = 16) -> int | None:
    """The most rows of a table: as many as were asked for (0: all), else what suits a screen."""
    return (asked if asked is not None else screen if terminal.cuts else 0) or None


def full_scale(values: Iterable[float]) -> float:
    """What a whole bar stands for: the largest finite magnitude, or 1 where all are 0."""
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0


def side(value: float) -> str:
    """The role of a number above or below 0."""
    return BELOW if value < 0 else ABOVE


def signed(value: float | None, form: str = "%+.3f") -> str:
    """A number with its sign, or nothing."""
    return "" if value is None else number(value, form)


def aligned(texts: Sequence[str]) -> list[str]:
    """Texts of one width, to stand right of each other's ends."""
    width = max(map(len, texts), default=0)
    return [text.rjust(width) for text in texts]


def bar_column(
    title: str, shares: Sequence[float], texts: Sequence[str], roles: str | Sequence[str], said: str | None = None
) -> Column:
    """Numbers, each with its share of 1 as a bar; without the bars where width is short."""
    texts = aligned(texts)
    each = [roles] * len(texts) if isinstance(roles, str) else roles
    return Column(title, [Meter(*one) for one in zip(shares, texts, each, strict=True)], narrow=texts, said=said)


def signed_bars(title: str, values: Sequence[float], texts: Sequence[str], full: float | None = None) -> Column:
    """Numbers, each with a bar: orange above 0, blue below, whole at ``full`` or at the largest."""
    full = full_scale(values) if full is None else full
    shares = [abs(value) / full if math.isfinite(value) else 1.0 for value in values]
    return bar_column(title, shares, texts, [side(value) for value in values])


def numbered(sign: str, count: int) -> list[str]:
    """``L0``, ``L1`` …"""
    return [f"{sign}{number}" for number in range(count)]


def head_map(values: Array, scale: str, limit: float, digits: int | None = None, visible: Visible = None) -> Heat:
    """A number for every head: layers down, heads across."""
    rows, columns = numbered("L", len(values)), numbered("H", values.shape[1])
    return Heat(values, rows, columns, scale, visible, limit, asked=True, digits=digits)
