"""Differential attention: one map less a learned share of another (Ye et al. 2024, equations 1 and 2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, product

_VECTORS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second half of the heads, (…, H/2, Q, K) each."""
    first, second = x.chunk(2, dim=-3)
    return first, second


@dataclass(frozen=True)
class Difference(Operation):
    """Heads h and h + H/2 both get x_h − λ·x_(h + H/2), (…, H, Q, K); λ = e^(q₁·k₁) − e^(q₂·k₂) + ``start``.

    The four vectors (D,) are learned.
    """

    start: float

    words = "a difference"
    mixes_heads = True

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return tuple(Parameter(f"{step.name}.{name}", name, ("d_head",)) for name in _VECTORS)

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """Normal with standard deviation 0.1, as in the paper."""
        for name in _VECTORS:
            module.get_parameter(name).normal_(0.0, 0.1, generator=generator)

    @staticmethod
    def _powers(module: Any) -> tuple[Tensor, Tensor]:
        """e^(q₁·k₁) and e^(q₂·k₂)."""
        q1, k1, q2, k2 = (wide(getattr(module, name)) for name in _VECTORS)
        return (q1 * k1).sum().exp(), (q2 * k2).sum().exp()

    def _share(self, module: Any) -> Tensor:
        """λ."""
        first, second = self._powers(module)
        return first - second + self.start

    def forward(self, *inputs: Tensor) -> Tensor:
        x, share = inputs
        first, second = _halves(x)
        difference = first - share.to(x.dtype) * second
        return torch.cat((difference, difference), dim=-3)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, self._share(module))

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        difference = self.forward(site.input(), self._share(site.module))
        return difference if heads is None else difference[list(heads)]

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """The gradients of both heads add up; the second map has −λ of them."""
        first, second = _halves(g)
        share = self._share(site.module).detach().to(g.dtype)
        return (torch.cat((first + second, -share * (first + second)), dim=-3),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        _, subtracted = _halves(wide(site.input()))
        of_share = -(wide(g) * torch.cat((subtracted, subtracted))).sum()
        first, second = (power.detach() for power in self._powers(site.module))
        q1, k1, q2, k2 = (getattr(site.module, name).detach() for name in _VECTORS)
        gradients = (of_share * first * k1, of_share * first * q1, -of_share * second * k2, -of_share * second * q2)
        for name, gradient in zip(_VECTORS, gradients, strict=True):
            yield f"{site.path}.{name}", gradient.to(q1.dtype)

    def code(self, site: Site) -> str:
        q1, k1, q2, k2 = self.operands(site)
        return "\n".join(
            [
                f"share = torch.exp(({q1} * {k1}).sum()) - torch.exp(({q2} * {k2}).sum()) + {self.start}",
                f"first, second = {site.names[0]}.chunk(2)",
                f"{site.variable} = (first - share * second).repeat(2, 1, 1)",
            ]
        )

    def arithmetic(self, cell: Cell) -> Working:
        half = len(cell.site.value) // 2
        heads = ((cell.head or 0) % half, (cell.head or 0) % half + half)
        sources = [cell.source(0, *cell.index, head=head) for head in heads]
        q1, k1, q2, k2 = (getattr(cell.site.module, name).detach().cpu().double() for name in _VECTORS)
        powers = float((q1 * k1).sum().exp()), float((q2 * k2).sum().exp())
        share = powers[0] - powers[1] + self.start
        before = (
            Value("e^(q₁·k₁)", powers[0]),
            Value("e^(q₂·k₂)", powers[1]),
            Value("λ", share, f"e^(q₁·k₁) − e^(q₂·k₂) + {self.start:.4g}"),
        )
        values = [source.value for source in sources]
        series = product(
            ("1 or −λ", sources[0].step.name),
            (torch.tensor([1.0, -share], dtype=torch.float64), torch.tensor(values, dtype=torch.float64)),
            lambda number: f"head {heads[number]}",
            lambda number: (sources[number],),
        )
        return Working(tuple((source, 2) for source in sources), series, before=before)

    def summand(self, to: Consumer) -> Summand:
        half = len(to.g) // 2
        second, head = divmod(to.row.head or 0, half)
        rows = [Quantity(f"{to.symbol}, head {each}", to.g[each, to.row.place]) for each in (head, head + half)]
        share = self._share(to.site.module).detach().to(to.g.dtype)
        both = rows[0].values + rows[1].values
        if not second:
            return Summand(f"Σ {to.symbol} of both heads", both, inputs=tuple(rows))
        return Summand(f"−λ·Σ {to.symbol} of both heads", -share * both, inputs=(*rows, Quantity("λ", share)))
