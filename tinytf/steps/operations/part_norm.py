"""Norms of equal parts of a row, each by itself: residual streams side by side, or the heads of an indexer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.head_norm import GroupedNorm
from tinytf.steps.operations.norm import Norm, gain_of, layer_norm_gradient, rms_norm_gradient
from tinytf.steps.operations.operation import Consumer, Quantity, Summand, summed, wide
from tinytf.steps.operations.protocols import Cell, Site


@dataclass(frozen=True)
class PartNorm(Norm):
    """A norm of each W numbers of a row (…, T, N·W), with a gain (N·W,), or one (W,) for all parts.

    W is the size of the axis ``part``; with ``shared`` all parts have one gain.
    """

    part: str
    shared: bool = False

    def _axis(self, step: Step) -> str:
        return self.part if self.shared else step.axes[-1]

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        return GroupedNorm(config.sizes[self.part], config.sizes[self._axis(step)], self)

    def one_token(self, kernels: Any, module: Any) -> Any:
        return kernels.pointwise(module)

    def _apart(self, x: Tensor, site: Site) -> Tensor:
        """(…, T, N·W) -> (…, T, N, W)."""
        return x.unflatten(-1, (-1, site.config.sizes[self.part]))

    def _gain(self, site: Site) -> Tensor:
        """The gain (N, W), or (1, W) where it is shared; a scalar 1 without one."""
        gain = gain_of(site.module)
        return self._apart(gain, site) if gain.dim() else gain

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        gradient = layer_norm_gradient if self.centred else rms_norm_gradient
        of_parts = gradient(self._apart(g, site), self._apart(site.input(), site), self._gain(site), self.eps)
        return (of_parts.flatten(-2),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        normed, _ = self.normed(self._apart(site.input(), site))
        for name, of_row in (("gain", g * normed.flatten(-2)), ("bias", g)):
            if name in self.learned:
                of_parts = summed(self._apart(of_row, site).flatten(0, -3)) if self.shared else summed(of_row)
                yield f"{site.path}.{'weight' if name == 'gain' else 'bias'}", of_parts.to(g.dtype)

    def code(self, site: Site) -> str:
        norm, width = "layer_norm" if self.centred else "rms_norm", site.config.sizes[self.part]
        learned = "".join(
            f" {sign} {name}.view(-1, {width})" for sign, name in zip("*+", self.operands(site), strict=False)
        )
        parts = f"{site.names[0]}.unflatten(-1, (-1, {width}))"
        return f"{site.variable} = (F.{norm}({parts}, ({width},), eps={self.eps}){learned}).flatten(-2)"

    def _row(self, source: Cell) -> tuple[Tensor, int]:
        column, width = source.index[1], source.site.config.sizes[self.part]
        start = column - column % width
        return source.row()[start : start + width], column - start if self.shared else column

    def summand(self, to: Consumer) -> Summand:
        g, x, gain = to.incoming, to.input_at_row(0), self._gain(to.site)
        normed, sigma = self.normed(self._apart(x.values, to.site))  # (N, W) and (N, 1)
        gained = wide(self._apart(g.values, to.site)) * gain
        along, mean = (normed * (gained * normed).mean(dim=-1, keepdim=True)), gained.mean(dim=-1, keepdim=True)
        result = ((gained - along - (mean if self.centred else 0)) / sigma).flatten().to(g.values.dtype)
        gains = ("ĝ = " + g.name + " ⊙ gain") if "gain" in self.learned else f"ĝ = {g.name}"
        lines = (f"of each part of {x.name} by itself: {gains}, x̂ the part as normed, σ its size",)
        expression = "(ĝ − mean(ĝ) − x̂·mean(ĝ⊙x̂)) / σ" if self.centred else "(ĝ − x̂·mean(ĝ⊙x̂)) / σ"
        return Summand(expression, result, lines, (g, x, Quantity("σ", sigma.flatten())))
