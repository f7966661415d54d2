"""xIELU, an activation that learns its slopes: a parabola above 0, an exponential below (Huang and Schlag 2024)."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Value, Working, single

BETA = 0.5
"""The slope at 0, which is not learned."""
NEAR_0 = -1e-6
"""The exponential is taken of no number nearer to 0 than this, as by its authors."""


def _below(x: Tensor) -> Tensor:
    """e^x − 1 − x, of numbers below 0."""
    return x.clamp(max=NEAR_0).expm1() - x


class Xielu(Operation):
    """αₚ·x² + βx above 0, αₙ·(e^x − 1 − x) + βx below; αₚ = softplus(a_p), αₙ = β + softplus(a_n), β = ½."""

    words = "an activation"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        names = {"a_p": "weight", "a_n": "bias"}
        return tuple(Parameter(f"{step.name}.{name}", kind, ("switch",)) for name, kind in names.items())

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """αₚ = αₙ = 0.8."""
        module.get_parameter("weight").fill_(math.log(math.expm1(0.8)))
        module.get_parameter("bias").fill_(math.log(math.expm1(0.8 - BETA)))

    def forward(self, *inputs: Tensor) -> Tensor:
        x, above, below = inputs
        above, below = F.softplus(above), BETA + F.softplus(below)
        return torch.where(x > 0, above * x * x, _below(x) * below) + BETA * x

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight, module.bias)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.forward(site.input(), site.module.weight, site.module.bias)

    @staticmethod
    def _alphas(site: Site) -> tuple[Tensor, Tensor]:
        """αₚ and αₙ."""
        above, below = (wide(parameter.detach()) for parameter in (site.module.weight, site.module.bias))
        return F.softplus(above), BETA + F.softplus(below)

    def _slope(self, site: Site, x: Tensor) -> Tensor:
        """2·αₚ·x + β above 0, αₙ·(e^x − 1) + β below; the exponential is flat next to 0."""
        above, below = self._alphas(site)
        x = wide(x)
        grown = torch.where(x < NEAR_0, x.exp(), 0.0)
        return torch.where(x > 0, 2 * above * x, below * (grown - 1)) + BETA

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return ((g * self._slope(site, site.input())).to(g.dtype),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Σ g·x²·σ(a_p) above 0, and Σ g·(e^x − 1 − x)·σ(a_n) below."""
        x, g = wide(site.input()), wide(g)
        for name, parameter, part in (
            ("weight", site.module.weight, torch.where(x > 0, x.square(), 0.0)),
            ("bias", site.module.bias, torch.where(x > 0, 0.0, _below(x))),
        ):
            gradient = (g * part).sum() * torch.sigmoid(wide(parameter.detach()))
            yield f"{site.path}.{name}", gradient.to(parameter.dtype)

    def side(self, number: int, x: Tensor) -> Tensor | None:
        return x > 0

    def code(self, site: Site) -> str:
        (x,), (above, below) = site.names, self.operands(site)
        return "\n".join(
            [
                f"above = F.softplus({above}) * {x} * {x}",
                f"below = ({BETA} + F.softplus({below})) * ({x}.clamp(max={NEAR_0}).expm1() - {x})",
                f"{site.variable} = torch.where({x} > 0, above, below) + {BETA} * {x}",
            ]
        )

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        x = source.value
        if x > 0:
            alpha = math.log1p(math.exp(float(cell.site.module.weight)))
            before = [Value("x", x, source.step.name), Value("αₚ", alpha, "softplus(a_p)")]
            factors = [("αₚ", alpha), ("x", x), ("x", x)]
        else:
            alpha = BETA + math.log1p(math.exp(float(cell.site.module.bias)))
            rest = math.expm1(min(x, NEAR_0)) - x
            before = [Value("x", x, source.step.name), Value("αₙ", alpha, f"{BETA:g} + softplus(a_n)")]
            before.append(Value("e^x − 1 − x", rest))
            factors = [("αₙ", alpha), ("e^x − 1 − x", rest)]
        series = single(" · ".join(name for name, _ in factors), factors, (source,))
        linear = Term(f"{BETA:g} · x", (), BETA * x)
        return Working(((source, 2),), series, linear, before=tuple(before))

    def summand(self, to: Consumer) -> Summand:
        g, x = to.incoming, to.input_at_row(0)
        slope = Quantity(f"xIELU′({x.name})", self._slope(to.site, x.values).to(g.values.dtype))
        lines = (f"xIELU′(x) = 2·αₚ·x + {BETA:g} where x > 0, else αₙ·(e^x − 1) + {BETA:g}",)
        return Summand(f"{g.name} ⊙ {slope.name}", g.values * slope.values, lines, (g, x), (slope,))
