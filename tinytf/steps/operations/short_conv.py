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
    """y_t = Σ w_i·x + b over ``width`` tokens up to t, (…, H, T, D); of the weights (H·D, width) the last is for t.

    These are ``apart`` tokens from each other. Padding counts as 0 and gives 0, so that it does not reach later tokens.
    Only a ``biased`` one has a b (H·D,). Without heads (``headed``) x is (…, T, D), as of one head. ``tap`` names the
    axis of the width.
    """

    width: int
    biased: bool = False
    apart: int = 1
    headed: bool = True
    tap: str = "tap"

    words = "a sum of products"
    over_tokens = True

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        heads = "n_kv_heads" if "kv head" in step.axes else "n_heads"
        channels = f"{heads}·{step.axes[-1]}" if self.headed else step.axes[-1]
        absent = "" if self.biased else "the convolutions of this model have no biases"
        return (
            Parameter(step.parameter, "weight", (channels, self.tap)),
            Parameter(f"{step.name}.b", "bias", (channels,), absent=absent),
        )

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """Normal with 1/√width, so that the sum keeps the size of its summands."""
        module.get_parameter("weight").normal_(0.0, self.width**-0.5, generator=generator)
        if self.biased:
            module.get_parameter("bias").zero_()

    @property
    def _back(self) -> int:
        """How many tokens before each it reaches."""
        return (self.width - 1) * self.apart

    def _heads(self, x: Tensor) -> Tensor:
        """(…, H, T, D), or (…, T, D) -> (…, 1, T, D)."""
        return x if self.headed else x.unsqueeze(-3)

    def _as_read(self, x: Tensor) -> Tensor:
        """The layout of what it reads, from heads."""
        return x if self.headed else x.squeeze(-3)

    def _zeros(self, x: Tensor) -> Tensor:
        """The padding before a text: tokens of zeros."""
        return x.new_zeros(*x.shape[:-2], self._back, x.shape[-1])

    def convolve(self, module: Any, x: Tensor, before: Tensor | None = None) -> Tensor:
        """The convolution of x (…, H, T, D), which follows the tokens ``before``; zeros by default."""
        x = torch.cat((self._zeros(x) if before is None else before, x), dim=-2)
        taps = module.weight.unflatten(0, (x.shape[-3], -1))  # (H·D, W) -> (H, D, W)
        y = (x.unfold(-2, self._back + 1, 1)[..., :: self.apart] * taps[:, None]).sum(dim=-1)  # (…, H, T, D, W)
        return y + module.bias.view(x.shape[-3], 1, -1) if self.biased else y

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        x = self._heads(inputs[0])
        real = None if now.padding_mask is None else real_tokens(now.padding_mask, x.shape[-2])
        x = x if real is None else x * real
        window = None if now.cache is None else now.cache.recall(module)
        y = self.convolve(module, x, window)
        if now.cache is not None:
            self._remember(module, now, x, window)
        return self._as_read(y if real is None or not self.biased else y * real)

    def _remember(self, module: Any, now: Pass, x: Tensor, window: Tensor | None) -> None:
        """Store the last tokens that it reaches back to, and those before the last token."""
        extended = torch.cat((self._zeros(x) if window is None else window, x), dim=-2)
        windows = extended.unfold(-2, self._back, 1)  # (…, H, T + 1, D, W − 1)
        now.cache.remember(module, x.shape[-2], *(windows[..., position, :, :].mT for position in (-2, -1)))

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        y = self._as_read(self.convolve(site.module, self._heads(site.input())))
        return of_query_heads(y, site, heads) if self.headed else y

    def _taps(self, site: Site) -> Tensor:
        weight: Tensor = site.module.weight.detach()
        return weight.unflatten(0, (len(self._heads(site.input())), -1))  # (H·D, W) -> (H, D, W)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """The gradient of each token sums those of the next tokens, by the same weights in reverse."""
        taps, g = self._taps(site), self._heads(g)
        parts = (shifted(g, -back * self.apart) * taps[:, None, :, self.width - 1 - back] for back in range(self.width))
        return (self._as_read(torch.stack(list(parts)).sum(dim=0)),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        x, g = self._heads(site.input()), self._heads(g)
        backs = [(self.width - 1 - tap) * self.apart for tap in range(self.width)]
        by_tap = [(wide(g) * shifted(wide(x), back)).sum(dim=-2) for back in backs]  # (H, D)
        yield f"{site.path}.weight", torch.stack(by_tap, dim=-1).flatten(0, 1).to(g.dtype)
        if self.biased:
            yield f"{site.path}.bias", wide(g).sum(dim=-2).flatten().to(g.dtype)  # (H, T, D) -> (H·D,)

    def code(self, site: Site) -> str:
        (weight, *biases), x = self.operands(site), site.names[0]
        if not self.headed:
            lines = [
                f"padded = F.pad({x}.mT, ({self._back}, 0))",
                f"{site.variable} = F.conv1d(padded, {weight}[:, None], groups=len(padded), dilation={self.apart}).mT",
            ]
            return "\n".join(lines)
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
        reached = range(token - self._back, token + 1, self.apart)
        tokens = [earlier for earlier in reached if earlier >= 0]
        source, number = cell.source(0, token, d), (cell.head or 0)
        shared = cell.site.config.heads_per_kv if "kv head" in cell.step.axes else 1
        taps = self._taps(cell.site)[number // shared, d, self.width - len(tokens) :].cpu().double()
        bias = (
            float(cell.site.module.bias.view(len(self._heads(cell.site.input())), -1)[number // shared, d])
            if self.biased
            else 0.0
        )
        series = product(
            ("w", source.step.name),
            (taps, source.column()[tokens]),
            lambda i: f"{tokens[i]} {cell.token(tokens[i])}",
            lambda i: (cell.source(0, tokens[i], d),),
        )
        return Working(((source, 0),), series, Term("bias", (), bias) if self.biased else None)

    def summand(self, to: Consumer) -> Summand:
        position, head = to.row.place, to.head_of(to.site.step) if self.headed else 0
        taps, rows = self._taps(to.site)[head], self._heads(to.g)[head]  # (D, W), (T, D)
        tokens = range(position, min(len(rows), position + self._back + 1), self.apart)
        parts = [taps[:, self.width - 1 - number] * rows[later] for number, later in enumerate(tokens)]
        quantities = [Quantity(f"{to.symbol}[{later}]", rows[later]) for later in tokens]
        lines = (f"of the tokens {tokens[0]} to {tokens[-1]}, which see this one; w of the last is of a token itself",)
        return Summand(f"Σ w ⊙ {to.symbol}", torch.stack(parts).sum(dim=0), lines, tuple(quantities))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        sizes = config.sizes
        return tokens * self.width * (sizes[step.axes[0]] if self.headed else 1) * sizes[step.axes[-1]]
