"""The claims of an author: numbers as printed, and the tolerance that their digits allow."""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Claim:
    """Claimed cells as written, in an array of any shape; ``values`` are zeros if the cells are ``words``.

    ``tolerance`` is half a unit of the last printed digit: 0.340 allows 0.3395 … 0.3405.
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
        """Whether the claim has more cells than a value of this shape."""
        return len(self.shape) > len(shape) or (
            len(self.shape) == len(shape)
            and any(claimed > true for claimed, true in zip(self.shape, shape, strict=True))
        )


def read_claim(data: Any, tolerance: float | None) -> Claim:
    """Read a claim from parsed TOML: numbers, booleans or words, alone or in nested lists.

    Raises ValueError, in a sentence, for anything else and for lists of unequal lengths.
    """
    shape, cells = _cells(data)
    words = [isinstance(cell, str) for cell in cells]
    if any(words) and not all(words):
        raise ValueError("holds words and numbers side by side")
    shown = np.array([_as_written(cell) for cell in cells], dtype=np.str_).reshape(shape)
    if any(words):
        zeros = np.zeros(shape)
        return Claim(shown, zeros, zeros, words=True)
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


def _as_written(cell: bool | int | str | Decimal) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}" if abs(cell) >= 10_000 else str(cell)
    if isinstance(cell, str):
        return cell
    if not cell.is_finite():
        return "nan" if cell.is_nan() else ("-inf" if cell < 0 else "inf")
    if _exponent(cell) > 0:
        return _as_written(int(cell)) if _exponent(cell) <= 12 else str(cell)
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
    """Which claimed cells are within the tolerance of the truth, and the differences claimed − true.

    A claimed cell with no true counterpart fails. Differences are NaN there and for words, ±∞ if one side is infinite.
    """
    holds, off = np.zeros(claim.shape, dtype=bool), np.full(claim.shape, math.nan)
    if len(claim.shape) != truth.ndim or (truth.dtype.kind in "US") != claim.words:
        return holds, off
    common = tuple(slice(0, min(a, b)) for a, b in zip(claim.shape, truth.shape, strict=True))
    if claim.words:
        holds[common] = claim.shown[common] == truth[common]
        return holds, off
    claimed, true = claim.values[common], truth[common].astype(np.float64)
    equal = (claimed == true) | (np.isnan(claimed) & np.isnan(true))
    with np.errstate(invalid="ignore"):
        off[common] = np.where(claimed == true, 0.0, claimed - true)
        near = np.abs(claimed - true) <= claim.tolerance[common] + 1e-9 * np.abs(true)
    holds[common] = equal | near & np.isfinite(claimed) & np.isfinite(true)
    return holds, off
