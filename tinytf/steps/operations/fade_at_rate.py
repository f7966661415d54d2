"""A state that decays at a fixed rate, unrolled to a map (Qin et al. 2024, Lightning Attention-2).

With S = e^−s·S + k⊗v and the output q·S, token t gets (q_t·k_j)·e^(−s·(t − j)) times the values of token j.
Shapes: B batch, T tokens, H heads, D their width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.steps.operations.delta import empty_state, of_a_later_token, recurrence
from tinytf.steps.operations.mask import real_tokens
from tinytf.steps.operations.operation import Consumer, Operation, Pass, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single
from tinytf.steps.operations.written import Written, at_keys, since


@dataclass(frozen=True)
class FadeAtRate(Operation):
    """Fits (…, H, T, T) times e^(−s·(query − key)), 0 above the diagonal; s is 2^(−8·h / H) · ``scale``."""

    n_heads: int
    scale: float

    words = "a product"
    over_tokens = True
    hides_ahead = True
    has_state = True

    def rates(self) -> list[float]:
        """The rate s of each head: how much the logarithm of the state falls a token."""
        return [2 ** (-8 * head / self.n_heads) * self.scale for head in range(1, self.n_heads + 1)]

    def _remaining(self, like: Tensor) -> Tensor:
        """The share of each key's token that remains at each query, (H, T, T)."""
        at = torch.arange(like.shape[-1], device=like.device)
        rates = torch.tensor(self.rates(), dtype=torch.float64, device=like.device)[:, None, None]
        return (-rates * (at[:, None] - at).abs()).exp().tril().to(like.dtype)

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0] * self._remaining(inputs[0])

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        """The map, 0 at padding."""
        read = self.forward(*inputs)
        return read if now.padding_mask is None else read * real_tokens(now.padding_mask, read.shape[-1]).mT

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        fits = site.input(0, heads)
        remaining = self._remaining(fits)
        return fits * (remaining if heads is None else remaining[list(heads)])

    def written(self, site: Site, core: Sequence[Site], head: int) -> Written:
        rates = torch.full((len(site.ids),), -self.rates()[head], dtype=torch.float64)
        return at_keys(core, head, lambda token: since(rates, token).exp())

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g * self._remaining(g),)

    def code(self, site: Site) -> str:
        (fits,) = site.names
        lines = [
            f"rates = torch.tensor({self.rates()}, dtype=torch.float64)[:, None, None]",
            "distance = (torch.arange(T)[:, None] - torch.arange(T)).abs()",
            f"{site.variable} = {fits} * (-rates * distance).exp().tril().to({fits}.dtype)",
        ]
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.index
        source = cell.source(0, query, key)
        if key > query:
            return of_a_later_token(cell, source)
        rate = self.rates()[cell.head or 0]
        share = math.exp(-rate * (query - key))
        before = (
            Value("s", rate, f"rate of head {cell.head}"),
            Value("e^G", share, f"G = −s · (query {query} − key {key})"),
        )
        series = single(f"{source.step.name} · e^G", [(source.step.name, source.value), ("e^G", share)], (source,))
        return Working(((source, 2),), series, before=before)

    def summand(self, to: Consumer) -> Summand:
        remaining = self._remaining(to.g)[to.row.head or 0, to.row.place]
        return Summand(f"{to.symbol} ⊙ e^G", to.incoming.values * remaining, (), (to.incoming,))

    def scan(self, q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outputs q·S of all tokens (B, H, T, D), and the state S (B, H, D, D) after them."""
        values = wide(v)
        rates = torch.tensor(self.rates(), dtype=values.dtype, device=v.device)
        decay = -rates[:, None, None].expand(*v.shape[:-1], 1)
        return recurrence(q, k, decay, empty_state(k, v) if state is None else state, lambda at, *_: values[..., at, :])
