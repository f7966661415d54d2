"""The norm of differential attention: of what a pair of heads gives (Ye et al. 2024, equation 3)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.one_token import Kernels
from tinytf.steps.operations.head_norm import HeadNorm
from tinytf.steps.operations.operation import Operation, Parameter, Pass, width_of
from tinytf.steps.operations.protocols import Site


@dataclass(frozen=True)
class PairNorm(HeadNorm):
    """RMSNorm without a gain of heads h and h + H/2 together; there are H/2 ``groups``."""

    side_by_side = False

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return ()

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        return Operation.make_module(self, config, step)

    def arguments(self, now: Pass, *inputs: Tensor) -> tuple[Any, ...]:
        return inputs

    def forward(self, *inputs: Tensor) -> Tensor:
        pairs = self._grouped(inputs[0])
        return self._ungrouped(F.rms_norm(pairs, pairs.shape[-1:], eps=self.eps), inputs[0].shape[-1])

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        return kernels.pointwise(lambda x: self.forward(x.unsqueeze(-2)).squeeze(-2))

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        normed = self.forward(site.input())
        return normed if heads is None else normed[list(heads)]

    def _grouped(self, x: Tensor) -> Tensor:
        """(…, H, T, D) -> (…, H/2, T, 2·D)."""
        return x.unflatten(-3, (2, -1)).movedim(-4, -2).flatten(-2)

    def _ungrouped(self, x: Tensor, width: int) -> Tensor:
        return x.unflatten(-1, (2, width)).movedim(-2, -4).flatten(-4, -3)

    def _place(self, head: int, width: int, together: int) -> tuple[int, int]:
        second, group = divmod(head, self.groups)
        return group, second * width

    def code(self, site: Site) -> str:
        pairs = f"pairs = {site.names[0]}.unflatten(0, (2, -1)).permute(1, 2, 0, 3).flatten(2)"
        normed = f"normed = F.rms_norm(pairs, ({2 * width_of(site)},), eps={self.eps})"
        return f"{pairs}\n{normed}\n{site.variable} = normed.unflatten(2, (2, -1)).permute(2, 0, 1, 3).flatten(0, 1)"
