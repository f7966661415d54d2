"""Weights of transformers' models put into ours: one table of names a family, nothing downloaded.

A table maps our module to theirs, ``{n}`` standing for the layer, with what has to be done to the tensor.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tinytf.model.transformer import Transformer

Change = Callable[[Tensor], Tensor]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _third(place: int) -> Change:
    """One of q, k and v out of GPT-2's joint (in, 3·out) matrix or (3·out) bias."""
    return lambda tensor: tensor.chunk(3, dim=-1)[place].t()


GPT2: dict[str, tuple[str, Change]] = {
    "embed.tokens": ("transformer.wte", _same),
    "embed.positions": ("transformer.wpe", _same),
    "blocks.{n}.norm1": ("transformer.h.{n}.ln_1", _same),
    "blocks.{n}.attention.q": ("transformer.h.{n}.attn.c_attn", _third(0)),
    "blocks.{n}.attention.k": ("transformer.h.{n}.attn.c_attn", _third(1)),
    "blocks.{n}.attention.v": ("transformer.h.{n}.attn.c_attn", _third(2)),
    "blocks.{n}.attention.o": ("transformer.h.{n}.attn.c_proj", torch.t),
    "blocks.{n}.norm2": ("transformer.h.{n}.ln_2", _same),
    "blocks.{n}.ffn.up": ("transformer.h.{n}.mlp.c_fc", torch.t),
    "blocks.{n}.ffn.down": ("transformer.h.{n}.mlp.c_proj", torch.t),
    "final_norm": ("transformer.ln_f", _same),
}

BERT_BODY: dict[str, tuple[str, Change]] = {
    "embed.tokens": ("embeddings.word_embeddings", _same),
    "embed.positions": ("embeddings.position_embeddings", _same),
    "embed.types": ("embeddings.token_type_embeddings", _same),
    "embed.norm": ("embeddings.LayerNorm", _same),
    "blocks.{n}.attention.q": ("encoder.layer.{n}.attention.self.query", _same),
    "blocks.{n}.attention.k": ("encoder.layer.{n}.attention.self.key", _same),
    "blocks.{n}.attention.v": ("encoder.layer.{n}.attention.self.value", _same),
    "blocks.{n}.attention.o": ("encoder.layer.{n}.attention.output.dense", _same),
    "blocks.{n}.norm1": ("encoder.layer.{n}.attention.output.LayerNorm", _same),
    "blocks.{n}.ffn.up": ("encoder.layer.{n}.intermediate.dense", _same),
    "blocks.{n}.ffn.down": ("encoder.layer.{n}.output.dense", _same),
    "blocks.{n}.norm2": ("encoder.layer.{n}.output.LayerNorm", _same),
}
BERT_POOLED = {**BERT_BODY, "pooler": ("pooler.dense", _same)}
BERT_MASKED: dict[str, tuple[str, Change]] = {
    **{our_name: (f"bert.{name}", change) for our_name, (name, change) in BERT_BODY.items()},
    "head.dense": ("cls.predictions.transform.dense", _same),
    "head.norm": ("cls.predictions.transform.LayerNorm", _same),
    "head.decoder": ("cls.predictions.decoder", _same),
}

LLAMA: dict[str, tuple[str, Change]] = {
    "embed.tokens": ("model.embed_tokens", _same),
    "blocks.{n}.norm1": ("model.layers.{n}.input_layernorm", _same),
    "blocks.{n}.attention.q": ("model.layers.{n}.self_attn.q_proj", _same),
    "blocks.{n}.attention.k": ("model.layers.{n}.self_attn.k_proj", _same),
    "blocks.{n}.attention.v": ("model.layers.{n}.self_attn.v_proj", _same),
    "blocks.{n}.attention.o": ("model.layers.{n}.self_attn.o_proj", _same),
    "blocks.{n}.attention.q_norm": ("model.layers.{n}.self_attn.q_norm", _same),
    "blocks.{n}.attention.k_norm": ("model.layers.{n}.self_attn.k_norm", _same),
    "blocks.{n}.norm2": ("model.layers.{n}.post_attention_layernorm", _same),
    "blocks.{n}.ffn.gate": ("model.layers.{n}.mlp.gate_proj", _same),
    "blocks.{n}.ffn.up": ("model.layers.{n}.mlp.up_proj", _same),
    "blocks.{n}.ffn.down": ("model.layers.{n}.mlp.down_proj", _same),
    "final_norm": ("model.norm", _same),
    "head.decoder": ("lm_head", _same),
}


@torch.no_grad()
def give_weights(theirs: nn.Module, ours: Transformer, table: dict[str, tuple[str, Change]]) -> None:
    """Every parameter of ours from theirs; an assertion fails if one of theirs is left over."""
    source, used = theirs.state_dict(), set()
    for name, parameter in ours.named_parameters():
        module, _, kind = name.rpartition(".")
        layer = module.split(".")[1] if module.startswith("blocks.") else ""
        their_module, change = table[module.replace(f"blocks.{layer}.", "blocks.{n}.")]
        their_name = f"{their_module.replace('{n}', layer)}.{kind}"
        used.add(source[their_name].data_ptr())
        tensor = change(source[their_name])
        assert tensor.shape == parameter.shape, (name, their_name)
        parameter.copy_(tensor)
    assert [name for name, tensor in source.items() if tensor.data_ptr() not in used] == []
