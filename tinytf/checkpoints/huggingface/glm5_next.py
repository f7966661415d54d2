"""GLM-5.3 (Zhipu 2026), text only: Kimi delta attention whose decays are bounded, and an indexer of pools of keys.

Every fourth layer has latent attention without positions, around both hyper-connections, and experts after the first.
"""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.deepseek import (
    DEEPSEEK_V3,
    LATENT,
    indexed,
    indexer,
    read_shared,
    widths,
    write_sharing,
)
from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.hyper import STREAMS, connections
from tinytf.checkpoints.huggingface.kimi_linear import DELTA, delta_layers
from tinytf.checkpoints.huggingface.llama import FIXED, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.qwen_next import LINEAR
from tinytf.checkpoints.huggingface.routing import FURTHER_LAYERS, MIXED, routed, sigmoid_router
from tinytf.checkpoints.huggingface.windows import FULL
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_INDEXED = "indexed_attention"


def _usual_mixers(fields: Fields, layers: int) -> list[str]:
    return [LINEAR if layer % 4 != 3 else _INDEXED for layer in range(layers)]


def _read_bound(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The bound of the logarithms of decays: none if it is null, unless the group of a published file has a safe_gate.

    Raises CheckpointError for one that is not below 0.
    """
    nested, name = fields.object("linear_attn_config"), "linear_lower_bound"
    bound = None if fields.data.get(name, 0) is None else fields.number(name, -5.0)
    if nested is not None and "gate_lower_bound" in nested.data:
        bound = None if nested.data["gate_lower_bound"] is None else nested.number("gate_lower_bound")
    if nested is not None and bound is None and nested.flag("safe_gate", True):
        bound = -5.0
    if bound is not None and bound >= 0:
        raise fields.fault(f"{name} {bound:g} is not below 0")
    return {"decay_bound": -(bound or 0.0)}


def _write_bound(config: ModelConfig) -> dict[str, Any]:
    return {"linear_lower_bound": -config.decay_bound or None}


def _read_limit(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    if (limit := fields.number("swiglu_limit", 10.0)) <= 0:
        raise fields.fault(f"swiglu_limit {limit:g} is not above 0")
    return {"glu_limit": limit, "glu_added": 0.0}


_ATTENTION = "layers.{n}.self_attn"
_POOLS = f"{_ATTENTION}.indexer.index_kpool_compress"

GLM5_NEXT = replace(
    DEEPSEEK_V3,
    name="GLM-5.3",
    model_type="glm5_next_text",
    classes={"none": "Glm5NextTextModel"},
    only={"attention_bias": (False,), "qk_rope_head_dim": (0,), "hidden_act": ("silu", "swish")},
    fixed={**FIXED, "positions": "none", "index_pooled": True, "streams_averaged": True},
    needs=("kv_rank", "q_rank", "index_keys", "index_pooled", "hyper", "sinkhorn_rounds", "streams_averaged"),
    settings=(
        *UNTURNED,
        Key("rms_norm_eps", "norm_eps latent_eps", 1e-5),
        Key("kv_lora_rank", "kv_rank", 512),
        widths(0, 256, 256, 1536),
        Group(lambda fields, draft, tensors: {"attention_divisor": 0.0}),  # whatever a file says of RoPE
        *HEAD_AND_ACTIVATION,
        delta_layers({_INDEXED: "attention", FULL: "attention", LINEAR: "kimi_delta"}, 64, _usual_mixers),
        Group(_read_bound, _write_bound),
        routed("", 3, kinds=True),
        sigmoid_router(),
        Group(_read_limit, lambda config: {"swiglu_limit": config.glu_limit}),
        *indexed(32),
        Key("index_kpool", "index_block", 16),
        Key("index_kpool_always_select_tail", "index_tail", True),
        Group(read_shared, write_sharing),
        *STREAMS,
        Key("hc_sinkhorn_iters", "sinkhorn_rounds", 20),
    ),
    harmless=(*TRAINING, "head_dim", "qk_head_dim"),
    stored={
        **LLAMA.stored,
        **LATENT,
        **MIXED,
        **DELTA,
        "blocks.{n}.delta.decay_in": Stored(f"{_ATTENTION}.f_b_proj", bias=f"{_ATTENTION}.dt_bias"),
        "blocks.{n}.delta.decay": Stored(f"{_ATTENTION}.A_log", bare=True),
        **indexer(),
        "blocks.{n}.attention.index_gate": Stored(f"{_POOLS}_gate", bare=True),
        "blocks.{n}.attention.index_sum": Stored(f"{_POOLS}_ape", bias=f"{_POOLS}_ape"),
        **connections("layers.{n}.hc_attn_", "layers.{n}.hc_ffn_"),
    },
    spellings=(
        (r"\.forget_gate\.", "."),
        (r"\battn_hc\.", "hc_attn_"),
        (r"\bffn_hc\.", "hc_ffn_"),
    ),
    skipped=(
        *LLAMA.skipped,
        FURTHER_LAYERS,
        Skip(r"layers\.\d+\.shared_head\..*", FURTHER_LAYERS.why, noted=True),
    ),
)
