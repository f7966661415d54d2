"""Ports that read a weight wrongly, lack one, choose experts or carry a state otherwise."""

from typing import Any

import torch
from torch import Tensor

from broken.bench import Broken, Port
from broken.patches import (
    by_head,
    int8_by_row,
    layers_exchanged,
    left_out,
    method,
    replaced,
    result,
    several,
    steps,
    swapped,
    tensors,
    without,
)  # fmt: skip

_ROUTED = steps(0, "ffn.chosen", "ffn.weights", "ffn")
_LATER = steps(1, "ffn.chosen", "ffn.weights", "ffn.mixed", "ffn")
_STATE = steps(0, *["dt", "written", "decay", "state", "read", "head_out", "head_gated", "head_norm"])
_CONV = steps(
    0, *["q_conv", "k_conv", "v_conv", "conv", "dt", "written", "read", "head_out", "head_norm", "concat", "attn"]
)


def to_pairs(heads: int) -> Any:
    """Rows of halves as rows of neighbours, which a GGUF file of a Llama holds."""
    return by_head(heads, lambda w: w.unflatten(1, (2, -1)).transpose(1, 2))


def _joint(heads: int) -> Any:
    """Rows of q, k and v by head, read as all queries, then all keys, then all values."""
    return lambda w: w.unflatten(0, (heads, 3, -1)).transpose(0, 1).reshape(w.shape)


def _nibbles(w: Tensor) -> Tensor:
    """The halves of blocks of 16 in place of neighbours, as the two nibbles of a byte may be read."""
    return w.unflatten(1, (-1, 8, 2)).transpose(2, 3).reshape(w.shape)


def _routed(scores: Any, renormed: float = 0) -> Broken:
    """The weights of the chosen experts, from the router's logits; divided by their sum, times a number, if any."""

    def change(out: Any, given: Any, module: Any) -> Any:
        logits, weights, chosen = out
        weights = scores(logits, module).gather(-1, chosen)
        return logits, renormed * weights / weights.sum(-1, keepdim=True) if renormed else weights, chosen

    return result(r"mlp\.(gate|router)", change)


def _scan(**changes: Any) -> Broken:
    """Mamba-2's scan with some of its inputs changed."""

    def make(plain: Any) -> Any:
        def scan(hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *more: Any, **named: Any) -> Any:
            given = {"hidden_states": hidden_states, "dt": dt, "A": A, "B": B, "C": C, **named}
            given |= {name: change(given) for name, change in changes.items()}
            return plain(given.pop("hidden_states"), given.pop("dt"), given.pop("A"), given.pop("B"), given.pop("C"),
                         *more, **given)  # fmt: skip

        return scan

    return replaced("mamba2_chunk_scan", make)


def _conv(change: Any = lambda x: x, after: Any = lambda x: x, **named: Any) -> Broken:
    """The short convolution with its input or output changed."""
    return replaced(
        "causal_conv1d_fn", lambda plain: lambda x, *given, **more: after(plain(change(x), *given, **{**more, **named}))
    )


def _gated_after(module: Any, plain: Any) -> Any:
    """The norm before the gate."""
    return lambda x, gate: plain(x) * torch.nn.functional.silu(gate)


def _later(x: Tensor) -> Tensor:
    return torch.cat((torch.zeros_like(x[..., :1]), x[..., :-1]), -1)


def _sooner(x: Tensor) -> Tensor:
    return torch.cat((x[..., 1:], torch.zeros_like(x[..., :1])), -1)


_THIRDS = lambda *order: lambda w: torch.cat([w.chunk(3)[i] for i in order])  # noqa: E731
_L = "model.layers."

ROWS: tuple[tuple[str, str, Broken, str, str], ...] = (
    # what a loader leaves out or misreads
    ("gpt2", "c_attn.bias is missing", without(r"c_attn\.bias"), steps(0, "q", "k", "v"), "(?i)bias"),
    ("gpt2", "c_attn.bias of one layer is missing", without(r"h\.2\.attn\.c_attn\.bias"), steps(2, "q", "k", "v"),
     "(?i)bias"),
    ("gpt2", "c_fc.bias is missing", without(r"c_fc\.bias"), steps(0, "ffn.hidden"), "(?i)bias"),
    ("gpt2", "c_proj transposed", tensors(r"attn\.c_proj\.weight", lambda w: w.T.contiguous()), steps(0, "attn"),
     "transposed"),
    ("gpt2", "q, k and v as k, q, v", tensors(r"c_attn\.(weight|bias)",
                                              lambda w: torch.cat([w.chunk(3, -1)[i] for i in (1, 0, 2)], -1)),
     steps(0, "q"), "(?i)order|numbers of L0.k|k, q|q and k are exchanged"),
    ("gpt2", "q, k and v cut by head", tensors(r"c_attn\.(weight|bias)",
                                               lambda w: w.unflatten(-1, (6, 3, 8)).transpose(-2, -3).reshape(w.shape)),
     steps(0, "q"), "(?i)head|cut|order"),
    ("neox", "q, k and v cut in thirds", tensors(r"query_key_value\.(weight|bias)", _joint(4)), steps(0, "q", "k", "v"),
     "(?i)head|cut|order|third"),
    ("bloom", "q, k and v cut in thirds", tensors(r"query_key_value\.(weight|bias)", _joint(6)), steps(0, "q", "k",
     "v"),
     "(?i)head|cut|order|third"),
    ("neox", "dense bias is missing", without(r"attention\.dense\.bias"), steps(0, "attn"), "(?i)bias"),
    ("bert", "query bias is missing", without(r"self\.query\.bias"), steps(0, "q"), "(?i)bias"),
    ("bert", "key and value exchanged", several(
        *(swapped(f"bert.encoder.layer.1.attention.self.key.{p}", f"bert.encoder.layer.1.attention.self.value.{p}")
          for p in ("weight", "bias"))), steps(1, "k", "v"), "L1.[vk]|order"),
    ("bert", "the decoder's bias is missing", without(r"cls\.predictions\.bias"), "logits", "(?i)bias"),
    ("qwen2", "q bias is missing", without(r"q_proj\.bias"), steps(0, "q"), "(?i)bias"),
    ("phi", "q bias of the next layer", swapped(f"{_L}1.self_attn.q_proj.bias", f"{_L}2.self_attn.q_proj.bias"),
     steps(1, "q"), "L2|layer 2"),
    ("llama", "rows of q and k in pairs", several(tensors(r"q_proj\.weight", to_pairs(4)),
                                                   tensors(r"k_proj\.weight", to_pairs(2))), steps(0, "q"), "pairs"),
    ("granite", "rows of q in pairs alone", tensors(r"q_proj\.weight", to_pairs(4)), steps(0, "q"), "pairs"),
    ("qwen3", "gate and up exchanged everywhere", several(
        *(swapped(f"{_L}{n}.mlp.gate_proj.weight", f"{_L}{n}.mlp.up_proj.weight") for n in range(4))),
     steps(0, "ffn.gate", "ffn.hidden"), "L0.ffn.(gate|hidden)|exchanged|swapped"),
    ("llama", "two layers exchanged", layers_exchanged(1, 2), steps(1, "norm1"), "L2|layers? (1 and )?2"),
    ("olmo2", "down of the next layer", swapped(f"{_L}1.mlp.down_proj.weight", f"{_L}2.mlp.down_proj.weight"), steps(1,
     "ffn"),
     "L2|layer 2"),
    ("gemma2", "heads of o in another order", tensors(r"layers\.2\.self_attn\.o_proj\.weight", lambda w: w.roll(10, 1)),
     steps(2, "attn"), "(?i)heads|rolled|columns|order"),
    ("qwen3", "rows of v upside down", tensors(r"layers\.1\.self_attn\.v_proj\.weight", lambda w: w.flip(0)), steps(1,
     "v"),
     "(?i)order|rows|reverse"),
    ("granite", "down in int8 by row", tensors(r"down_proj\.weight", int8_by_row), steps(0, "ffn"), "int8"),
    ("gpt2", "a head of its own", lambda model, patch: setattr(
        model.lm_head, "weight", torch.nn.Parameter(model.lm_head.weight.data.roll(1, 0))), "logits",
        "(?i)rolled|rows|order"),
    ("llama", "a head in bfloat16", tensors(r"lm_head\.weight", lambda w: w.bfloat16().float()), "logits", "bfloat16"),
    ("gemma", "negative o", tensors(r"layers\.0\.self_attn\.o_proj\.weight", lambda w: -w), steps(0, "attn"),
     "(?i)sign|-1|negative"),
    ("llama", "the adapter's change twice", tensors(
        r"layers\.1\.self_attn\.q_proj\.weight", lambda w: w + 0.3 * torch.outer(w[:, 0], w[0]) / w.std()), steps(1,
        "q"),
     "(?i)rank"),
    ("deepseek3", "k and v of the latent exchanged", tensors(r"kv_b_proj\.weight",
                                                            by_head(4, lambda w: torch.cat((w[:, 10:], w[:, :10]), 1))),
     steps(0, "k_own", "v"), "(?i)order|exchanged|cut|v"),
    ("deepseek3", "the rotary part first", tensors(r"q_b_proj\.weight", by_head(4, lambda w: w.roll(8, 1))), steps(0,
     "q"),
     "(?i)rotary|first|rolled"),
    ("deepseek3", "rotary key before the latent", tensors(r"kv_a_proj_with_mqa\.weight", lambda w: w.roll(8, 0)),
     steps(0, "kv_a"), "(?i)rotary|first|rolled"),
    # experts
    ("gptoss", "the router's bias is missing", without(r"router\.bias"), steps(0, "ffn.router") + " " + _ROUTED,
     "(?i)bias"),
    ("gptoss", "shares of all experts", _routed(lambda logits, m: logits.softmax(-1)), _ROUTED,
     "(?i)sum|renorm|all"),
    ("gptoss", "up without 1", method("GptOssExperts", "_apply_gate", lambda m, plain: lambda x: (
        plain(x) - (g := x[..., ::2].clamp(max=m.limit)) * torch.sigmoid(g * m.alpha))), _ROUTED,
        r"(?i)\+ ?1|without.* 1|1 is"),
    ("gptoss", "gate and up in halves", method("GptOssExperts", "_apply_gate", lambda m, plain: lambda x: plain(
        x.unflatten(-1, (2, -1)).mT.flatten(-2))), _ROUTED, "(?i)halves|interleav|turns|pairs"),
    ("gptoss", "nibbles in another order", tensors(r"experts\.gate_up_proj", _nibbles), _ROUTED,
     "(?i)nibble|order|block|mxfp4"),
    ("gptoss", "an expert's bias is missing", without(r"experts\.down_proj_bias"), _ROUTED, "(?i)bias"),
    ("deepseek3", "the bias is in the weights", _routed(lambda logits, m: logits.sigmoid() + m.e_score_correction_bias,
     1.5), _LATER, "(?i)bias"),
    ("deepseek3", "the bias of the choice is missing", without("e_score_correction_bias"), _LATER, "(?i)bias"),
    ("deepseek3", "a softmax router", _routed(lambda logits, m: logits.softmax(-1), 1.5), _LATER, "(?i)softmax"),
    ("deepseek3", "no shared expert", result(r"mlp\.shared_experts", lambda out, x, m: out * 0), steps(1, "shared.out",
     "ffn"),
     "(?i)shared|all 0"),
    ("mixtral", "shares of all experts", _routed(lambda logits, m: logits.float().softmax(-1)), _ROUTED,
     "(?i)sum|renorm"),
    ("mixtral", "experts in another order", several(tensors(r"layers\.1\.mlp\.experts\.\w+", lambda w: w.roll(1, 0))),
     steps(1, "ffn"), "(?i)expert"),
    ("mixtral", "w1 and w3 exchanged", tensors(r"experts\.gate_up_proj", lambda w: torch.cat(w.chunk(2, 1)[::-1], 1)),
     _ROUTED,
     "(?i)gate|up|exchanged|swapped"),
    ("mixtral", "weights of experts not applied", _routed(lambda logits, m: logits * 0 + 0.5), _ROUTED,
     "(?i)weight|mean|equal"),
    ("moe", "weights of the second expert first", result(r"mlp\.gate", lambda out, x, m: (out[0], out[1].flip(-1),
     out[2])),
     _ROUTED, "(?i)order|weight|reverse|exchang"),
    # convolutions and states
    ("lfm2", "taps in the other order", tensors(r"conv\.conv\.weight", lambda w: w.flip(-1)), steps(0, "conv",
     "concat", "attn"),
     "(?i)taps|order|reverse"),
    ("lfm2", "one token late", _conv(_later), steps(0, "conv", "concat", "attn"),
     "(?i)shift|late|token before|too early"),
    ("lfm2", "one token early", _conv(_sooner), steps(0, "conv", "concat", "attn"), "(?i)shift|early|next|ahead"),
    ("lfm2", "an activation after the convolution", _conv(activation="silu"), steps(0, "conv", "concat", "attn"),
     "(?i)silu|activation"),
    ("lfm2", "gates exchanged", tensors(r"conv\.in_proj\.weight", _THIRDS(1, 0, 2)), steps(0, "gate_in", "gate"),
     "L0.gate|order|exchang|joint matrix of gate_in, v and gate is read as gate, v, gate_in"),
    ("lfm2", "queries not normed", left_out("q_layernorm"), steps(2, "q_norm"), "left out"),
    ("mamba2", "taps in the other order", tensors(r"conv1d\.weight", lambda w: w.flip(-1)), _CONV,
     "(?i)taps|order|reverse"),
    ("mamba2", "one token late", _conv(_later), _CONV, "(?i)shift|late|token before|earlier"),
    ("mamba2", "no bias of the convolution", without(r"conv1d\.bias"), _CONV, "(?i)bias"),
    ("mamba2", "no activation after the convolution", _conv(activation=None), _CONV, "(?i)silu|activation"),
    ("mamba2", "dt without its bias", _scan(dt_bias=lambda g: g["dt_bias"] * 0), _STATE, "(?i)dt|step|bias"),
    ("mamba2", "dt without softplus", _scan(dt_softplus=lambda g: False), _STATE, "(?i)softplus"),
    ("mamba2", "D left out", _scan(D=lambda g: g["D"] * 0), _STATE, r"\bD\b|skip"),
    ("mamba2", "D is 1", _scan(D=lambda g: g["D"] * 0 + 1), _STATE, r"\bD\b|skip"),
    ("mamba2", "A not exponentiated", _scan(A=lambda g: -(-g["A"]).log().abs()), _STATE, r"\bA\b|exp|decay"),
    ("mamba2", "B and C exchanged", _scan(B=lambda g: g["C"], C=lambda g: g["B"]), _STATE,
     "(?i)B and C|exchanged|L0.[qk]"),
    ("mamba2", "groups in turns", _scan(B=lambda g: g["B"].repeat(1, 1, 4, 1), C=lambda g: g["C"].repeat(1, 1, 4, 1)),
     _STATE,
     "(?i)turns|group"),
    ("mamba2", "gated after the norm", method("RMSNormGated", "forward", _gated_after), steps(0, "head_norm"),
     "(?i)gate"),
    ("mamba2", "normed whole, not by group", method("RMSNormGated", "forward", lambda m, plain: lambda x, gate: (
        y := x * torch.nn.functional.silu(gate)) * torch.rsqrt(y.square().mean(-1, keepdim=True) + m.variance_epsilon)
        * m.weight), steps(0, "head_norm"), "(?i)group|whole"),
    ("mamba2", "not gated", method("RMSNormGated", "forward", lambda m, plain: lambda x, gate: plain(x)), steps(0,
     "head_norm"),
     "(?i)gate"),
)  # fmt: skip


BROKEN = {f"{name}: {words}": Port(name, broken, first, cause) for name, words, broken, first, cause in ROWS}
