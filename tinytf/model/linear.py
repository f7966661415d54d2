"""x·Wᵀ + b by the faster of two kernels: torch's own, or on the processor oneDNN's where that is there and right."""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LARGE = 2**18
"""Matrices of fewer numbers are in the processor's own memory, where the call itself is what takes time."""


@cache
def _onednn() -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
    """oneDNN's linear over weights as they lie in memory, or None.

    It reads a large float32 matrix for one token in about half the time of F.linear's, and is a private operator of
    torch: it is only used where it exists and does what F.linear does.
    """
    try:
        operator = torch.ops.mkldnn._linear_pointwise.default

        def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return operator(x, weight, bias, "none", [], "")

        with torch.inference_mode():
            weight = torch.arange(15.0).view(3, 5).sin()
            x, bias = torch.arange(10.0).view(1, 2, 5).cos(), torch.arange(3.0)
            right = all(torch.allclose(linear(x, weight, b), F.linear(x, weight, b), atol=1e-5) for b in (bias, None))
        return linear if right else None
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (…, in) times the transpose of ``weight`` (out, in), plus ``bias`` (out,): F.linear, faster where it can be."""
    if (
        weight.dtype is torch.float32
        and weight.numel() >= _LARGE
        and weight.is_cpu
        and not torch.is_grad_enabled()
        and weight.is_contiguous()
        and x.dtype is torch.float32
        and x.shape[-1] == weight.shape[1]
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    ):
        fast = _onednn()
        if fast is not None:
            return fast(x, weight, bias)
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """torch's own, with the kernel above."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
