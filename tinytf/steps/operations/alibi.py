"""ALiBi: scores fall with the distance between query and key, by a slope for each head (Press et al. 2022)."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.rotate import table_length
from tinytf.steps.operations.working import Value, Working


def alibi_slopes(n_heads: int, most: float) -> list[float]:
    """2^(−most·h / H) for h = 1 … H; if H is no power of two, every second slope of the next finer series follows."""
    rounded_down = 1 << (n_heads.bit_length() - 1)
    slopes = [2 ** (-most * head / rounded_down) for head in range(1, rounded_down + 1)]
    finer = [2 ** (-most * head / (2 * rounded_down)) for head in range(1, 2 * rounded_down, 2)]
    return [*slopes, *finer][:n_heads]


@dataclass(frozen=True)
class Alibi(Operation):
    """x + ``scale`` · slope · (key − query); ``rounded`` computes slope · position in bfloat16, as Falcon does."""

    n_heads: int
    most: float
    scale: float
    rounded: bool

    words = "a bias by distance"

    def slopes(self) -> list[float]:
        """The slope of each head: how much scores fall a token."""
        slopes = alibi_slopes(self.n_heads, self.most)
        return torch.tensor(slopes).bfloat16().tolist() if self.rounded else slopes

    def of_positions(self, length: int, like: Tensor) -> Tensor:
        """scale · slope · position of every head, (H, length)."""
        return _of_positions(self, table_length(length), like.device, like.dtype)[:, :length]

    def _biased(self, x: Tensor, of_positions: Tensor) -> Tensor:
        """x (…, H, Q, K) plus the bias; the queries are the last Q of the K tokens."""
        first = x.shape[-1] - x.shape[-2]
        return x + (of_positions[:, None, :] - of_positions[:, first:, None])  # (H, 1, K) − (H, Q, 1)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._biased(inputs[0], self.of_positions(inputs[0].shape[-1], inputs[0]))

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        x = site.input(0, heads)
        of_positions = self.of_positions(x.shape[-1], x)
        return self._biased(x, of_positions if heads is None else of_positions[list(heads)])

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g,)

    def code(self, site: Site) -> str:
        rounded = ".bfloat16().to(torch.float64)" if self.rounded else ""
        scale = "" if self.scale == 1 else f" * {self.scale}"
        return (
            f"slopes = torch.tensor({self.slopes()}, dtype=torch.float64)\n"
            f"bias = (slopes[:, None] * torch.arange(T)){rounded}{scale}\n"
            f"{site.variable} = {site.names[0]} + (bias[:, None, :] - bias[:, :, None]).to({site.names[0]}.dtype)"
        )

    def arithmetic(self, cell: Cell) -> Working:
        (query, key), source = cell.index, cell.source(0, *cell.index)
        assert cell.head is not None, "a map has heads"
        slope = self.slopes()[cell.head]
        at_key, at_query = (
            float(torch.tensor(slope * position).bfloat16()) if self.rounded else slope * position
            for position in (key, query)
        )
        bias = (at_key - at_query) * self.scale
        scaled = "" if self.scale == 1 else f" · {self.scale:.4g}"
        before = (
            Value("score", source.value, source.step.name),
            Value("slope", slope, f"of head {cell.head}"),
            Value("bias", bias, f"slope · (key {key} − query {query}){scaled}"),
        )
        after = (Value("biased", source.value + bias, "score + bias"),)
        return Working(((source, 2),), before=before, after=after, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        return Summand(to.symbol, to.incoming.values, ("the bias is no part of it",), (to.incoming,))


@lru_cache(maxsize=8)
def _of_positions(alibi: Alibi, length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        slopes = torch.tensor(alibi.slopes(), dtype=torch.float64)
        table = slopes[:, None] * torch.arange(length)
        if alibi.rounded:
            table = table.bfloat16().double()
        return (table * alibi.scale).to(device=device, dtype=dtype)
