"""Mixtures of experts: Mixtral (Jiang et al. 2024), Qwen2- and Qwen3-MoE, OLMoE (Muennighoff et al. 2024), Granite."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import BIASES, HEAD_AND_ACTIVATION, LLAMA, MISTRAL, SHARED, UNTURNED, WINDOW
from tinytf.checkpoints.huggingface.rope import ROPE, rope
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

TRAINING = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
"""Keys of a router that have no effect in evaluation."""
WITHOUT_DENSE = {name: layout for name, layout in LLAMA.stored.items() if ".ffn." not in name}
"""The modules of a Llama without its feed-forward."""


def _read_experts(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The number of experts (transformers 5 renamed the key), and which layers have them."""
    name = "num_local_experts" if "num_local_experts" in fields.data else "num_experts"
    count, step = fields.whole(name), fields.whole("decoder_sparse_step", 1)
    dense = set(fields.array("mlp_only_layers", int, ()))
    expert_counts = tuple(0 if n in dense or (n + 1) % step else count for n in range(draft["n_layers"]))
    if not any(expert_counts):
        raise fields.fault(f"{name} {count}, decoder_sparse_step and mlp_only_layers leave no layer with experts")
    return {"experts": count, "by_layer": (("experts", expert_counts),) if len(set(expert_counts)) > 1 else ()}


def _write_experts(config: ModelConfig) -> dict[str, Any]:
    dense = [n for n in range(config.n_layers) if not config.at(n).experts]
    return {"num_experts": config.experts, "decoder_sparse_step": 1, "mlp_only_layers": dense}


SOME_LAYERS = Group(_read_experts, _write_experts)
"""Experts in all layers except those that the configuration excludes."""
_WINDOW = Group(
    lambda fields, draft, tensors: {
        "window": fields.whole("sliding_window", 0) * fields.flag("use_sliding_window", False)
    },
    lambda config: {"use_sliding_window": config.window > 0, "sliding_window": config.window or None},
)

MIXTRAL = replace(
    MISTRAL,
    name="Mixtral",
    model_type="mixtral",
    classes={"none": "MixtralModel", "lm": "MixtralForCausalLM"},
    needs=("experts",),
    settings=(
        *(rope(1_000_000.0) if setting is ROPE else setting for setting in MISTRAL.settings),
        Key("num_local_experts", "experts"),
        Key("num_experts_per_tok", "experts_per_token", 2),
    ),
    harmless=TRAINING,
    stored={
        **WITHOUT_DENSE,
        "blocks.{n}.ffn.router": Stored("layers.{n}.block_sparse_moe.gate"),
        **experts("layers.{n}.block_sparse_moe.experts", ("w1", "w3", "w2")),
    },
    spellings=((r"\.mlp\.", ".block_sparse_moe."),),
)
_PHI_ROPE = rope(1_000_000.0)


def _read_phi_rope(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The usual rotary settings, with the multiplier of queries and keys in keys of its own."""
    values = _PHI_ROPE.read(fields, draft, tensors)
    rotary = fields.object("rope_parameters") or fields.object("rope_scaling")
    if values["rope_scaling"] == "none" or rotary is None:
        return values
    short, long = rotary.number("short_mscale"), rotary.number("long_mscale")
    if short != long:
        raise fields.fault(f"short_mscale {short:g} that is not long_mscale {long:g} is not implemented")
    return {**values, "rope_attention_factor": short}


def _write_phi_rope(config: ModelConfig) -> dict[str, Any]:
    keys, scale = _PHI_ROPE.write(config), config.rope_attention_factor
    scales = {"short_mscale": scale, "long_mscale": scale} if config.rope_scaling != "none" else {}
    return keys and {**keys, "rope_parameters": {**keys["rope_parameters"], **scales}}


PHIMOE = replace(
    MIXTRAL,
    name="PhiMoE",
    model_type="phimoe",
    classes={"none": "PhimoeModel", "lm": "PhimoeForCausalLM"},
    only={"num_experts_per_tok": (2,)},
    fixed={**LLAMA.fixed, "norm": "layernorm", "experts_per_token": 2},
    needs=("experts", "route_margin"),
    settings=(
        *UNTURNED,
        Key("rms_norm_eps", "norm_eps", 1e-5),
        Group(_read_phi_rope, _write_phi_rope),
        *HEAD_AND_ACTIVATION,
        Key("lm_head_bias", "head_bias", False),
        BIASES,
        WINDOW,
        Key("num_local_experts", "experts", 16),
        Group(
            lambda fields, draft, tensors: {"route_margin": 2 * fields.number("router_jitter_noise", 0.01)},
            lambda config: {"router_jitter_noise": config.route_margin / 2},
        ),
    ),
    harmless=(*MIXTRAL.harmless, "input_jitter_noise", "original_max_position_embeddings"),
    spellings=((r"\.mlp\.router\.", ".block_sparse_moe.gate."), *MIXTRAL.spellings),
)
"""Phi-3.5-MoE (Microsoft 2024): LayerNorm, and weights that are shares among near experts."""
QWEN3_MOE = replace(
    LLAMA,
    name="Qwen3-MoE",
    model_type="qwen3_moe",
    classes={"none": "Qwen3MoeModel", "lm": "Qwen3MoeForCausalLM"},
    fixed={**LLAMA.fixed, "qk_norm": True},
    needs=("experts",),
    settings=(
        *SHARED,
        Key("head_dim", "d_head", 0),
        Key("hidden_act", "activation", "silu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", False),
        lm_head(),
        Key("attention_bias", "qkv_bias o_bias", False),
        _WINDOW,
        SOME_LAYERS,
        Key("num_experts_per_tok", "experts_per_token"),
        Key("moe_intermediate_size", "d_expert"),
        Key("norm_topk_prob", "routes_renormed", False),
    ),
    harmless=TRAINING,
    stored={
        **LLAMA.stored,
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.gate"),
        **experts("layers.{n}.mlp.experts"),
    },
)


def _read_layer_windows(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Windows, if used: as in layer_types, else in every second layer before max_window_layers."""
    window = fields.whole("sliding_window", 0, least=0) if fields.flag("use_sliding_window", False) else 0
    first_full, layers = fields.whole("max_window_layers", 28), range(draft["n_layers"])
    default = ["full_attention" if n % 2 or n >= first_full or not window else "sliding_attention" for n in layers]
    kinds = fields.array("layer_types", str, default, count=len(layers))
    windows = tuple(
        fields.meaning("layer_types", kind, {"sliding_attention": window, "full_attention": 0}) for kind in kinds
    )
    return {"window": windows[0]} if len(set(windows)) == 1 else {"by_layer": (("window", windows),)}


def _write_layer_windows(config: ModelConfig) -> dict[str, Any]:
    windows = [config.at(layer).window for layer in range(config.n_layers)]
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return {"use_sliding_window": any(windows), "sliding_window": max(windows), "layer_types": kinds}


QWEN2_MOE = replace(
    QWEN3_MOE,
    name="Qwen2-MoE",
    model_type="qwen2_moe",
    classes={"none": "Qwen2MoeModel", "lm": "Qwen2MoeForCausalLM"},
    fixed={**LLAMA.fixed, "shared_gate": True},
    needs=("experts", "shared_gate"),
    settings=(
        *SHARED,
        Key("hidden_act", "activation", "silu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", False),
        lm_head(),
        Key("qkv_bias", "qkv_bias", True),
        Group(_read_layer_windows, _write_layer_windows),
        SOME_LAYERS,
        Key("num_experts_per_tok", "experts_per_token", 4),
        Key("moe_intermediate_size", "d_expert"),
        Key("shared_expert_intermediate_size", "d_shared"),
        Key("norm_topk_prob", "routes_renormed", False),
    ),
    stored={
        **QWEN3_MOE.stored,
        "blocks.{n}.ffn.shared.gate": Stored("layers.{n}.mlp.shared_expert.gate_proj"),
        "blocks.{n}.ffn.shared.up": Stored("layers.{n}.mlp.shared_expert.up_proj"),
        "blocks.{n}.ffn.shared.down": Stored("layers.{n}.mlp.shared_expert.down_proj"),
        "blocks.{n}.ffn.shared_score": Stored("layers.{n}.mlp.shared_expert_gate"),
    },
)
OLMOE = replace(
    QWEN3_MOE,
    name="OLMoE",
    model_type="olmoe",
    classes={"none": "OlmoeModel", "lm": "OlmoeForCausalLM"},
    only={**QWEN3_MOE.only, "sliding_window": ()},  # some kernels of attention read it, others do not
    fixed={**LLAMA.fixed, "qk_norm": True, "qk_norm_across": "all"},
    settings=(
        *SHARED,
        Key("hidden_act", "activation", "silu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", False),
        lm_head(),
        Key("attention_bias", "qkv_bias o_bias", False),
        Key("clip_qkv", "clip_qkv", 0.0),
        Group(_read_experts, lambda config: {"num_experts": config.experts}),
        Key("num_experts_per_tok", "experts_per_token", 8),
        Key("norm_topk_prob", "routes_renormed", False),
    ),
)


def _read_multipliers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Multipliers of embeddings, residual branches and scores; logits_scaling divides."""
    names = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    embedding, residual, attention, logits = (fields.number(name, 1.0) for name in names)
    for name, value in zip(names, (embedding, residual, attention, logits), strict=True):
        if value <= 0:
            raise fields.fault(f"{name} {value:g} is not above 0")
    return {
        "embed_scale": embedding,
        "residual_scale": residual,
        "attention_divisor": 1 / attention,
        "logit_scale": 1 / logits,
    }


def _write_multipliers(config: ModelConfig) -> dict[str, Any]:
    return {
        "embedding_multiplier": config.embed_scale,
        "residual_multiplier": config.residual_scale,
        "attention_multiplier": 1 / config.score_divisor,
        "logits_scaling": 1 / config.logit_scale,
    }


MULTIPLIERS = Group(_read_multipliers, _write_multipliers)
_BOTH = "layers.{n}.block_sparse_moe.input_linear"
GRANITE_MOE = replace(
    MIXTRAL,
    name="Granite-MoE",
    model_type="granitemoe",
    classes={"none": "GraniteMoeModel", "lm": "GraniteMoeForCausalLM"},
    settings=(
        *SHARED,
        Key("hidden_act", "activation", "silu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", False),
        lm_head(),
        Key("attention_bias", "qkv_bias o_bias", False),
        MULTIPLIERS,
        Key("num_local_experts", "experts", 8),
        Key("num_experts_per_tok", "experts_per_token", 2),
    ),
    stored={
        **WITHOUT_DENSE,
        "blocks.{n}.ffn.router": Stored("layers.{n}.block_sparse_moe.router.layer"),
        "blocks.{n}.ffn.experts.gate": Stored(_BOTH, part=0, parts=("d_expert", "d_expert"), axis=1),
        "blocks.{n}.ffn.experts.up": Stored(_BOTH, part=1, parts=("d_expert", "d_expert"), axis=1),
        "blocks.{n}.ffn.experts.down": Stored("layers.{n}.block_sparse_moe.output_linear"),
    },
    spellings=(
        (r"\.router\.weight", ".router.layer.weight"),
        (r"\.experts\.gate_up_proj", ".input_linear.weight"),
        (r"\.experts\.down_proj", ".output_linear.weight"),
    ),
)
