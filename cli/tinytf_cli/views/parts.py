"""What many views say alike: a note, a verdict, a count, bars on both sides of 0, a map of every head."""

import math
from collections.abc import Iterable, Sequence

from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Array, Column, Heat, Line, Meter, Span, Visible

ABOVE, BELOW = "k", "q"  # orange and blue, as above and below 0 in every map


def note(text: str) -> Line:
    """What should be known of the numbers above or below."""
    return Line(Span(text, "dim"), indent=2)


def verdict(holds: bool, said: str) -> Line:
    """Whether a check holds, and its figures."""
    return Line([Span(*("checked", "good") if holds else ("check failed", "bad")), Span(f": {said}")])


def plural(count: int, noun: str) -> str:
    """``1 token``, ``1,024 tokens``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def few(names: Sequence[object], most: int) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(map(str, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def rows_on(terminal: Terminal, asked: int | None, screen: int = 16) -> int | None:
    """How many rows a table has at most: those that were asked for (0: all), or what suits a screen."""
    return (asked if asked is not None else screen if terminal.cuts else 0) or None


def full_scale(values: Iterable[float]) -> float:
    """What a whole bar stands for: the largest finite magnitude, or 1 where all are 0."""
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0


def side(value: float) -> str:
    """The role of a number above or below 0."""
    return BELOW if value < 0 else ABOVE


def bar_column(
    title: str,
    values: Sequence[float],
    texts: Sequence[str],
    role: str = "",
    full: float = 1.0,
    said: str | None = None,
) -> Column:
    """Numbers with a bar each, alone where width is short; without a role orange above 0 and blue below."""
    width = max(map(len, texts), default=0)
    texts = [text.rjust(width) for text in texts]
    shares = [abs(value) / full if math.isfinite(value) else 1.0 for value in values]
    bars = [Meter(share, text, role or side(value)) for share, text, value in zip(shares, texts, values, strict=True)]
    return Column(title, bars, narrow=texts, said=said)


def signed(value: float | None, form: str = "%+.3f") -> str:
    """A number with its sign, or nothing."""
    return "" if value is None else number(value, form)


def layers_and_heads(values: Array) -> tuple[list[str], list[str]]:
    """The labels of a map with layers down and heads across."""
    return [f"L{layer}" for layer in range(values.shape[0])], [f"H{head}" for head in range(values.shape[1])]


def head_map(values: Array, scale: str, limit: float, digits: int | None = None, visible: Visible = None) -> Heat:
    """A number for every head: layers down, heads across."""
    return Heat(values, *layers_and_heads(values), scale, visible, limit, asked=True, digits=digits)
