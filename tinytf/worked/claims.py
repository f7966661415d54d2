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


def read_claim(data: Any, tolerance: float | None) -> Claim:
    """A claim from what TOML gives: numbers, booleans or words, alone or in nested lists.

    Raises ValueError, in a sentence, for anything else and for lists of unequal lengths.
    """
    cells, shape = list[Any](), _shape(data)
    _flatten(data, cells)
    words = [isinstance(cell, str) for cell in cells]
    if any(words) and not all(words):
        raise ValueError("holds words and numbers side by side")
    shown = np.array([_written(cell) for cell in cells], dtype=np.str_).reshape(shape)
    if any(words):
        nothing = np.zeros(shape)
        return Claim(shown, nothing, nothing, words=True)
    values = np.array([_float(cell) for cell in cells]).reshape(shape)
    allowed = [_half_unit(cell) if tolerance is None else tolerance for cell in cells]
    return Claim(shown, values, np.array(allowed).reshape(shape))


def _shape(data: Any) -> tuple[int, ...]:
    if not isinstance(data, list):
        return ()
    shapes = {_shape(part) for part in data}
    if len(shapes) != 1:
        raise ValueError("is empty" if not data else "has rows of different lengths")
    return (len(data), *shapes.pop())


def _flatten(data: Any, cells: list[Any]) -> None:
    if isinstance(data, list):
        for part in data:
            _flatten(part, cells)
    elif isinstance(data, (bool, int, str, Decimal)):
        cells.append(data)
    else:
        raise ValueError(f"holds a {type(data).__name__}, which is no number and no word")


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


def _float(cell: int | Decimal) -> float:
    try:
        return float(cell)
    except OverflowError:
        raise ValueError("holds a number that is too large") from None


def cells_that_hold(claim: Claim, truth: NDArray[Any]) -> NDArray[np.bool_]:
    """Which claimed cells the truth lies within the tolerance of; a cell that the truth has not, does not hold."""
    holds = np.zeros(claim.shape, dtype=bool)
    if len(claim.shape) != truth.ndim:
        return holds
    if (truth.dtype.kind in "US") != claim.words:
        return holds
    both = tuple(slice(0, min(a, b)) for a, b in zip(claim.shape, truth.shape, strict=True))
    if claim.words:
        holds[both] = claim.shown[both] == truth[both]
        return holds
    said, true = claim.values[both], truth[both].astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(said - true) <= claim.tolerance[both] + 1e-9 * np.abs(true)
    same = (said == true) | (np.isnan(said) & np.isnan(true))
    holds[both] = near & np.isfinite(said) & np.isfinite(true) | same
    return holds


def differences(claim: Claim, truth: NDArray[Any]) -> Numbers:
    """Claimed − true; NaN where one of them is not there or they are words, ±∞ where one of them is infinite."""
    off = np.full(claim.shape, math.nan)
    if claim.words or len(claim.shape) != truth.ndim or truth.dtype.kind in "US":
        return off
    both = tuple(slice(0, min(a, b)) for a, b in zip(claim.shape, truth.shape, strict=True))
    said, true = claim.values[both], truth[both].astype(np.float64)
    with np.errstate(invalid="ignore"):
        off[both] = np.where(said == true, 0.0, said - true)
    return off
