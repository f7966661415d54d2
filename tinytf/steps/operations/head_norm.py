"""Norms of heads with a gain for every head: each head by itself, or groups of the heads of a token at once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.one_token import Kernels
from tinytf.steps.operations.norm import Norm, gain_of, gained, layer_norm_gradient, rms_norm_gradient
from tinytf.steps.operations.operation import (
    Consumer,
    Pass,
    Quantity,
    into_heads,
    of_query_heads,
    side_by_side,
    summed,
    width_of,
)
from tinytf.steps.operations.protocols import Cell, Site


class GroupedNorm(nn.Module):
    """A norm of each ``width`` numbers of a row by themselves, (…, N·W) -> (…, N·W).

    Its ``total`` gains are one for each number of a row, or for each number of a part.
    """

    def __init__(self, width: int, total: int, operation: Norm) -> None:
        super().__init__()
        self.width, self.eps = width, operation.eps
        self.norm = F.layer_norm if operation.centred else F.rms_norm
        self.weight = nn.Parameter(torch.empty(total)) if "gain" in operation.learned else None
        self.bias = nn.Parameter(torch.empty(total)) if "bias" in operation.learned else None

    def forward(self, x: Tensor) -> Tensor:
        groups = x.unflatten(-1, (-1, self.width))  # (…, N·W) -> (…, N, W)
        normed = self.norm(groups, (self.width,), eps=self.eps)
        gained = normed if self.weight is None else normed * self.weight.view(-1, self.width)
        return (gained if self.bias is None else gained + self.bias.view(-1, self.width)).flatten(-2)


@dataclass(frozen=True)
class HeadNorm(Norm):
    """A norm with a gain (H·D,): of each head by itself (Dehghani et al. 2023), or of N ``groups`` of heads.

    One group is a norm over all heads; 0 makes each head a group. A group has W = H·D / N numbers.
    """

    groups: int

    side_by_side = True
    mixes_heads = True

    def _axis(self, step: Step) -> str:
        return f"{'n_kv_heads' if 'kv head' in step.axes else 'n_heads'}·{step.axes[-1]}"

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        if self.groups == 1:
            return super().make_module(config, step)
        total, width = config.sizes[self._axis(step)], config.sizes[step.axes[-1]]
        return GroupedNorm(total // self.groups if self.groups else width, total, self)

    def arguments(self, now: Pass, *inputs: Tensor) -> tuple[Any, ...]:
        return (side_by_side(inputs[0]),)

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        return kernels.pointwise(lambda x: module(x.flatten(-2)).view(x.shape))

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        output = into_heads(site.module(side_by_side(site.input())), width_of(site))
        return of_query_heads(output, site, heads)

    def held(self, x: Tensor, of: Tensor, module: Any) -> Tensor:
        apart = (side_by_side(t).unflatten(-1, (self.groups or t.shape[-3], -1)) for t in (x, of))  # (…, T, N, W)
        return into_heads(gained(self._scaled(*apart).flatten(-2), module), x.shape[-1])

    def _grouped(self, x: Tensor) -> Tensor:
        """The numbers that are normed together: (H, T, D) -> (N, T, W)."""
        return x.unflatten(0, (self.groups or len(x), -1)).transpose(1, 2).flatten(2)

    def _ungrouped(self, x: Tensor, width: int) -> Tensor:
        """Heads ``width`` wide from the numbers that are normed together: (N, T, W) -> (H, T, D)."""
        return x.unflatten(2, (-1, width)).transpose(1, 2).flatten(0, 1)

    def _place(self, head: int, width: int, together: int) -> tuple[int, int]:
        """The group of a head ``width`` wide, and its first number among the ``together`` of that group."""
        return divmod(head * width, together)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        gradient = layer_norm_gradient if self.centred else rms_norm_gradient
        gain, x = gain_of(site.module), self._grouped(site.input())
        by_group = gain.view(len(x), 1, -1) if gain.dim() else gain  # (H·D,) -> (N, 1, W)
        return (self._ungrouped(gradient(self._grouped(g), x, by_group, self.eps), g.shape[-1]),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        if "gain" in self.learned:
            normed, _ = self.normed(self._grouped(site.input()))
            yield f"{site.path}.weight", summed(side_by_side(self._grouped(g) * normed)).to(g.dtype)
        if "bias" in self.learned:
            yield f"{site.path}.bias", summed(side_by_side(g))

    def code(self, site: Site) -> str:
        norm, x, d_head = "layer_norm" if self.centred else "rms_norm", site.names[0], width_of(site)
        groups = self.groups or len(site.value)
        width = len(site.value) * d_head // groups
        parameters = (f"{name}.view(-1, 1, {width})" for name in self.operands(site))
        learned = "".join(f" {sign} {name}" for sign, name in zip("*+", parameters, strict=False))
        if width == d_head:
            return f"{site.variable} = F.{norm}({x}, ({d_head},), eps={self.eps}){learned}"
        together = f"{x}.unflatten(0, ({groups}, -1)).transpose(1, 2).flatten(2)"
        normed = f"normed = F.{norm}({together}, ({width},), eps={self.eps}){learned}"
        return f"{normed}\n{site.variable} = normed.unflatten(2, (-1, {d_head})).transpose(1, 2).flatten(0, 1)"

    def _row(self, source: Cell) -> tuple[Tensor, int]:
        config, (token, width) = source.site.config, source.index
        head = (source.head or 0) // (config.heads_per_kv if "kv head" in source.step.axes else 1)
        grouped, d_head = self._grouped(source.site.value), width_of(source.site)
        group, _ = self._place(head, d_head, grouped.shape[-1])
        return grouped[group, token].cpu().double(), head * d_head + width

    def _vectors(self, to: Consumer) -> tuple[Quantity, Quantity, Tensor, slice]:
        g, x, gain, _ = super()._vectors(to)
        grouped_g, grouped_x = (self._grouped(tensor) for tensor in (to.g, to.site.input()))
        width = grouped_g.shape[-1]
        group, first = self._place(to.head_of(to.site.step), len(g.values), width)
        rows = (
            Quantity(name, tensor[group, to.row.place]) for name, tensor in ((g.name, grouped_g), (x.name, grouped_x))
        )
        return (
            next(rows),
            next(rows),
            gain.unflatten(0, (-1, width))[group] if gain.dim() else gain,
            slice(first, first + len(g.values)),
        )
