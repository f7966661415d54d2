"""x·Wᵀ + b by one of two kernels: torch's own, or on the processor oneDNN's where that exists and is right."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LARGE = 2**18
"""Smaller matrices are in the processor's caches, where the call itself is what takes time for one token."""
_LONG = 2**22
"""Multiplications of a product that outweigh a call with gradients."""

Kernel = Callable[[Tensor, Tensor, Tensor | None], Tensor]

KERNELS = ("onednn", "torch")
"""What computes long products: oneDNN where it exists, or always torch's own F.linear."""
_CHOSEN = ContextVar("kernel", default="onednn")


@contextmanager
def kernel(name: str) -> Iterator[None]:
    """Compute long products by this one of KERNELS; an empty name changes nothing.

    Which of the two is faster depends on the processor and on the sizes, so a training run measures it.
    """
    token = _CHOSEN.set(name or _CHOSEN.get())
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x·Wᵀ + b by a private operator of torch, over weights as they lie in memory, or packed.

    It reads a large float32 matrix for one token in about half the time of F.linear's, whose library (MKL) uses half
    of the vector width on some processors that are not Intel's: there products of long texts too take half the time.
    """
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return product


def works(candidate: Kernel, dtype: torch.dtype, tolerance: float) -> bool:
    """Whether a kernel, which needs private operators of torch, runs here and does what F.linear does."""
    try:
        weight, bias = torch.arange(64.0 * 60).view(64, 60).sin().to(dtype), torch.arange(64.0).cos().to(dtype)
        x = torch.arange(120.0).view(2, 60).cos().to(dtype)
        with torch.inference_mode():
            found = [(candidate(x, weight, b), F.linear(x, weight, b)) for b in (bias, None)]
        return all(torch.allclose(ours.float(), theirs.float(), atol=tolerance) for ours, theirs in found)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False


class Product(torch.autograd.Function):
    """x·Wᵀ + b with gradients, which are such products too: ∂L/∂x = ∂L/∂y·W and ∂L/∂W = (∂L/∂y)ᵀ·x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = above[0].reshape(-1, len(weight)).contiguous()  # (…, out) -> (N, out)
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(rows, weight.t(), None).view_as(x) if of_x else None,
            product(rows.t(), x.reshape(-1, x.shape[-1]).contiguous().t(), None) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x·Wᵀ + b by oneDNN, with gradients where they are asked for."""
    made: Tensor = (Product.apply if torch.is_grad_enabled() else onednn)(x, weight, bias)
    return made


@cache
def has_onednn() -> bool:
    """Whether the operator does what F.linear does, and takes transposed matrices."""
    return all(works(one, torch.float32, 1e-4) for one in (onednn, _over_transposed))


def _over_transposed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return onednn(x.t().contiguous().t(), weight.t().contiguous().t(), bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (…, in) times the transpose of ``weight`` (out, in), plus ``bias`` (out,): F.linear, or faster."""
    if (
        weight.dtype is torch.float32
        and (x.numel() * len(weight) >= _LONG or (weight.numel() >= _LARGE and not torch.is_grad_enabled()))
        and weight.is_cpu
        and weight.is_contiguous()
        and x.dtype is torch.float32
        and x.shape[-1] == weight.shape[1]
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and _CHOSEN.get() == "onednn"
        and has_onednn()
    ):
        return product(x, weight, bias)
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """torch's own, with the kernel above."""

    def reset_parameters(self) -> None:
        """Draw first weights where there is memory for them: a model that is opened brings its own."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
