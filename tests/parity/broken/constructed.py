"""Mistakes in norms, blocks, feed-forwards, experts and states, each a sibling of one that people make."""

import torch
from torch import Tensor
from torch.nn import functional as F

from broken.bench import Port
from broken.patches import entering, method, replaced, result, several, steps, swapped, tensors

_FFN = steps(0, "ffn.act", "ffn.hidden", "ffn")
_ROUTED = steps(0, "ffn.chosen", "ffn.routes", "ffn.mixed", "ffn")
_STATE = steps(0, "dt", "decay", "read", "head_out", "head_gated", "head_norm", "attn")


def _block(made: object) -> object:
    """A block by hand: ``made`` adds up its parts, from the layer, the stream and the other arguments."""
    return method("DecoderLayer", "forward", lambda layer, plain: lambda x, **more: made(layer, x, more))


def _attended(layer: object, x: Tensor, more: dict[str, object]) -> Tensor:
    return layer.self_attn(hidden_states=layer.input_layernorm(x), **more)[0]


def _fed_with_attention(layer: object, x: Tensor, more: dict[str, object]) -> Tensor:
    """The feed-forward reads what attention gives, without the stream."""
    attn = _attended(layer, x, more)
    return x + attn + layer.mlp(layer.post_attention_layernorm(attn))


def _first_norm_twice(layer: object, x: Tensor, more: dict[str, object]) -> Tensor:
    mid = x + _attended(layer, x, more)
    return mid + layer.mlp(layer.input_layernorm.forward(mid))  # which no hook sees


def _from_the_input(layer: object, x: Tensor, more: dict[str, object]) -> Tensor:
    """The second sum starts from the block's input: attention is not in the stream."""
    mid = x + _attended(layer, x, more)
    return x + layer.mlp(layer.post_attention_layernorm(mid))


def _normed_after(layer: object, x: Tensor, more: dict[str, object]) -> Tensor:
    """Gemma 2 with its norm after attention put behind the sum."""
    mid = layer.post_attention_layernorm(x + _attended(layer, x, more))
    return mid + layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(mid)))


def _mlp(made: object) -> object:
    return method(
        "MLP", "forward", lambda mlp, plain: lambda x: mlp.down_proj(made(mlp, mlp.gate_proj(x), mlp.up_proj(x)))
    )


def _weights(change: object) -> object:
    """The weights of the chosen experts through a function."""
    return result(r"mlp\.(gate|router)", lambda out, x, m: (out[0], change(out[1]), out[2]))


def _scan(**changes: object) -> object:
    """Mamba-2's scan with some of its arguments changed."""

    def make(plain: object) -> object:
        def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *more: object, **named: object) -> object:
            given = {"x": x, "dt": dt, "A": A, "B": B, "C": C, **named}
            given |= {name: change(given[name]) for name, change in changes.items()}
            return plain(*(given.pop(name) for name in ("x", "dt", "A", "B", "C")), *more, **given)

        return scan

    return replaced("mamba2_chunk_scan", make)


def _early(x: Tensor) -> Tensor:
    return F.pad(x[:, 1:], (*[0, 0] * (x.dim() - 2), 0, 1))


ROWS = (
    ("llama", "the feed-forward reads attention alone", _block(_fed_with_attention), steps(0, "norm2"), "attn"),
    ("mistral", "the first norm for both", _block(_first_norm_twice), steps(0, "norm2", "ffn.hidden"), "first norm"),
    ("seedoss", "attention not in the stream", _block(_from_the_input), "L0.out L1.norm1",
     "not added|reads in, not mid"),
    ("gemma2", "the norm after attention behind the sum", _block(_normed_after), steps(0, "attn_norm"),
     "attn_norm|in [+] attn"),
    ("phi3", "the second norm reversed", tensors(r"post_attention_layernorm\.weight", lambda w: w.flip(0)),
     "L0.norm2", "order"),
    ("smollm3", "the norms' gains larger by 1", tensors(r"input_layernorm\.weight", lambda w: w + 1), "L0.norm1", "1"),
    ("stablelm", "both norms exchanged", several(*(swapped(f"model.layers.{n}.input_layernorm.{p}",
                                                           f"model.layers.{n}.post_attention_layernorm.{p}")
                                                   for n in range(4) for p in ("weight", "bias"))),
     "L0.norm1", "L0.norm2"),
    ("modernbert", "a norm of tokens centred twice", result(
        "final_norm", lambda out, x, m: out - out.mean(-1, keepdim=True)),
     "final.norm", "mean"),
    ("qwen2", "the gate's activation is doubled", _mlp(lambda m, g, u: m.act_fn(m.act_fn(g)) * u), _FFN,
     "(?i)silu|twice"),
    ("mistral", "1 added to up", _mlp(lambda m, g, u: m.act_fn(g) * (u + 1)), _FFN, "1 is added"),
    ("gemma", "the activation of twice the gate", _mlp(lambda m, g, u: m.act_fn(2 * g) * u), _FFN, "twice"),
    ("smollm3", "up squared", _mlp(lambda m, g, u: m.act_fn(g) * u * u), _FFN, "squared"),
    ("seedoss", "hidden units of the token before", entering("down_proj", lambda x: F.pad(x[:, :-1], (0, 0, 1, 0))),
     "L0.ffn", "late|before"),
    ("qwen2moe", "weights squared", _weights(torch.square), _ROUTED, "squared"),
    ("mixtral", "experts added without weights", _weights(torch.ones_like), _ROUTED, "without their weights|all 1"),
    ("granitemoe", "the mean of the experts", result("router", lambda out, x, m: (
        out[0], out[1] * 0 + 0.5, *out[2:])), _ROUTED, "mean|same"),
    ("moe", "weights rolled among the chosen", _weights(lambda w: w.roll(1, -1)), _ROUTED, "exchanged"),
    ("qwen2moe", "tanh of the shared expert's score", result("shared_expert_gate", lambda out, x, m: torch.atanh(
        torch.zeros_like(out)) + 2 * out), "L0.shared.score", "2 times|twice"),
    ("mamba2", "A with the other sign", _scan(A=lambda A: -A), _STATE, "(?i)sign|grows"),
    ("mamba2", "A of every head the first's", _scan(A=lambda A: A[:1].expand_as(A)), _STATE, r"\bA\b|decay"),
    ("mamba2", "C one token early", _scan(C=_early), _STATE, "early"),
    ("mamba2", "steps of the softplus twice", _scan(dt=lambda dt: 2 * dt), _STATE, "twice"),
    ("mamba", "D with the other sign", tensors(r"mixer\.D", lambda w: -w), _STATE, "sign"),
    ("mamba", "steps without their bias", tensors(r"dt_proj\.bias", lambda w: 0 * w), _STATE + " L0.dt_in", "bias"),
    ("lfm2", "the gate in after the convolution", entering(r"conv\.out_proj", lambda x: x * x), "L0.attn", "squared"),
    ("olmo2", "queries normed twice", result("q_norm", lambda out, x, m: m.forward(out)), "L0.q_norm", "twice"),
)  # fmt: skip
BROKEN = {
    f"constructed: {name}: {words}": Port(name, broken, first, cause) for name, words, broken, first, cause in ROWS
}
