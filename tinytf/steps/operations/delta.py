"""The gated delta rule, unrolled: what each token writes into a state, and what later tokens read from it.

A state S decays by e^g at every token, and token t writes u_t = β_t·(v_t − k_t·S) at its key (Schlag et al. 2021; Yang
et al. 2024, "Gated Delta Networks"). Unrolled, S = Σ e^(G_t − G_s)·k_s⊗u_s over the tokens s before t, where G is the
sum of g up to a token, so all u follow from one triangular system. Shapes: B batch, T tokens, H value heads, G query
and key heads, K and D their widths.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import (
    Consumer,
    Operation,
    Quantity,
    Summand,
    by_group,
    in_float32,
    repeat_groups,
    wide,
)
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Value, Working, product, single
from tinytf.steps.operations.written import Written, at_keys, since

_CHUNK = 64
"""The number of tokens that are unrolled together."""


def remaining(decay: Tensor) -> Tensor:
    """The share e^(G_t − G_s) of what s wrote that remains at t, 0 where s > t: (…, T, 1) -> (…, T, T)."""
    total = decay.cumsum(dim=-2)
    ahead = torch.ones(decay.shape[-2], decay.shape[-2], dtype=torch.bool, device=decay.device).triu(1)
    return (total - total.mT).masked_fill(ahead, -math.inf).exp()


def recurrence(
    q: Tensor, k: Tensor, decay: Tensor, state: Tensor, written: Callable[[slice, Tensor, Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """The outputs of all tokens (…, H, T, D), and the ``state`` (…, H, K, D) after them, computed in chunks.

    ``written`` gives what the tokens of a chunk write (…, D), from their slice, the remaining shares among them, the
    share of the earlier state that remains at each, and that state.
    """
    k, q = (repeat_groups(wide(x), decay.shape[-3]) for x in (k, q))
    read = []
    for start in range(0, q.shape[-2], _CHUNK):
        chunk = slice(start, start + _CHUNK)
        chunk_q, chunk_k, decays = q[..., chunk, :], k[..., chunk, :], remaining(decay[..., chunk, :])
        since = decay[..., chunk, :].cumsum(dim=-2).exp()
        new = written(chunk, decays, since, state)
        read.append((chunk_q @ chunk_k.mT * decays) @ new + since * (chunk_q @ state))
        state = since[..., -1:, :] * state + (chunk_k * decays[..., -1:, :].mT).mT @ new
    return torch.cat(read, dim=-2) if read else state[..., :0, :], state


def empty_state(k: Tensor, v: Tensor) -> Tensor:
    """The state (…, H, K, D) before a text."""
    return wide(v).new_zeros(*v.shape[:-2], k.shape[-1], v.shape[-1])


def solve_written(k: Tensor, v: Tensor, beta: Tensor, decays: Tensor) -> Tensor:
    """u (…, T, D), from (I + A)·u = β·v with A[t, s] = β_t·(k_t·k_s)·``decays``[t, s] for s < t."""
    system = (beta * (k @ k.mT) * decays).tril(-1)
    return torch.linalg.solve_triangular(system, beta * v, upper=False, unitriangular=True)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, state: Tensor | None, divisor: float
) -> tuple[Tensor, Tensor]:
    """The outputs of all tokens (…, H, T, D), and the state (…, H, K, D) after them."""
    k, v, beta = repeat_groups(wide(k), v.shape[-3]), wide(v), wide(beta)

    def written(chunk: slice, decays: Tensor, since: Tensor, state: Tensor) -> Tensor:
        keys = k[..., chunk, :]
        return solve_written(keys, v[..., chunk, :] - since * (keys @ state), beta[..., chunk, :], decays)

    return recurrence(q / divisor, k, decay, empty_state(k, v) if state is None else state, written)


def of_a_later_token(cell: Cell, source: Cell) -> Working:
    """The 0 of a map that is read from a state, at a key after the query; ``source`` is the cell that is hidden."""
    query, key = cell.index
    after = (Value("read", 0.0, "nothing is read of a later token"),)
    note = f"key {key} {cell.token(key)} comes after query {query} {cell.token(query)}"
    return Working(((source, 2),), after=after, leads=(source,), note=note)


class Write(Operation):
    """u of each head, from unit keys, values, writing strengths β and decays."""

    words = "a difference"
    over_tokens = True

    def forward(self, *inputs: Tensor) -> Tensor:
        k, v, beta, decay = inputs
        return solve_written(repeat_groups(wide(k), v.shape[-3]), wide(v), wide(beta), remaining(decay)).to(v.dtype)

    def _solved(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """Keys of every value head, values, β, remaining shares, u, and x = (I + A)⁻ᵀ·g."""
        k, v, beta, decay = site.inputs()
        k, v, beta = repeat_groups(wide(k), len(v)), wide(v), wide(beta)
        decays = remaining(decay)
        system = (beta * (k @ k.mT) * decays).tril(-1)
        x = torch.linalg.solve_triangular(system.mT, wide(g), upper=True, unitriangular=True)
        return k, v, beta, decays, wide(site.value), x

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """The gradient of A is −x·uᵀ below the diagonal; the gradient of β·v is x."""
        shared, types = len(site.input(0)), [tensor.dtype for tensor in site.inputs()]
        k, v, beta, decays, u, x = self._solved(site, g)
        of_system = -(x @ u.mT).tril(-1)  # (H, T, T)
        fits = k @ k.mT
        of_fits = of_system * beta * decays
        of_k = (of_fits + of_fits.mT) @ k
        of_beta = (x * v).sum(dim=-1, keepdim=True) + (of_system * fits * decays).sum(dim=-1, keepdim=True)
        gradients = (
            of_k.unflatten(0, (shared, -1)).sum(dim=1),
            beta * x,
            of_beta,
            of_decay(of_system * beta * fits * decays),
        )
        return tuple(gradient.to(dtype) for gradient, dtype in zip(gradients, types, strict=True))

    def code(self, site: Site) -> str:
        k, v, beta = (in_float32(name, site.input(i)) for i, name in enumerate(site.names[:3]))
        shared = len(site.input(1)) // len(site.input(0))
        back = f".to({site.names[1]}.dtype)" if v != site.names[1] else ""
        lines = [
            f"total = {site.names[3]}.cumsum(-2)",
            "remaining = (total - total.mT).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).exp()",
            f"key = {k}" + (f".repeat_interleave({shared}, 0)" if shared > 1 else ""),
            f"system = ({beta} * (key @ key.mT) * remaining).tril(-1)",
            f"solved = torch.linalg.solve_triangular(system, {beta} * {v}, upper=False, unitriangular=True)",
            f"{site.variable} = solved{back}",
        ]
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        token, d = cell.index
        site, head = cell.site, cell.head or 0
        value, beta = cell.source(1, token, d), cell.source(2, token, 0)
        keys = site.input(0)[head // (len(site.input(1)) // len(site.input(0)))].cpu().double()  # (T, K)
        decay, earlier = site.input(3)[head, :, 0].cpu().double(), site.value[head, :token, d].cpu().double()
        since = (decay.cumsum(0)[token] - decay.cumsum(0)[:token]).exp()
        weights = -beta.value * since * (keys[:token] @ keys[token])
        series = product(
            ("−β·e^G·k·k", "written"),
            (weights, earlier),
            lambda i: f"{i} {cell.token(i)}",
            lambda i: (cell.source(0, i, 0), cell.source(3, i, 0)),
        )
        before = (Value("β", beta.value, beta.step.name), Value("v", value.value, value.step.name))
        beta_v, inputs, leads = beta.value * value.value, ((value, 2), (beta, 2)), (value, beta)
        if not token:  # nothing is in the state yet
            return Working(inputs, before=before, after=(Value("written", beta_v, "β · v"),), leads=leads)
        return Working(inputs, series, Term("β · v", (), beta_v), before=before, leads=leads)

    def summand(self, to: Consumer) -> Summand:
        position, head = to.row.place, to.row.head or 0
        _, v, beta, _, _, x = self._solved(to.site, to.g)
        solution = Quantity("x", x[head, position])
        solved = f"x solves (I + A)ᵀ·x = {to.symbol}"
        if to.number == 1:
            strength = beta[head, position]
            result = (strength * solution.values).to(to.g.dtype)
            return Summand("β·x", result, (solved,), (Quantity("β", strength[0]),), (solution,))
        gradient = self.input_gradients(to.site, to.g)[to.number]
        row = gradient[head // (len(v) // len(gradient)), position]
        words = {
            0: "Σ (∂A·β·e^G + its transpose)·k",
            2: "x·v + Σ ∂A·(k·k)·e^G",
            3: "Σ of ∂A ⊙ A over the pairs with this token between",
        }
        return Summand(words[to.number], row, (solved, "∂A = −x·writtenᵀ below the diagonal"), (), (solution,))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        """The count of the recurrence: k·S, k⊗u and q·S, K·D each."""
        return tokens * 3 * config.n_heads * config.d_head * config.value_width


def of_decay(of_total: Tensor) -> Tensor:
    """The gradient of g from the gradient of G_t − G_s at each (t, s): (H, T, T) -> (H, T, 1)."""
    of_sums = of_total.sum(dim=-1) - of_total.sum(dim=-2)  # (H, T), of G
    return of_sums.flip(-1).cumsum(-1).flip(-1)[..., None]


class Fade(Operation):
    """Fits (…, G, T, T) times the remaining share of each key's token, (…, H, T, T): 0 above the diagonal."""

    words = "a product"
    over_tokens = True
    hides_ahead = True
    has_state = True

    def forward(self, *inputs: Tensor) -> Tensor:
        fits, decay = inputs
        return repeat_groups(fits, decay.shape[-3]) * remaining(decay).to(fits.dtype)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.forward(site.input(0, heads), site.input(1, heads))

    def written(self, site: Site, core: Sequence[Site], head: int) -> Written:
        decay = site.input(1)[head, :, 0].cpu().double()
        return at_keys(core, head, lambda token: since(decay, token).exp())

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        fits, decay = site.inputs()
        of_fits = by_group(g * remaining(decay).to(g.dtype), fits).sum(dim=1)
        return of_fits, of_decay((g * site.value).to(decay.dtype))

    def code(self, site: Site) -> str:
        fits, decay = site.names
        shared = len(site.input(1)) // len(site.input(0))
        lines = [
            f"total = {decay}.cumsum(-2)",
            "remaining = (total - total.mT).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).exp()",
            f"{site.variable} = {fits}" + (f".repeat_interleave({shared}, 0)" if shared > 1 else "")
            + f" * remaining.to({fits}.dtype)",
        ]  # fmt: skip
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.index
        source = cell.source(0, query, key)
        if key > query:
            return of_a_later_token(cell, source)
        since = cell.source(1, query, 0)
        decay = float(cell.site.input(1)[cell.head or 0, key + 1 : query + 1, 0].double().sum())
        before = (Value("G", decay, f"decay of the tokens after {key}, up to {query}"), Value("e^G", math.exp(decay)))
        series = single("scaled · e^G", [(source.step.name, source.value), ("e^G", math.exp(decay))], (source, since))
        return Working(((source, 2), (since, 0)), series, before=before)

    def summand(self, to: Consumer) -> Summand:
        decay, position = to.site.input(1), to.row.place
        if to.number == 1:
            products = to.g[to.row.head or 0] * to.site.value[to.row.head or 0]
            gradient = of_decay(products[None].to(decay.dtype))[0, position]
            lines = ("over the queries from this token on and the keys before it",)
            return Summand(f"Σ {to.symbol} ⊙ read", gradient, lines)
        decays = remaining(decay)
        heads = to.query_heads
        quantities = [Quantity(f"{to.symbol}, head {head}", to.g[head, position]) for head in heads]
        parts = [
            quantity.values * decays[head, position].to(to.g.dtype)
            for quantity, head in zip(quantities, heads, strict=True)
        ]
        return Summand(f"{to.symbol} ⊙ e^G", torch.stack(parts).sum(dim=0), (), tuple(quantities))
