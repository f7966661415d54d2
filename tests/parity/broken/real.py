"""The second hand's ports of SmolLM2, Gemma 3 270M and MiniLM, with their own weights."""

import torch
from torch import Tensor

from broken.bench import Broken, Port
from broken.caches import cached, first_lost, rounded_to_int8
from broken.patches import (
    base,
    by_head,
    layers_exchanged,
    left_out,
    result,
    scores,
    seen,
    several,
    steps,
    swapped,
    tensors,
    without,
)  # fmt: skip
from broken.weights import to_pairs


def _bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).float()


def _gain_in_bf16(out: Tensor, x: Tensor, module: object) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.eps) * _bf16(1 + module.weight)


def _later_unseen(found: Tensor) -> Tensor:
    return found + torch.full(found.shape[-2:], -torch.inf).triu(1)


_EMBED = "embed.tokens embed.scaled embed.out L0.norm1"
_L = "model.layers."
_UNPERMUTED = several(tensors(r"q_proj\.weight", to_pairs(9)), tensors(r"k_proj\.weight", to_pairs(3)))

ROWS: tuple[tuple[str, str, Broken, str, str], ...] = (
    ("smollm2", "base 12,345.6", base(12345.6), seen(0), r"12,?34[56]"),
    ("smollm2", "a divisor of no meaning", scores(scale=0.9137), seen(0), r"0\.9137|8\.75|1\.094"),
    ("smollm2", "a cap too many", scores(cap=20.0), seen(0), "(?i)cap"),
    ("smollm2", "feed-forward by 1.1386", result(r"mlp\.down_proj", lambda out, x, m: out * 1.1386), steps(0, "ffn"),
     r"1\.1386|1\.139"),
    ("smollm2", "embeddings by 1.0017", result("embed_tokens", lambda out, x, m: out * 1.0017), _EMBED, r"1\.0017"),
    ("smollm2", "an extra score of 0", scores(share=lambda s, m: torch.cat((s, s[..., :1] * 0), -1).softmax(-1)),
     seen(0),
     "(?i)sink|extra|softmax1|added to the sum"),
    ("smollm2", "divided by the norm, not its mean", result("input_layernorm", lambda out, x,
     m: torch.nn.functional.normalize(
        x, dim=-1) * m.weight), "L0.norm1", r"(?i)√|mean|sum|0\.0417|24"),
    ("smollm2", "heads of o in another order", tensors(r"layers\.5\.self_attn\.o_proj\.weight", lambda w: w.roll(64,
     1)),
     steps(5, "attn"), "(?i)heads|rolled|columns|order"),
    ("gemma3", "√d in bfloat16", tensors("embed_scale", _bf16), _EMBED, r"bfloat16|25\.25|0\.998"),
    ("gemma3", "1 + w in bfloat16", result(r".*norm", _gain_in_bf16), "L0.norm1", "bfloat16"),
    ("gemma3", "scores capped as Gemma 2", scores(cap=50.0), seen(0), "(?i)cap"),
    ("gemma3", "divided by nothing", scores(scale=16.0), seen(0), "not divided"),
    ("gemma3", "keys not normed", left_out("k_norm"), steps(0, "k_norm"), "left out"),
    ("minilm", "positions from 2", tensors(r"position_embeddings\.weight", lambda w: w.roll(-2, 0)),
     "embed.positions embed.norm embed.out embed.sum", "(?i)position.* 2|2 too|2 rows of positions"),
    ("minilm", "the other token type", tensors(r"token_type_embeddings\.weight", lambda w: w.flip(0)),
     "embed.types embed.norm embed.out embed.sum", "(?i)type|id 1, not of 0"),
    ("minilm", "no norm of the embeddings", left_out(r"embeddings\.LayerNorm"), "embed.norm embed.out", "left out"),
    ("minilm", "query bias is missing", without(r"self\.query\.bias"), steps(0, "q"), "(?i)bias"),
    ("minilm", "a causal mask", scores(apart=_later_unseen), seen(0), "(?i)mask|causal|later"),
    ("minilm", "scores not divided", scores(scale=32**0.5), seen(0), "not divided"),
    ("minilm", "key rows of two heads exchanged", tensors(r"layer\.2\.attention\.self\.key\.weight",
                                                         by_head(12, lambda w: w.roll(1, 0))), steps(2, "k"),
                                                         "(?i)head|rolled|order"),
)  # fmt: skip
PASSES: tuple[tuple[str, str, Broken, str, str], ...] = (
    ("smollm2", "first key lost", cached(first_lost), seen(0), "(?i)first|token 0|lost"),
    ("smollm2", "keys in int8", cached(lambda k, v: (rounded_to_int8(k), v)), seen(0), "(?i)int8|8 bits"),
)
BETWEEN: tuple[tuple[str, str, Broken, str, str], ...] = (
    ("smollm2", "rows of q and k in pairs", _UNPERMUTED, steps(0, "q"), "pairs|order"),
    (
        "smollm2",
        "gate and up exchanged",
        swapped(f"{_L}7.mlp.gate_proj.weight", f"{_L}7.mlp.up_proj.weight"),
        steps(7, "ffn.hidden", "ffn.gate"),
        "(?i)gate|exchanged",
    ),
    ("smollm2", "layers exchanged", layers_exchanged(3, 4), steps(3, "norm1"), "layers 3 and 4|L4"),
    ("gemma3", "rows of q in pairs", tensors(r"q_proj\.weight", to_pairs(4)), steps(0, "q"), "pairs|order"),
)
BROKEN = {
    **{f"{name}: {words}": Port(name, broken, first, cause) for name, words, broken, first, cause in ROWS},
    **{
        f"{name}: generation, {words}": Port(name, broken, first, cause, generated=True)
        for name, words, broken, first, cause in PASSES
    },
    **{
        f"{name}: two models, {words}": Port(name, broken, first, cause, versus=True)
        for name, words, broken, first, cause in BETWEEN
    },
}
SOUND = {
    "minilm: as it is": Port("minilm", lambda model, patch: None, ""),
    "minilm: fused": Port("minilm", lambda model, patch: model.set_attn_implementation("sdpa"), ""),
    "smollm2: bfloat16": Port("smollm2", lambda model, patch: None, "", dtype=torch.bfloat16, floor="bf16"),
}
