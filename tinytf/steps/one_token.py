"""Kernels for one token, on torch tensors or numpy arrays: norms, products, rotation, attention.

A product with one vector is bound by reading the matrix. numpy's BLAS reads it up to twice as fast as torch's, and a
numpy call takes a fraction of the time of a torch call. So numpy computes a single text in float32 on the processor,
and torch everything else.

Shapes: B batch, H query heads, G key-value heads, K keys, D head width; numpy's have no batch axis.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tinytf.steps.linear import linear, onednn, works

Vector: TypeAlias = NDArray[np.float32]
Array: TypeAlias = Any
"""A tensor or an array, whichever the kernels take; slices, sums and products work on both."""
Map: TypeAlias = Callable[..., Array]
Stored: TypeAlias = tuple[Tensor, Tensor]
"""Keys and values of one layer, (B, G, T_max, D) each; the first tokens of T_max are in use."""


def pack(weight: Tensor) -> Tensor:
    """A copy (out, in) in the layout that ``onednn`` reads faster; later changes of ``weight`` do not reach it."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 1)
    return packed


@cache
def packs() -> bool:
    """Whether torch can multiply by packed matrices on this machine."""
    return works(lambda x, weight, bias: onednn(x, pack(weight), bias), torch.bfloat16, 0.1)


# Matrices in int8 need a quarter of the memory reads of float32, with one scale per output channel: each row w becomes
# round(w / s) with s = max|w| / 127, so a weight is off by at most s / 2.


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


def _detached(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.detach()


@dataclass(frozen=True, slots=True)
class _TorchRotation:
    cosine: Tensor
    signed_sine: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addcmul(x * self.cosine, x.roll(x.shape[-1] // 2, -1), self.signed_sine)


@dataclass(frozen=True, slots=True)
class _Span:
    """The visible span of a new token: ``at`` holds its position, (1,); ``past`` is one longer than all keys with it.

    A compiler treats the length of a tensor as dynamic, but compiles again for every value of a number. So the visible
    keys begin at the number ``first``, or for a compiler at the position in the tensor ``since``, (1,).
    """

    at: Tensor
    past: Tensor
    first: int
    since: Tensor | None


class Kernels:
    """Kernels of torch, for any device, any dtype and any number of texts.

    ``compiled`` says that torch's compiler will compile them.
    """

    def __init__(self, *, compiled: bool = False) -> None:
        self.compiled = compiled
        self._positions = torch.arange(0)

    def from_torch(self, x: Tensor) -> Array:
        """The embeddings (B, C) in the form that the other kernels take."""
        return x

    def to_torch(self, x: Array) -> Tensor:
        """Logits (B, V) as a tensor."""
        return x

    def to_module(self, x: Array) -> Tensor:
        """The input of a module: (…, C) -> (B, 1, C), (…, H, D) -> (B, H, 1, D)."""
        batched: Tensor = x.unsqueeze(-2)
        return batched

    def from_module(self, x: Tensor) -> Array:
        """The output of a module, the inverse of ``to_module``: (B, 1, C) -> (…, C), (B, H, 1, D) -> (…, H, D)."""
        return x.squeeze(-2)

    def norm(self, module: nn.Module) -> Map:
        """LayerNorm or RMSNorm over the last axis."""
        assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
        shape, weight = module.normalized_shape, _detached(module.weight)
        if isinstance(module, nn.RMSNorm):
            return partial(F.rms_norm, normalized_shape=shape, weight=weight, eps=module.eps)
        bias = _detached(module.bias)
        return partial(F.layer_norm, normalized_shape=shape, weight=weight, bias=bias, eps=module.eps)

    def copies(self, weight: Tensor) -> bool:
        """Whether ``product`` keeps a copy of its matrix, in a layout of its own."""
        return weight.is_cpu and weight.dtype is torch.bfloat16 and packs()

    def product(self, weight: Tensor, bias: Tensor | None, *, exact: bool = False) -> Map:
        """x·Wᵀ + b with a matrix (out, in); ``exact`` forbids results less precise than the dtype of x."""
        if self.copies(weight):
            return partial(onednn, weight=pack(weight), bias=bias)
        return partial(linear, weight=weight, bias=bias)

    def pointwise(self, function: Callable[..., Tensor]) -> Map:
        """A torch function as a kernel."""
        return function

    def rotation(self, cosine: Tensor, sine: Tensor) -> Map:
        """RoPE: rotates heads (…, D) by the angles of one position, given by cosines and sines (D,)."""
        half = len(sine) // 2
        return _TorchRotation(cosine, torch.cat((-sine[:half], sine[half:])))

    def concatenate(self, *parts: Array) -> Array:
        """Concatenate along the last axis."""
        return torch.cat(parts, dim=-1)

    def span_from(self, first: int, at: int, device: torch.device) -> Any:
        """The span from the ``first`` visible key to the new token's position ``at``, in the form for ``attend``."""
        if len(self._positions) < at + 2:
            self._positions = torch.arange(2 * (at + 2), device=device)
        past = self._positions[: at + 2]
        if not self.compiled:
            return _Span(past[at : at + 1], past, first, None)
        torch._dynamo.maybe_mark_dynamic(past, 0)
        return _Span(past[at : at + 1], past, 0, past[first : first + 1] if first else None)

    def attend(self, q: Array, k: Array, v: Array, stored: Stored, span: Any, scale: float) -> Array:
        """Store k and v (…, G, D) at the new position, and return the weighted values for q (…, H, D), (…, H, D)."""
        keys, values = stored
        keys.index_copy_(2, span.at, k[:, :, None])
        values.index_copy_(2, span.at, v[:, :, None])
        seen = slice(span.first, len(span.past) - 1)
        # The query heads of a group become several queries of one key-value head, which need not be repeated.
        grouped = q.unflatten(1, (keys.shape[1], -1))  # (B, G, H/G, D)
        mask = None if span.since is None else span.past[None, :-1] >= span.since
        outputs = F.scaled_dot_product_attention(grouped, keys[:, :, seen], values[:, :, seen], mask, scale=scale)
        return outputs.flatten(1, 2)


class Int8Kernels(Kernels):
    """Kernels of torch with matrices in int8.

    Without a compiler products are in bfloat16, too coarse for logits, so the head (``exact``) is not quantised then.
    """

    def product(self, weight: Tensor, bias: Tensor | None, *, exact: bool = False) -> Map:
        if exact and not self.compiled:
            return super().product(weight, bias)
        return Int8Product.of(weight, bias, compiled=self.compiled)


class CompiledKernels(Kernels):
    """Kernels for torch's compiler, which compiles a product with one vector to a loop."""

    def product(self, weight: Tensor, bias: Tensor | None, *, exact: bool = False) -> Map:
        return partial(_summed, weight=weight, bias=bias)


def _summed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if len(x) > 1:
        return F.linear(x, weight, bias)
    # The loop takes two rows together and reads each number of x once for both: an eighth faster than row by row.
    product = torch.cat([(half * x).sum(-1) for half in weight.chunk(2)])[None]
    return product if bias is None else product + bias


@dataclass(frozen=True, slots=True)
class _NumpyNorm:
    weight: Vector
    bias: Vector | None
    eps: float

    def __call__(self, x: Vector) -> Vector:
        if x.ndim > 1:  # a norm of every head by itself
            return np.stack([self(head) for head in x])
        if self.bias is None:
            return x * (1 / math.sqrt(float(x @ x) / len(x) + self.eps)) * self.weight
        x = x - x.sum() / len(x)
        return x * (1 / math.sqrt(float(x @ x) / len(x) + self.eps)) * self.weight + self.bias


class NumpyKernels(Kernels):
    """Kernels of numpy for one text in float32 on the processor; arrays share memory with model and cache."""

    def from_torch(self, x: Tensor) -> Array:
        return x[0].numpy()

    def to_torch(self, x: Array) -> Tensor:
        return torch.from_numpy(x)[None]

    def to_module(self, x: Array) -> Tensor:
        return torch.from_numpy(x).unsqueeze(-2)[None]

    def from_module(self, x: Tensor) -> Array:
        return x.squeeze(-2)[0].numpy()

    def norm(self, module: nn.Module) -> Map:
        assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
        assert module.eps is not None
        width = module.normalized_shape
        gain = np.ones(width, np.float32) if module.weight is None else module.weight.detach().numpy()
        if isinstance(module, nn.RMSNorm):
            return _NumpyNorm(gain, None, module.eps)
        bias = np.zeros(width, np.float32) if module.bias is None else module.bias.detach().numpy()
        return _NumpyNorm(gain, bias, module.eps)

    def product(self, weight: Tensor, bias: Tensor | None, *, exact: bool = False) -> Map:
        matrix: Vector = weight.detach().numpy()
        if bias is None:
            return lambda x: matrix @ x
        offset: Vector = bias.detach().numpy()
        return lambda x: matrix @ x + offset

    def pointwise(self, function: Callable[..., Tensor]) -> Map:
        return lambda *parts: function(*map(torch.from_numpy, parts)).numpy()

    def rotation(self, cosine: Tensor, sine: Tensor) -> Map:
        half = len(sine) // 2
        cosines, sines = cosine.numpy(), sine.numpy()[:half]

        def turn(x: Vector) -> Vector:
            rotated = x * cosines  # (heads, D)
            rotated[:, :half] -= x[:, half:] * sines
            rotated[:, half:] += x[:, :half] * sines
            return rotated

        return turn

    def concatenate(self, *parts: Array) -> Array:
        return np.concatenate(parts, axis=-1)

    def span_from(self, first: int, at: int, device: torch.device) -> Any:
        return first, at

    def attend(self, q: Array, k: Array, v: Array, stored: Stored, span: Any, scale: float) -> Array:
        first, at = span
        keys, values = stored[0].numpy()[0], stored[1].numpy()[0]  # (G, T_max, D)
        keys[:, at] = k
        values[:, at] = v
        keys, values = keys[:, first : at + 1], values[:, first : at + 1]  # (G, K, D)
        groups, width = k.shape
        scores = q.reshape(groups, -1, width) @ keys.transpose(0, 2, 1)  # (G, H/G, K)
        scores *= np.float32(scale)
        scores -= scores.max(-1, keepdims=True)
        weights = np.exp(scores, out=scores)
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ values).reshape(len(q), -1)
