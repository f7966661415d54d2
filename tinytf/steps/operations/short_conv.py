"""A short convolution over tokens: a weighted sum of each number of a token and the same number of earlier tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.mask import real_tokens
from tinytf.steps.operations.operation import (
    Consumer,
    Operation,
    Parameter,
    Pass,
    Quantity,
    Summand,
    of_query_heads,
    wide,
)
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Working, product


def shifted(x: Tensor, by: int) -> Tensor:
    """x (…, T, D) with every token ``by`` positions later, or earlier if negative; zeros move in."""
    result, length = torch.zeros_like(x), x.shape[-2]
    if abs(by) < length:
        result.narrow(-2, max(0, by), length - abs(by)).copy_(x.narrow(-2, max(0, -by), length - abs(by)))
    return result


@dataclass(frozen=True)
class ShortConv(Operation):
    """y_t = Σ w_i·x + b over the last ``width`` tokens, (…, H, T, D); of the weights (H·D, width) the last is for t.

    Padding counts as 0 and gives 0, so that it does not reach later tokens. Only a ``biased`` one has a b (H·D,).
    """

    width: int
    biased: bool = False

    words = "a sum of products"
    over_tokens = True

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        heads = "n_kv_heads" if "kv head" in step.axes else "n_heads"
        channels = f"{heads}·{step.axes[-1]}"
        absent = "" if self.biased else "the convolutions of this model have no biases"
        return (
            Parameter(step.parameter, "weight", (channels, "tap")),
            Parameter(f"{step.name}.b", "bias", (channels,), absent=absent),
        )

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """Normal with 1/√width, so that the sum keeps the size of its summands."""
        module.get_parameter("weight").normal_(0.0, self.width**-0.5, generator=generator)
        if self.biased:
            module.get_parameter("bias").zero_()

    def _zeros(self, x: Tensor) -> Tensor:
        """The padding before a text: width − 1 tokens of zeros."""
        return x.new_zeros(*x.shape[:-2], self.width - 1, x.shape[-1])

    def convolve(self, module: Any, x: Tensor, before: Tensor | None = None) -> Tensor:
        """The convolution of x, which follows the last width − 1 tokens ``before``; zeros by default."""
        x = torch.cat((self._zeros(x) if before is None else before, x), dim=-2)
        taps = module.weight.unflatten(0, (x.shape[-3], -1))  # (H·D, W) -> (H, D, W)
        y = (x.unfold(-2, self.width, 1) * taps[:, None]).sum(dim=-1)  # (…, H, T, D, W)
        return y + module.bias.view(x.shape[-3], 1, -1) if self.biased else y

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        real = None if now.padding_mask is None else real_tokens(now.padding_mask, x.shape[-2])
        x = x if real is None else x * real
        window = None if now.cache is None else now.cache.recall(module)
        y = self.convolve(module, x, window)
        if now.cache is not None:
            self._remember(module, now, x, window)
        return y if real is None or not self.biased else y * real

    def _remember(self, module: Any, now: Pass, x: Tensor, window: Tensor | None) -> None:
        """Store the last width − 1 tokens, and those before the last token."""
        extended = torch.cat((self._zeros(x) if window is None else window, x), dim=-2)
        windows = extended.unfold(-2, self.width - 1, 1)  # (…, H, T + 1, D, W − 1)
        now.cache.remember(module, x.shape[-2], *(windows[..., position, :, :].mT for position in (-2, -1)))

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return of_query_heads(self.convolve(site.module, site.input()), site, heads)

    def _taps(self, site: Site) -> Tensor:
        weight: Tensor = site.module.weight.detach()
        return weight.unflatten(0, (len(site.input()), -1))  # (H·D, W) -> (H, D, W)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """The gradient of each token sums those of the next tokens, by the same weights in reverse."""
        taps = self._taps(site)
        parts = (shifted(g, -back) * taps[:, None, :, self.width - 1 - back] for back in range(self.width))
        return (torch.stack(list(parts)).sum(dim=0),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        x = site.input()
        by_tap = [(wide(g) * shifted(wide(x), self.width - 1 - tap)).sum(dim=-2) for tap in range(self.width)]  # (H, D)
        yield f"{site.path}.weight", torch.stack(by_tap, dim=-1).flatten(0, 1).to(g.dtype)
        if self.biased:
            yield f"{site.path}.bias", wide(g).sum(dim=-2).flatten().to(g.dtype)  # (H, T, D) -> (H·D,)

    def code(self, site: Site) -> str:
        (weight, *biases), x = self.operands(site), site.names[0]
        heads = len(site.input())
        bias = "".join(f" + {name}.view({heads}, 1, -1)" for name in biases)
        lines = [
            f"padded = F.pad({x}, (0, 0, {self.width - 1}, 0))",
            f"taps = {weight}.unflatten(0, ({heads}, -1))[:, None]",
            f"{site.variable} = (padded.unfold(-2, {self.width}, 1) * taps).sum(-1){bias}",
        ]
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        token, d = cell.index
        first = max(0, token - self.width + 1)
        source, number = cell.source(0, token, d), (cell.head or 0)
        shared = cell.site.config.heads_per_kv if "kv head" in cell.step.axes else 1
        taps = self._taps(cell.site)[number // shared, d, self.width - 1 - (token - first) :].cpu().double()
        bias = (
            float(cell.site.module.bias.view(len(cell.site.input()), -1)[number // shared, d]) if self.biased else 0.0
        )
        series = product(
            ("w", source.step.name),
            (taps, source.column()[first : token + 1]),
            lambda i: f"{first + i} {cell.token(first + i)}",
            lambda i: (cell.source(0, first + i, d),),
        )
        return Working(((source, 0),), series, Term("bias", (), bias) if self.biased else None)

    def summand(self, to: Consumer) -> Summand:
        position, head = to.row.place, to.head_of(to.site.step)
        taps, rows = self._taps(to.site)[head], to.g[head]  # (D, W), (T, D)
        last = min(len(rows), position + self.width)
        parts = [taps[:, self.width - 1 - (later - position)] * rows[later] for later in range(position, last)]
        quantities = [Quantity(f"{to.symbol}[{later}]", rows[later]) for later in range(position, last)]
        lines = (f"of the tokens {position} to {last - 1}, which see this one; w of the last is of a token itself",)
        return Summand(f"Σ w ⊙ {to.symbol}", torch.stack(parts).sum(dim=0), lines, tuple(quantities))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        sizes = config.sizes
        return tokens * self.width * sizes[step.axes[0]] * sizes[step.axes[-1]]
