"""Where NaN comes from: the first function of torch that makes it of numbers that have none."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from tinytf.through.recording import tensors_in


class Origin(TorchFunctionMode):
    """While active, watches for the first function whose result has NaN where its arguments have none.

    ``words`` say which it is, and for a softmax which query sees no key; empty until there is one.
    """

    words = ""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if not self.words and any(_has_nan(x) for x in tensors_in(result)):
            taken = list(tensors_in([list(args), *(kwargs or {}).values()]))
            if taken and not any(_has_nan(x) for x in taken):
                self.words = _in_words(function, taken)
        return result


def _has_nan(x: Tensor) -> bool:
    return x.is_floating_point() and bool(x.isnan().any())


def _in_words(function: Callable[..., Any], taken: Sequence[Tensor]) -> str:
    name = (resolve_name(function) or getattr(function, "__name__", "a function")).rpartition(".")[2]
    hidden = taken[0].isneginf().all(dim=-1) if taken[0].dim() > 1 else None
    if name.endswith("softmax") and hidden is not None and hidden.any():
        return f"row {int(hidden.nonzero()[0, -1])} has no key to look at: {name} of only −∞"
    of = "numbers that are not all finite" if any(not bool(x.isfinite().all()) for x in taken) else "finite numbers"
    return f"{name} makes NaN of {of}"
