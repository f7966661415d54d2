"""The ports of the hand that wrote tinytf/compare: SmolLM2, Gemma 3, a mixture of experts and a hybrid."""

from collections.abc import Callable
from typing import Any

import gguf
import torch
from torch import Tensor, nn
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama
from transformers.models.qwen3_moe import modeling_qwen3_moe
from transformers.models.qwen3_next import modeling_qwen3_next

from broken.bench import TEXT, Patch, Port
from broken.patches import (
    attention,
    base,
    blocks,
    changed,
    each,
    exchanged,
    function,
    given_to,
    int8_by_row,
    layer_of,
    modules,
    moved,
    returned,
    rotate_pairs,
    rounded,
    skip,
    tiled,
    to,
)


def _zero_attention(model: Any, patch: Patch) -> None:
    attention = layer_of(model, 3).self_attn
    plain = attention.forward
    attention.forward = lambda *args, **named: (torch.zeros_like(plain(*args, **named)[0]), None)


def _norm_in(dtype: torch.dtype) -> Callable[[Any, Patch], None]:
    def broken(model: Any, patch: Patch) -> None:
        for module in each(model, "LlamaRMSNorm"):

            def forward(x: Tensor, module: Any = module) -> Tensor:
                y = x.to(dtype)
                y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + module.variance_epsilon)
                return module.weight * y.float()

            module.forward = forward

    return broken


def _softmax_in(dtype: torch.dtype) -> Callable[[Any], Any]:
    """Weights computed in another precision."""

    def made(plain: Any) -> Any:
        def softmax(x: Tensor, *args: Any, **named: Any) -> Tensor:
            return torch.softmax(x.to(dtype), dim=-1).float()

        return softmax

    return made


def _experts_exchanged(model: Any, patch: Patch) -> None:
    experts = layer_of(model, 1).mlp.experts
    for weight in (experts.gate_up_proj, experts.down_proj):
        weight.data = weight.data[[0, 2, 1, *range(3, len(weight))]]


def _delta(**changes: Callable[..., Any]) -> Callable[[Any], Any]:
    """The gated delta rule with some of its inputs changed."""

    def made(plain: Any) -> Any:
        def rule(query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
            given = {"query": query, "key": key, "value": value, **named}
            given |= {name: change(given[name]) if callable(change) else change for name, change in changes.items()}
            return plain(**given)

        return rule

    return made


def _gated_norm(plain: Any) -> Any:
    """The norm of what is read, after the gate instead of before it."""

    def forward(self: Any, x: Tensor, gate: Tensor) -> Tensor:
        x = x * nn.functional.silu(gate)
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)

    return forward


def _gate_rows(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Patch], None]:
    """The rows of q_proj that give the gate, in the layers with attention."""

    def broken(model: Any, patch: Patch) -> None:
        weight = layer_of(model, 1).self_attn.q_proj.weight
        heads = weight.data.view(4, 2, -1, weight.shape[1])  # (H, q | gate, D, C)
        heads[:, 1] = change(heads[:, 1])

    return broken


def _sigmoid_router(router: Any) -> Callable[[Tensor], Any]:
    def forward(x: Tensor) -> Any:
        logits = nn.functional.linear(x.reshape(-1, x.shape[-1]), router.weight)
        values, indices = logits.sigmoid().topk(router.top_k, dim=-1)
        return logits, values / values.sum(-1, keepdim=True), indices

    return forward


def _parallel(layer: Any) -> Callable[..., Tensor]:
    """Attention and feed-forward side by side, each with its own norm."""

    def forward(hidden_states: Tensor, **given: Any) -> Tensor:
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **given)
        return hidden_states + attended + layer.mlp(layer.post_attention_layernorm(hidden_states))

    return forward


def _half_split(port: dict[str, Any]) -> dict[str, Any]:
    """Queries and keys by head, (H, T, D), as another program lays them out."""
    changed = {
        name: one.reshape(one.shape[1], -1, 64).swapaxes(0, 1) if name.endswith(("q_proj", "k_proj")) else one
        for name, one in port.items()
    }
    return {name: one.repeat(3, axis=0) if name.endswith("k_proj") else one for name, one in changed.items()}


def _unscaled(model: Any, patch: Patch) -> None:
    """Gemma's embeddings, scaled outside of the module that a dump has."""
    embed = model.model.embed_tokens
    scale = embed.embed_scale.clone()
    embed.embed_scale.fill_(1.0)
    first = model.model.layers[0]
    plain = first.forward
    for layer in model.model.layers[:1]:
        layer.forward = lambda x, *args, **named: plain(x * scale, *args, **named)


_IN = "L0.norm1"
_LLAMA, _GEMMA, _MOE, _NEXT = modeling_llama, modeling_gemma3, modeling_qwen3_moe, modeling_qwen3_next
_ATTENTION = "eager_attention_forward"
_FIRST_ATTENTION = "L0.q_rot L0.k_rot L0.scores L0.scaled L0.masked L0.weights L0.head_out L0.concat L0.attn"
_GLOBAL_ATTENTION = f"{_FIRST_ATTENTION} {_FIRST_ATTENTION.replace('L0', 'L5')}"  # Gemma's first without a window
_NEAR = lambda *names: " ".join(names)  # noqa: E731

BROKEN: dict[str, Port] = {
    # positions and rotation
    "rotary base": Port("smollm2", base(10_000.0), _FIRST_ATTENTION, "rotary base of 10,000 instead of 100,000"),
    "pairs instead of halves": Port(
        "smollm2", function(_LLAMA, "apply_rotary_pos_emb", rotate_pairs), _FIRST_ATTENTION, "turns neighbours"
    ),
    "positions halved": Port(
        "smollm2", given_to(position_ids=lambda count: torch.arange(count)[None] / 2), _FIRST_ATTENTION, "divided by 2"
    ),
    "positions restarted": Port(
        "smollm2",
        given_to(position_ids=lambda count: torch.tensor([[*range(9), *range(count - 9)]])),
        _FIRST_ATTENTION,
        "restart.* at token 9",
    ),
    "left padding counted": Port(
        "smollm2",
        given_to(position_ids=lambda count: torch.tensor([[0, *range(3, count + 2)]])),
        _FIRST_ATTENTION,
        "skip 2 .*at token 1",
    ),
    "turned backwards": Port(
        "smollm2", function(_LLAMA, "rotate_half", lambda plain: lambda x: -plain(x)), _FIRST_ATTENTION, "other way"
    ),
    "rows of q and k in pairs": Port(
        "smollm2",
        lambda model, patch: [
            changed(
                f"self_attn.{name}_proj", None, lambda w: w.view(-1, 2, 32, w.shape[1]).transpose(1, 2).reshape(w.shape)
            )(model, patch)
            for name in "qk"
        ],
        "L0.q",
        "rows of each head in pairs",
    ),
    "local base everywhere": Port(
        "gemma3",
        base(10_000.0, "full_attention_inv_freq"),
        _FIRST_ATTENTION.replace("L0", "L5"),
        "base of 10,000 instead of 1,000,000",
    ),
    "global base everywhere": Port(
        "gemma3", base(1e6, "sliding_attention_inv_freq"), _FIRST_ATTENTION, "base of 1,000,000 instead of 10,000"
    ),
    "no rotation": Port(
        "smollm2",
        function(_LLAMA, "apply_rotary_pos_emb", lambda plain: lambda q, k, *waves: (q, k)),
        _FIRST_ATTENTION,
        "nothing is rotated",
    ),
    "sine and cosine exchanged": Port(
        "gemma3",
        function(
            _GEMMA, "apply_rotary_pos_emb", lambda plain: lambda q, k, cos, sin, *more: plain(q, k, sin, cos, *more)
        ),
        _FIRST_ATTENTION,
        "exchanged|turns the other way",  # alike in every score
    ),
    # norms
    "eps": Port("smollm2", modules("RMSNorm", variance_epsilon=1e-3), _IN, "eps 0.001 instead of 1e-05"),
    "gain with one added": Port(
        "smollm2", changed("input_layernorm", None, lambda w: w + 1), _IN, "gain is 1 . weight"
    ),
    "gain without one": Port(
        "gemma3", changed("input_layernorm", None, lambda w: w - 1), _IN, "without the 1|weight . 1|gain lacks"
    ),
    "gain of the next layer": Port("smollm2", moved("input_layernorm", 7, 8), "L7.norm1", "gain of L8.norm1"),
    "q and k norms swapped": Port(
        "gemma3", exchanged("self_attn.q_norm", "self_attn.k_norm", 3), "L3.q_norm L3.k_norm", "gain of L3.(k|q)_norm"
    ),
    "LayerNorm": Port(
        "smollm2",
        skip("input_layernorm", None, lambda g: (x := g[0]) * 0 + g[-1](x - x.mean(-1, keepdim=True))),
        _IN,
        "mean is subtracted",
    ),
    "norm left out": Port("gemma3", skip("post_attention_layernorm"), "L0.attn_norm", "norm is left out"),
    "qk norm left out": Port("gemma3", skip("self_attn.q_norm"), "L0.q_norm", "norm is left out"),
    "final norm left out": Port(
        "smollm2",
        lambda model, patch: setattr(model.model.norm, "forward", lambda x: x),
        "final.norm",
        "norm is left out",
    ),
    "norms exchanged": Port(
        "smollm2", exchanged("input_layernorm", "post_attention_layernorm", 4), "L4.norm1", "gain of L4.norm2"
    ),
    # weights
    "q of the next layer": Port("smollm2", moved("self_attn.q_proj", 3, 4), "L3.q", "L4.q|W_Q of layer 4|L4.W_Q"),
    "up of the layer before": Port("gemma3", moved("mlp.up_proj", 9, 8), "L9.ffn.hidden", "L8"),
    "gate and up swapped": Port(
        "smollm2",
        exchanged("mlp.gate_proj", "mlp.up_proj", 17),
        "L17.ffn.hidden L17.ffn.gate",
        "numbers of L17.ffn.gate",
    ),
    "k and v swapped": Port(
        "smollm2",
        exchanged("self_attn.k_proj", "self_attn.v_proj", 2),
        "L2.k L2.v",
        "numbers of L2.[vk]|order q, v, k",
    ),
    "o transposed": Port(
        "smollm2", changed("self_attn.o_proj", 6, lambda w: w.T.contiguous()), "L6.attn", "transposed"
    ),
    "heads of v in another order": Port(
        "smollm2",
        changed("self_attn.v_proj", 5, lambda w: w.roll(64, 0)),
        "L5.v",
        "heads in another order|order of the heads",
    ),
    "rows rolled": Port("smollm2", changed("mlp.up_proj", 9, lambda w: w.roll(1, 0)), "L9.ffn.hidden", "rolled"),
    "head not tied": Port(
        "moe",
        lambda model, patch: setattr(model.lm_head, "weight", model.model.embed_tokens.weight),
        "head.logits logits",
        "embeddings",
    ),
    "embeddings not scaled": Port(
        "gemma3",
        lambda model, patch: model.model.embed_tokens.embed_scale.fill_(1.0),
        "embed.tokens embed.out",
        "no factor|not (scaled|multiplied)",
    ),
    "a bias too many": Port(
        "smollm2",
        lambda model, patch: setattr(layer_of(model, 2).mlp.down_proj, "bias", nn.Parameter(torch.full((576,), 0.01))),
        "L2.ffn",
        "0.01 is added|constant",
    ),
    "one weight scaled": Port("smollm2", changed("mlp.down_proj", 11, lambda w: w * 0.5), "L11.ffn", "0.5"),
    # precision
    "weights in bfloat16": Port("smollm2", rounded(to(torch.bfloat16)), "L0.q", "rounded to bfloat16"),
    "weights in float16": Port("gemma3", rounded(to(torch.float16)), "L0.q", "rounded to float16"),
    "weights in float8": Port("smollm2", rounded(to(torch.float8_e4m3fn)), "L0.q", "rounded to float8"),
    "weights in int8 by row": Port("smollm2", rounded(int8_by_row), "L0.q", "rounded to int8"),
    "weights in Q8_0": Port("smollm2", rounded(blocks(gguf.GGMLQuantizationType.Q8_0)), "L0.q", "Q8_0"),
    "weights in Q4_0": Port("gemma3", rounded(blocks(gguf.GGMLQuantizationType.Q4_0)), "L0.q", "Q4_0"),
    "norm in bfloat16": Port("smollm2", _norm_in(torch.bfloat16), _IN, "computed in bfloat16|rounded to bfloat16"),
    "norm in float16": Port("smollm2", _norm_in(torch.float16), _IN, "computed in float16|rounded to float16"),
    # attention
    "not divided": Port(
        "smollm2", function(_LLAMA, _ATTENTION, attention(scaling=8.0)), _FIRST_ATTENTION, "not divided"
    ),
    "divided by d_model": Port(
        "smollm2", function(_LLAMA, _ATTENTION, attention(scaling=8 / 24)), _FIRST_ATTENTION, "√d_model"
    ),
    "another divisor": Port(
        "gemma3", function(_GEMMA, _ATTENTION, attention(scaling=16 / 640**0.5)), _FIRST_ATTENTION, "√d_model"
    ),
    "no mask": Port(
        "smollm2",
        function(_LLAMA, _ATTENTION, attention(lambda q, k, v, mask: (q, k, v, None))),
        _FIRST_ATTENTION,
        "no mask",
    ),
    "the token itself hidden": Port(
        "smollm2",
        function(
            _LLAMA,
            _ATTENTION,
            attention(lambda q, k, v, mask: (q, k, v, torch.full(q.shape[-2:-1] * 2, -1e30).triu()[None, None])),
        ),
        _FIRST_ATTENTION,
        "hides the token itself",
    ),
    "nothing seen by the first token": Port(
        "smollm2",
        function(
            _LLAMA,
            _ATTENTION,
            attention(lambda q, k, v, mask: (q, k, v, torch.full(q.shape[-2:-1] * 2, -torch.inf).triu()[None, None])),
        ),
        _FIRST_ATTENTION,
        "sees nothing is NaN",
    ),
    "a token ahead seen": Port(
        "smollm2",
        function(
            _LLAMA,
            _ATTENTION,
            attention(lambda q, k, v, mask: (q, k, v, torch.full(q.shape[-2:-1] * 2, -1e30).triu(2)[None, None])),
        ),
        _FIRST_ATTENTION,
        "sees the next one",
    ),
    "key heads in turns": Port("smollm2", function(_LLAMA, "repeat_kv", tiled), _FIRST_ATTENTION, "in turns"),
    "a window one token narrower": Port(
        "gemma3",
        lambda model, patch: setattr(model.config, "sliding_window", 511),
        _FIRST_ATTENTION,
        "window of 511 tokens instead of 512",
        text=TEXT * 28,
    ),
    "no window": Port(
        "gemma3",
        lambda model, patch: setattr(model.config, "sliding_window", 4096),
        _FIRST_ATTENTION,
        "a window of .* tokens left out",
        text=TEXT * 28,
    ),
    "attention of layer 3 not added": Port("smollm2", _zero_attention, "L3.attn L3.norm2", "attn not added|all 0"),
    # activations, logits
    "GELU": Port("smollm2", modules("MLP", act_fn=lambda module: nn.GELU()), "L0.ffn.act L0.ffn", "GELU"),
    "exact GELU": Port("gemma3", modules("MLP", act_fn=lambda module: nn.GELU()), "L0.ffn.act L0.ffn", "GELU"),
    # experts
    "experts exchanged": Port("moe", _experts_exchanged, "L1.expert.hidden L1.expert.out L1.ffn", "expert"),
    "one expert fewer": Port("moe", modules("TopKRouter", top_k=2), "L0.ffn.chosen L0.ffn.weights L0.ffn", "2 experts"),
    "not renormed": Port(
        "moe", modules("TopKRouter", norm_topk_prob=False), "L0.ffn.weights L0.ffn", "by the sum of the chosen left out"
    ),
    "router in bfloat16": Port(
        "moe", changed("mlp.gate", None, to(torch.bfloat16)), "L0.router L0.ffn.router", "rounded to bfloat16"
    ),
    "shared expert missing": Port(
        "hybrid",
        skip("mlp.shared_expert", None, lambda g: g[-1](g[0]) * 0),
        "L0.ffn L0.shared.out",
        "shared.added not added|all 0",
    ),
    "shared expert not gated": Port(
        "hybrid", skip("mlp.shared_expert_gate", None, lambda g: g[-1](g[0]) * 0 + 40), "L0.shared.score", ""
    ),
    # a hybrid
    "decay left out": Port(
        "hybrid",
        function(_NEXT, "torch_chunk_gated_delta_rule", _delta(g=lambda g: g * 0)),
        "L0.head_out L0.read L0.decay L0.attn L0.head_norm L0.head_gated",
        "decay",
    ),
    "keys not of length 1": Port(
        "hybrid",
        function(_NEXT, "torch_chunk_gated_delta_rule", _delta(use_qk_l2norm_in_kernel=False)),
        "L0.q_unit L0.k_unit L0.head_gated L0.attn",
        "length 1",
    ),
    "writing strength left out": Port(
        "hybrid",
        function(_NEXT, "torch_chunk_gated_delta_rule", _delta(beta=lambda b: b * 0 + 1)),
        "L0.beta L0.written L0.head_gated L0.attn",
        "strength|β|beta",
    ),
    "gated before the norm": Port(
        "hybrid",
        lambda model, patch: [setattr(m, "forward", _gated_norm(None).__get__(m)) for m in each(model, "RMSNormGated")],
        "L0.head_norm L0.head_gated",
        "norm.*after|gate",
    ),
    "attention gate all 0": Port("hybrid", _gate_rows(lambda rows: rows * 0), "L1.gate", "all 0"),
    "taps in the other order": Port(
        "hybrid",
        lambda model, patch: setattr(
            (conv := layer_of(model, 0).linear_attn.conv1d), "weight", nn.Parameter(conv.weight.flip(-1))
        ),
        "L0.q_conv L0.k_conv L0.v_conv L0.head_gated",
        "taps",
    ),
    # more
    "a sigmoid router": Port(
        "moe",
        lambda model, patch: [setattr(one, "forward", _sigmoid_router(one)) for one in each(model, "TopKRouter")],
        "L0.ffn",
        "a sigmoid router",
    ),
    "the next token's embedding": Port(
        "smollm2",
        lambda model, patch: setattr(
            model.model.embed_tokens, "weight", nn.Parameter(model.model.embed_tokens.weight.roll(-1, 0))
        ),
        "embed.tokens",
        "embedding of the next id",
    ),
    "mlp reads the block's input": Port(
        "smollm2",
        lambda model, patch: setattr(layer_of(model, 5), "forward", _parallel(layer_of(model, 5))),
        "L5.norm2",
        "block's input",
    ),
    "a weight is NaN": Port(
        "smollm2",
        changed("mlp.down_proj", 4, lambda w: w.index_fill(0, torch.tensor([3]), float("nan"))),
        "L4.ffn",
        "",
    ),
    **{
        f"generation, {words}, {name}": Port(name, broken, first, cause, generated=True)
        for name in ("smollm2", "gemma3")
        for words, broken, first, cause in (
            (
                "positions 1 too large",
                given_to(position_ids=lambda at: torch.tensor([[at + 1]])),
                _FIRST_ATTENTION,
                "positions are 1 too large",
            ),
            (
                "positions stand still",
                given_to(position_ids=lambda at: torch.tensor([[0]])),
                _FIRST_ATTENTION,
                "every position is 0",
            ),
            ("stale keys", returned(0), _GLOBAL_ATTENTION, "the key of the token before"),
            ("stale values", returned(1), _GLOBAL_ATTENTION, "the value of the token before"),
        )
    },
    "two faults": Port(
        "smollm2",
        lambda model, patch: [
            moved("input_layernorm", 7, 8)(model, patch),
            exchanged("mlp.gate_proj", "mlp.up_proj", 17)(model, patch),
        ],
        "L7.norm1",
        "gain of L8.norm1",
    ),
}
SOUND: dict[str, Port] = {
    "as it is, SmolLM2": Port("smollm2", lambda model, patch: None, ""),
    "as it is, Gemma 3": Port("gemma3", lambda model, patch: None, ""),
    "as it is, experts": Port("moe", lambda model, patch: None, ""),
    "as it is, hybrid": Port("hybrid", lambda model, patch: None, ""),
    "positions from one": Port("smollm2", given_to(position_ids=lambda count: torch.arange(1, count + 1)[None]), ""),
    "a generation, SmolLM2": Port("smollm2", lambda model, patch: None, "", generated=True),
    "a generation, Gemma 3": Port("gemma3", lambda model, patch: None, "", generated=True),
    "fused attention": Port("smollm2", lambda model, patch: model.set_attn_implementation("sdpa"), ""),
    "queries by head, keys repeated": Port("smollm2", lambda model, patch: None, "", dumped=_half_split),
    "no batch axis": Port(
        "gemma3", lambda model, patch: None, "", dumped=lambda port: {name: one[0] for name, one in port.items()}
    ),
    "float64": Port(
        "moe",
        lambda model, patch: model.double(),
        "",
        dumped=lambda port: {name: one.astype("f8") if name != "input_ids" else one for name, one in port.items()},
    ),
    "with a prefix": Port(
        "smollm2",
        lambda model, patch: None,
        "",
        dumped=lambda port: {f"module.{name}" if name != "input_ids" else name: one for name, one in port.items()},
    ),
    "logits of the last token": Port(
        "gemma3", lambda model, patch: None, "", dumped=lambda port: {**port, "logits": port["logits"][:, -1:]}
    ),
    "scaled outside": Port("gemma3", _unscaled, ""),
}
