"""One step in both runs: how far its numbers are apart.

A token of a large model may hold numbers a thousand times those of the others (the first one, often, which attention
rests on). So each token is measured by its own largest number, in both runs; of a map each query by its row's.
Shapes: T tokens or queries, N all that a step has of one.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinytf.steps.table import Step


@dataclass(frozen=True)
class Compared:
    """One step in both runs.

    ``largest`` is the largest difference of two cells, at the cell ``at``, where the numbers are ``values``.
    ``relative`` is the largest difference within a token in units of the largest magnitude there, and ``token`` the
    one where it is the largest (None of a step without tokens); infinite where a number is not finite. ``cosine`` is
    that of a token's numbers, the mean over the tokens. ``kl`` is KL(first ‖ second) in nats, the mean over the
    positions, of logits and probabilities alone.
    """

    name: str
    step: Step
    layer: int | None
    shape: tuple[int, ...]
    largest: float
    relative: float
    token: int | None
    cosine: float
    at: tuple[int, ...]
    values: tuple[float, float]
    kl: float | None = None

    @property
    def head(self) -> int | None:
        """The head with the largest difference, where the step has heads."""
        return self.at[0] if self.step.has_heads else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "layer": self.layer,
            "shape": list(self.shape),
            "largest": self.largest,
            "relative": self.relative,
            "token": self.token,
            "cosine": self.cosine,
            "at": list(self.at),
            "values": list(self.values),
            "head": self.head,
            "kl": self.kl,
        }


class Sums:
    """What is known of a step that comes in parts along its first axis, tokens or heads."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.axis = next((i for i, axis in enumerate(step.axes) if axis in ("token", "query")), None)
        self.largest = -1.0
        self.at: tuple[int, ...] = ()
        self.values = (math.nan, math.nan)
        self.shape: tuple[int, ...] = ()
        self.parts: list[Tensor] = []

    def add(self, first: Tensor, second: Tensor, start: int) -> None:
        """Another part, whose first row is row ``start`` of the whole."""
        kind = torch.promote_types(first.dtype, second.dtype)
        kind = torch.promote_types(kind, torch.float32)
        a, b = first.to(kind), second.to(first.device, kind)
        apart = (a - b).abs()
        finite = bool(apart.max().isfinite())
        if not finite:
            apart = torch.where(a == b, 0.0, apart).nan_to_num(nan=math.inf, posinf=math.inf)  # equal where both are −∞
        flat = int(apart.argmax())
        if float(apart.flatten()[flat]) > self.largest:
            self.largest = float(apart.flatten()[flat])
            # torch.unravel_index would import sympy, which takes seconds.
            place = [int(i) for i in np.unravel_index(flat, a.shape)]
            self.at = (place[0] + start, *place[1:])
            self.values = float(a.flatten()[flat]), float(b.flatten()[flat])
        if not finite:
            seen = a.isfinite() & b.isfinite()
            a, b = torch.where(seen, a, 0.0), torch.where(seen, b, 0.0)
        self.parts.append(self._of_tokens(a, b, apart))
        self.shape = (start + first.shape[0], *first.shape[1:])

    def compared(self, name: str, layer: int | None, kl: float | None = None) -> Compared:
        largest, scale, dot, one, other = self._joined()
        relative = torch.where(largest == 0, 0.0, (largest / scale).nan_to_num(nan=math.inf, posinf=math.inf))
        size = (one * other).sqrt()
        cosine = torch.where(largest == 0, 1.0, torch.where(size == 0, 0.0, dot / size).clamp(-1.0, 1.0))
        worst = int(relative.argmax())
        return Compared(
            name,
            self.step,
            layer,
            self.shape,
            self.largest,
            float(relative[worst]),
            None if self.axis is None else worst,
            float(cosine.mean()),
            self.at,
            self.values,
            kl,
        )

    def _of_tokens(self, a: Tensor, b: Tensor, apart: Tensor) -> Tensor:
        """Of each token (5, T): largest difference, largest magnitude, a·b, a·a and b·b."""
        a, b, apart = (self._rows(one) for one in (a, b, apart))  # (T, N)
        scale = torch.maximum(*((one.amax(dim=-1).maximum(-one.amin(dim=-1))) for one in (a, b)))
        a, b = a.double(), b.double()
        dots = (torch.linalg.vecdot(*pair) for pair in ((a, b), (a, a), (b, b)))
        return torch.stack((apart.amax(dim=-1).double(), scale.double(), *dots)).cpu()

    def _rows(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(1, -1) if self.axis is None else tensor.movedim(self.axis, 0).flatten(1)

    def _joined(self) -> Tensor:
        """The parts as one: side by side where they are of other tokens, else of other heads of the same ones."""
        if self.axis == 0:
            return torch.cat(self.parts, dim=1)
        parts = torch.stack(self.parts)  # (parts, 5, T)
        return torch.cat((parts[:, :2].amax(dim=0), parts[:, 2:].sum(dim=0)))
