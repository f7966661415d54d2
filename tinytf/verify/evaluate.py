"""Every step of a worked example, computed with tinytf's operations and again in float64 numpy."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tinytf.text.tokenizer import Token, Tokenizer
from tinytf.verify.example import Example
from tinytf.verify.language import Budget, LanguageError, NeedsTokenizer, require_room
from tinytf.verify.operations import CONSTANTS, OPERATIONS, Function

_STEP = 1e-4
"""The step of a finite difference, relative to the entry, or absolute for entries below 1."""
_MOST_ENTRIES = 5_000
"""The most entries of a tensor whose gradient is checked by finite differences."""


class Evaluation:
    """The values of an example's names, each computed on first use.

    This class computes in numpy's float64 by textbook formulas, with gradients by finite differences of the whole
    chain. ``instead`` replaces values: by what the author claims, or by a tensor with one entry moved. Everything that
    is computed is charged to ``budget``.
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
        values = {name: self.convert(value) for name, value in {**example.given, **(instead or {})}.items()}
        self.values: dict[str, Any] = {**CONSTANTS, **values}
        self.n_kept = 0

    def __getitem__(self, name: str) -> Any:
        """The value of a name. Raises LanguageError if it cannot be computed or the budget is spent."""
        if name not in self.values:
            value = self.formulas[name].compute(self)
            for edit in self.example.edits:
                value = edit.applied(value, self.copied, self.convert) if edit.name == name else value
            self.n_kept += math.prod(np.shape(value))
            require_room(self.n_kept)
            self.values[name] = value
        return self.values[name]

    def spend(self, numbers: int) -> None:
        self.budget.spend(numbers)

    def call(self, name: str, arguments: list[Any]) -> Any:
        """The result of an operation. Raises LanguageError for arguments that it does not take."""
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
            raise LanguageError(f"{name} cannot take these arguments", f"write {OPERATIONS[name].usage}") from None

    def _encoded(self, text: Any) -> tuple[Token, ...]:
        if self.tokenizer is None:
            raise NeedsTokenizer("this needs a tokenizer: --tokenizer PATH")
        if not isinstance(text, str):
            raise LanguageError("a tokenizer takes a text")
        return self.tokenizer.encode(text).tokens

    def _learns(self, loss: str, name: str) -> bool:
        """Whether a name is given (a parameter) and the loss depends on it."""
        return name in self.example.given and bool((abs(self.gradient(loss, name)) > 0).any())

    def tensor(self, parts: list[Any]) -> Any:
        """A list of values as one tensor; words become an array of words."""
        words = parts and all(isinstance(part, str) for part in parts)
        return np.array(parts, dtype=np.str_) if words else self.stacked(parts)

    def operate(self, operation: Function, arguments: list[Any]) -> Any:
        return operation.by_numpy(*arguments)

    def convert(self, value: Any) -> Any:
        """A given value in the arithmetic of this class."""
        return value

    def copied(self, value: Any) -> Any:
        """A copy of a value, to write into."""
        return np.array(value, dtype=np.float64)

    def stacked(self, parts: list[Any]) -> Any:
        return np.stack([np.asarray(part, dtype=np.float64) for part in parts])

    def transposed(self, value: Any) -> Any:
        return np.swapaxes(value, -1, -2) if np.ndim(value) > 1 else value

    def gradient(self, loss: str, name: str) -> Any:
        """∂loss/∂name by five points, of order h⁴ (Abramowitz and Stegun 1964, 25.3.6).

        Raises LanguageError if there is none.
        """
        value = np.asarray(self[name], dtype=np.float64)
        if value.size > _MOST_ENTRIES:
            raise LanguageError(
                f"{name} has {value.size:,} entries; gradients are checked for {_MOST_ENTRIES:,} at most"
            )
        gradient = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            h = _STEP * max(1.0, abs(float(value[index])))
            near, far = (
                (self._moved(loss, name, index, k * h) - self._moved(loss, name, index, -k * h)) for k in (1, 2)
            )
            gradient[index] = (8 * near - far) / (12 * h)
        return gradient

    def _moved(self, loss: str, name: str, index: tuple[int, ...], delta: float) -> float:
        value = np.array(self[name], dtype=np.float64)
        value[index] += delta
        inputs = {key: self.values[key] for key in self.example.given}
        moved = Evaluation(self.example, self.tokenizer, inputs | {name: value}, budget=self.budget)
        return float(moved[loss])


class ByTinytf(Evaluation):
    """An evaluation in torch's float64, by the functions of tinytf's own model, with gradients by autograd."""

    def operate(self, operation: Function, arguments: list[Any]) -> Any:
        return operation.by_tinytf(*arguments)

    def convert(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return torch.tensor(value, dtype=torch.float64, requires_grad=True)
        return value

    def copied(self, value: Any) -> Any:
        return torch.as_tensor(value, dtype=torch.float64).clone()

    def stacked(self, parts: list[Any]) -> Any:
        return torch.stack([torch.as_tensor(part, dtype=torch.float64) for part in parts])

    def transposed(self, value: Any) -> Any:
        if isinstance(value, str):
            raise LanguageError("words have no .T")
        return value.mT if isinstance(value, torch.Tensor) and value.dim() > 1 else value

    def gradient(self, loss: str, name: str) -> Any:
        loss_value, value = self[loss], self[name]
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            raise LanguageError(f"{name} is not a tensor, so it has no gradient")
        if not isinstance(loss_value, torch.Tensor) or loss_value.numel() != 1:
            raise LanguageError(f"{loss} is not a single number, so it has no gradient")
        if not loss_value.requires_grad:
            return torch.zeros_like(value)
        (gradient,) = torch.autograd.grad(loss_value.reshape(()), value, retain_graph=True, allow_unused=True)
        return torch.zeros_like(value) if gradient is None else gradient


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
    """The largest difference, relative above 1 and absolute below; ∞ if shapes, words or infinities differ."""
    if ours.shape != theirs.shape or ours.dtype.kind != theirs.dtype.kind:
        return math.inf
    if ours.dtype.kind in "US":
        return 0.0 if (ours == theirs).all() else math.inf
    with np.errstate(invalid="ignore"):
        error = np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs))
    error = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0.0, error)
    return float(np.where(np.isnan(error), math.inf, error).max(initial=0.0))
