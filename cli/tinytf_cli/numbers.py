"""How numbers are shown: with the same digits throughout a block, so that columns line up."""

import math

import numpy as np
from numpy.typing import NDArray

from tinytf.sentences import plural as plural
from tinytf.tables import count as count
from tinytf.tables import in_bytes as in_bytes

SHARE = "%.3f"
"""The printf format of a share of 1."""


def number_format(values: NDArray[np.float32]) -> str:
    """A printf format for the largest finite magnitude: about four significant digits, never rounded to 0."""
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max()) if finite.size else 0.0
    if largest and not 1e-3 <= largest < 1e5:
        return "%.2e"
    if not largest:
        return "%.3f"
    exponent = math.floor(math.log10(largest))
    return f"%.{max(0, 3 - exponent if exponent >= 0 else max(3, 2 - exponent))}f"


def probability(value: float) -> str:
    """A share of 1 with four digits after the point, or in powers of ten if it is below 0.0001."""
    return f"{value:.4f}" if not 0 < value < 1e-4 else f"{value:.0e}"


def number(value: float, form: str = "") -> str:
    """One number; infinities and NaN by name, and what rounds to zero as zero is written."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    form = form or number_format(np.array([value], dtype=np.float32))
    text = form % value
    return form % 0.0 if text.startswith("-") and not text.strip("-0.e+") else text


def widest(values: NDArray[np.float32], form: str) -> int:
    """The width of the widest of ``numbers(values, form)``: the smallest, the largest or a non-finite one."""
    finite = values[np.isfinite(values)]
    ends = [finite.min(), finite.max()] if finite.size else []
    return max((len(number(float(v), form)) for v in [*ends, *values[~np.isfinite(values)][:100]]), default=1)


def numbers(values: NDArray[np.float32], form: str) -> list[list[str]]:
    """Every entry of a matrix, formatted by ``number``."""
    zero = number(0.0, form)
    return [
        [text if text != f"-{zero}" else zero for text in (form % value for value in row.tolist())]
        if np.isfinite(row).all()
        else [number(float(value), form) for value in row]
        for row in values
    ]


def duration(seconds: float) -> str:
    """``45 s``, ``2.1 min``, ``3.4 h``."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size or (unit == "min" and seconds >= 90):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def loss_in_words(value: float | None) -> str:
    return "–" if value is None else number(value, "%.4f")
