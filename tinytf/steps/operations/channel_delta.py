"""Kimi delta attention: the gated delta rule with a decay for every channel of a key (Kimi Team 2025).

S decays by e^g row by row, and token t writes u_t = β_t·(v_t − k_t·S) at its key. Unrolled, what is left of s at t is
e^(G_t − G_s) in each channel, where G is the sum of g up to a token, so queries and keys fit by a sum over channels
that the decays weigh. Shapes: T tokens, H heads, K and D the widths of keys and values.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.delta import empty_state, of_a_later_token
from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, in_float32, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Value, Working, product
from tinytf.steps.operations.written import Written, since


def channel_delta_rule(
    k: Tensor, decay: Tensor, v: Tensor, beta: Tensor, q: Tensor, state: Tensor | None, divisor: float
) -> tuple[Tensor, Tensor]:
    """The outputs of all tokens (…, H, T, D), and the state (…, H, K, D) after them."""
    k, kept, v, beta, q = wide(k), decay.exp(), wide(v), wide(beta), wide(q) / divisor
    state = empty_state(k, v) if state is None else state
    read = []
    for t in range(v.shape[-2]):
        token = slice(t, t + 1)
        state = kept[..., token, :].mT * state
        state = state + k[..., token, :].mT * (beta[..., token, :] * (v[..., token, :] - k[..., token, :] @ state))
        read.append(q[..., token, :] @ state)
    return torch.cat(read, dim=-2) if read else v, state


class DecayedFits(Operation):
    """Σ x·k·e^(G_t − G_s) over the channels, (…, H, T, T), from x, keys and decays (…, H, T, K); 0 above the diagonal.

    It is computed one query at a time, without T·T·K numbers, in float32 or wider.
    """

    words = "a sum of products"
    over_tokens = True
    hides_ahead = True

    @staticmethod
    def _left(total: Tensor, token: int) -> Tensor:
        """What is left at a token of itself and those before it, (…, H, t + 1, K), from G."""
        return (total[..., token : token + 1, :] - total[..., : token + 1, :]).exp()

    def forward(self, *inputs: Tensor) -> Tensor:
        x, k, decay = (wide(tensor) for tensor in inputs)
        total = decay.cumsum(dim=-2)
        fits = x.new_zeros(*x.shape[:-1], x.shape[-2])
        for t in range(x.shape[-2]):
            weighed = k[..., : t + 1, :] * self._left(total, t)
            fits[..., t, : t + 1] = (weighed @ x[..., t, :, None])[..., 0]
        return fits

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """That of G is x·∂x − k·∂k, and that of a decay the sum of it from its token on."""
        x, k, decay = (wide(tensor) for tensor in site.inputs())
        g, total = wide(g), decay.cumsum(dim=-2)
        of_x, of_k = torch.zeros_like(x), torch.zeros_like(k)
        for t in range(x.shape[-2]):
            weighed = g[:, t, : t + 1, None] * self._left(total, t)
            of_x[:, t] = (weighed * k[:, : t + 1]).sum(dim=1)
            of_k[:, : t + 1] += weighed * x[:, t, None]
        of_total = x * of_x - k * of_k
        of_decay = of_total.flip(1).cumsum(1).flip(1)
        return tuple(
            found.to(tensor.dtype) for found, tensor in zip((of_x, of_k, of_decay), site.inputs(), strict=True)
        )

    def code(self, site: Site) -> str:
        x, k, decay = (in_float32(name, site.input(i)) for i, name in enumerate(site.names))
        lines = [
            f"total = {decay}.cumsum(-2)",
            "left = (total[:, :, None] - total[:, None]).clamp(max=0).exp()",
            f"{site.variable} = ({x}[:, :, None] * {k}[:, None] * left).sum(-1).tril()",
        ]
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.index
        x, k, head = cell.source(0, query, 0), cell.source(1, key, 0), cell.head or 0
        if key > query:
            return of_a_later_token(cell, x)
        left = cell.site.input(2)[head, key + 1 : query + 1].cpu().double().sum(dim=0).exp()
        series = product(
            (f"{x.step.name}·e^G", k.step.name),
            (x.row() * left, k.row()),
            lambda i: f"d{i}",
            lambda i: (cell.source(0, query, i), cell.source(1, key, i), cell.source(2, query, i)),
        )
        return Working(((x, 1), (k, 1), (cell.source(2, query, 0), 0)), series)

    def summand(self, to: Consumer) -> Summand:
        head, position = to.row.head or 0, to.row.place
        row = self.input_gradients(to.site, to.g)[to.number][head, position]
        words = (
            f"Σ {to.symbol}·k ⊙ e^G over the keys before",
            f"Σ {to.symbol}·x ⊙ e^G over the queries from here on",
            "Σ x ⊙ ∂x − k ⊙ ∂k from here on",
        )
        lines = ("e^G is what the decays leave of the key at the query, in each channel",)
        row_of_g = Quantity(to.symbol, to.g[head, position])
        column_of_g = Quantity(f"{to.symbol}[·,{position}]", to.g[head, :, position])
        return Summand(words[to.number], row, lines, ((row_of_g,), (column_of_g,), ())[to.number])

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return tokens * keys * config.n_heads * config.d_head


class DecayedRead(DecayedFits):
    """The fits of queries: what they read of a state that ``written`` gives."""

    has_state = True

    def written(self, site: Site, core: Sequence[Site], head: int) -> Written:
        decay = site.input(2)[head].cpu().double()
        keys, values = (step.input(1)[head].cpu().double() for step in (site, core[-1]))
        return Written(keys, values, lambda token: since(decay, token).exp()[..., None])


class WriteByFits(Operation):
    """u (…, H, T, D) from (I + A)·u = β·v, with A[t, s] = β_t·fit[t, s] for s < t, from fits, values and β."""

    words = "a difference"
    over_tokens = True

    @staticmethod
    def _system(fits: Tensor, beta: Tensor) -> Tensor:
        return (wide(beta) * wide(fits)).tril(-1)

    def forward(self, *inputs: Tensor) -> Tensor:
        fits, v, beta = inputs
        right = wide(beta) * wide(v)
        return torch.linalg.solve_triangular(self._system(fits, beta), right, upper=False, unitriangular=True).to(
            v.dtype
        )

    def _solved(self, site: Site, g: Tensor) -> Tensor:
        """x = (I + A)⁻ᵀ·g."""
        system = self._system(site.input(0), site.input(2))
        return torch.linalg.solve_triangular(system.mT, wide(g), upper=True, unitriangular=True)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """The gradient of A is −x·uᵀ below the diagonal; the gradient of β·v is x."""
        fits, v, beta = (wide(tensor) for tensor in site.inputs())
        x = self._solved(site, g)
        of_system = -(x @ wide(site.value).mT).tril(-1)  # (H, T, T)
        of_beta = (x * v).sum(dim=-1, keepdim=True) + (of_system * fits).sum(dim=-1, keepdim=True)
        found = (of_system * beta, beta * x, of_beta)
        return tuple(gradient.to(own.dtype) for gradient, own in zip(found, site.inputs(), strict=True))

    def code(self, site: Site) -> str:
        fits, v, beta = (in_float32(name, site.input(i)) for i, name in enumerate(site.names))
        back = f".to({site.names[1]}.dtype)" if v != site.names[1] else ""
        lines = [
            f"system = ({beta} * {fits}).tril(-1)",
            f"solved = torch.linalg.solve_triangular(system, {beta} * {v}, upper=False, unitriangular=True)",
            f"{site.variable} = solved{back}",
        ]
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        (token, d), head = cell.index, cell.head or 0
        value, beta = cell.source(1, token, d), cell.source(2, token, 0)
        beta_v, inputs, leads = beta.value * value.value, ((value, 2), (beta, 2)), (value, beta)
        before = (Value("β", beta.value, beta.step.name), Value("v", value.value, value.step.name))
        if not token:  # nothing is in the state yet
            return Working(inputs, before=before, after=(Value("written", beta_v, "β · v"),), leads=leads)
        fits, earlier = cell.site.input(0)[head, token, :token], cell.site.value[head, :token, d]
        series = product(
            ("−β·fit", "written"),
            (-beta.value * fits.cpu().double(), earlier.cpu().double()),
            lambda i: f"{i} {cell.token(i)}",
            lambda i: (cell.source(0, token, i),),
        )
        return Working(inputs, series, Term("β · v", (), beta_v), before=before, leads=leads)

    def summand(self, to: Consumer) -> Summand:
        position, head = to.row.place, to.row.head or 0
        x = Quantity("x", self._solved(to.site, to.g)[head, position])
        row = self.input_gradients(to.site, to.g)[to.number][head, position]
        words = ("−β·(x·writtenᵀ) below the diagonal", "β·x", "x·v − Σ (x·writtenᵀ) ⊙ fit")
        return Summand(words[to.number], row, (f"x solves (I + A)ᵀ·x = {to.symbol}",), (), (x,))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        """The count of the recurrence: k·S and k⊗u, K·D each."""
        return tokens * 2 * config.n_heads * config.d_head * config.value_width
