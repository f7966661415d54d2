"""Matrices stored for decoding: in oneDNN's own layout, which it reads faster in bfloat16, or in int8.

In int8 there is a quarter of the memory to read for every token, and one scale for each output channel: each row w
becomes round(w / s) with s = max|w| / 127, so that a weight is off by at most s / 2.
"""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.steps.linear import onednn, works


def pack(weight: Tensor) -> Tensor:
    """A copy (out, in) in the layout that ``onednn`` reads faster. A later change of ``weight`` is not in it."""
    laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 1)
    return laid_out


@cache
def packs() -> bool:
    """Whether torch multiplies by packed matrices here."""
    return works(lambda x, weight, bias: onednn(x, pack(weight), bias), torch.bfloat16, 0.1)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The whole numbers (out, in) in int8, and the scales (out,) in float32, such that weight ≈ numbers · scale.

    Scales are first rounded up to bfloat16, so that they are exact in either precision.
    """
    largest = weight.detach().float().abs().amax(dim=1)
    scale = (largest / 127).clamp_min(torch.finfo(torch.float32).tiny)
    short = scale.bfloat16()
    up = torch.where(short.float() < scale, torch.nextafter(short, torch.full_like(short, torch.inf)), short).float()
    return (weight.detach().float() / up[:, None]).round_().to(torch.int8), up


_WHOLE = 16
"""torch's operator reads rows in pieces of 16 numbers, and past the end of a row that is no multiple of that."""


@dataclass(frozen=True, slots=True)
class Int8Product:
    """x (B, in) -> (B, out) with a matrix in int8. ``compiled`` leaves the arithmetic to a compiler, in float32."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None
    compiled: bool

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, *, compiled: bool) -> "Int8Product":
        """The product with a matrix of floating point numbers (out, in), which is quantised here."""
        numbers, scale = quantize(weight)
        if not compiled:
            numbers = F.pad(numbers, (0, -numbers.shape[1] % _WHOLE))
        return cls(numbers, scale, bias, compiled)

    def __call__(self, x: Tensor) -> Tensor:
        if not self.compiled:
            short = F.pad(x.bfloat16(), (0, self.weight.shape[1] - x.shape[1]))
            product = torch._weight_int8pack_mm(short, self.weight, self.scale.bfloat16()).to(x.dtype)
        elif len(x) == 1:
            product = ((self.weight.to(x.dtype) * x).sum(-1) * self.scale.to(x.dtype))[None]
        else:
            product = F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        return product if self.bias is None else product + self.bias


@cache
def multiplies_int8() -> bool:
    """Whether torch multiplies by int8 weights here."""
    return works(lambda x, weight, bias: Int8Product.of(weight, bias, compiled=False)(x), torch.float32, 0.2)
