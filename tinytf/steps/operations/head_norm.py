"""Norms of queries and keys with a gain for every head: each head by itself, or all heads of a token at once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.norm import (
    ROW,
    Axes,
    Norm,
    gain_of,
    layer_norm_gradient,
    layer_normed,
    rms_norm_gradient,
    rms_normed,
)
from tinytf.steps.operations.operation import (
    Consumer,
    Pass,
    Quantity,
    into_heads,
    of_query_heads,
    side_by_side,
    summed,
)
from tinytf.steps.operations.protocols import Cell, Kernels, Site

_HEADS_OF_A_TOKEN: Axes = (-3, -1)  # of (H, T, D)


class HeadwiseNorm(nn.Module):
    """A norm of each head by itself, with its own gain: (…, H·D) -> (…, H·D)."""

    def __init__(self, d_head: int, width: int, operation: "HeadNorm") -> None:
        super().__init__()
        self.d_head, self.eps = d_head, operation.eps
        self.norm = F.layer_norm if operation.centred else F.rms_norm
        self.weight = nn.Parameter(torch.empty(width)) if "gain" in operation.learned else None
        self.bias = nn.Parameter(torch.empty(width)) if "bias" in operation.learned else None

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, self.d_head))  # (…, H·D) -> (…, H, D)
        normed = self.norm(heads, (self.d_head,), eps=self.eps).flatten(-2)
        gained = normed if self.weight is None else normed * self.weight
        return gained if self.bias is None else gained + self.bias


@dataclass(frozen=True)
class HeadNorm(Norm):
    """A norm with a gain (H·D,): of each head by itself (Dehghani et al. 2023), or over all heads (``joint``)."""

    joint: bool

    side_by_side = True

    @property
    def _axes(self) -> Axes:
        return _HEADS_OF_A_TOKEN if self.joint else ROW

    def _axis(self, step: Step) -> str:
        return f"{'n_kv_heads' if 'kv head' in step.axes else 'n_heads'}·{step.axes[-1]}"

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        if self.joint:
            return super().make_module(config, step)
        return HeadwiseNorm(config.d_head, config.sizes[self._axis(step)], self)

    def arguments(self, now: Pass, *inputs: Tensor) -> tuple[Any, ...]:
        return (side_by_side(inputs[0]),)

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        return kernels.pointwise(lambda x: module(x.flatten(-2)).view(x.shape))

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        output = into_heads(site.module(side_by_side(site.input())), site.config.d_head)
        return of_query_heads(output, site, heads)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        gradient = layer_norm_gradient if self.centred else rms_norm_gradient
        gain = gain_of(site.module)
        by_head = gain.view(len(g), 1, -1) if gain.dim() else gain  # (H·D,) -> (H, 1, D)
        return (gradient(g, site.input(), by_head, self.eps, self._axes),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        normed, _ = (layer_normed if self.centred else rms_normed)(site.input(), self.eps, self._axes)
        if "gain" in self.learned:
            yield f"{site.path}.weight", summed(side_by_side(g * normed)).to(g.dtype)
        if "bias" in self.learned:
            yield f"{site.path}.bias", summed(side_by_side(g))

    def code(self, site: Site) -> str:
        norm, x, d_head = "layer_norm" if self.centred else "rms_norm", site.names[0], site.config.d_head
        if self.joint:
            arguments = ", ".join([f"({len(site.value) * d_head},)", *self.operands(site)])
            normed = f"F.{norm}({x}.transpose(0, 1).flatten(1), {arguments}, eps={self.eps})"
            return f"{site.variable} = {normed}.unflatten(-1, (-1, {d_head})).transpose(0, 1)"
        parameters = (f"{name}.view(-1, 1, {d_head})" for name in self.operands(site))
        learned = "".join(f" {sign} {name}" for sign, name in zip("*+", parameters, strict=False))
        return f"{site.variable} = F.{norm}({x}, ({d_head},), eps={self.eps}){learned}"

    def _row(self, source: Cell) -> tuple[Tensor, int]:
        config, (token, width) = source.site.config, source.index
        shared = config.heads_per_kv if "kv head" in source.step.axes else 1
        column = (source.head or 0) // shared * config.d_head + width
        row = source.site.value[:, token].flatten().cpu().double() if self.joint else source.row()  # (H·D,) or (D,)
        return row, column

    def _vectors(self, to: Consumer) -> tuple[Quantity, Quantity, Tensor, slice]:
        g, x, gain, _ = super()._vectors(to)
        head = to.head_of(to.site.step)
        columns = slice(head * len(g.values), (head + 1) * len(g.values))
        if not self.joint:
            return g, x, gain[columns] if gain.dim() else gain, slice(None)
        rows = (tensor[:, to.row.place].flatten() for tensor in (to.g, to.site.input()))  # (H, T, D) -> (H·D,)
        return Quantity(g.name, next(rows)), Quantity(x.name, next(rows)), gain, columns
