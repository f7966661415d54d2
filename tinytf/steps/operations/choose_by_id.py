"""The choice of experts by the id of a token, from a table that training leaves as it is (DeepSeek-V4, 2026)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Operation, Pass, StepModule
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


@dataclass(frozen=True)
class ChooseById(Operation):
    """1 for the experts that a table (V, k) names for the id of a token, else 0; in the shape of x (…, T, E)."""

    experts: int

    words = "a choice"
    deciding = (0,)

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        module = StepModule(self)
        module.register_buffer("weight", torch.zeros(config.vocab_size, config.experts_per_token, dtype=torch.long))
        return module

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        table = module.get_buffer("weight")
        table.copy_((torch.arange(table.numel()) % self.experts).view(table.shape))

    def forward(self, *inputs: Tensor) -> Tensor:
        x, table, ids = inputs
        rows = x.shape[:-1]
        ids = ids.flatten().repeat(rows.numel() // ids.numel())  # the ids of one text may serve several
        return torch.zeros_like(x).scatter(-1, table[ids.view(rows)].long(), 1.0)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        assert now.ids is not None
        return self.forward(inputs[0].detach(), module.weight, now.ids)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.forward(site.input(), site.module.weight, torch.tensor(site.ids, device=site.module.weight.device))

    def operands(self, site: Site) -> dict[str, Tensor]:
        return {"experts_of": site.module.weight}

    def code(self, site: Site) -> str:
        return f"{site.variable} = torch.zeros_like({site.names[0]}).scatter(-1, experts_of[ids], 1.0)"

    def arithmetic(self, cell: Cell) -> Working:
        token, expert = cell.index
        named = cell.site.module.weight[cell.site.ids[token]].tolist()
        words = f"the experts of {cell.token(token)} are {', '.join(map(str, named))}"
        chosen = Value("chosen", float(expert in named), words)
        return Working(((cell.source(0, token, expert), 1),), after=(chosen,), leads=())
