"""The real-gated linear recurrent unit of Griffin (De et al. 2024, section 2.4): a state of one number a channel.

The state keeps a share a = e^d of itself, with d = −8·softplus(Λ)·σ(r), and takes √(1 − a²) of what is written, so that
its size stays; of the first token it takes all. Shapes: B batch, T tokens, H groups of D channels.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.parts.row import Step
from tinytf.steps.operations.mask import real_tokens
from tinytf.steps.operations.operation import (
    ALONE,
    Consumer,
    Operation,
    Parameter,
    Pass,
    Quantity,
    Summand,
    in_float32,
    wide,
)
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, product
from tinytf.steps.operations.written import Written, since

_STRENGTH = 8.0
"""The logarithm of the smallest share that a channel may keep, over its softplus(Λ)."""


class ChannelDecay(Operation):
    """−8·softplus(Λ)·σ(x), (…, H, T, D), with a learned Λ (H·D,); float32 or wider."""

    words = "a decay"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(f"{step.name}.Lambda", "weight", (f"n_heads·{step.axes[-1]}",)),)

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """Draw the share a² that is kept at σ = 1, uniform in 0.9² … 0.999²."""
        kept = module.get_parameter("weight").uniform_(0.9**2, 0.999**2, generator=generator)
        kept.copy_(torch.expm1(-kept.log() / (2 * _STRENGTH)).log())  # the inverse of softplus

    def _rate(self, like: Tensor, weight: Tensor) -> Tensor:
        """8·softplus(Λ), (H, 1, D)."""
        return _STRENGTH * F.softplus(wide(weight)).view(like.shape[-3], 1, -1)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, weight = inputs
        return -self._rate(x, weight) * torch.sigmoid(wide(x))

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        decay = self.forward(site.input(), site.module.weight)
        return decay if heads is None else decay[list(heads)]

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        x = wide(site.input())
        slope = torch.sigmoid(x) * torch.sigmoid(-x)
        return ((-wide(g) * self._rate(x, site.module.weight.detach()) * slope).to(site.input().dtype),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        weight = site.module.weight.detach()
        of_rate = -(wide(g) * torch.sigmoid(wide(site.input()))).sum(dim=1).flatten()
        yield f"{site.path}.weight", (_STRENGTH * of_rate * torch.sigmoid(wide(weight))).to(weight.dtype)

    def code(self, site: Site) -> str:
        ((name, weight),) = self.operands(site).items()
        rate = f"{_STRENGTH:g} * F.softplus({in_float32(name, weight)}).view({len(site.value)}, 1, -1)"
        return f"{site.variable} = -{rate} * torch.sigmoid({in_float32(site.names[0], site.input())})"

    def arithmetic(self, cell: Cell) -> Working:
        source, rates = cell.source(0, *cell.index), self._rate(cell.site.value, cell.site.module.weight.detach())
        rate, share = float(rates[cell.head or 0, 0, cell.index[1]]), (1 + math.tanh(source.value / 2)) / 2
        before = (Value("σ", share, f"σ({source.step.name})"), Value("8·softplus(Λ)", rate))
        after = (Value("decay", -rate * share, "−8·softplus(Λ) · σ"),)
        return Working(((source, 2),), before=before, after=after, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, x = to.incoming, to.input_at_row(0)
        rates = self._rate(to.site.value, to.site.module.weight.detach())[to.row.head or 0, 0]
        share = Quantity(f"σ({x.name})", torch.sigmoid(wide(x.values)))
        result = -wide(g.values) * rates * share.values * torch.sigmoid(-wide(x.values))
        where = (f"s = {share.name}", "c = 8·softplus(Λ)")
        return Summand(
            f"−{g.name}·c·s·(1 − s)", result.to(x.values.dtype), where, (g, x, Quantity("c", rates)), (share,)
        )


def taken(decay: Tensor, first: Tensor) -> Tensor:
    """√(1 − a²), or 1 where the token is the ``first`` of its text, from d = log a (…, H, T, D)."""
    return (1 - (2 * decay).exp()).clamp(min=0.0).sqrt().masked_fill(first, 1.0)


def channel_states(decay: Tensor, written: Tensor, state: Tensor) -> list[Tensor]:
    """The state (…, H, 1, D) before the first token and after every one: S_t = e^(d_t)·S_(t−1) + ``written``."""
    states, kept = [state], decay.exp()
    for t in range(written.shape[-2]):
        states.append(kept[..., t : t + 1, :] * states[-1] + written[..., t : t + 1, :])
    return states


class Retain(Operation):
    """The states (…, H, T, D) after each token, from d = log a and what is written, both (…, H, T, D)."""

    words = "a recurrence"
    over_tokens = True
    has_state = True

    @staticmethod
    def _first(x: Tensor, now: Pass = ALONE, begun: bool = False) -> Tensor:
        """Whether a token is the first of its text, broadcasting to x; ``begun``: the cache has earlier ones."""
        if now.padding_mask is None:
            return (torch.arange(x.shape[-2], device=x.device) == (-1 if begun else 0))[:, None]
        real = real_tokens(now.padding_mask, now.padding_mask.shape[-1])
        return (real & (real.cumsum(dim=-2) == 1))[..., -x.shape[-2] :, :]

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        decay, x = (wide(x) for x in inputs)
        before = None if now.cache is None else now.cache.recall(module)
        written = taken(decay, self._first(x, now, before is not None)) * x
        states = channel_states(decay, written, torch.zeros_like(x[..., :1, :]) if before is None else before)
        if now.cache is not None:
            now.cache.remember(module, x.shape[-2], states[-2], states[-1])
        return torch.cat(states[1:], dim=-2).to(inputs[1].dtype)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.run(None, ALONE, *site.inputs(heads))

    def written(self, site: Site, core: Sequence[Site], head: int) -> Written:
        """A channel in each column of the state, which has one row."""
        decay, x = (x.detach().cpu().double()[head] for x in site.inputs())
        share = taken(decay, self._first(x))
        return Written(
            torch.ones(len(x), 1, dtype=x.dtype), x,
            lambda token: (since(decay, token).exp() * share[: token + 1])[:, None],
        )  # fmt: skip

    def _of_states(self, site: Site, g: Tensor) -> Tensor:
        """The gradient of every state, (H, T, D), from the last token to the first."""
        kept, rows = wide(site.input(0)).exp(), [torch.zeros_like(wide(g)[:, :1])]
        for t in reversed(range(g.shape[1])):
            after = kept[:, t + 1 : t + 2] if t + 1 < g.shape[1] else 0.0
            rows.append(wide(g)[:, t : t + 1] + after * rows[-1])
        return torch.cat(rows[:0:-1], dim=1)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        decay, x = (wide(x) for x in site.inputs())
        of_states, first = self._of_states(site, g), self._first(x)
        share = taken(decay, first)
        states = channel_states(decay, share * x, torch.zeros_like(x[:, :1]))
        of_share = (-(2 * decay).exp() / share).masked_fill(first | (share == 0), 0.0)
        of_decay = of_states * (torch.cat(states[:-1], dim=1) * decay.exp() + x * of_share)
        return of_decay.to(site.input(0).dtype), (of_states * share).to(site.input(1).dtype)

    def code(self, site: Site) -> str:
        decay, x = (in_float32(name, site.input(i)) for i, name in enumerate(site.names))
        lines = [
            f"share = (1 - (2 * {decay}).exp()).clamp(min=0).sqrt()",
            "share[:, 0] = 1",
            f"states = [torch.zeros_like({x}[:, 0])]",
            "for t in range(T):",
            f"    states.append({decay}[:, t].exp() * states[-1] + share[:, t] * {x}[:, t])",
            f"{site.variable} = torch.stack(states[1:], 1)",
        ]
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        (token, d), head = cell.index, cell.head or 0
        decay, x = (tensor[head, :, d : d + 1].detach().cpu().double() for tensor in cell.site.inputs())
        left = (since(decay, token).exp() * taken(decay, self._first(x))[: token + 1])[:, 0]
        source = cell.source(1, token, d)
        series = product(
            ("a since · √(1 − a²)", source.step.name),
            (left, x[: token + 1, 0]),
            lambda i: f"{i} {cell.token(i)}",
            lambda i: (cell.source(1, i, d), cell.source(0, i, d)),
        )
        return Working(((cell.source(0, token, d), 0), (source, 0)), series)

    def summand(self, to: Consumer) -> Summand:
        words = ("∂S·(a·S before − x·a²/√(1 − a²)); of the first token ∂S·a·S", "∂S·√(1 − a²); of the first token ∂S")
        head, position = to.row.head or 0, to.row.place
        row = self.input_gradients(to.site, to.g)[to.number][head, position]
        lines = (f"∂S = {to.symbol} + a·∂S of the next token",)
        return Summand(words[to.number], row, lines, (Quantity(to.symbol, to.g[head, position]),))
