"""Norms over the last axis, y = x̂ ⊙ gain + bias: LayerNorm (Ba et al. 2016), RMSNorm (Zhang and Sennrich 2019)."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.one_token import Kernels
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Quantity, Summand, summed, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Value, Working, single

NORMS: dict[str, Callable[..., nn.Module]] = {
    "layernorm": nn.LayerNorm,
    "rmsnorm": lambda width, eps, gain=True, bias=False: nn.RMSNorm(width, eps, gain),
}
"""The torch module of each norm, from a width, ε, and whether it learns a gain and a bias."""


def layer_normed(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x̂ = (x − mean) / σ and σ = √(variance + eps) of each row; both ``wide``."""
    x = wide(x)
    centred = x - x.mean(dim=-1, keepdim=True)
    sigma = (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return centred / sigma, sigma


def rms_normed(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x̂ = x / σ and σ = √(mean of squares + eps) of each row; both ``wide``."""
    x = wide(x)
    sigma = (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return x / sigma, sigma


def layer_norm_gradient(g: Tensor, x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """(ĝ − mean ĝ − x̂·mean(ĝ⊙x̂)) / σ with ĝ = g ⊙ gain."""
    normed, sigma = layer_normed(x, eps)
    of_normed = wide(g) * gain
    along = normed * (of_normed * normed).mean(dim=-1, keepdim=True)
    return ((of_normed - of_normed.mean(dim=-1, keepdim=True) - along) / sigma).to(g.dtype)


def rms_norm_gradient(g: Tensor, x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """(ĝ − x̂·mean(ĝ⊙x̂)) / σ with ĝ = g ⊙ gain; nothing was centred, so no mean is subtracted."""
    normed, sigma = rms_normed(x, eps)
    of_normed = wide(g) * gain
    return ((of_normed - normed * (of_normed * normed).mean(dim=-1, keepdim=True)) / sigma).to(g.dtype)


def gain_of(norm: Any) -> Tensor:
    """The gain of a norm; a scalar 1 where it has none."""
    weight: Tensor | None = getattr(norm, "weight", None)
    return torch.ones(()) if weight is None else weight


def gained(normed: Tensor, norm: Any) -> Tensor:
    """x̂ ⊙ gain + bias, each where the norm has it."""
    bias: Tensor | None = getattr(norm, "bias", None)
    return normed * gain_of(norm) if bias is None else normed * gain_of(norm) + bias


@dataclass(frozen=True)
class Norm(Operation):
    """LayerNorm of every row if ``centred``, else RMSNorm; ``learned`` names its parameters: gain, bias."""

    centred: bool
    eps: float
    learned: tuple[str, ...]

    words = "a norm"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        names = {"gain": (step.parameter, "weight"), "bias": (f"{step.name}.bias", "bias")}
        alone = "RMSNorm has a gain alone" if self.learned == ("gain",) and not self.centred else ""
        missing = " and no ".join(learnable for learnable in names if learnable not in self.learned)
        reason = alone or f"norms have no {missing} in this model"
        return tuple(
            Parameter(*name, (self._axis(step),), absent="" if learnable in self.learned else reason)
            for learnable, name in names.items()
        )

    def _axis(self, step: Step) -> str:
        """The axis of gain and bias."""
        return step.axes[-1]

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        learned = ("gain" in self.learned, "bias" in self.learned)
        return NORMS["layernorm" if self.centred else "rmsnorm"](config.sizes[self._axis(step)], self.eps, *learned)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        # the hooks on another step's module are not of this one
        return (site.module if site.step.path == site.step.module else site.module.forward)(*site.inputs(heads))

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        return kernels.norm(module)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        gradient = layer_norm_gradient if self.centred else rms_norm_gradient
        return (gradient(g, site.input(), gain_of(site.module), self.eps),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        if "gain" in self.learned:
            normed, _ = self.normed(site.input())
            yield f"{site.path}.weight", summed(g * normed).to(g.dtype)
        if "bias" in self.learned:
            yield f"{site.path}.bias", summed(g)

    def normed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return layer_normed(x, self.eps) if self.centred else rms_normed(x, self.eps)

    def held(self, x: Tensor, of: Tensor, module: Any) -> Tensor:
        """The norm of x with the scale of ``of``: linear in x, but for the bias."""
        return gained(self._scaled(x, of), module)

    def _scaled(self, x: Tensor, of: Tensor) -> Tensor:
        x, of = (t - t.mean(dim=-1, keepdim=True) if self.centred else t for t in (x, of))
        return x / (of.square().mean(dim=-1, keepdim=True) + self.eps).sqrt()

    def code(self, site: Site) -> str:
        name = "layer_norm" if self.centred else "rms_norm"
        arguments = ", ".join([site.names[0], f"({site.value.shape[-1]},)", *self.operands(site)])
        return f"{site.variable} = F.{name}({arguments}, eps={self.eps})"

    def arithmetic(self, cell: Cell) -> Working:
        module, width = cell.site.module, cell.index[1]
        source = cell.source(0, *cell.index)
        (row, column), x = self._row(source), source.value
        if self.centred:
            mean = float(row.mean())
            variance = float((row - mean).square().mean())
            sigma = math.sqrt(variance + self.eps)
            statistics = [Value("mean", mean, "of the row"), Value("variance", variance, "mean of (x − mean)²")]
            normed = Value("x̂", (x - mean) / sigma, "(x − mean) / σ")
        else:
            square = float(row.square().mean())
            sigma = math.sqrt(square + self.eps)
            statistics = [Value("mean square", square, "mean of x² over the row")]
            normed = Value("x̂", x / sigma, "x / σ")
        statistics.append(Value("ε", self.eps))
        statistics.append(Value("σ", sigma, f"√({statistics[-2].name} + ε)"))
        factors = [("x̂", normed.value)]
        if getattr(module, "weight", None) is not None:
            factors.append(("gain", float(module.weight[column])))
        series = single(" · ".join(name for name, _ in factors), factors, (source,))
        bias = getattr(module, "bias", None)
        bias_term = None if bias is None else Term("bias", (), float(bias[column]))
        before = (Value("x", x, f"d{width} of the row"), *statistics, normed)
        return Working(((source, 1),), series, bias_term, before=before)

    def _row(self, source: Cell) -> tuple[Tensor, int]:
        """The numbers that are normed together with a cell of the input, in float64, and its index in the gain."""
        return source.row(), source.index[1]

    def _vectors(self, to: Consumer) -> tuple[Quantity, Quantity, Tensor, slice]:
        """Gradient, input and gain of all that is normed together with a row, and the slice of them that is the row."""
        return to.incoming, to.input_at_row(0), gain_of(to.site.module).detach(), slice(None)

    def summand(self, to: Consumer) -> Summand:
        g, x, gain, columns = self._vectors(to)
        normed, sigma = self.normed(x.values)
        gained = wide(g.values) * gain
        along = (gained * normed).mean()
        gains = [Quantity("gain", gain)] if "gain" in self.learned else []
        quantities = [g, x, Quantity("σ", sigma[0]), *gains]
        steps = [Quantity("x̂", normed), Quantity("ĝ", gained), Quantity("mean(ĝ⊙x̂)", along)]
        gain_line = f"ĝ = {to.symbol}{' ⊙ gain' if gains else ''}"
        if not self.centred:
            lines = (gain_line, f"x̂ = {x.name} / σ, σ = √(mean({x.name}²) + ε)")
            result = ((gained - normed * along) / sigma)[columns].to(g.values.dtype)
            return Summand("(ĝ − x̂·mean(ĝ⊙x̂)) / σ", result, lines, tuple(quantities), tuple(steps))
        quantities.insert(2, Quantity("mean", wide(x.values).mean()))
        steps.insert(2, Quantity("mean(ĝ)", gained.mean()))
        lines = (gain_line, f"x̂ = ({x.name} − mean) / σ, σ = √(variance + ε)")
        result = ((gained - gained.mean() - normed * along) / sigma)[columns].to(g.values.dtype)
        return Summand("(ĝ − mean(ĝ) − x̂·mean(ĝ⊙x̂)) / σ", result, lines, tuple(quantities), tuple(steps))
