"""Matrices stored for decoding: in oneDNN's own layout, which it reads faster in bfloat16, or in int8.

int8 needs a quarter of the memory reads of float32, with one scale per output channel: each row w becomes round(w / s)
with s = max|w| / 127, so a weight is off by at most s / 2.
"""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.steps.linear import onednn, works


def pack(weight: Tensor) -> Tensor:
    """A copy (out, in) in the layout that ``onednn`` reads faster; later changes of ``weight`` do not reach it."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 1)
    return packed


@cache
def packs() -> bool:
    """Whether torch can multiply by packed matrices on this machine."""
    return works(lambda x, weight, bias: onednn(x, pack(weight), bias), torch.bfloat16, 0.1)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The whole numbers (out, in) in int8, and the scales (out,) in float32, such that weight ≈ numbers · scale.

    Scales are first rounded up to bfloat16, so that they are exact in either precision.
    """
    largest = weight.detach().float().abs().amax(dim=1)
    scale = (largest / 127).clamp_min(torch.finfo(torch.float32).tiny)
    rounded = scale.bfloat16()
    scale_up = torch.where(
        rounded.float() < scale, torch.nextafter(rounded, torch.full_like(rounded, torch.inf)), rounded
    ).float()
    return (weight.detach().float() / scale_up[:, None]).round_().to(torch.int8), scale_up


_INT8_MULTIPLE = 16
"""torch's operator reads rows in pieces of 16 numbers, past the end of a row whose length is not a multiple of it."""


@dataclass(frozen=True, slots=True)
class Int8Product:
    """x (B, in) -> (B, out) with a matrix in int8; ``compiled`` leaves float32 arithmetic to torch's compiler."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None
    compiled: bool

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, *, compiled: bool) -> "Int8Product":
        """The product with a floating-point matrix (out, in), which this quantises."""
        numbers, scale = quantize(weight)
        if not compiled:
            numbers = F.pad(numbers, (0, -numbers.shape[1] % _INT8_MULTIPLE))
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
    """Whether torch can multiply by int8 weights on this machine."""
    return works(lambda x, weight, bias: Int8Product.of(weight, bias, compiled=False)(x), torch.float32, 0.2)
