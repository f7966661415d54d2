"""A multiplication of every number by one stored number, which training leaves as it is (Gemma 4)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, StepModule, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, single


@dataclass(frozen=True)
class LayerScale(Operation):
    """x · s, with one s for each layer: a buffer, not a parameter."""

    words = "a multiplication"

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        module = StepModule(self)
        module.register_buffer("weight", torch.ones(1))
        return module

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        module.get_buffer("weight").fill_(1.0)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, scale = inputs
        return x * scale.to(x.dtype)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.forward(site.input(), site.module.weight)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (self.forward(g, site.module.weight),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        return iter(())  # a buffer has none

    def operands(self, site: Site) -> dict[str, Tensor]:
        return {"scale": site.module.weight}

    def code(self, site: Site) -> str:
        return f"{site.variable} = {site.names[0]} * scale"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        factors = [(source.step.name, source.value), ("scale", float(cell.site.module.weight))]
        return Working(((source, 2),), single(f"{source.step.name} · scale", factors, (source,)), leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        scale = to.site.module.weight.detach().to(to.g.dtype)
        result = to.incoming.values * scale
        return Summand(f"{to.symbol} · scale", result, inputs=(to.incoming, Quantity("scale", scale[0])))


@dataclass(frozen=True)
class LearnedScale(LayerScale):
    """x · s, with one learned s for each layer (Inkling)."""

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("switch",)),)

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        return Operation.make_module(self, config, step)

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        Operation.initialise(self, module, std, generator)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield f"{site.path}.weight", (wide(g) * site.input()).sum().reshape(1).to(g.dtype)

    def operands(self, site: Site) -> dict[str, Tensor]:
        return {"scale": site.module.weight.detach()}
