"""A linear map of each residual stream, by a matrix of its own: AltUp in Gemma 3n."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, product


@dataclass(frozen=True)
class StreamLinear(Operation):
    """x·W of each of the ``streams``, side by side (…, T, n·C); the matrices are stacked, W (n·C, C), out × in."""

    streams: int

    words = "a sum of products"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("d_model", step.axes[-1]), transposed=True),)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, weight = inputs
        return (self.apart(x).unsqueeze(-2) @ weight.unflatten(0, (self.streams, -1)).mT).flatten(-3)

    def apart(self, x: Tensor) -> Tensor:
        """(…, T, n·C) -> (…, T, n, C)."""
        return x.unflatten(-1, (self.streams, -1))

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.forward(site.input(), site.module.weight)

    def _matrices(self, site: Site) -> Tensor:
        """The matrices (n, out, in)."""
        matrices: Tensor = site.module.weight.detach().unflatten(0, (self.streams, -1))
        return matrices

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """g·Wᵀ of each stream."""
        return ((self.apart(g).transpose(0, 1) @ self._matrices(site)).transpose(0, 1).flatten(-2),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        """gᵀ·x of each stream."""
        of_matrices = self.apart(g).permute(1, 2, 0) @ self.apart(site.input()).transpose(0, 1)
        yield f"{site.path}.weight", of_matrices.flatten(0, 1)

    def code(self, site: Site) -> str:
        (matrix,) = self.operands(site)
        x, count = site.names[0], self.streams
        apart = f"{x}.unflatten(-1, ({count}, -1)), {matrix}.unflatten(0, ({count}, -1))"
        return f'{site.variable} = torch.einsum("tnc,nec->tne", {apart}).flatten(-2)'

    def arithmetic(self, cell: Cell) -> Working:
        token, column = cell.index
        matrices = self._matrices(cell.site)
        width = matrices.shape[-1]
        stream, out = divmod(column, width)
        first = cell.source(0, token, stream * width)
        series = product(
            (first.step.name, cell.step.matrix),
            (first.row()[stream * width : (stream + 1) * width], matrices[stream, out].cpu().double()),
            lambda i: f"stream {stream + 1} d{i}",
            lambda i: (cell.source(0, token, stream * width + i),),
        )
        return Working(((first, 1),), series)

    def summand(self, to: Consumer) -> Summand:
        g, matrices = to.incoming, self._matrices(to.site)
        result = (g.values.unflatten(0, (self.streams, 1, -1)) @ matrices).flatten()
        return Summand(f"{g.name}·Wᵀ", result, (f"W = {to.site.step.matrix} of each stream",), (g,))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return tokens * self.streams * config.d_model**2
