"""Every step of a worked example, computed with tinytf's operations and again in float64 numpy."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tinytf.text.tokenizer import Token, Tokenizer
from tinytf.worked.example import Example
from tinytf.worked.language import Budget, LanguageError, NeedsTokenizer, require_room
from tinytf.worked.operations import CONSTANTS, OPERATIONS, Function

_STEP = 1e-4
"""How far an entry is moved for its finite difference, in units of the entry or 1."""
_MOST_ENTRIES = 5_000
"""Entries of a tensor whose gradient finite differences check."""


class Evaluation:
    """The values of an example's names, each computed when it is first asked for.

    This one computes in numpy's float64 by textbook formulas, with gradients by finite differences of the whole chain.
    ``instead`` replaces values: what the author claims, or a tensor with one entry moved. All that is computed is
    taken from ``budget``.
    """

    def __init__(
        self,
        example: Example,
        tokenizer: Tokenizer | None = None,
        instead: Mapping[str, Any] | None = None,
        *,
        budget: Budget | None = None,
    ) -> None:
        self.example, self.tokenizer, self.budget = example, tokenizer, budget or Budget()
        self.formulas = {step.name: step.formula for step in example.steps}
        given = {name: self.taken(value) for name, value in {**example.given, **(instead or {})}.items()}
        self.values: dict[str, Any] = {**CONSTANTS, **given}
        self.kept = 0

    def __getitem__(self, name: str) -> Any:
        """The value of a name. Raises LanguageError where it cannot be computed, or the budget is spent."""
        if name not in self.values:
            found = self.formulas[name].compute(self)
            self.kept += math.prod(np.shape(found))
            require_room(self.kept)
            self.values[name] = found
        return self.values[name]

    def spend(self, numbers: int) -> None:
        self.budget.spend(numbers)

    def call(self, name: str, arguments: list[Any]) -> Any:
        """What an operation gives. Raises LanguageError for arguments that it does not take."""
        try:
            match name:
                case "gradient":
                    return self.gradient(*arguments)
                case "learns":
                    return self._learns(*arguments)
                case "token_ids":
                    return self.stacked([token.id for token in self._encoded(*arguments)])
                case "tokens":
                    return np.array([token.shown for token in self._encoded(*arguments)], dtype=np.str_)
            return self.operate(OPERATIONS[name], arguments)
        except TypeError:
            raise LanguageError(f"{name} cannot take these arguments", f"it is {OPERATIONS[name].usage}") from None

    def _encoded(self, text: Any) -> tuple[Token, ...]:
        if self.tokenizer is None:
            raise NeedsTokenizer("this needs a tokenizer: --tokenizer PATH")
        if not isinstance(text, str):
            raise LanguageError("a tokenizer takes a text")
        return self.tokenizer.encode(text).tokens

    def _learns(self, loss: str, name: str) -> bool:
        """Whether a name is something given, a parameter, that the loss depends on."""
        return name in self.example.given and bool((abs(self.gradient(loss, name)) > 0).any())

    def tensor(self, parts: list[Any]) -> Any:
        """A list of values as one tensor, words as an array of words."""
        words = parts and all(isinstance(part, str) for part in parts)
        return np.array(parts, dtype=np.str_) if words else self.stacked(parts)

    def operate(self, operation: Function, arguments: list[Any]) -> Any:
        return operation.by_numpy(*arguments)

    def taken(self, value: Any) -> Any:
        """A given value in this arithmetic."""
        return value

    def stacked(self, parts: list[Any]) -> Any:
        return np.stack([np.asarray(part, dtype=np.float64) for part in parts])

    def transposed(self, value: Any) -> Any:
        return np.swapaxes(value, -1, -2) if np.ndim(value) > 1 else value

    def gradient(self, loss: str, name: str) -> Any:
        """∂loss/∂name by five points, of order h⁴ (Abramowitz and Stegun 1964, 25.3.6).

        Raises LanguageError where there is none.
        """
        of = np.asarray(self[name], dtype=np.float64)
        if of.size > _MOST_ENTRIES:
            raise LanguageError(f"{name} has {of.size:,} entries; gradients are checked for {_MOST_ENTRIES:,} at most")
        found = np.zeros_like(of)
        for place in np.ndindex(of.shape):
            h = _STEP * max(1.0, abs(float(of[place])))
            near, far = (
                (self._moved(loss, name, place, k * h) - self._moved(loss, name, place, -k * h)) for k in (1, 2)
            )
            found[place] = (8 * near - far) / (12 * h)
        return found

    def _moved(self, loss: str, name: str, place: tuple[int, ...], by: float) -> float:
        value = np.array(self[name], dtype=np.float64)
        value[place] += by
        kept = {given: self.values[given] for given in self.example.given}
        moved = Evaluation(self.example, self.tokenizer, kept | {name: value}, budget=self.budget)
        return float(moved[loss])


class ByTinytf(Evaluation):
    """An evaluation in torch's float64, by the functions that tinytf's model is made of, with gradients by autograd."""

    def operate(self, operation: Function, arguments: list[Any]) -> Any:
        return operation.by_tinytf(*arguments)

    def taken(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return torch.tensor(value, dtype=torch.float64, requires_grad=True)
        return value

    def stacked(self, parts: list[Any]) -> Any:
        return torch.stack([torch.as_tensor(part, dtype=torch.float64) for part in parts])

    def transposed(self, value: Any) -> Any:
        if isinstance(value, str):
            raise LanguageError("words have no .T")
        return value.mT if isinstance(value, torch.Tensor) and value.dim() > 1 else value

    def gradient(self, loss: str, name: str) -> Any:
        top, of = self[loss], self[name]
        if not isinstance(of, torch.Tensor) or not of.requires_grad:
            raise LanguageError(f"{name} is not a tensor, so it has no gradient")
        if not isinstance(top, torch.Tensor) or top.numel() != 1:
            raise LanguageError(f"{loss} is not a single number, so it has no gradient")
        if not top.requires_grad:
            return torch.zeros_like(of)
        (found,) = torch.autograd.grad(top.reshape(()), of, retain_graph=True, allow_unused=True)
        return torch.zeros_like(of) if found is None else found


def cells(value: Any) -> NDArray[Any]:
    """A value as an array: float64, or words."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, str):
        return np.array(value, dtype=np.str_)
    array = np.asarray(value)
    try:
        return array if array.dtype.kind in "US" else array.astype(np.float64)
    except OverflowError:
        raise LanguageError("gives a number that is too large") from None


def largest_difference(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """How far two computations are apart, in units of the number or of 1; ∞ for other shapes, words or infinities."""
    if ours.shape != theirs.shape or ours.dtype.kind != theirs.dtype.kind:
        return math.inf
    if ours.dtype.kind in "US":
        return 0.0 if (ours == theirs).all() else math.inf
    with np.errstate(invalid="ignore"):
        off = np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs))
    off = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0.0, off)
    return float(np.where(np.isnan(off), math.inf, off).max(initial=0.0))
