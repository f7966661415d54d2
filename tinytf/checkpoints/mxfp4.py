"""Weights in MXFP4 as gpt-oss stores them: numbers of four bits, of which each 32 share one power of two.

A tensor NAME (…, in, out) lies in two of bytes: NAME_blocks (…, out, in / 32, 16), the first of two numbers in the low
half of a byte, and NAME_scales (…, out, in / 32), the exponents plus 127. (OCP Microscaling Formats 1.0, 2023.)
"""

from collections.abc import Container, Iterator

import numpy as np
import torch
from torch import Tensor

from tinytf.checkpoints.load import Shapes, WeightFiles
from tinytf.errors import CheckpointError

_BLOCKS, _SCALES = "_blocks", "_scales"
_HALVES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
_OF_NIBBLE = np.concatenate((_HALVES, -_HALVES))  # the fourth bit is the sign
_OF_BYTE = np.stack([_OF_NIBBLE[np.arange(256) & 15], _OF_NIBBLE[np.arange(256) >> 4]], axis=-1)  # (256, 2)
_PIECE = 2**17
"""How many bytes of blocks are opened at a time."""


class Mxfp4Weights:
    """Weight files with some tensors in MXFP4, which are seen under their plain names, and opened in pieces.

    Raises CheckpointError for blocks without scales, or of another shape.
    """

    def __init__(self, files: WeightFiles) -> None:
        self._files = files
        self._packed = {
            name.removesuffix(_BLOCKS): shape for name, shape in files.shapes.items() if name.endswith(_BLOCKS)
        }
        self.shapes: Shapes = {}
        for name, shape in files.shapes.items():
            whole = name.removesuffix(_BLOCKS).removesuffix(_SCALES)
            self.shapes[whole if whole in self._packed else name] = shape
        for name, shape in self._packed.items():
            scales = files.shapes.get(name + _SCALES)
            if scales != shape[:-1] or shape[-1] != 16 or len(shape) < 3:
                said = "are missing" if scales is None else f"have shape {scales}"
                raise CheckpointError(f"{name}{_BLOCKS} has shape {shape}, and its scales {said}")
            *lead, rows, groups, _ = shape
            self.shapes[name] = (*lead, 32 * groups, rows)

    def stored(self, name: str) -> Tensor:
        return self._opened(name, torch.float32) if name in self._packed else self._files.stored(name)

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._files.tensors(dtype, pieces):
            whole = name.removesuffix(_BLOCKS).removesuffix(_SCALES)
            if whole not in self._packed:
                yield name, tensor
            elif name.endswith(_BLOCKS):
                yield whole, self._opened(whole, dtype)

    def _opened(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor (…, in, out): a transposed view of what is opened, (…, out, in)."""
        blocks, scales = (self._files.stored(name + ending) for ending in (_BLOCKS, _SCALES))
        for one, ending in ((blocks, _BLOCKS), (scales, _SCALES)):
            if one.dtype != torch.uint8:
                raise CheckpointError(f"{name}{ending} holds {one.dtype}, and MXFP4 is stored in bytes")
        *lead, rows, groups, _ = blocks.shape
        result = torch.empty(*lead, rows, 32 * groups, dtype=dtype)
        count = max(1, _PIECE // 16)
        pieces = (one.split(count) for one in (blocks.view(-1, 16), scales.view(-1), result.view(-1, 32)))
        for packed, exponents, piece in zip(*pieces, strict=True):
            numbers = _OF_BYTE[packed.numpy()].reshape(-1, 32)  # (n, 16, 2) -> (n, 32)
            piece.copy_(torch.from_numpy(np.ldexp(numbers, exponents.numpy().astype(np.int32)[:, None] - 127)))
        return result.transpose(-2, -1)
