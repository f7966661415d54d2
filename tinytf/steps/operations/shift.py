"""A learned bias of each head, added to its queries (Dai et al. 2019, Transformer-XL)."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Working, single


class Shift(Operation):
    """x + b: (…, H, T, D) and b (H·D,) -> (…, H, T, D)."""

    words = "a sum"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(f"{step.name}.b", "bias", (f"n_heads·{step.axes[-1]}",)),)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, bias = inputs
        return x + bias.view(-1, 1, x.shape[-1])

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.bias)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        shifted = self.forward(site.input(), site.module.bias)
        return shifted if heads is None else shifted[list(heads)]

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g,)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield f"{site.path}.bias", g.sum(dim=1).flatten()

    def code(self, site: Site) -> str:
        (bias,) = self.operands(site)
        return f"{site.variable} = {site.names[0]} + {bias}.view({len(site.value)}, 1, -1)"

    def arithmetic(self, cell: Cell) -> Working:
        source, width = cell.source(0, *cell.index), cell.site.value.shape[-1]
        bias = float(cell.site.module.bias[(cell.head or 0) * width + cell.index[1]])
        series = single(source.step.name, [(source.step.name, source.value)], (source,))
        return Working(((source, 2),), series, Term("bias", (), bias))

    def summand(self, to: Consumer) -> Summand:
        return Summand(to.symbol, to.incoming.values, inputs=(to.incoming,))
