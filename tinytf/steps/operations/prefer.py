"""The numbers that experts are chosen by, where these are not their weights: a score plus a load-balancing bias.

Training sets the bias without a gradient, so it is a buffer, not a parameter (DeepSeek-V3, 2024, section 2.1.2).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Operation, Pass, StepModule
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.route import SCORE_CODE, SYMBOLS, score_of
from tinytf.steps.operations.working import Value, Working


@dataclass(frozen=True)
class Prefer(Operation):
    """The ``score`` of every expert, as in ``Route``, plus its bias; the last, as many as ``always``, have none."""

    score: str
    always: int = 0

    words = "a sum"
    deciding = (0,)

    def forward(self, *inputs: Tensor) -> Tensor:
        router, bias = inputs
        router = router.detach()
        return score_of(self.score, router) + F.pad(bias, (0, self.always)).to(router.dtype)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.forward(site.input(), site.module.weight)

    def operands(self, site: Site) -> dict[str, Tensor]:
        return {"balance": site.module.weight}

    def code(self, site: Site) -> str:
        (router,) = site.names
        balance = f"F.pad(balance, (0, {self.always}))" if self.always else "balance"
        return f"{site.variable} = {SCORE_CODE[self.score].format(router)} + {balance}"

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        module = StepModule(self)
        module.register_buffer("weight", torch.zeros(config.experts - self.always))
        return module

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        score, name = float(score_of(self.score, source.row())[cell.index[1]]), SYMBOLS[self.score]
        biases = cell.site.module.weight
        bias = float(biases[cell.index[1]]) if cell.index[1] < len(biases) else 0.0
        before = (Value("x", source.value, source.step.name), Value(name, score), Value("bias", bias))
        return Working(
            ((source, 2),), before=before, after=(Value("preference", score + bias, f"{name} + bias"),), leads=(source,)
        )
