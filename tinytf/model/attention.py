"""Self-attention; its core runs the rows of the step table, in one fused call where torch has one.

Shapes: B batch, H query heads, G key-value heads, T tokens (Q and K where query and key differ), D head width.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.config import LATENT_EPS, ModelConfig
from tinytf.model.cache import LayerCache
from tinytf.model.linear import Linear
from tinytf.model.parts import Embedding, Rows, make_clip, make_head_norm, make_norm
from tinytf.parts.row import Step
from tinytf.steps.operations.grow import Grow
from tinytf.steps.operations.join import join_keys
from tinytf.steps.operations.mask import Sight, mask_scores, real_keys
from tinytf.steps.operations.rotate import rotary_frequencies, rotary_table, rotate
from tinytf.steps.table import table_of

Tap = Callable[[str, Tensor], Tensor]
Edit = Callable[[Tensor], Tensor]


class FusedCore(nn.Module):
    """The whole core in torch's fused scaled_dot_product_attention; no (Q, K) matrix of numbers is kept."""

    def __init__(self, sight: Sight, divisor: float) -> None:
        super().__init__()
        self.sight, self.scale = sight, 1 / divisor

    def forward(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if q.is_cpu and q.dtype is torch.bfloat16 and q.requires_grad:
            # torch's backward pass of this is five times as slow in bfloat16 as in float32.
            with torch.autocast("cpu", enabled=False):
                return self.forward(q.float(), k.float(), v.float(), padding_mask).to(q.dtype)
        grouped, length, past = q.shape[1] != k.shape[1], q.shape[2], k.shape[2] - q.shape[2]
        if padding_mask is None and not self.sight.cuts(k.shape[2]) and (not past or length == 1):
            causal = self.sight.causal and not past  # the only query after a past sees all of it
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=self.scale, enable_gqa=grouped)
        allowed = self.sight.allowed(length, padding_mask, q.device, past)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=self.scale, enable_gqa=grouped)


class SteppedCore(nn.Module):
    """The core as the step table has it, one row after the other. Padding is hidden before the softmax.

    Each value is passed to ``tap``, which may return another tensor, after the ``edits`` of ``within``, the attention
    of the block. The rows that have parameters find them in its modules (by their paths in the block), which stay
    registered there alone.
    """

    def __init__(self, steps: Sequence[Step], tap: Tap | None = None, within: "SelfAttention | None" = None) -> None:
        super().__init__()
        self.steps = tuple(steps)
        self.tap: Tap = tap or (lambda _, tensor: tensor)
        self.modules_of = tuple(
            within.get_submodule(_inside(step)) if within and step.module else None for step in steps
        )
        self.edits: dict[str, Edit] = {} if within is None else within.edits
        weights = next(step for step in steps if step.name == steps[-1].inputs[0])
        self.scores = weights.inputs[0]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, **more: Tensor) -> Tensor:
        """``more`` are other steps that rows take, by their names."""
        values = dict(zip(self.steps[0].inputs, (q, k), strict=True)) | {self.steps[-1].inputs[-1]: v, **more}
        for step, module in zip(self.steps, self.modules_of, strict=True):
            assert step.operation is not None, "a step of the core has an operation"
            taken = (values[name] for name in step.inputs)
            made = step.operation.in_core(module, *taken)  # (B, H, Q, K), at last (B, H, Q, D)
            made = self.tap(step.name, self.edits[step.name](made) if step.name in self.edits else made)
            if padding_mask is not None and step.name == self.scores:
                made = mask_scores(made, real_keys(padding_mask))
            values[step.name] = made
        return values[self.steps[-1].name]


def _inside(step: Step) -> str:
    """The path of a core row's module within the attention, not the block."""
    return step.module.removeprefix("attention.")


def make_core(
    config: ModelConfig, tap: Tap | None = None, *, stepwise: bool = False, within: "SelfAttention | None" = None
) -> nn.Module:
    """The core of one layer: fused, unless each step is to be seen or the table has a row that is not fused.

    ``within`` is the attention that has the parameters of the rows, where there are any.
    """
    steps = [step for step in table_of(config).layer_steps if step.core]
    operations = [step.operation for step in steps]
    if stepwise or not all(operation is not None and operation.fused for operation in operations):
        return SteppedCore(steps, tap, within)
    return FusedCore(Sight.of(config), config.score_divisor)


class Sink(nn.Module):
    """One logit a head, which takes a share of every softmax and gives nothing for it."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_heads))


class OfDistances(nn.Module):
    """Puts embeddings of distances through the matrix of the tokens, which stays registered there alone."""

    def __init__(self, tokens: nn.Module) -> None:
        super().__init__()
        self.tokens = (tokens,)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.tokens[0].forward(x)  # without its hooks, which are for tokens
        return made


class SelfAttention(nn.Module):
    """Multi-head self-attention with grouped key-value heads, optional q/k norms and rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.d_head = config.d_head
        self._make_projections(config)
        self.o = Linear(config.n_heads * config.value_width, config.d_model, bias=config.o_bias)
        self.q_norm = make_head_norm(config, config.n_heads)
        self.k_norm = make_head_norm(config, config.n_kv_heads)
        # Where the norms stand: tuples, so that each is registered under one name alone.
        norms, none = (self.q_norm, self.k_norm), (nn.Identity(), nn.Identity())
        of_one, last = config.qk_norm_across == "head", config.qk_norm_last
        self.joint_norms: tuple[nn.Module, nn.Module] = none if of_one else norms
        self.head_norms: tuple[nn.Module, nn.Module] = norms if of_one and not last else none
        self.last_norms: tuple[nn.Module, nn.Module] = norms if last else none
        self.q_clip, self.k_clip, self.v_clip = (make_clip(config) for _ in range(3))
        self.config = config
        self.rope = config.rope if config.positions == "rotary" else None
        # Where what is turned passes, so that it is seen.
        self.q_turned, self.k_turned = nn.Identity(), nn.Identity()
        self.grow = Grow(config.query_scale, config.query_scale_every, config.query_scale_first)
        self.sink = Sink(config.n_heads) if config.attention_sinks else None
        self.relative = Embedding(config.relative_buckets, config.n_heads) if config.relative_buckets else None
        if config.distances:
            self._make_distances(config)
        self.edits: dict[str, Edit] = {}  # what is made of steps of a stepped core, by their names
        self.core: nn.Module = make_core(config, within=self)

    def _make_distances(self, config: ModelConfig) -> None:
        c, width, own = config.d_model, config.n_heads * config.d_head, config.distance_matrices
        self.distances = Rows(2 * config.distances, c)
        self.distances_norm = make_norm(config) if config.distance_norm else nn.Identity()
        if config.distance_keys:
            self.pos_k = Linear(c, width, bias=config.qkv_bias) if own else OfDistances(self.k)
        if config.distance_queries:
            self.pos_q = Linear(c, width, bias=config.qkv_bias) if own else OfDistances(self.q)

    def _make_projections(self, config: ModelConfig) -> None:
        self.n_kv_heads = config.n_kv_heads
        self.q = Linear(config.d_model, config.n_heads * config.d_head, bias=config.qkv_bias)
        self.k = Linear(config.d_model, config.n_kv_heads * config.d_head, bias=config.qkv_bias)
        self.v = Linear(config.d_model, config.n_kv_heads * config.value_width, bias=config.qkv_bias)

    @torch.no_grad()
    def look_back(self, config: ModelConfig, generator: torch.Generator) -> None:
        """Set the rotary biases of half of the key heads so that their queries prefer the token before.

        Of the pairs that turn fast enough to tell neighbours apart, a query's bias is the key's, one position back.
        """
        turn = rotary_frequencies(config.rope)
        turn = turn[turn > 0.1]
        size, half = (2 * math.sqrt(self.d_head)) ** 0.5, self.d_head // 2
        for group in range(max(1, config.n_kv_heads // 2)):
            phase = 2 * math.pi * torch.rand(len(turn), generator=generator)
            heads = range(group * config.heads_per_kv, (group + 1) * config.heads_per_kv)
            for bias, head, angle in [
                (self.k.bias, group, phase),
                *((self.q.bias, head, phase - turn) for head in heads),
            ]:
                for start, wave in ((0, angle.cos()), (half, angle.sin())):
                    first = head * self.d_head + start
                    bias[first : first + len(turn)] = size * wave

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, H·D) -> (B, H, T, D)."""
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys (B, G, T, D) and values (B, G, T, D) of x (B, T, C), before they are rotated."""
        (norm_queries, norm_keys), (norm_each_query, norm_each_key) = self.joint_norms, self.head_norms
        q = self.q_clip(norm_each_query(self.split_heads(norm_queries(self.q(x)))))
        k = self.k_clip(norm_each_key(self.split_heads(norm_keys(self.k(x)))))
        return q, k, self.v_clip(self.v(x).unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2))

    def of_distances(self) -> dict[str, Tensor]:
        """Keys and queries of distances, (1, H, 2·distances, D), by the names of their steps; none in most models."""
        if not self.config.distances:
            return {}
        read = self.distances_norm(self.distances())
        return {
            name: self.split_heads(part(read)) for name in ("pos_k", "pos_q") if (part := getattr(self, name, None))
        }

    def forward(
        self,
        x: Tensor,
        start: int,
        padding_mask: Tensor | None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Attention of tokens whose first is at position ``start``: (B, T, C) -> (B, T, C)."""
        q, k, v = self.project(x)  # (B, H, T, D), (B, G, T, D)
        if self.rope is not None:
            waves = rotary_table(start + x.shape[1], self.rope, x.device, q.dtype)
            cosine, sine = (wave[start:] for wave in waves)  # (T, width)
            q, k = self.q_turned(rotate(q, cosine, sine)), self.k_turned(rotate(k, cosine, sine))
        norm_queries, norm_keys = self.last_norms
        q, k = norm_queries(q), norm_keys(k)
        if self.grow.scale:
            q = q * self.grow.factors(q.shape[2], q, start)
        if cache is not None:
            k, v = cache.extend(k, v)  # (B, G, past + T, D)
        heads = self.core(q, k, v, padding_mask, **self.of_distances())  # (B, H, T, D)
        return self.o(heads.transpose(1, 2).flatten(2))  # (B, T, H·D) -> (B, T, C)


class JoinedKeys(nn.Module):
    """The part of a key that all heads share, put before each head's own."""

    def forward(self, shared: Tensor, own: Tensor) -> Tensor:
        return join_keys(shared, own)


class LatentAttention(SelfAttention):
    """Attention whose keys and values, and queries where they have a rank, are made of a shorter, normed vector.

    A key begins with dimensions that all heads share, which alone are rotated (DeepSeek-V2, 2024, section 2.1).
    """

    def _make_projections(self, config: ModelConfig) -> None:
        c, heads, rank = config.d_model, config.n_heads, config.kv_rank
        self.n_heads = heads
        self.q_a: nn.Module = Linear(c, config.q_rank, bias=False) if config.q_rank else nn.Identity()
        self.q_a_norm: nn.Module = nn.RMSNorm(config.q_rank, LATENT_EPS) if config.q_rank else nn.Identity()
        self.q = Linear(config.q_rank or c, heads * config.d_head, bias=False)
        self.kv_a, self.kv_a_norm = Linear(c, rank, bias=False), nn.RMSNorm(rank, LATENT_EPS)
        self.k_shared = Linear(c, config.rope_width, bias=False)
        self.k = Linear(rank, heads * config.d_own, bias=False)
        self.v = Linear(rank, heads * config.value_width, bias=False)
        self.join = JoinedKeys()

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        latent = self.kv_a_norm(self.kv_a(x))  # (B, T, rank)
        q, own, v = (
            made.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, T, H·D) -> (B, H, T, D)
            for made in (self.q(self.q_a_norm(self.q_a(x))), self.k(latent), self.v(latent))
        )
        return q, self.join(self.k_shared(x), own), v


def make_attention(config: ModelConfig) -> SelfAttention:
    """The attention of one layer."""
    return LatentAttention(config) if config.kv_rank else SelfAttention(config)
