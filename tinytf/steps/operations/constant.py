"""A learned vector, the same for every token: the bias of a sum over experts (JetMoE)."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.one_token import Kernels
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Summand, summed
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


class Constant(Operation):
    """b (C,) for each token of x (…, T, C), whose numbers do not matter."""

    words = "a constant"
    deciding = (0,)

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(f"{step.name}.b", "bias", (step.axes[-1],)),)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, bias = inputs
        return bias.to(x.dtype).expand_as(x)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.bias)

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        return kernels.pointwise(lambda x: self.forward(x, module.bias))

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.forward(site.input(), site.module.bias)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g.new_zeros(site.input().shape),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield f"{site.path}.bias", summed(g)

    def code(self, site: Site) -> str:
        (bias,) = self.operands(site)
        return f"{site.variable} = {bias}.expand_as({site.names[0]})"

    def arithmetic(self, cell: Cell) -> Working:
        value = float(cell.site.module.bias[cell.index[1]])
        return Working((), after=(Value("b", value, "learned, of every token"),), leads=())

    def summand(self, to: Consumer) -> Summand:
        return Summand("0", to.incoming.values * 0, ("b depends on no token",))
