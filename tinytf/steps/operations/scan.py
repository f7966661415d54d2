"""The selective scan of Mamba: a state of N numbers for each channel, which forgets and writes by steps of its own.

S_t = e^(Δ_t·a)·S_(t−1) + Δ_t·v_t·k_t with a = −e^A, and the output q_t·S_t + D·v_t, for each channel (Gu and Dao 2023,
equation 2). Shapes: T tokens, H groups of D channels, N numbers of a state; q and k (…, G, T, N), of which each
serves H/G groups.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import (
    Consumer,
    Operation,
    Parameter,
    Pass,
    Quantity,
    Summand,
    in_float32,
    repeat_groups,
    wide,
)
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Working, product
from tinytf.steps.operations.written import Written, since


def scan_states(q: Tensor, k: Tensor, dt: Tensor, v: Tensor, rate: Tensor, state: Tensor | None) -> list[Tensor]:
    """The state (…, H, D, N) before the first token and after every one; ``rate`` is a, (H, D, N)."""
    states = [v.new_zeros(*v.shape[:-2], *rate.shape[1:]) if state is None else state]
    for t in range(v.shape[-2]):
        step = dt[..., t, :, None]
        states.append((step * rate).exp() * states[-1] + step * v[..., t, :, None] * k[..., t, None, :])
    return states


def _for_each(x: Tensor, heads: int) -> Tensor:
    """q or k (…, G, T, N) for each of H groups of channels; one that serves all stays as it is, (…, 1, T, N)."""
    return x if x.shape[-3] == 1 else repeat_groups(x, heads)


class Scan(Operation):
    """The outputs (…, H, T, D) from q, k, Δ and v (…, H, T, D), with learned A (H·D, N) and D (H·D,)."""

    words = "a recurrence"
    over_tokens = True
    has_state = True

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        channels = f"n_heads·{step.axes[-1]}"
        return (
            Parameter(f"{step.name}.A", "weight", (channels, "d_head")),
            Parameter(f"{step.name}.D", "bias", (channels,)),
        )

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """e^A from 1 to N in each channel, and D = 1 (Gu and Dao 2023, section 3.6)."""
        rates = module.get_parameter("weight")
        rates.copy_(torch.arange(1.0, rates.shape[1] + 1).log().expand_as(rates))
        module.get_parameter("bias").fill_(1.0)

    @staticmethod
    def _of_channels(module: Any, v: Tensor) -> tuple[Tensor, Tensor]:
        """a (H, D, N), and D as (H, 1, D)."""
        heads = v.shape[-3]
        return -wide(module.weight).exp().unflatten(0, (heads, -1)), wide(module.bias).view(heads, 1, -1)

    def compute(
        self, module: Any, inputs: tuple[Tensor, ...], state: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """The outputs, and all states."""
        q, k, dt, v = (wide(x) for x in inputs)
        q, k = (_for_each(x, v.shape[-3]) for x in (q, k))
        rate, own = self._of_channels(module, v)
        states = scan_states(q, k, dt, v, rate, state)
        read = (torch.stack(states[1:], dim=-3) * q[..., None, :]).sum(dim=-1)  # (…, H, T, D, N)
        return (read + own * v).to(inputs[3].dtype), states

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        output, states = self.compute(module, inputs, None if now.cache is None else now.cache.recall(module))
        if now.cache is not None:
            now.cache.remember(module, len(states) - 1, states[-2], states[-1])
        return output

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        output = self.compute(site.module, site.inputs())[0]
        return output if heads is None else output[list(heads)]

    def written(self, site: Site, core: Sequence[Site], head: int) -> Written:
        """A channel in each row of the state: values ⊗ keys."""
        _, k, dt, v = (x.cpu().double() for x in site.inputs())
        rate, step = self._of_channels(site.module, site.input(3))[0][head].detach().cpu().double(), dt[head]
        return Written(
            v[head], k[head // (len(v) // len(k))],
            lambda token: (since(step, token)[..., None] * rate).exp() * step[: token + 1, :, None],
        )  # fmt: skip

    def _gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """The gradients of q, k, Δ, v, A and D, from the last token to the first."""
        q, k, dt, v = (wide(x) for x in site.inputs())
        g, (rate, own) = wide(g), self._of_channels(site.module, v)
        rate, own = rate.detach(), own.detach()
        groups, of_q, of_k = (len(q), -1), torch.zeros_like(q), torch.zeros_like(k)
        q, k = (_for_each(x, len(v)) for x in (q, k))
        states = scan_states(q, k, dt, v, rate, None)
        of_dt, of_v = torch.zeros_like(dt), torch.zeros_like(v)
        of_rate, of_state = torch.zeros_like(rate), torch.zeros_like(rate)  # (H, D, N)
        for t in reversed(range(v.shape[1])):
            of_state = of_state + g[:, t, :, None] * q[:, t, None]
            step, value = dt[:, t], v[:, t]  # (H, D)
            of_q[:, t] = (g[:, t, :, None] * states[t + 1]).unflatten(0, groups).sum(dim=(1, 2))
            of_k[:, t] = (of_state * (step * value)[..., None]).unflatten(0, groups).sum(dim=(1, 2))
            along_key = (of_state * k[:, t, None]).sum(dim=-1)
            share = (step[..., None] * rate).exp()
            of_share = of_state * states[t] * share
            of_dt[:, t] = (of_share * rate).sum(dim=-1) + value * along_key
            of_v[:, t] = own[:, 0] * g[:, t] + step * along_key
            of_rate = of_rate + of_share * step[..., None]
            of_state = of_state * share
        return of_q, of_k, of_dt, of_v, of_rate * rate, (g * v).sum(dim=1)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        gradients = self._gradients(site, g)[:4]
        return tuple(gradient.to(x.dtype) for gradient, x in zip(gradients, site.inputs(), strict=True))

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        *_, of_rates, of_own = self._gradients(site, g)
        yield f"{site.path}.weight", of_rates.flatten(0, 1).to(site.module.weight.dtype)
        yield f"{site.path}.bias", of_own.flatten().to(site.module.bias.dtype)

    def code(self, site: Site) -> str:
        q, k, dt, v = (in_float32(name, site.input(i)) for i, name in enumerate(site.names))
        rates, own = (in_float32(name, x) for name, x in self.operands(site).items())
        heads = len(site.value)
        if len(site.input(0)) > 1:
            q, k = (f"{name}.repeat_interleave({heads // len(site.input(0))}, 0)" for name in (q, k))
        lines = [
            f"rate = -{rates}.exp().unflatten(0, ({heads}, -1))",
            "state, read = torch.zeros_like(rate), []",
            "for t in range(T):",
            f"    step = {dt}[:, t, :, None]",
            f"    state = (step * rate).exp() * state + step * {v}[:, t, :, None] * {k}[:, t, None]",
            f"    read.append((state * {q}[:, t, None]).sum(-1))",
            f"{site.variable} = torch.stack(read, 1) + {own}.view({heads}, 1, -1) * {v}",
        ]
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        (token, d), head, site = cell.index, cell.head or 0, cell.site
        group = head // (len(site.value) // len(site.input(0)))
        q, k = (site.input(number)[group, : token + 1].cpu().double() for number in (0, 1))  # (t + 1, N)
        dt, v = (site.input(number)[head, : token + 1, d].cpu().double() for number in (2, 3))
        channel = head * site.value.shape[-1] + d
        rate = -site.module.weight[channel].detach().cpu().double().exp()  # (N,)
        since = dt.sum() - dt.cumsum(0)  # Δ of the tokens after each, up to this one
        weights = dt * (q[token] * k * (since[:, None] * rate).exp()).sum(dim=-1)
        own = float(site.module.bias[channel].detach())
        source = cell.source(3, token, d)
        series = product(
            ("Δ·Σ q·k·e^(a·Δ since)", source.step.name),
            (weights, v),
            lambda i: f"{i} {cell.token(i)}",
            lambda i: (cell.source(3, i, d), cell.source(2, i, d)),
        )
        inputs = (
            (cell.source(0, token, 0), 1),
            (cell.source(1, token, 0), 1),
            (cell.source(2, token, d), 0),
            (source, 0),
        )
        return Working(inputs, series, Term(f"D · {source.step.name}", (), own * source.value))

    def summand(self, to: Consumer) -> Summand:
        words = (
            f"Σ {to.symbol}·S over the channels",
            "Σ ∂S·Δ·v over the channels",
            "Σ ∂S ⊙ (a·e^(Δ·a)·S + v·k)",
            f"D·{to.symbol} + Δ·Σ ∂S·k",
        )
        head, position = to.row.head or 0, to.row.place
        gradient = self.input_gradients(to.site, to.g)[to.number]
        row = gradient[head // (len(to.g) // len(gradient)), position]
        lines = (f"∂S = {to.symbol}·q + e^(Δ·a)·∂S of the next token",)
        return Summand(words[to.number], row, lines, (Quantity(to.symbol, to.g[head, position]),))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        """Decay, write and read of every number of a state."""
        return tokens * 3 * config.n_heads * config.d_head * config.value_width
