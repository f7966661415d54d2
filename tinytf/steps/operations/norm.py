"""Norms over the last axis, y = x̂ ⊙ gain + bias: LayerNorm (Ba et al. 2016), RMSNorm (Zhang and Sennrich 2019)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Quantity, Summand, summed, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Value, Working, single

if TYPE_CHECKING:
    from tinytf.steps.table import Step


Axes = tuple[int, ...]
ROW: Axes = (-1,)


def layer_normed(x: Tensor, eps: float, axes: Axes = ROW) -> tuple[Tensor, Tensor]:
    """x̂ = (x − mean) / σ and σ = √(variance + eps) over ``axes``, which keep size 1; both ``wide``."""
    x = wide(x)
    centred = x - x.mean(dim=axes, keepdim=True)
    sigma = (centred.square().mean(dim=axes, keepdim=True) + eps).sqrt()
    return centred / sigma, sigma


def rms_normed(x: Tensor, eps: float, axes: Axes = ROW) -> tuple[Tensor, Tensor]:
    """x̂ = x / σ and σ = √(mean of squares + eps) over ``axes``, which keep size 1; both ``wide``."""
    x = wide(x)
    sigma = (x.square().mean(dim=axes, keepdim=True) + eps).sqrt()
    return x / sigma, sigma


def layer_norm_gradient(g: Tensor, x: Tensor, gain: Tensor, eps: float, axes: Axes = ROW) -> Tensor:
    """(ĝ − mean ĝ − x̂·mean(ĝ⊙x̂)) / σ with ĝ = g ⊙ gain."""
    normed, sigma = layer_normed(x, eps, axes)
    of_normed = wide(g) * gain
    along = normed * (of_normed * normed).mean(dim=axes, keepdim=True)
    return ((of_normed - of_normed.mean(dim=axes, keepdim=True) - along) / sigma).to(g.dtype)


def rms_norm_gradient(g: Tensor, x: Tensor, gain: Tensor, eps: float, axes: Axes = ROW) -> Tensor:
    """(ĝ − x̂·mean(ĝ⊙x̂)) / σ with ĝ = g ⊙ gain; nothing was centred, so no mean is subtracted."""
    normed, sigma = rms_normed(x, eps, axes)
    of_normed = wide(g) * gain
    return ((of_normed - normed * (of_normed * normed).mean(dim=axes, keepdim=True)) / sigma).to(g.dtype)


@dataclass(frozen=True)
class Norm(Operation):
    """LayerNorm where ``centred``, else RMSNorm, of every row."""

    centred: bool
    eps: float

    words = "a norm"

    def parameters(self, step: "Step") -> tuple[Parameter, ...]:
        absent = "" if self.centred else "RMSNorm has a gain alone"
        return (
            Parameter(step.parameter, "weight", step.axes[-1:]),
            Parameter(f"{step.name}.bias", "bias", step.axes[-1:], absent=absent),
        )

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return site.module(*site.inputs(heads))

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        gradient = layer_norm_gradient if self.centred else rms_norm_gradient
        return (gradient(g, site.input(), site.module.weight, self.eps),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        normed, _ = self._normed(site.input())
        yield f"{site.path}.weight", summed(g * normed).to(g.dtype)
        if self.centred:
            yield f"{site.path}.bias", summed(g)

    def _normed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return layer_normed(x, self.eps) if self.centred else rms_normed(x, self.eps)

    def code(self, site: Site) -> str:
        name = "layer_norm" if self.centred else "rms_norm"
        given = ", ".join([site.names[0], f"({site.module.weight.numel()},)", *self.operands(site)])
        return f"{site.variable} = F.{name}({given}, eps={self.eps})"

    def arithmetic(self, cell: Cell) -> Working:
        module, width = cell.site.module, cell.index[1]
        own = cell.source(0, *cell.index)
        (row, place), x = self._row(own), own.value
        if self.centred:
            mean = float(row.mean())
            variance = float((row - mean).square().mean())
            sigma = math.sqrt(variance + self.eps)
            found = [Value("mean", mean, "of the row"), Value("variance", variance, "mean of (x − mean)²")]
            normed = Value("x̂", (x - mean) / sigma, "(x − mean) / σ")
        else:
            square = float(row.square().mean())
            sigma = math.sqrt(square + self.eps)
            found = [Value("mean square", square, "mean of x² over the row")]
            normed = Value("x̂", x / sigma, "x / σ")
        found.append(Value("ε", self.eps))
        found.append(Value("σ", sigma, f"√({found[-2].name} + ε)"))
        series = single("x̂ · gain", [("x̂", normed.value), ("gain", float(module.weight[place]))], (own,))
        bias = getattr(module, "bias", None)
        added = None if bias is None else Term("bias", (), float(bias[place]))
        before = (Value("x", x, f"d{width} of the row"), *found, normed)
        return Working(((own, 1),), series, added, before=before)

    def _row(self, own: Cell) -> tuple[Tensor, int]:
        """The numbers that are normed together with a cell of the input, in float64, and its place in the gain."""
        return own.row(), own.index[1]

    def _vectors(self, to: Consumer) -> tuple[Quantity, Quantity, Tensor, slice]:
        """Gradient, input and gain of what is normed together with a row, and where in them the row is."""
        return to.incoming, to.input_at_row(0), to.site.module.weight.detach(), slice(None)

    def summand(self, to: Consumer) -> Summand:
        g, x, gain, here = self._vectors(to)
        normed, sigma = self._normed(x.values)
        gained = wide(g.values) * gain
        along = (gained * normed).mean()
        given = [g, x, Quantity("σ", sigma[0]), Quantity("gain", gain)]
        steps = [Quantity("x̂", normed), Quantity("ĝ", gained), Quantity("mean(ĝ⊙x̂)", along)]
        gain_line = f"ĝ = {to.symbol} ⊙ gain"
        if not self.centred:
            lines = (gain_line, f"x̂ = {x.name} / σ, σ = √(mean({x.name}²) + ε)")
            result = ((gained - normed * along) / sigma)[here].to(g.values.dtype)
            return Summand("(ĝ − x̂·mean(ĝ⊙x̂)) / σ", result, lines, tuple(given), tuple(steps))
        given.insert(2, Quantity("mean", wide(x.values).mean()))
        steps.insert(2, Quantity("mean(ĝ)", gained.mean()))
        lines = (gain_line, f"x̂ = ({x.name} − mean) / σ, σ = √(variance + ε)")
        result = ((gained - gained.mean() - normed * along) / sigma)[here].to(g.values.dtype)
        return Summand("(ĝ − mean(ĝ) − x̂·mean(ĝ⊙x̂)) / σ", result, lines, tuple(given), tuple(steps))
