"""A state that decays and is written without a look at it, unrolled to a map (Dao and Gu 2024, Mamba-2, section 3).

With S = e^(g_t)·S + Δ_t·k_t⊗v_t and the output q_t·S + D·v_t, token t gets Δ_s·(q_t·k_s)·e^(G_t − G_s) times the values
of token s, and D times its own. Shapes: B batch, T tokens, H heads, G of queries and keys, K and D their widths.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.parts.row import Step
from tinytf.steps.operations.delta import empty_state, of_a_later_token, of_decay, recurrence, remaining
from tinytf.steps.operations.operation import (
    Consumer,
    Operation,
    Parameter,
    Pass,
    Quantity,
    Summand,
    by_group,
    in_float32,
    repeat_groups,
    wide,
)
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Value, Working, single
from tinytf.steps.operations.written import Written, at_keys, since


def state_space(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, decay: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The outputs q·S of all tokens (…, H, T, D), and the state S (…, H, K, D) after them."""
    steps = wide(dt) * wide(v)
    return recurrence(q, k, decay, empty_state(k, v) if state is None else state, lambda at, *_: steps[..., at, :])


class Unroll(Operation):
    """Δ of the key times fits (…, G, T, T) times what remains of the key, and a learned D (H,) on the diagonal.

    Inputs: fits, decays and steps Δ (…, H, T, 1). The result, (…, H, T, T), is 0 above the diagonal.
    """

    words = "a product"
    over_tokens = True
    hides_ahead = True
    has_state = True

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(f"{step.name}.D", "weight", ("n_heads·switch",)),)

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """Every head starts by passing on its own values, D = 1."""
        module.get_parameter("weight").fill_(1.0)

    def forward(self, *inputs: Tensor) -> Tensor:
        fits, decay, dt, own = (wide(x) for x in inputs)
        read = repeat_groups(fits, decay.shape[-3]) * remaining(decay) * dt.mT
        return read + torch.diag_embed(own[:, None].expand(-1, read.shape[-1]))

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        own = site.module.weight if heads is None else site.module.weight[list(heads)]
        return self.forward(*site.inputs(heads), own)

    def written(self, site: Site, core: Sequence[Site], head: int) -> Written:
        decay, dt = (site.input(number)[head, :, 0].cpu().double() for number in (1, 2))
        return at_keys(core, head, lambda token: since(decay, token).exp() * dt[: token + 1])

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        fits, decay, dt = site.inputs()
        decays, every_fit = remaining(decay), repeat_groups(wide(fits), len(decay))
        of_fits = by_group(g * decays * dt.mT, fits).sum(dim=1).to(fits.dtype)
        return of_fits, of_decay(g * every_fit * decays * dt.mT), (g * every_fit * decays).sum(dim=1)[..., None]

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        diagonal = g.diagonal(dim1=-2, dim2=-1)  # (H, T)
        yield f"{site.path}.weight", diagonal.sum(dim=-1).to(site.module.weight.dtype)

    def code(self, site: Site) -> str:
        fits, decay, dt = site.names
        ((name, own),) = self.operands(site).items()
        shared = len(site.input(1)) // len(site.input(0))
        every_fit = fits + (f".repeat_interleave({shared}, 0)" if shared > 1 else "")
        lines = [
            f"total = {decay}.cumsum(-2)",
            "remaining = (total - total.mT).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).exp()",
            f"own = torch.diag_embed({in_float32(name, own)}[:, None].expand(-1, T))",
            f"{site.variable} = {every_fit} * remaining * {dt}.mT + own",
        ]
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.index
        source, dt = cell.source(0, query, key), cell.source(2, key, 0)
        if key > query:
            return of_a_later_token(cell, source)
        since, head = cell.source(1, query, 0), cell.head or 0
        decay = float(cell.site.input(1)[head, key + 1 : query + 1, 0].double().sum())
        before = (Value("G", decay, f"decay of the tokens after {key}, up to {query}"), Value("e^G", math.exp(decay)))
        factors = [(source.step.name, source.value), ("e^G", math.exp(decay)), ("Δ", dt.value)]
        series = single(f"{source.step.name} · e^G · Δ", factors, (source, since, dt))
        own = Term("D", (), float(cell.site.module.weight[head])) if key == query else None
        return Working(((source, 2), (since, 0), (dt, 2)), series, own, before=before)

    def summand(self, to: Consumer) -> Summand:
        fits, decay, dt = (wide(x) for x in to.site.inputs())
        position, heads = to.row.place, to.query_heads
        decays = remaining(decay)
        if to.number == 0:
            quantities = [Quantity(f"{to.symbol}, head {head}", to.g[head, position]) for head in heads]
            parts = [
                g.values * decays[head, position] * dt[head, :, 0] for g, head in zip(quantities, heads, strict=True)
            ]
            result = torch.stack(parts).sum(dim=0).to(to.g.dtype)
            return Summand(f"{to.symbol} ⊙ e^G ⊙ Δ", result, (), tuple(quantities))
        head = heads[0]
        read = to.g[head] * repeat_groups(fits, len(decay))[head] * decays[head]  # (T, T), but for Δ
        if to.number == 2:
            lines = ("over the queries from this token on",)
            return Summand(f"Σ {to.symbol} ⊙ fit ⊙ e^G", read[:, position].sum(dim=0, keepdim=True), lines)
        lines = ("over the queries from this token on and the keys before it",)
        gradient = of_decay((read * dt[head].mT)[None])[0, position]
        return Summand(f"Σ {to.symbol} ⊙ read", gradient, lines)
