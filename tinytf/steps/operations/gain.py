"""A multiplication by learned numbers: of each column by its own, as of each expert's weight in Gemma 4, or by one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, summed
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, single


@dataclass(frozen=True)
class Gain(Operation):
    """x ⊙ gain: (…, T, C) and the gain (C,) -> (…, T, C); of ``one`` number for all columns, (1,)."""

    one: bool = False

    words = "a multiplication"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("switch" if self.one else step.axes[-1],)),)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, gain = inputs
        return x * gain

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.forward(site.input(), site.module.weight)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g * site.module.weight.detach(),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        of_columns = summed(g * site.input())
        yield f"{site.path}.weight", of_columns.sum(dim=-1, keepdim=True) if self.one else of_columns

    def code(self, site: Site) -> str:
        (gain,) = self.operands(site)
        return f"{site.variable} = {site.names[0]} * {gain}"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        factors = [
            (source.step.name, source.value),
            ("gain", float(cell.site.module.weight[0 if self.one else cell.index[-1]])),
        ]
        return Working(((source, 2),), single(f"{source.step.name} · gain", factors, (source,)), leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        gain = Quantity(to.site.step.parameter, to.site.module.weight.detach())
        return Summand(f"{to.symbol} ⊙ {gain.name}", to.incoming.values * gain.values, inputs=(to.incoming, gain))
