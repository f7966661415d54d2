"""MiniMax M3 (MiniMax 2026): in most layers an index head of each key head chooses blocks of keys for its queries."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import FIXED, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.routing import FURTHER_MODULES, SIGMOID
from tinytf.checkpoints.huggingface.table import by_layer
from tinytf.checkpoints.huggingface.windows import FULL
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, stacked_experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_SPARSE = "minimax_m3_sparse"
_OLDER = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}


def _keys_now(data: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of transformers from those of the published file: of the indexer in an object, and layers as 0 and 1."""
    keys = dict(data)
    sparse, frequency = keys.pop("sparse_attention_config", None), keys.pop("moe_layer_freq", None)
    sparse = sparse if isinstance(sparse, dict) else {}
    keys |= {now: sparse[older] for older, now in _OLDER.items() if older in sparse}
    for name, flags, words in (
        ("layer_types", sparse.get("sparse_attention_freq"), (FULL, _SPARSE)),
        ("mlp_layer_types", frequency, ("dense", "sparse")),
    ):
        if keys.get(name) is None and isinstance(flags, list):
            keys[name] = [words[bool(flag)] for flag in flags]
    return keys


def _read_index(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The indexer of the layers that have one: all of its blocks, the nearest among them."""
    layers = draft["n_layers"]
    words = fields.array("layer_types", str, [FULL] * layers, count=layers)
    chooses = [fields.meaning("layer_types", word, {FULL: False, _SPARSE: True}) for word in words]
    block = fields.whole("index_block_size", 128, least=1)
    keys = block * fields.whole("index_topk_blocks", 16, least=1)
    index = {
        "index_heads": fields.whole("index_n_heads", 4),
        "index_width": fields.whole("index_head_dim", 128),
        "index_block": block,
        "index_by_head": True,
        "index_near": fields.whole("index_local_blocks", 1, least=0),
    }
    return {**index, **by_layer("index_keys", [keys * has for has in chooses])} if any(chooses) else {}


def _write_index(config: ModelConfig) -> dict[str, Any]:
    layers = map(config.at, range(config.n_layers))
    words = [_SPARSE if layer.index_keys else FULL for layer in layers]
    if not config.index_keys:
        return {"layer_types": words}
    return {
        "layer_types": words,
        "index_n_heads": config.index_heads,
        "index_head_dim": config.index_width,
        "index_block_size": config.index_block,
        "index_topk_blocks": config.index_keys // (config.index_block or 1),
        "index_local_blocks": config.index_near,
    }


def _read_experts(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    layers, count = draft["n_layers"], fields.whole("num_local_experts", 128)
    words = fields.array("mlp_layer_types", str, ["sparse"] * layers, count=layers)
    sparse = [fields.meaning("mlp_layer_types", word, {"dense": False, "sparse": True}) for word in words]
    if draft["glu_limit"] <= 0:
        raise fields.fault(f"swiglu_limit {draft['glu_limit']:g} is not above 0")
    return by_layer("experts", [count * has for has in sparse])


def _write_experts(config: ModelConfig) -> dict[str, Any]:
    layers = map(config.at, range(config.n_layers))
    return {
        "num_local_experts": config.experts or 1,
        "mlp_layer_types": ["sparse" if layer.experts else "dense" for layer in layers],
    }


def _gated(module: str, width: str) -> dict[str, Stored]:
    """The matrices of a feed-forward: gate and up in one, or separate as published."""
    joined: dict[str, Any] = {"parts": (width, width)}
    return {
        "gate": Stored(f"{module}.gate_up_proj", **joined, instead=Stored(f"{module}.gate_proj")),
        "up": Stored(f"{module}.gate_up_proj", part=1, **joined, instead=Stored(f"{module}.up_proj")),
        "down": Stored(f"{module}.down_proj"),
    }


_INDEX = "layers.{n}.self_attn.indexer"
_STORED = {
    **LLAMA.stored,
    **{f"blocks.{{n}}.ffn.{name}": layout for name, layout in _gated("layers.{n}.mlp", "d_ff").items()},
    "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.gate"),
    "blocks.{n}.ffn.preference": Stored("layers.{n}.mlp.gate.e_score_correction_bias", bare=True),
    **stacked_experts("layers.{n}.mlp.experts", ("w1", "w3", "w2")),
    **{
        f"blocks.{{n}}.ffn.shared.{name}": layout
        for name, layout in _gated("layers.{n}.mlp.shared_experts", "d_shared").items()
    },
    "blocks.{n}.attention.index_q": Stored(f"{_INDEX}.q_proj"),
    "blocks.{n}.attention.index_k": Stored(f"{_INDEX}.k_proj"),
    "blocks.{n}.attention.index_q_norm": Stored(f"{_INDEX}.q_norm"),
    "blocks.{n}.attention.index_k_norm": Stored(f"{_INDEX}.k_norm"),
}
MINIMAX_M3 = replace(
    LLAMA,
    name="MiniMax M3",
    model_type="minimax_m3_vl_text",
    classes={"none": "MiniMaxM3VLTextModel", "lm": "MiniMaxM3VLForCausalLM"},
    fixed={**FIXED, **SIGMOID, "qk_norm": True, "activation": "silu"},
    needs=("experts", "glu_limit"),
    settings=(
        *(key for key in UNTURNED if not isinstance(key, Key) or key.name != "intermediate_size"),
        Key("dense_intermediate_size", "d_ff", 12_288),
        Key("intermediate_size", "d_expert", 3072),
        Key("shared_intermediate_size", "d_shared", 3072),
        Key("head_dim", "d_head", 128),
        rope(5_000_000.0, share=1.0),
        *HEAD_AND_ACTIVATION[1:],
        Key("swiglu_limit", "glu_limit", 7.0),
        Key("swiglu_alpha", "glu_alpha", 1.702),
        Group(_read_experts, _write_experts),
        Key("num_experts_per_tok", "experts_per_token", 4),
        Key("routed_scaling_factor", "routed_scale", 2.0),
        Group(_read_index, _write_index),
    ),
    harmless=(*TRAINING, "hidden_act", "rotary_dim"),
    stored={name: replace(layout, offset=1.0) if "norm" in name else layout for name, layout in _STORED.items()},
    spellings=(
        (r"\.block_sparse_moe\.(experts|gate|shared_experts)\.", r".mlp.\1."),
        (r"\.block_sparse_moe\.e_score_correction_bias$", ".mlp.gate.e_score_correction_bias"),
        (r"\.self_attn\.index_([qk])_(proj|norm)\.", r".self_attn.indexer.\1_\2."),
    ),
    skipped=(*LLAMA.skipped, FURTHER_MODULES),
    keys_now=_keys_now,
    routes_scaled_after=True,
)
