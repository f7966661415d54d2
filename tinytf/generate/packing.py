"""Matrices in oneDNN's own layout, which it reads faster where numbers are short."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


@cache
def packs() -> bool:
    """Whether torch has the private operators that this takes, and they do what F.linear does."""
    try:
        weight = torch.arange(64.0 * 32).view(64, 32).sin().bfloat16()
        x, bias = torch.arange(32.0).cos().bfloat16()[None], torch.ones(64, dtype=torch.bfloat16)
        with torch.inference_mode():
            found = by_packed(x, pack(weight), bias)
        return torch.allclose(found.float(), F.linear(x.float(), weight.float(), bias.float()), atol=0.1, rtol=0.02)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False


def pack(weight: Tensor) -> Tensor:
    """A copy (out, in) in the packed layout. It is of this moment: what changes in ``weight`` later is not in it."""
    laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 1)
    return laid_out


def by_packed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x·Wᵀ + b with a packed matrix."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return product
