"""Mistral Large 4 (Mistral 2026): latent attention to keys that an indexer chooses, in some layers without positions.

Its rotary frequencies are each multiplied by a number that was learned (LeRoPE), and the queries of each head by one
that grows with the position.
"""

from dataclasses import replace
from typing import Any

import torch

from tinytf.checkpoints.huggingface.deepseek import (
    DEEPSEEK_V3,
    LATENT,
    indexed,
    indexer,
    read_shared,
    widths,
    write_sharing,
)
from tinytf.checkpoints.huggingface.llama import FIXED, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.routing import FURTHER_MODULES, routed
from tinytf.checkpoints.huggingface.table import by_layer, merge_fields
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors, stacked_experts
from tinytf.config import ModelConfig, Rope
from tinytf.fields import Fields
from tinytf.steps.operations.rotate import rotary_frequencies

_ALPHA = "rotary_emb.alpha"


def _read_alpha(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The logarithms of what frequencies are multiplied by, as factors of LongRoPE."""
    alpha = fields.array(_ALPHA, float, ())
    if not any(alpha):
        return {}
    names = ("theta", "scaling", "factor", "low_frequency", "high_frequency", "original_context")
    settings = {name: draft[f"rope_{name}"] for name in names if f"rope_{name}" in draft}
    defaults = {"factor": 1.0, "low_frequency": 1.0, "high_frequency": 4.0, "original_context": 0}
    scaled = Rope(**{**defaults, **settings}, width=draft["rope_width"], truncate=draft.get("rope_truncate", True))
    plain = rotary_frequencies(scaled._replace(scaling="none"))
    if len(alpha) != len(plain):
        raise fields.fault(f"{_ALPHA} has {len(alpha):,} numbers for {len(plain):,} pairs of dimensions")
    factors = plain.double() / (rotary_frequencies(scaled) * torch.tensor(alpha).exp()).double()
    return {
        "rope_scaling": "longrope",
        "rope_short_factors": tuple(factors.tolist()),
        "rope_long_factors": tuple(factors.tolist()),
        "rope_original_context": draft["context"],
    }


def _read_layers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The layers without positions, whose keys have no shared part, and those that take an earlier layer's latent."""
    layers = range(draft["n_layers"])
    every = fields.whole("no_rope_layer_interval", 4, least=1)
    flags = fields.array("no_rope_layers", int, [int((layer + 1) % every != 0) for layer in layers])
    sources = fields.array("kv_source_layers", int, [*layers], count=len(layers))
    if len(flags) < len(layers):
        raise fields.fault(f"no_rope_layers has {len(flags):,} entries for {len(layers):,} layers")
    turned = [bool(flag) for flag in flags[: len(layers)]]
    for layer, source in enumerate(sources):
        own = [below for below in layers[:layer] if sources[below] == below and turned[below] == turned[layer]]
        if source not in (layer, *own[-1:]):
            raise fields.fault(f"kv_source_layers of layer {layer}, {source}, is not implemented")
    return merge_fields(
        by_layer("positions", ["rotary" if rotary else "none" for rotary in turned]),
        by_layer("rope_width", [draft["rope_width"] * rotary for rotary in turned]),
        by_layer("rope_scaling", [draft["rope_scaling"] if rotary else "none" for rotary in turned]),
        by_layer("shares_latent", [source != layer for layer, source in enumerate(sources)]),
    )


def _zeros(config: ModelConfig) -> list[float]:
    """Logarithms that change no frequency: those that were read are written as LongRoPE."""
    return [0.0] * (max(config.at(layer).rope_width for layer in range(config.n_layers)) // 2)


def _write_layers(config: ModelConfig) -> dict[str, Any]:
    layers, sources = [config.at(layer) for layer in range(config.n_layers)], list(range(config.n_layers))
    for number, layer in enumerate(layers):
        if layer.shares_latent:
            sources[number] = max(
                below
                for below in range(number)
                if not layers[below].shares_latent and layers[below].positions == layer.positions
            )
    turned = max(layer.rope_width for layer in layers)
    return {
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": config.d_head - turned,
        "no_rope_layers": [int(layer.positions == "rotary") for layer in layers],
        "kv_source_layers": sources,
    }


MISTRAL_LARGE4 = replace(
    LLAMA,
    name="Mistral Large 4",
    model_type="mistral_large4_text",
    classes={"none": "MistralLarge4TextModel"},
    only={"attention_bias": (False,), "q_lora_rank": (), "n_group": (1,)},
    fixed={**FIXED, "head_growth": True, "index_norm": True},
    needs=("kv_rank", "head_growth", "index_norm", "index_keys"),
    settings=(
        *UNTURNED,
        Key("rms_norm_eps", "norm_eps latent_eps", 1e-5),
        Key("kv_lora_rank", "kv_rank", 512),
        widths(64, 64, 128, 0),
        rope(),
        *HEAD_AND_ACTIVATION,
        Key("final_logit_softcapping", "logit_cap", 30.0),
        routed(first=1, kinds=True),
        *indexed(32),
        Group(read_shared, write_sharing),
        Group(_read_alpha),
        Group(_read_layers, _write_layers),
    ),
    harmless=("head_dim", "qk_head_dim", "layer_types", "topk_group", "output_router_logits"),
    stored={
        **LLAMA.stored,
        **LATENT,
        "embed.tokens": Stored("embed_tokens", beside=((_ALPHA, _zeros),)),
        "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_proj", paired="n_heads", rotary_last="n_heads"),
        "blocks.{n}.attention.q_growth": Stored(
            "layers.{n}.self_attn.softmax_scaling.scale", bare=True, bias="layers.{n}.self_attn.softmax_scaling.bias"
        ),
        **indexer("index_heads"),
        "blocks.{n}.attention.index_q_in": Stored("layers.{n}.self_attn.indexer.q_input_norm"),
        "blocks.{n}.attention.index_q_growth": Stored(
            "layers.{n}.self_attn.indexer.softmax_scaling.scale",
            bare=True,
            bias="layers.{n}.self_attn.indexer.softmax_scaling.bias",
        ),
        **{name: layout for name, layout in DEEPSEEK_V3.stored.items() if ".ffn." in name and "preference" not in name},
        **stacked_experts("layers.{n}.mlp.experts", ("w1", "w3", "w2")),
    },
    spellings=(
        (r"^tok_embeddings\.", "embed_tokens."),
        (r"^output\.", "lm_head."),
        (r"^lerope\.", "rotary_emb."),
        (r"^(layers\.\d+)\.(experts|gate|shared_experts)\.", r"\1.mlp.\2."),
        (r"\.feed_forward\.", ".mlp."),
        (r"\.(mlp|shared_experts)\.w1\.", r".\1.gate_proj."),
        (r"\.(mlp|shared_experts)\.w2\.", r".\1.down_proj."),
        (r"\.(mlp|shared_experts)\.w3\.", r".\1.up_proj."),
        (r"\.attention\.", ".self_attn."),
        (r"\.self_attn\.wq\.", ".self_attn.q_proj."),
        (r"\.wo\.", ".o_proj."),
        (r"\.wkv_a_with_mqa\.", ".kv_a_proj_with_mqa."),
        (r"\.wkv_b\.", ".kv_b_proj."),
        (r"\.attention_norm\.", ".input_layernorm."),
        (r"\.ffn_norm\.", ".post_attention_layernorm."),
        (r"\.kv_a_norm\.", ".kv_a_layernorm."),
        (r"\.ssmax_scaling\.s$", ".softmax_scaling.scale"),
        (r"\.ssmax_scaling\.b$", ".softmax_scaling.bias"),
    ),
    written_as=lambda _: {f"mlp.{word}": word for word in ("gate", "experts", "shared_experts")},
    skipped=(
        *LLAMA.skipped,
        Skip(r"mtp_dspark\..*", FURTHER_MODULES.why, noted=True),
        Skip(r"rotary_emb\.alpha", "read as a setting of RoPE"),
    ),
    constants=(_ALPHA,),
)
