"""The third hand's mistakes, as functions of a model: what conversions, servers and other frameworks got wrong."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from broken.bench import Broken, Patch
from broken.patches import several, swapped


def rope(theta: float, part: float = 1.0) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": part}


def halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def turned_as_halves(cos: Callable[[Tensor], Tensor]) -> Any:
    """Rotation of halves for a family that rotates neighbours, whose cosines ``cos`` reads."""
    return lambda plain: lambda q, k, c, s, *more: tuple(halves(x, cos(c), cos(s)) for x in (q, k))


def exchanged_halves(weight: Tensor) -> Tensor:
    return torch.cat(weight.chunk(2, -2)[::-1], -2)


def eps_outside(out: Tensor, x: Tensor, module: Any) -> Tensor:
    return module.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + module.variance_epsilon)


def with_eps(eps: float) -> Callable[..., Tensor]:
    return lambda out, x, module: module.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def norm_behind_rotary(module: Any, plain: Any) -> Any:
    home = sys.modules[type(module).__module__]

    def forward(hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, **more: Any) -> Any:
        shape = (*hidden_states.shape[:-1], -1, module.head_dim)
        q, k, v = (
            one(hidden_states).view(shape).transpose(1, 2) for one in (module.q_proj, module.k_proj, module.v_proj)
        )
        q, k = home.apply_rotary_pos_emb(q, k, *position_embeddings)
        q, k = module.q_norm(q), module.k_norm(k)
        out, _ = home.eager_attention_forward(module, q, k, v, attention_mask, scaling=module.scaling)
        return module.o_proj(out.flatten(-2)), None

    return forward


def sequential(module: Any, plain: Any) -> Any:
    def forward(hidden_states: Tensor, **more: Any) -> Tensor:
        attention, _ = module.self_attn(hidden_states=module.input_layernorm(hidden_states), **more)
        mid = hidden_states + attention
        return mid + module.mlp(module.input_layernorm.forward(mid))

    return forward


def norm_before(module: Any, plain: Any) -> Any:
    def forward(hidden_states: Tensor, **more: Any) -> Tensor:
        attention, _ = module.self_attn(hidden_states=module.post_attention_layernorm(hidden_states), **more)
        mid = hidden_states + attention
        return mid + module.mlp(module.post_feedforward_layernorm(mid))

    return forward


def shared_expert(switch: Callable[[Tensor], Any]) -> Any:
    """Qwen2-MoE's block with another switch of the shared expert."""

    def make(module: Any, plain: Any) -> Any:
        def forward(hidden_states: Tensor) -> Tensor:
            flat = hidden_states.flatten(0, 1)
            _, weights, chosen = module.gate(flat)
            mixed = module.experts(flat, chosen, weights)
            return (mixed + switch(module.shared_expert_gate(flat)) * module.shared_expert(flat)).view_as(hidden_states)

        return forward

    return make


def softmax_router(module: Any, plain: Any) -> Any:
    """DeepSeek-V3's router with the softmax of DeepSeek-V2."""

    def forward(hidden_states: Tensor) -> Any:
        logits = hidden_states.view(-1, module.hidden_dim) @ module.weight.T
        shares = logits.softmax(-1)
        grouped = (shares + module.e_score_correction_bias).unflatten(-1, (module.num_group, -1))
        groups = grouped.topk(2, -1).values.sum(-1).topk(module.topk_group, -1).indices
        kept = torch.zeros(grouped.shape[:-1]).scatter(1, groups, 1.0).bool()
        chosen = grouped.masked_fill(~kept[..., None], -torch.inf).flatten(1).topk(module.top_k, -1).indices
        weights = shares.gather(1, chosen)
        return logits, weights / weights.sum(-1, keepdim=True) * module.routed_scaling_factor, chosen

    return forward


def gpt_oss_gate(chunked: bool = False, alpha: float | None = None, added: float = 1.0) -> Any:
    """gpt-oss' activation with other halves, another α, or another constant."""

    def make(module: Any, plain: Any) -> Any:
        def apply(gate_up: Tensor) -> Tensor:
            gate, up = gate_up.chunk(2, -1) if chunked else (gate_up[..., ::2], gate_up[..., 1::2])
            gate, up = gate.clamp(max=module.limit), up.clamp(-module.limit, module.limit)
            return (up + added) * gate * torch.sigmoid(gate * (module.alpha if alpha is None else alpha))

        return apply

    return make


def plain_order(module: Any, plain: Any) -> Any:
    """Falcon-40B's joint rows read as all queries, all keys, all values."""

    def split(fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size, kv = module.head_dim, module.num_kv_heads
        parts = fused.split([module.num_heads * size, kv * size, kv * size], -1)
        q, k, v = (part.unflatten(-1, (-1, size)) for part in parts)
        return q, *(one.repeat_interleave(module.num_heads // kv, 2) for one in (k, v))

    return split


def geometric(plain: Any) -> Any:
    """ALiBi's slopes as one geometric series, as if the number of heads were a power of 2."""
    return lambda heads, *more, **named: 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)


def norm_before_gate(module: Any, plain: Any) -> Any:
    return lambda hidden, gate=None: plain(hidden) * nn.functional.silu(gate)


def centred(plain: Any) -> Any:
    def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *more: Any, **named: Any) -> Tensor:
        return nn.functional.conv1d(x, weight.unsqueeze(1), bias, padding=1, groups=x.shape[1])

    return conv


def rms(out: Tensor, x: Tensor, module: Any) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def by_head(out: Tensor, x: Tensor, module: Any) -> Tensor:
    heads = x.unflatten(-1, (-1, 12))
    return module.weight * (heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + 1e-6)).flatten(-2)


def unpermuted_by_4(weight: Tensor) -> Tensor:
    """Key rows that a converter turned into pairs by the 4 query heads, and a loader back by the 2 key heads."""
    pairs = weight.unflatten(0, (4, 2, 3)).transpose(1, 2).flatten(0, 2)
    return pairs.unflatten(0, (2, 6, 2)).transpose(1, 2).flatten(0, 2)


def never_itself(hidden: Tensor) -> Tensor:
    own = torch.eye(hidden.shape[-1]).bool()
    own[0, 0] = False
    return hidden.masked_fill(own, -torch.inf)


def full_every_6th_from_0(model: Any, patch: Patch) -> None:
    kinds = model.config.layer_types
    model.config.layer_types = ["sliding_attention" if number % 6 else "full_attention" for number in range(len(kinds))]


def last_layer_dropped(model: Any, patch: Patch) -> None:
    model.model.layers = model.model.layers[:-1]
    model.config.num_hidden_layers -= 1


def new_head(model: Any, patch: Patch) -> None:
    weight = model.lm_head.weight
    model.lm_head.weight = nn.Parameter(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2)))


def in_all(layers: int, path: str, *pairs: tuple[str, str]) -> Broken:
    """Two tensors of every layer in each other's place."""
    return several(*(swapped(path.format(n) + a, path.format(n) + b) for n in range(layers) for a, b in pairs))
