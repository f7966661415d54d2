"""Self-attention; how its core computes, in one fused call or step by step, is the one switch.

Shapes: B batch, H query heads, G key-value heads, T tokens (Q and K where query and key differ), D head width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.cache import LayerCache
from tinytf.model.linear import Linear
from tinytf.model.parts import make_norm, rotary_frequencies, rotate

Tap = Callable[[str, Tensor], Tensor]


def repeat_groups(x: Tensor, n_heads: int) -> Tensor:
    """Let each of G key or value heads serve its n_heads / G query heads: (…, G, T, D) -> (…, H, T, D)."""
    groups = x.shape[-3]
    return x if groups == n_heads else x.repeat_interleave(n_heads // groups, dim=-3)


def attention_scores(q: Tensor, k: Tensor) -> Tensor:
    """q·kᵀ: (…, Q, D) and (…, K, D) -> (…, Q, K)."""
    return q @ k.transpose(-2, -1)


def scale_scores(scores: Tensor, d_head: int) -> Tensor:
    """scores / √d_head (Vaswani et al. 2017, equation 1)."""
    return scores / math.sqrt(d_head)


def mask_scores(scaled: Tensor, allowed: Tensor | None) -> Tensor:
    """−∞ where a query may not look; ``allowed`` is boolean and broadcasts to (…, Q, K)."""
    return scaled if allowed is None else scaled.masked_fill(~allowed, -math.inf)


def attention_weights(masked: Tensor) -> Tensor:
    """Softmax over the keys; a query that may look nowhere gets zeros instead of NaN."""
    blind = torch.isneginf(masked).all(dim=-1, keepdim=True)
    return masked.softmax(dim=-1).masked_fill(blind, 0.0)


@dataclass(frozen=True)
class Sight:
    """Which keys a query may look at: in a ``causal`` model none after it, with a ``window`` only the last so many.

    A window of W lets the query at t see the keys t − W + 1 … t; 0 is no window.
    """

    causal: bool
    window: int = 0

    @classmethod
    def of(cls, config: ModelConfig) -> "Sight":
        return cls(config.causal, config.window)

    def allowed(self, length: int, padding_mask: Tensor | None, device: torch.device, past: int = 0) -> Tensor | None:
        """True where a query may look; None where everything is allowed.

        ``padding_mask`` is (B, K), True for a real token. The queries are the last ``length`` of K = past + length
        tokens. The result is (Q, K), or (B, 1, Q, K) with padding.
        """
        allowed = None
        if self.causal:
            allowed = torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)
        if allowed is not None and self.cuts(past + length):
            allowed = allowed.triu(past + 1 - self.window)
        if padding_mask is None:
            return allowed
        keys = padding_mask[:, None, None, :]  # (B, 1, 1, K)
        return keys.expand(-1, 1, length, -1) if allowed is None else keys & allowed

    def cuts(self, length: int) -> bool:
        """Whether the window hides anything in a text of ``length`` tokens."""
        return 0 < self.window < length


class FusedCore(nn.Module):
    """The whole core in torch's fused scaled_dot_product_attention; no (Q, K) matrix of numbers is kept."""

    def __init__(self, sight: Sight, tap: Tap | None = None) -> None:
        super().__init__()
        if tap is not None:
            raise UsageError("the fused core has no steps to tap", "use the core 'steps'")
        self.sight = sight

    def forward(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if q.is_cpu and q.dtype is torch.bfloat16 and q.requires_grad:
            # torch's backward pass of this is five times as slow in bfloat16 as in float32.
            with torch.autocast("cpu", enabled=False):
                return self.forward(q.float(), k.float(), v.float(), padding_mask).to(q.dtype)
        grouped, length, past = q.shape[1] != k.shape[1], q.shape[2], k.shape[2] - q.shape[2]
        if padding_mask is None and not self.sight.cuts(k.shape[2]) and (not past or length == 1):
            causal = self.sight.causal and not past  # the only query behind a past sees all of it
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        allowed = self.sight.allowed(length, padding_mask, q.device, past)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=grouped)


class SteppedCore(nn.Module):
    """The same core, one step after the other; each passes through ``tap``, which may return another tensor."""

    def __init__(self, sight: Sight, tap: Tap | None = None) -> None:
        super().__init__()
        self.sight = sight
        self.tap: Tap = tap or (lambda _, tensor: tensor)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        n_heads, length, d_head = q.shape[1:]
        allowed = self.sight.allowed(length, padding_mask, q.device, k.shape[2] - length)
        scores = self.tap("scores", attention_scores(q, repeat_groups(k, n_heads)))  # (B, H, Q, K)
        scaled = self.tap("scaled", scale_scores(scores, d_head))
        masked = self.tap("masked", mask_scores(scaled, allowed))
        weights = self.tap("weights", attention_weights(masked))
        return self.tap("heads", weights @ repeat_groups(v, n_heads))  # (B, H, Q, D)


CORES: dict[str, type[FusedCore] | type[SteppedCore]] = {"fused": FusedCore, "steps": SteppedCore}


class SelfAttention(nn.Module):
    """Multi-head self-attention with grouped key-value heads, optional per-head q/k norm and rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.d_head = config.d_head
        self.q = Linear(config.d_model, config.n_heads * config.d_head, bias=config.qkv_bias)
        self.k = Linear(config.d_model, config.n_kv_heads * config.d_head, bias=config.qkv_bias)
        self.v = Linear(config.d_model, config.n_kv_heads * config.d_head, bias=config.qkv_bias)
        self.o = Linear(config.n_heads * config.d_head, config.d_model, bias=config.o_bias)
        self.q_norm = make_norm(config, config.d_head) if config.qk_norm else nn.Identity()
        self.k_norm = make_norm(config, config.d_head) if config.qk_norm else nn.Identity()
        self.core: nn.Module = FusedCore(Sight.of(config))

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

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        padding_mask: Tensor | None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        q = self.q_norm(self.split_heads(self.q(x)))  # (B, H, T, D)
        k = self.k_norm(self.split_heads(self.k(x)))  # (B, G, T, D)
        v = self.split_heads(self.v(x))  # (B, G, T, D)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        if cache is not None:
            k, v = cache.extend(k, v)  # (B, G, past + T, D)
        heads = self.core(q, k, v, padding_mask)  # (B, H, T, D)
        return self.o(heads.transpose(1, 2).flatten(2))  # (B, T, H·D) -> (B, T, C)
