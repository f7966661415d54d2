"""The third hand's sound ports: the same predictions, in another order, gauge, dtype, layout, or under other names."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from broken.bench import Broken, Patch, Port
from broken.patches import given_to, replaced, rotate_pairs, scores, setting, several, tensors

Dump = dict[str, Any]


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(9))


def _turn(size: int) -> Tensor:
    return torch.linalg.qr(_drawn(size, size)).Q


def _by(kind: str) -> Broken:
    return lambda model, patch: model.set_attn_implementation(kind)


def _nothing(model: Any, patch: Patch) -> None:
    pass


def _in_layers(change: Callable[[Any], None]) -> Broken:
    def broken(model: Any, patch: Patch) -> None:
        for layer in model.model.layers:
            change(layer)

    return broken


def _times(module: Any, rows: Tensor | None = None, columns: Tensor | None = None) -> None:
    """Rows, or columns, of a matrix times numbers."""
    module.weight.data = (
        module.weight * (1.0 if rows is None else rows[:, None]) * (1.0 if columns is None else columns)
    )


def _fold(norm: Any, *readers: Any) -> None:
    """The gain of a norm, in the matrices that read it."""
    for reader in readers:
        _times(reader, columns=norm.weight.data)
    norm.weight.data = torch.ones_like(norm.weight)


def _gains_folded(layer: Any) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    _fold(layer.input_layernorm, attention.q_proj, attention.k_proj, attention.v_proj)
    _fold(layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj)


def _smoothed(layer: Any) -> None:
    """SmoothQuant: part of the gain moves into the matrices behind the norm."""
    scale = _drawn(layer.post_attention_layernorm.weight.numel()).exp()
    layer.post_attention_layernorm.weight.data = layer.post_attention_layernorm.weight / scale
    for matrix in (layer.mlp.gate_proj, layer.mlp.up_proj):
        _times(matrix, columns=scale)


def _scaled_units(layer: Any) -> None:
    """AWQ: up is divided, and down multiplied, by a number for each hidden unit."""
    scale = _drawn(layer.mlp.up_proj.out_features).exp()
    _times(layer.mlp.up_proj, rows=1 / scale)
    _times(layer.mlp.down_proj, columns=scale)


def _units_in_another_order(layer: Any) -> None:
    order = torch.randperm(layer.mlp.up_proj.out_features, generator=torch.Generator().manual_seed(4))
    for matrix in (layer.mlp.gate_proj, layer.mlp.up_proj):
        matrix.weight.data = matrix.weight[order]
    layer.mlp.down_proj.weight.data = layer.mlp.down_proj.weight[:, order]


def _values_turned(layer: Any) -> None:
    """SpinQuant: the values of every head are turned, and turned back behind attention."""
    attention, turn = layer.self_attn, _turn(layer.self_attn.head_dim)
    value = attention.v_proj.weight.data.unflatten(0, (-1, len(turn)))
    attention.v_proj.weight.data = torch.einsum("ij,hjc->hic", turn, value).flatten(0, 1)
    out = attention.o_proj.weight.data.unflatten(1, (-1, len(turn)))
    attention.o_proj.weight.data = torch.einsum("chj,ij->chi", out, turn).flatten(1)


def _key_heads_in_another_order(layer: Any) -> None:
    """Both groups of heads change places."""
    attention = layer.self_attn
    for matrix in (attention.q_proj, attention.k_proj, attention.v_proj):
        matrix.weight.data = torch.cat(matrix.weight.chunk(2)[::-1])
        if matrix.bias is not None:
            matrix.bias.data = torch.cat(matrix.bias.chunk(2)[::-1])
    attention.o_proj.weight.data = torch.cat(attention.o_proj.weight.chunk(2, 1)[::-1], 1)


def _stream_turned(model: Any, patch: Patch) -> None:
    """QuaRot: gains folded, and the whole stream turned."""
    turn = _turn(model.config.hidden_size)
    _fold(model.model.norm, model.lm_head)
    for layer in model.model.layers:
        _gains_folded(layer)
        attention, mlp = layer.self_attn, layer.mlp
        for reader in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
            reader.weight.data = reader.weight @ turn
        for writer in (attention.o_proj, mlp.down_proj):
            writer.weight.data = turn.T @ writer.weight
    model.lm_head.weight.data = model.lm_head.weight @ turn
    model.model.embed_tokens.weight.data = model.model.embed_tokens.weight @ turn


def _experts_in_another_order(model: Any, patch: Patch) -> None:
    order = [3, 1, 5, 0, 2, 4]
    for layer in model.model.layers:
        for tensor in (layer.mlp.gate.weight, layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
            tensor.data = tensor[order]


def _q_and_k_balanced(layer: Any) -> None:
    """Queries twice as large and keys half."""
    layer.self_attn.q_proj.weight.data = 2 * layer.self_attn.q_proj.weight
    layer.self_attn.k_proj.weight.data = layer.self_attn.k_proj.weight / 2


def _to_pairs(weight: Tensor) -> Tensor:
    """Rows of halves as rows of neighbours, in heads of 12."""
    return weight.unflatten(0, (-1, 2, 6)).transpose(1, 2).flatten(0, 2)


def _in_blocks(scores: Tensor, module: Any) -> Tensor:
    """Softmax as FlashAttention sums it: block by block, with the largest score so far."""
    largest, total = torch.full_like(scores[..., :1], -1e30), torch.zeros_like(scores[..., :1])
    for block in scores.split(5, -1):
        new = torch.maximum(largest, block.amax(-1, keepdim=True))
        total = total * (largest - new).exp() + (block - new).exp().sum(-1, keepdim=True)
        largest = new
    return (scores - largest).exp() / total


def _each(change: Callable[[str, Any], tuple[str, Any]]) -> Callable[[Dump], Dump]:
    return lambda found: dict(change(name, value) for name, value in found.items())


def _named(change: Callable[[str], str]) -> Callable[[Dump], Dump]:
    return _each(lambda name, value: (name if name in ("logits", "input_ids") else change(name), value))


def _lit(name: str) -> str:
    """LitGPT's names."""
    for ours, theirs in (("model.layers.", "transformer.h."), ("self_attn.o_proj", "attn.proj"), ("self_attn", "attn"),
                         ("input_layernorm", "norm_1"), ("post_attention_layernorm", "norm_2"),
                         ("mlp.gate_proj", "mlp.fc_1"), ("mlp.up_proj", "mlp.fc_2"), ("mlp.down_proj", "mlp.proj"),
                         ("model.embed_tokens", "transformer.wte"), ("model.norm", "transformer.ln_f")):  # fmt: skip
        name = name.replace(ours, theirs)
    return name


def _ggml(name: str) -> str:
    for ours, theirs in (("model.layers.", "blk."), ("self_attn.o_proj", "attn_output"), ("self_attn.q_proj", "attn_q"),
                         ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
                         ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"),
                         ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
                         ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm")):  # fmt: skip
        name = name.replace(ours, theirs)
    return name


def _sequence_first(name: str, value: Any) -> tuple[str, Any]:
    return name, np.ascontiguousarray(value.swapaxes(0, 1)) if value.ndim >= 3 else value


def _flat(name: str, value: Any) -> tuple[str, Any]:
    """Tokens of all rows in one axis, as vLLM and packed runs have them."""
    return name, value[0] if value.ndim in (2, 3) else value


def _more(found: Dump) -> Dump:
    return {
        **found,
        "attention_mask": np.ones_like(found["input_ids"]),
        "loss": np.array(2.5, np.float32),
        "optimizer.step": np.array(100),
        "model.layers.0.self_attn.q_proj.weight": np.ones((48, 48), np.float32),
        "timings_ms": np.arange(7.0),
    }


def _wider_vocabulary(found: Dump) -> Dump:
    return {**found, "logits": np.pad(found["logits"], ((0, 0), (0, 0), (0, 3)))}


_ONES = {"attention_mask": lambda n: torch.tensor([[0] * 3 + [1] * n])}


def _packed(model: Any, patch: Patch) -> Any:
    """Positions that restart, which hide each text from the other while there is no cache."""
    model.config.use_cache = False
    return {"position_ids": lambda n: torch.cat((torch.arange(8), torch.arange(n - 8)))[None]}


SOUND: dict[str, Port] = {
    f"third: {name}": Port(model, broken, "", **settings)
    for name, model, broken, settings in (
        ("mistral: fused attention", "mistral", _by("sdpa"), {}),
        ("modernbert: fused attention", "modernbert", _by("sdpa"), {}),
        ("moe: all experts in one product", "moe", setting("moe", experts_implementation="batched_mm"), {}),
        ("falcon40: bfloat16", "falcon40", _nothing, {"dtype": torch.bfloat16, "floor": "bf16"}),
        ("mamba: bfloat16", "mamba", _nothing, {"dtype": torch.bfloat16, "floor": "bf16"}),
        ("smollm2: bfloat16, fused attention", "smollm2", _by("sdpa"), {"dtype": torch.bfloat16, "floor": "bf16"}),
        ("olmo2: softmax in blocks", "olmo2", scores(share=_in_blocks), {}),
        ("olmo: clipped in place", "olmo", _nothing, {}),
        ("qwen2: gains in the matrices", "qwen2", _in_layers(_gains_folded), {}),
        ("mistral: smoothed", "mistral", _in_layers(_smoothed), {}),
        ("mistral: hidden units scaled", "mistral", _in_layers(_scaled_units), {}),
        ("seedoss: hidden units in another order", "seedoss", _in_layers(_units_in_another_order), {}),
        ("llama: values turned", "llama", _in_layers(_values_turned), {}),
        ("mistral: the whole stream turned", "mistral", _stream_turned, {}),
        ("qwen2: groups of heads in another order", "qwen2", _in_layers(_key_heads_in_another_order), {}),
        ("mixtral: experts in another order", "mixtral", _experts_in_another_order, {}),
        ("llama: queries doubled, keys halved", "llama", _in_layers(_q_and_k_balanced), {}),
        ("llama: rotated as neighbours", "llama", several(
            tensors(r"[qk]_proj\.weight", _to_pairs), replaced("apply_rotary_pos_emb", rotate_pairs)), {}),
        ("mistral: padded on the left", "mistral", given_to(left_padding=(3, 0), **_ONES),
         {"beside": ("attention_mask",)}),
        ("qwen3: two texts packed", "qwen3", _packed, {"beside": ("position_ids",)}),
        ("stablelm: three rows", "stablelm", _nothing, {"rows": 3}),
        ("olmo2: with a cache", "olmo2", _nothing, {"generated": True}),
        ("gptoss: with a cache", "gptoss", _nothing, {"generated": True}),
        ("cohere2: with a cache", "cohere2", _nothing, {"generated": True}),
        ("gptj: other tensors in the dump", "gptj", _nothing, {"dumped": _more}),
        ("glm4: tokens before rows", "glm4", _nothing, {"dumped": _each(_sequence_first)}),
        ("phi3: no axis of rows", "phi3", _nothing, {"dumped": _each(_flat)}),
        ("llama: names of LitGPT", "llama", _nothing, {"dumped": _named(_lit)}),
        ("smollm2: names of GGML", "smollm2", _nothing, {"dumped": _named(_ggml)}),
        ("opt: compiled, in parallel", "opt", _nothing, {"dumped": _named(lambda name: f"module._orig_mod.{name}")}),
        ("gemma2: inside another model", "gemma2", _nothing, {"dumped": _named(lambda name: f"language_model.{name}")}),
        ("deepseek3: only the last logits", "deepseek3", _nothing, {"dumped": _each(
            lambda name, value: (name, value[:, -1:] if name in ("logits", "lm_head") else value))}),
        ("starts at position 7", "stablelm", given_to(position_ids=lambda n: torch.arange(7, 7 + n)[None]), {}),
        ("nemotron: a vocabulary filled up", "nemotron", _nothing, {"dumped": _wider_vocabulary}),
    )
}  # fmt: skip
