"""How well each of several residual streams fits a key of its own: the gate of n-gram embeddings (Qwen4-Exp, 2026)."""

from dataclasses import dataclass

from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, product


@dataclass(frozen=True)
class FitStreams(Operation):
    """Queries and keys of n ``streams`` side by side, both (…, T, n·C) -> q·k / √C of each, (…, T, n)."""

    streams: int

    words = "a sum of products"

    def apart(self, x: Tensor) -> Tensor:
        """(…, n·C) -> (…, n, C)."""
        return x.unflatten(-1, (self.streams, -1))

    def _over(self, x: Tensor) -> float:
        """√C."""
        return float((x.shape[-1] // self.streams) ** 0.5)

    def forward(self, *inputs: Tensor) -> Tensor:
        queries, keys = inputs
        return self.apart(queries * keys).sum(dim=-1) / self._over(queries)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        queries, keys = site.inputs()
        g = (g / self._over(queries)).repeat_interleave(queries.shape[-1] // self.streams, dim=-1)
        return g * keys, g * queries

    def code(self, site: Site) -> str:
        queries, keys = site.names
        product = f"({queries} * {keys}).unflatten(-1, ({self.streams}, -1))"
        return f"{site.variable} = {product}.sum(-1) / {site.config.d_model}**0.5"

    def arithmetic(self, cell: Cell) -> Working:
        token, stream = cell.index
        width = cell.site.input().shape[-1] // self.streams
        columns = slice(stream * width, (stream + 1) * width)
        query, key = (cell.source(number, token, columns.start) for number in (0, 1))
        over = self._over(cell.site.input())
        series = product(
            (f"{query.step.name} / √{width}", key.step.name),
            (query.row()[columns] / over, key.row()[columns]),
            lambda i: f"d{i}",
            lambda i: tuple(cell.source(number, token, columns.start + i) for number in (0, 1)),
        )
        return Working(((query, 1), (key, 1)), series)

    def summand(self, to: Consumer) -> Summand:
        g, other = to.incoming, to.input_at_row(1 - to.number)
        over = self._over(other.values)
        result = (self.apart(other.values) * (g.values / over).unsqueeze(-1)).flatten()
        return Summand(f"{g.name} / √C · {other.name}", result, ("of each stream",), (g, other))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return tokens * self.streams * config.d_model
