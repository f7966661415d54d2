"""Weights in MXFP4 as gpt-oss stores them: four-bit numbers in blocks of 32, each block with one power of two.

A tensor NAME (…, in, out) is stored as two tensors of bytes: NAME_blocks (…, out, in / 32, 16), two numbers a byte, the
first in the low half, and NAME_scales (…, out, in / 32), the exponents plus 127. (OCP Microscaling Formats 1.0, 2023.)
"""

import math
from collections.abc import Container, Iterator

import numpy as np
import torch
from torch import Tensor

from tinytf.checkpoints.load import Shapes, WeightFiles
from tinytf.errors import CheckpointError

_BLOCKS, _SCALES = "_blocks", "_scales"
_MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
NIBBLE_VALUES = np.concatenate((_MAGNITUDES, -_MAGNITUDES))
"""What a number of four bits means, (16,): the highest is its sign."""
_BYTE_VALUES = np.stack([NIBBLE_VALUES[np.arange(256) & 15], NIBBLE_VALUES[np.arange(256) >> 4]], axis=-1)  # (256, 2)
_PIECE = 2**17
"""The number of bytes of blocks that are dequantised at a time."""


class Mxfp4Weights:
    """Weight files with some tensors in MXFP4, which appear under their plain names and are dequantised in pieces.

    Raises CheckpointError for blocks without scales, and for scales of another shape.
    """

    def __init__(self, files: WeightFiles) -> None:
        self._files = files
        self._packed = {
            name.removesuffix(_BLOCKS): shape for name, shape in files.shapes.items() if name.endswith(_BLOCKS)
        }
        self.shapes: Shapes = {}
        for name, shape in files.shapes.items():
            base = name.removesuffix(_BLOCKS).removesuffix(_SCALES)
            self.shapes[base if base in self._packed else name] = shape
        for name, shape in self._packed.items():
            scales = files.shapes.get(name + _SCALES)
            if scales != shape[:-1] or shape[-1] != 16 or len(shape) < 3:
                fault = "are missing" if scales is None else f"have shape {scales}"
                raise CheckpointError(f"{name}{_BLOCKS} has shape {shape}, and its scales {fault}")
            *lead, rows, groups, _ = shape
            self.shapes[name] = (*lead, 32 * groups, rows)

    def stored(self, name: str) -> Tensor:
        return self._dequantise(name, torch.float32) if name in self._packed else self._files.stored(name)

    def takes(self, dtype: torch.dtype) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values()) * dtype.itemsize

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._files.tensors(dtype, pieces):
            base = name.removesuffix(_BLOCKS).removesuffix(_SCALES)
            if base not in self._packed:
                yield name, tensor
            elif name.endswith(_BLOCKS):
                yield base, self._dequantise(base, dtype)

    def _dequantise(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor (…, in, out): a transposed view of the dequantised (…, out, in)."""
        blocks, scales = (self._files.stored(name + ending) for ending in (_BLOCKS, _SCALES))
        for tensor, ending in ((blocks, _BLOCKS), (scales, _SCALES)):
            if tensor.dtype != torch.uint8:
                raise CheckpointError(f"{name}{ending} holds {tensor.dtype}, but MXFP4 is stored in bytes")
        *lead, rows, groups, _ = blocks.shape
        result = torch.empty(*lead, rows, 32 * groups, dtype=dtype)
        n_blocks = max(1, _PIECE // 16)
        pieces = (tensor.split(n_blocks) for tensor in (blocks.view(-1, 16), scales.view(-1), result.view(-1, 32)))
        for packed, exponents, target in zip(*pieces, strict=True):
            numbers = _BYTE_VALUES[packed.numpy()].reshape(-1, 32)  # (n, 16, 2) -> (n, 32)
            target.copy_(torch.from_numpy(np.ldexp(numbers, exponents.numpy().astype(np.int32)[:, None] - 127)))
        return result.transpose(-2, -1)
