"""Further mixtures with a softmax router: ERNIE 4.5, HunYuan, FlexOlmo, Granite, Aria, Mellum 2 and DBRX."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.alibi import MPT
from tinytf.checkpoints.huggingface.buffers import ROTARY_FREQUENCIES
from tinytf.checkpoints.huggingface.cousins import OLMO2
from tinytf.checkpoints.huggingface.experts import GRANITE_MOE, QWEN3_MOE, TRAINING, WITHOUT_DENSE
from tinytf.checkpoints.huggingface.glm import ERNIE4_5
from tinytf.checkpoints.huggingface.llama import BIASES, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.llama4 import HUNYUAN
from tinytf.checkpoints.huggingface.rope import ROPE, rope
from tinytf.checkpoints.huggingface.routing import FURTHER_MODULES, FURTHER_NAMED, MIXED, routed, shared_expert
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, by_layer, lm_head, merge_fields
from tinytf.checkpoints.huggingface.windows import layer_kinds, windows
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _read_ernie(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Experts in every moe_layer_interval-th layer from the start index to the end index (−1: to the last)."""
    layers, end = draft["n_layers"], fields.whole("moe_layer_end_index", -1, least=-1)
    start, every = fields.whole("moe_layer_start_index", 1, least=0), fields.whole("moe_layer_interval", 1, least=1)
    last = layers - 1 if end == -1 else end
    count, width = fields.whole("moe_num_experts", 64), fields.whole("moe_intermediate_size", 1536)
    counts = [count if (n + 1) % every == 0 and start <= n <= last else 0 for n in range(layers)]
    if not any(counts):
        raise fields.fault("moe_layer_start_index, moe_layer_end_index and moe_layer_interval leave no layer")
    found = {
        "experts": count,
        "experts_per_token": fields.whole("moe_k", 6),
        "d_expert": width,
        "d_shared": width * fields.whole("moe_num_shared_experts", 2, least=0),
    }
    return merge_fields(found, by_layer("experts", counts))


def _write_ernie(config: ModelConfig) -> dict[str, Any]:
    sparse = [layer for layer in range(config.n_layers) if config.at(layer).experts]
    return {
        "moe_num_experts": config.experts,
        "moe_k": config.experts_per_token,
        "moe_intermediate_size": config.d_expert,
        "moe_num_shared_experts": config.d_shared // config.d_expert,
        "moe_layer_start_index": sparse[0],
        "moe_layer_end_index": sparse[-1],
        "moe_layer_interval": 1,
    }


ERNIE4_5_MOE = replace(
    ERNIE4_5,
    name="ERNIE 4.5 MoE",
    model_type="ernie4_5_moe",
    classes={"none": "Ernie4_5_MoeModel", "lm": "Ernie4_5_MoeForCausalLM"},
    only={
        "use_bias": (False,),  # the shared expert would have biases, and the others not
        "moe_norm_min": (1e-12,),
    },
    fixed={**ERNIE4_5.fixed, "choice_bias": True},
    needs=("experts",),
    settings=(
        *UNTURNED,
        Key("rms_norm_eps", "norm_eps", 1e-5),
        Key("head_dim", "d_head", 0),
        rope(500_000.0),
        *HEAD_AND_ACTIVATION,
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        Group(_read_ernie, _write_ernie),
    ),
    harmless=(*TRAINING, "moe_capacity", "moe_gate", "moe_use_aux_free", "num_nextn_predict_layers"),
    stored={
        **ERNIE4_5.stored,
        **MIXED,
        "blocks.{n}.ffn.preference": Stored(
            "layers.{n}.mlp.moe_statics.e_score_correction_bias", bare=True, by_row="1"
        ),
    },
    spellings=((r"mlp\.gate\.moe_statics", "mlp.moe_statics"),),
    skipped=(*LLAMA.skipped, FURTHER_NAMED),
)
"""ERNIE 4.5 21B and 300B (Baidu 2025): a bias in the choice alone."""


def _same(fields: Fields, name: str, default: int) -> int:
    """A number, or a list of one for each layer, which must be equal."""
    values = fields.array(name, int) if isinstance(fields.data.get(name), list) else [fields.whole(name, default)]
    if len(set(values)) != 1:
        raise fields.fault(f"{name} that differs by layer is not implemented")
    return int(values[0])


def _read_hunyuan(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Experts as wide as the shared expert; files may count both in every layer."""
    width = draft["d_ff"]
    if _same(fields, "num_shared_expert", 1) != 1 or _same(fields, "moe_intermediate_size", width) != width:
        raise fields.fault("several shared experts, or experts of another width, are not implemented")
    return {
        "experts": _same(fields, "num_experts", 1),
        "experts_per_token": _same(fields, "moe_topk", 1),
        "d_expert": width,
        "d_shared": width,
    }


HUNYUAN_MOE = replace(
    HUNYUAN,
    name="HunYuan MoE",
    model_type="hunyuan_v1_moe",
    classes={"none": "HunYuanMoEV1Model", "lm": "HunYuanMoEV1ForCausalLM"},
    needs=("experts",),
    settings=(
        *HUNYUAN.settings,
        Group(_read_hunyuan, lambda config: {"num_experts": config.experts, "moe_topk": config.experts_per_token}),
    ),
    harmless=(*HUNYUAN.harmless, *TRAINING),
    stored={
        **WITHOUT_DENSE,
        "blocks.{n}.attention.q_norm": HUNYUAN.stored["blocks.{n}.attention.q_norm"],
        "blocks.{n}.attention.k_norm": HUNYUAN.stored["blocks.{n}.attention.k_norm"],
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.gate.wg"),
        **experts("layers.{n}.mlp.experts"),
        **shared_expert("layers.{n}.mlp.shared_mlp"),
    },
)
"""Hunyuan-A13B (Tencent 2025)."""

FLEX_OLMO = replace(
    OLMO2,
    name="FlexOlmo",
    model_type="flex_olmo",
    classes={"none": "FlexOlmoModel", "lm": "FlexOlmoForCausalLM"},
    needs=("experts",),
    settings=(
        *UNTURNED,
        rope(500_000.0),
        *HEAD_AND_ACTIVATION,
        BIASES,
        Key("num_experts", "experts", 7),
        Key("num_experts_per_tok", "experts_per_token", 5),
        Key("norm_topk_prob", "routes_renormed", False),
    ),
    harmless=TRAINING,
    stored={
        **{name: layout for name, layout in OLMO2.stored.items() if ".ffn." not in name},
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.gate"),
        **experts("layers.{n}.mlp.experts"),
    },
)
"""FlexOlmo (Shi et al. 2025): OLMo 2 with experts that were trained apart."""

_OF_SHARED: dict[str, Any] = {"parts": ("d_shared", "d_shared")}
GRANITE_MOE_SHARED = replace(
    GRANITE_MOE,
    name="Granite-MoE, shared",
    model_type="granitemoeshared",
    classes={"none": "GraniteMoeSharedModel", "lm": "GraniteMoeSharedForCausalLM"},
    settings=(*GRANITE_MOE.settings, Key("shared_intermediate_size", "d_shared", 0)),
    stored={
        **GRANITE_MOE.stored,
        "blocks.{n}.ffn.shared.gate": Stored("layers.{n}.shared_mlp.input_linear", **_OF_SHARED),
        "blocks.{n}.ffn.shared.up": Stored("layers.{n}.shared_mlp.input_linear", part=1, **_OF_SHARED),
        "blocks.{n}.ffn.shared.down": Stored("layers.{n}.shared_mlp.output_linear"),
    },
)
"""Granite 3 with a shared expert (IBM 2025)."""

_HALVES: dict[str, Any] = {"transposed": True, "parts": ("d_expert", "d_expert"), "axis": 1}
ARIA = replace(
    LLAMA,
    name="Aria",
    model_type="aria_text",
    classes={"none": "AriaTextModel", "lm": "AriaTextForCausalLM"},
    only={"mlp_bias": (False,), "hidden_act": ("silu",)},
    needs=("experts",),
    settings=(
        *LLAMA.settings,
        Key("moe_num_experts", "experts", 8),
        Key("moe_topk", "experts_per_token", 2),
        Group(
            lambda fields, draft, tensors: {
                "d_shared": draft["d_ff"] * fields.whole("moe_num_shared_experts", 2),
                "d_expert": draft["d_ff"],
            },
            lambda config: {"moe_num_shared_experts": config.d_shared // config.d_ff},
        ),
    ),
    harmless=TRAINING,
    stored={
        **WITHOUT_DENSE,
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.router"),
        "blocks.{n}.ffn.experts.gate": Stored("layers.{n}.mlp.experts.fc1", **_HALVES),
        "blocks.{n}.ffn.experts.up": Stored("layers.{n}.mlp.experts.fc1", part=1, **_HALVES),
        "blocks.{n}.ffn.experts.down": Stored("layers.{n}.mlp.experts.fc2", transposed=True),
        **shared_expert("layers.{n}.mlp.shared_experts"),
    },
    spellings=(
        (r"experts\.gate_up_proj$", "experts.fc1.weight"),
        (r"mlp\.experts\.down_proj$", "mlp.experts.fc2.weight"),
    ),
)
"""The text part of Aria (Rhymes AI 2024)."""

_WINDOWED = layer_kinds(lambda fields, layer: False)
MELLUM = replace(
    QWEN3_MOE,
    name="Mellum 2",
    model_type="mellum",
    classes={"none": "MellumModel", "lm": "MellumForCausalLM"},
    settings=(
        *UNTURNED,
        Key("head_dim", "d_head", 128),
        rope(500_000.0, kinds=_WINDOWED, local=lambda fields: 10_000.0),
        *HEAD_AND_ACTIVATION,
        BIASES,
        windows(_WINDOWED, 1024),
        routed("", kinds=True, count="num_local_experts num_experts", shared="", scale=""),
        Key("norm_topk_prob", "routes_renormed", True),
    ),
    harmless=(*TRAINING, "num_nextn_predict_layers", "mtp_layer_types", "mtp_mlp_layer_types"),
    skipped=(*LLAMA.skipped, FURTHER_MODULES),
)
"""Mellum 2 (JetBrains 2026): Qwen3-MoE with windows and a rotary base of their own."""


def _read_dbrx(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The keys of attn_config and ffn_config; weights are divided by their sum, or by nothing."""
    nothing = Fields({}, fields.source)
    attention, mixture = fields.object("attn_config") or nothing, fields.object("ffn_config") or nothing
    mixture.require("moe_normalize_expert_weights", (1,))
    function = mixture.object("ffn_act_fn") or Fields({"name": "silu"}, fields.source)
    rotary = ROPE.read(fields, draft, tensors)
    if not {"rope_theta", "rope_parameters"} & set(fields.data):  # as in the first files
        rotary["rope_theta"] = attention.number("rope_theta", rotary["rope_theta"])
    width = mixture.whole("ffn_hidden_size", 3584)
    return {
        "n_kv_heads": attention.whole("kv_n_heads", 1),
        "clip_qkv": attention.number("clip_qkv", 0.0),
        "activation": function.word("name", ACTIVATIONS),
        "d_ff": width,
        "d_expert": width,
        "experts": mixture.whole("moe_num_experts", 4),
        "experts_per_token": mixture.whole("moe_top_k", 1),
        "routes_renormed": mixture.data.get("moe_normalize_expert_weights", 1) is not None,
        **rotary,
    }


def _write_dbrx(config: ModelConfig) -> dict[str, Any]:
    activation = next(word for word, ours in ACTIVATIONS.items() if ours == config.activation)
    attention = {"kv_n_heads": config.n_kv_heads, "clip_qkv": config.clip_qkv, "rope_theta": config.rope_theta}
    mixture = {
        "ffn_hidden_size": config.d_expert,
        "ffn_act_fn": {"name": activation},
        "moe_num_experts": config.experts,
        "moe_top_k": config.experts_per_token,
        "moe_normalize_expert_weights": 1.0 if config.routes_renormed else None,
    }
    return {"attn_config": attention, "ffn_config": mixture, **ROPE.write(config)}


_OF_EXPERT = "blocks.{n}.ffn.experts.mlp"
DBRX = replace(
    MPT,
    name="DBRX",
    model_type="dbrx",
    classes={"none": "DbrxModel", "lm": "DbrxForCausalLM"},
    only={"tie_word_embeddings": (False,)},
    fixed={**LLAMA.fixed, "norm": "layernorm", "norm_bias": False, "norm_eps": 1e-5, "tied_head": False},
    needs=("experts", "clip_qkv"),  # transformers 5 fails without clipping
    settings=(
        *(Key(name) for name in ("vocab_size", "d_model", "n_layers", "n_heads")),
        Key("max_seq_len", "context", 2048),
        Group(_read_dbrx, _write_dbrx),
        lm_head(),
    ),
    harmless=("emb_pdrop", "resid_pdrop", *TRAINING),
    stored={
        **{
            name: replace(layout, module=layout.module.replace("blocks.{n}.", "blocks.{n}.norm_attn_norm."))
            for name, layout in MPT.stored.items()
            if ".ffn." not in name
        },
        "blocks.{n}.ffn.router": Stored("blocks.{n}.ffn.router.layer"),
        "blocks.{n}.ffn.experts.gate": Stored(f"{_OF_EXPERT}.w1", bare=True, stacked=True),
        "blocks.{n}.ffn.experts.up": Stored(f"{_OF_EXPERT}.v1", bare=True, stacked=True),
        "blocks.{n}.ffn.experts.down": Stored(f"{_OF_EXPERT}.w2", bare=True, stacked=True, transposed=True),
    },
    skipped=(*MPT.skipped, ROTARY_FREQUENCIES),
    copies={},
)
"""DBRX (Databricks 2024): LayerNorm without biases, clipped queries, keys and values, and 16 experts."""
