"""What an author claims: numbers as they are printed, and how far off their digits allow the truth to be."""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Claim:
    """Cells as written, in an array of any shape; ``texts`` is filled instead of ``values`` where they are words.

    ``tolerance`` is half a unit of the last digit that is printed: 0.340 allows 0.3395 … 0.3405.
    """

    shown: NDArray[np.str_]
    values: Numbers
    tolerance: Numbers
    words: bool = False

    @property
    def truths(self) -> bool:
        """Whether the cells are yes or no."""
        return not self.words and bool(np.isin(self.shown, ("yes", "no")).all())

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shown.shape

    def surplus(self, shape: tuple[int, ...]) -> bool:
        """Whether it has more cells than a value of this shape."""
        return len(self.shape) > len(shape) or (
            len(self.shape) == len(shape) and any(said > true for said, true in zip(self.shape, shape, strict=True))
        )


def read_claim(data: Any, tolerance: float | None) -> Claim:
    """A claim from what TOML gives: numbers, booleans or words, alone or in nested lists.

    Raises ValueError, in a sentence, for anything else and for lists of unequal lengths.
    """
    shape, cells = _cells(data)
    words = [isinstance(cell, str) for cell in cells]
    if any(words) and not all(words):
        raise ValueError("holds words and numbers side by side")
    shown = np.array([_written(cell) for cell in cells], dtype=np.str_).reshape(shape)
    if any(words):
        nothing = np.zeros(shape)
        return Claim(shown, nothing, nothing, words=True)
    try:
        values = np.array([float(cell) for cell in cells]).reshape(shape)
    except OverflowError:
        raise ValueError("holds a number that is too large") from None
    allowed = [_half_unit(cell) if tolerance is None else tolerance for cell in cells]
    return Claim(shown, values, np.array(allowed).reshape(shape))


def _cells(data: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists, and their cells in order."""
    if not isinstance(data, list):
        if not isinstance(data, (bool, int, str, Decimal)):
            raise ValueError(f"holds a {type(data).__name__}, which is neither a number nor a word")
        return (), [data]
    parts = [_cells(part) for part in data]
    shapes = {shape for shape, _ in parts}
    if len(shapes) != 1:
        raise ValueError("is empty" if not data else "has rows of different lengths")
    return (len(data), *shapes.pop()), [cell for _, cells in parts for cell in cells]


def _written(cell: bool | int | str | Decimal) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}" if abs(cell) >= 10_000 else str(cell)
    if isinstance(cell, str):
        return cell
    if not cell.is_finite():
        return "nan" if cell.is_nan() else ("-inf" if cell < 0 else "inf")
    if _exponent(cell) > 0:
        return _written(int(cell)) if _exponent(cell) <= 12 else str(cell)
    return f"{cell:,}" if _exponent(cell) >= -12 and abs(cell) >= 10_000 else str(cell)


def _exponent(cell: Decimal) -> int:
    exponent = cell.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _half_unit(cell: bool | int | Decimal) -> float:
    if isinstance(cell, bool):
        return 0.0
    if isinstance(cell, int):
        return 0.5
    return float(Decimal((0, (5,), _exponent(cell) - 1))) if cell.is_finite() else 0.0


def compare(claim: Claim, truth: NDArray[Any]) -> tuple[NDArray[np.bool_], Numbers]:
    """Which claimed cells the truth lies within the tolerance of, and claimed − true.

    A claimed cell with no true counterpart fails. Differences are NaN there and for words, ±∞ where one is infinite.
    """
    holds, off = np.zeros(claim.shape, dtype=bool), np.full(claim.shape, math.nan)
    if len(claim.shape) != truth.ndim or (truth.dtype.kind in "US") != claim.words:
        return holds, off
    both = tuple(slice(0, min(a, b)) for a, b in zip(claim.shape, truth.shape, strict=True))
    if claim.words:
        holds[both] = claim.shown[both] == truth[both]
        return holds, off
    said, true = claim.values[both], truth[both].astype(np.float64)
    same = (said == true) | (np.isnan(said) & np.isnan(true))
    with np.errstate(invalid="ignore"):
        off[both] = np.where(said == true, 0.0, said - true)
        near = np.abs(said - true) <= claim.tolerance[both] + 1e-9 * np.abs(true)
    holds[both] = same | near & np.isfinite(said) & np.isfinite(true)
    return holds, off
