"""Ports that compute attention, rotation, norms, embeddings or a block by another formula."""

import torch
from torch import Tensor
from torch.nn import functional as F

from broken.bench import Broken, Port
from broken.patches import (
    entering,
    left_out,
    method,
    replaced,
    result,
    scores,
    seen,
    several,
    steps,
    sunk,
    tensors,
    waves,
    without,
)  # fmt: skip

_MLP = steps(0, "ffn.act", "ffn.hidden", "ffn")
_EMBED = "embed.tokens embed.scaled embed.out L0.norm1"
_ALL = r"\d+"


def _rms(x: Tensor, eps: float = 1e-6, axes: int | tuple[int, ...] = -1) -> Tensor:
    return x * torch.rsqrt(x.square().mean(axes, keepdim=True) + eps)


def _bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).float()


def _hides(distance: int) -> Tensor:
    return torch.full((64, 64), -torch.inf).triu(distance)


def _unmasked_shares(found: Tensor, module: object) -> Tensor:
    """Shares of all tokens, of which the later ones are then set to 0."""
    return found.clamp(min=-30).softmax(-1).tril()


def _merged_without_turning_back(plain: object) -> object:
    def attend(module: object, *given: Tensor, **more: object) -> object:
        out, weights = plain(module, *given, **more)  # (B, T, H, D)
        return out.transpose(1, 2).reshape(out.shape), weights

    return attend


def _rotated(q_times: int, k_times: int) -> Broken:
    def make(plain: object) -> object:
        def turned(q: Tensor, k: Tensor, *waves: Tensor, **more: object) -> tuple[Tensor, Tensor]:
            for _ in range(q_times):
                q_new, _ = plain(q, k, *waves, **more)
                q = q_new
            for _ in range(k_times):
                _, k = plain(q, k, *waves, **more)
            return q, k

        return turned

    return replaced("apply_rotary_pos_emb", make)


def _before(norm: str) -> Broken:
    """A norm of what the block reads instead of what its attention gives."""

    def make(layer: object, plain: object) -> object:
        def forward(x: Tensor, **more: object) -> Tensor:
            x = x + layer.self_attn(hidden_states=getattr(layer, norm)(x), **more)[0]
            return x + layer.post_feedforward_layernorm(layer.mlp(x))

        return forward

    return method("DecoderLayer", "forward", make)


def _stream(made: object) -> Broken:
    """A block of a Llama by hand: ``made`` adds up its parts."""
    return method("DecoderLayer", "forward", lambda layer, plain: lambda x, **more: made(layer, x, more))


def _normed_residual(layer: object, x: Tensor, more: dict[str, object]) -> Tensor:
    y = layer.input_layernorm(x)
    x = y + layer.self_attn(hidden_states=y, **more)[0]
    return x + layer.mlp(layer.post_attention_layernorm(x))


def _no_residual(layer: object, x: Tensor, more: dict[str, object]) -> Tensor:
    x = x + layer.self_attn(hidden_states=layer.input_layernorm(x), **more)[0]
    return layer.mlp(layer.post_attention_layernorm(x))


def _parallel(layer: object, x: Tensor, more: dict[str, object]) -> Tensor:
    y = layer.input_layernorm(x)
    return x + layer.self_attn(hidden_states=y, **more)[0] + layer.mlp(layer.post_attention_layernorm(x))


def _up_activated(mlp: object, plain: object) -> object:
    return lambda x: mlp.down_proj(mlp.gate_proj(x) * mlp.act_fn(mlp.up_proj(x)))


def _gate_not_activated(mlp: object, plain: object) -> object:
    return lambda x: mlp.down_proj(mlp.gate_proj(x) * mlp.up_proj(x))


def _relu2(mlp: object, plain: object) -> object:
    return lambda x: mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)).square() * mlp.up_proj(x))


_LN = r"layers\.\d+\.input_layernorm"
_SLOPES = lambda heads, *_: torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])  # noqa: E731

ROWS: tuple[tuple[str, str, Broken, str, str], ...] = (
    # scores, masks and shares
    ("llama", "divided by d_head", scores(scale=12**-0.5), seen(0), "d_head|by 12"),
    ("llama", "a divisor of no meaning", scores(scale=0.9137), seen(0), r"0\.9137|3\.791|1\.094"),
    ("llama", "a cap too many", scores(cap=2.0), seen(0), "(?i)cap"),
    ("gemma2", "the cap behind the mask", scores(cap=0, behind=2.0), seen(0), "(?i)cap.*mask|mask.*cap"),
    ("qwen3", "the mask is -10", scores(mask=lambda m: m.clamp(min=-10)), seen(0), "(?i)mask"),
    ("llama", "shares not renormed after the mask", scores(mask=lambda m: None, share=_unmasked_shares), seen(0),
     "sum to 1|renorm|after the softmax|before the mask"),
    ("llama", "softmax over the queries", scores(share=lambda s, m: s.clamp(min=-1e9).softmax(-2)), seen(0), "quer"),
    ("llama", "softmax in bfloat16", scores(share=lambda s, m: _bf16(_bf16(s).softmax(-1))), seen(0), "bfloat16"),
    ("mixtral", "the mask one too far", scores(mask=lambda m: _hides(2)[: m.shape[-2], : m.shape[-1]]), seen(0),
     "sees the next"),
    ("granite", "no mask", scores(mask=lambda m: None), seen(0), "no mask"),
    ("bert", "a causal mask", scores(apart=lambda s: s + _hides(1)[: s.shape[-2], : s.shape[-1]]), seen(0),
     "(?i)mask|causal|later"),
    ("qwen3", "heads merged without turning back", replaced("eager_attention_forward", _merged_without_turning_back),
     seen(0), "(?i)merge|head|transpos"),
    ("gptoss", "sinks left out", scores(share=lambda s, m: s.softmax(-1)), seen(0), "sink"),
    ("gptoss", "sinks of 0", scores(share=sunk(0.0)), seen(0), "sink"),
    ("llama", "an extra score of 0", scores(share=lambda s, m: torch.cat((s, s[..., :1] * 0), -1).softmax(-1)), seen(0),
     "sink|extra|softmax1|added to the sum"),
    ("deepseek3", "divided by the part without positions", scores(scale=1.8**0.5), seen(0),
     r"√10|without position|1\.34|divided by 2\.439"),
    ("bloom", "slopes of a power of two", replaced("_get_alibi_slopes", lambda plain: _SLOPES), seen(0),
     "(?i)slope|alibi"),
    ("bloom", "no ALiBi", replaced("_get_alibi_slopes", lambda plain: lambda *given: plain(*given) * 0), seen(0),
     "(?i)alibi|distance|slope"),
    ("bloom", "ALiBi the other way", replaced("_get_alibi_slopes", lambda plain: lambda *given: -plain(*given)),
     seen(0),
     "(?i)alibi|distance|slope|sign"),
    # rotation
    ("llama", "keys not rotated", _rotated(1, 0), seen(0), "left out, for keys alone"),
    ("qwen3", "keys rotated twice", _rotated(1, 2), seen(0), "(?i)twice"),
    ("yarn", "attention factor twice", waves(lambda cos, sin: (1.1386294 * cos, 1.1386294 * sin)), seen(0),
     r"(?i)twice|1\.1386|1\.139|attention factor"),
    ("llama", "a factor of 1.0017 on the waves", waves(lambda cos, sin: (1.0017 * cos, 1.0017 * sin)), seen(0),
     r"1\.001|1\.003"),
    ("gemma2", "sine negative", waves(lambda cos, sin: (cos, -sin)), seen(0), "(?i)other way|backward|sine"),
    ("neox", "the last half turned", several(tensors(r"query_key_value\.(weight|bias)", lambda w: w)), "", ""),
    # norms
    ("gpt2", "RMSNorm for LayerNorm", result(r"h\.\d+\.ln_1", lambda out, x, m: _rms(x, 1e-5) * m.weight + m.bias),
     "L0.norm1", "(?i)mean"),
    ("gpt2", "variance by n - 1", result(r"ln_\w+", lambda out, x, m: (x - x.mean(-1, keepdim=True)) / x.std(-1,
     keepdim=True)
                                         * m.weight + m.bias), "L0.norm1", "(?i)n . 1|unbiased|bessel|47"),
    ("gpt2", "no bias of the norm", without(r"ln_1\.bias"), "L0.norm1", "(?i)bias"),
    ("gemma", "1 + w in bfloat16", result(r".*norm", lambda out, x, m: _rms(x) * _bf16(1 + m.weight)), "L0.norm1",
     "bfloat16"),
    ("gemma", "w without 1", result(r".*norm", lambda out, x, m: _rms(x) * m.weight), "L0.norm1", "without|lacks|. 1"),
    ("qwen3", "queries normed whole", result("q_norm", lambda out, x, m: _rms(x, 1e-6, (-2, -1)) * m.weight), steps(0,
     "q_norm"),
     "(?i)head|whole"),
    ("olmo2", "queries normed by head", result("q_norm", lambda out, x, m: _rms(x.unflatten(-1, (4, -1))).flatten(-2)
                                               * m.weight), steps(0, "q_norm"), "(?i)head|whole"),
    ("olmo2", "queries not normed", left_out("q_norm"), steps(0, "q_norm"), r"left out|numbers of L0\.q"),
    ("olmo2", "norm before attention", _before("post_attention_layernorm"), steps(0, "q"), "(?i)norm"),
    ("llama", "norm without a gain", result(_LN, lambda out, x, m: _rms(x)), "L0.norm1", "(?i)gain|weight"),
    ("llama", "divided by the norm, not its mean", result(_LN, lambda out, x, m: F.normalize(x, dim=-1) * m.weight),
     "L0.norm1", r"(?i)√|mean|sum|0\.144|6\.9"),
    ("granite", "norm in bfloat16", result(r".*layernorm", lambda out, x, m: _bf16(_bf16(_rms(_bf16(x))) * m.weight)),
     "L0.norm1",
     "bfloat16"),
    ("gemma2", "no norm after attention", left_out("post_attention_layernorm"), steps(0, "attn_norm"), "left out"),
    ("gemma2", "norms around the feed-forward exchanged", several(
        tensors(r"post_feedforward_layernorm\.weight", lambda w: w.roll(1))), steps(0, "ffn_norm"), "(?i)rolled|gain"),
    ("deepseek3", "no norm of the latent", left_out("kv_a_layernorm"), steps(0, "kv_a_norm"), "left out"),
    ("deepseek3", "no norm of the queries' latent", left_out("q_a_layernorm"), steps(0, "q_a_norm"), "left out"),
    ("bloom", "no norm of the embeddings", left_out("word_embeddings_layernorm"), "embed.norm embed.out L0.norm1",
     "(?i)norm"),
    ("bert", "no norm of the embeddings", left_out(r"embeddings\.LayerNorm"), "embed.norm embed.out", "left out"),
    ("llama", "the final norm twice", result("model.norm", lambda out, x, m: _rms(out) * m.weight), "final.norm",
     "twice"),
    # embeddings
    ("gemma", "√d in bfloat16", tensors("embed_scale", _bf16), _EMBED, r"bfloat16|6\.9375|1\.0013"),
    ("llama", "multiplied by √d", result("embed_tokens", lambda out, x, m: out * 48**0.5), _EMBED, "√d_model|√48"),
    ("llama", "embeddings by 1.0017", result("embed_tokens", lambda out, x, m: out * 1.0017), _EMBED, r"1\.0017"),
    ("granite", "feed-forward by 1.1386", result(r"mlp\.down_proj", lambda out, x, m: out * 1.1386), steps(0, "ffn"),
     r"1\.1386|1\.139"),
    ("gpt2", "no positions", without(r"wpe\.weight"), "embed.positions embed.out embed.sum L0.norm1",
     "(?i)position|all 0"),
    ("gpt2", "positions from 1", tensors(r"wpe\.weight", lambda w: w.roll(-1, 0)),
     "embed.positions embed.out embed.sum L0.norm1", "(?i)position"),
    ("bert", "positions from 2", tensors(r"position_embeddings\.weight", lambda w: w.roll(-2, 0)),
     "embed.positions embed.norm embed.out embed.sum", "(?i)position.* 2|2 too|2 rows of positions"),
    ("bert", "no token types", without(r"token_type_embeddings\.weight"), "embed.types embed.norm embed.out embed.sum",
     "(?i)type|all 0"),
    ("bert", "the other token type", tensors(r"token_type_embeddings\.weight", lambda w: w.flip(0)),
     "embed.types embed.norm embed.out embed.sum", "(?i)type|id 1, not of 0"),
    # the block
    ("llama", "the residual is normed", _stream(_normed_residual), steps(0, "mid", "norm2"),
     "(?i)norm1|residual|stream"),
    ("granite", "no residual around the feed-forward", _stream(_no_residual), "L0.out L0.mid L0.norm2 L1.norm1",
     "(?i)add|residual"),
    ("llama", "side by side", _stream(_parallel), steps(0, "norm2"), "(?i)input|parallel|side"),
    ("neox", "one norm for both", tensors(r"post_attention_layernorm\.(weight|bias)", lambda w: w * 0 + 1), steps(0,
     "norm2"),
     "(?i)gain|weight|norm"),
    ("llama", "up is activated", method("MLP", "forward", _up_activated), _MLP, "(?i)gate|up|activat"),
    ("qwen3", "no activation", method("MLP", "forward", _gate_not_activated), _MLP,
     "(?i)activation|nothing|identity|linear"),
    ("granite", "the activation squared", method("MLP", "forward", _relu2), _MLP, "(?i)squared|activation"),
    ("llama", "attention reads the stream", entering("self_attn", lambda x: x * 1.5), steps(0, "q"), r"1\.5"),
    ("olmo2", "logits of the stream before the norm", left_out("model.norm"), "final.norm", "left out"),
)  # fmt: skip
BROKEN = {f"{name}: {words}": Port(name, broken, first, cause) for name, words, broken, first, cause in ROWS if first}
