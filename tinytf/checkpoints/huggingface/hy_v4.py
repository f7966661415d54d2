"""Hunyuan 4 (Tencent 2026): hyper-connections, latent attention with an indexer, a gate and sinks, and experts."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.deepseek import DEEPSEEK_V32, LATENT, indexed, read_sharing, widths, write_sharing
from tinytf.checkpoints.huggingface.hyper import STREAMS, connections
from tinytf.checkpoints.huggingface.llama import HEAD_AND_ACTIVATION, LLAMA, SHARED
from tinytf.checkpoints.huggingface.routing import FURTHER_MODULES, routed, sigmoid_router
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors, stacked_experts
from tinytf.fields import Fields


def _read_indexers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The layers that take the choice of an earlier one: after the second, all but one in four."""
    schedule = ["shared" if layer and (layer - 1) % 4 else "full" for layer in range(draft["n_layers"])]
    return {"index_eps": draft["norm_eps"], **read_sharing(fields, draft, schedule)}


def _read_limit(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The limit of the gates of routed experts."""
    if not draft.get("experts"):
        return {}
    if (limit := fields.number("swiglu_limit", 10.0)) <= 0:
        raise fields.fault(f"swiglu_limit {limit:g} is not above 0")
    return {"glu_limit": limit, "glu_added": 0.0, "glu_of_experts": True}


_ATTENTION, _INDEXER = "layers.{n}.self_attn", "layers.{n}.self_attn.indexer"
_HYPER = "layers.{n}.hc_pre.hc"
HY_V4 = replace(
    DEEPSEEK_V32,
    name="Hunyuan 4",
    model_type="hy_v4",
    classes={"none": "HYV4Model", "lm": "HYV4ForCausalLM"},
    harmless=(*DEEPSEEK_V32.harmless, "learnable_sink_init", "num_key_value_heads"),
    fixed={**LLAMA.fixed, "attention_gate": True, "attention_sinks": True},
    settings=(
        *(key for key in SHARED if getattr(key, "name", "") != "num_key_value_heads"),
        Key("rms_norm_eps", "norm_eps", 1e-5),
        Key("kv_lora_rank", "kv_rank", 512),
        Group(lambda fields, draft, tensors: {"n_kv_heads": draft["n_heads"]}),
        widths(64, 192, 256, 1536),
        *HEAD_AND_ACTIVATION,
        routed("", 1, kinds=True),
        sigmoid_router(),
        *indexed(16),
        Group(_read_indexers, write_sharing),
        Group(_read_limit, lambda config: {"swiglu_limit": config.glu_limit} if config.experts else {}),
        *STREAMS,
        Key("hc_magnitude", "hyper_magnitude", 2.0),
    ),
    needs=("kv_rank", "q_rank", "index_keys", "hyper"),
    stored={
        **DEEPSEEK_V32.stored,
        **LATENT,
        "blocks.{n}.attention.q": Stored(f"{_ATTENTION}.q_b_proj", rotary_last="n_heads"),
        "blocks.{n}.attention.k_shared": replace(LATENT["blocks.{n}.attention.k_shared"], paired=""),
        "blocks.{n}.attention.index_q": Stored(f"{_INDEXER}.wq_b", rotary_last="index_heads"),
        "blocks.{n}.attention.index_k": Stored(f"{_INDEXER}.wk", rotary_last="1"),
        "blocks.{n}.attention.index_k_norm": Stored(f"{_INDEXER}.k_norm", rotary_last="1"),
        "blocks.{n}.attention.gate": Stored(f"{_ATTENTION}.linear_gate"),
        "blocks.{n}.attention.sink": Stored(f"{_ATTENTION}.learnable_sink_param", bare=True),
        "blocks.{n}.ffn.gate": Stored("layers.{n}.mlp.linear_gate"),
        "blocks.{n}.ffn.shared.gate": Stored("layers.{n}.mlp.shared_experts.linear_gate"),
        **stacked_experts("layers.{n}.mlp.experts"),
        **connections(f"{_HYPER}_attn_layer.hc_", f"{_HYPER}_mlp_layer.hc_", "hc_pre.hc_head.hc_head_", mixed=False),
    },
    spellings=(
        (r"\battn_hc\b", "hc_pre.hc_attn_layer"),
        (r"\bffn_hc\b", "hc_pre.hc_mlp_layer"),
        (r"(hc_\w+_layer)\.(fn|base|scale)$", r"\1.hc_\2"),
        (r"^hc_head\b", "hc_pre.hc_head"),
        (r"hc_head\.hc_(fn|base|scale)$", r"hc_head.hc_head_\1"),
        (r"\b(self_attn|mlp|shared_experts)\.gate_proj\b", r"\1.linear_gate"),
        (r"self_attn\.sinks$", "self_attn.learnable_sink_param"),
    ),
    skipped=(*LLAMA.skipped, Skip(r"mtp_layers\..*", FURTHER_MODULES.why, noted=True)),
)
