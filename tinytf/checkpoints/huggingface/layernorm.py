"""Decoders with Llama's parts and names, but with LayerNorm: Cohere, Nemotron, OLMo 1, Phi, Persimmon and StableLM."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import LLAMA
from tinytf.checkpoints.huggingface.rope import ROPE, rope
from tinytf.checkpoints.huggingface.routing import shared_expert
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, SIZES, by_layer, lm_head, merge_fields
from tinytf.checkpoints.huggingface.windows import SLIDING, all_but_nth, layer_kinds, window_of, windows
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, experts, fused
from tinytf.config import LEFT_OUT, ModelConfig
from tinytf.fields import Fields

_SHARED = (
    *SIZES,
    Key("num_key_value_heads", "n_kv_heads", lambda draft: draft["n_heads"]),
    Key("max_position_embeddings", "context"),
    Key("head_dim", "d_head", 0),
    Key("tie_word_embeddings", "tied_head", False),
)
_EPS = Key("layer_norm_eps", "norm_eps", 1e-5)
_SILU = Key("hidden_act", "activation", "silu", ACTIVATIONS)
_BIASES = Key("attention_bias", "qkv_bias o_bias", False)
_GATED = {"positions": "rotary", "gated": True, "qkv_bias": False, "o_bias": False, "ffn_bias": False}

OLMO = replace(
    LLAMA,
    name="OLMo",
    model_type="olmo",
    classes={"none": "OlmoModel", "lm": "OlmoForCausalLM"},
    fixed={**_GATED, "norm_gain": False, "norm_bias": False},
    settings=(
        *_SHARED,
        ROPE,
        _SILU,
        _BIASES,
        Group(
            lambda fields, draft, tensors: {"clip_qkv": fields.number("clip_qkv", 0.0)},
            lambda config: {"clip_qkv": config.clip_qkv or None},
        ),
        lm_head(),
    ),
)
"""Groeneveld et al. 2024: norms without parameters; some models clip queries, keys and values."""


def _read_head_norms(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"qk_norm": True, "qk_norm_across": "heads"} if fields.flag("use_qk_norm", False) else {}


_OF_COHERE = (
    Key("tie_word_embeddings", "tied_head", True),
    _EPS,
    _SILU,
    Key("logit_scale", "logit_scale", 0.0625),
    _BIASES,
)
COHERE = replace(
    LLAMA,
    name="Cohere",
    model_type="cohere",
    classes={"none": "CohereModel", "lm": "CohereForCausalLM"},
    fixed={**_GATED, "residual": "parallel", "shared_norm": True, "norm_bias": False},
    settings=(
        *_SHARED,
        *_OF_COHERE,
        rope(500_000.0),
        Group(_read_head_norms, lambda config: {"use_qk_norm": config.qk_norm}),
        lm_head(),
    ),
    stored={
        **LLAMA.stored,
        "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_proj", paired="n_heads"),
        "blocks.{n}.attention.k": Stored("layers.{n}.self_attn.k_proj", paired="n_kv_heads"),
        "blocks.{n}.attention.q_norm": Stored("layers.{n}.self_attn.q_norm", paired="n_heads", by_row="n_heads"),
        "blocks.{n}.attention.k_norm": Stored("layers.{n}.self_attn.k_norm", paired="n_kv_heads", by_row="n_kv_heads"),
    },
)
"""Command R, 2024: attention and feed-forward share a norm without bias; logits are scaled."""

_KINDS = layer_kinds(all_but_nth("sliding_window_pattern", 4))


def _read_layers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Layers with a window have RoPE, the others no positions."""
    window = window_of(fields, 4096)
    widths = tuple(window if kind == SLIDING else 0 for kind in _KINDS(fields, draft))
    if len(set(widths)) == 1:
        return {"window": widths[0], **({} if widths[0] else LEFT_OUT["positions"])}
    return {"by_layer": (("window", widths), ("positions", tuple("rotary" if w else "none" for w in widths)))}


COHERE2 = replace(
    COHERE,
    name="Cohere 2",
    model_type="cohere2",
    classes={"none": "Cohere2Model", "lm": "Cohere2ForCausalLM"},
    settings=(*_SHARED, *_OF_COHERE, ROPE, Group(_read_layers, windows(_KINDS).write), lm_head()),
)
"""Command R7B and A, 2024: three layers with a window and RoPE, then one with full attention and no positions."""


def _read_mixture(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Dense layers, all with RoPE if their pattern is 1, then experts as wide as intermediate_size."""
    layers, first = draft["n_layers"], fields.whole("first_k_dense_replace", 0, least=0)
    pattern = fields.whole("prefix_dense_sliding_window_pattern", 1, least=1)
    rest, window = fields.whole("sliding_window_pattern", 4, least=1), window_of(fields, 4096)
    kinds = layer_kinds(lambda _, n: (n + 1) % pattern != 0 if n < first else (n + 1 - first) % rest != 0)
    words = fields.array("mlp_layer_types", str, ["dense"] * first + ["sparse"] * (layers - first), count=layers)
    dense = [fields.meaning("mlp_layer_types", word, {"dense": True, "sparse": False}) for word in words]
    if all(dense):
        raise fields.fault("mlp_layer_types leaves no layer with experts")
    shared, count = fields.whole("num_shared_experts", 0, least=0), fields.whole("num_experts", 8)
    if shared and fields.text("shared_expert_combination_strategy", "average") != "sum":
        raise fields.fault("the average of experts and shared experts is not implemented")
    widths = [window if kind == SLIDING else 0 for kind in kinds(fields, draft)]
    turned = [width > 0 or (is_dense and pattern == 1) for width, is_dense in zip(widths, dense, strict=True)]
    by_rms = fields.number("rms_norm_eps", 0.0)
    return merge_fields(
        {
            "experts": count,
            "d_expert": draft["d_ff"],
            "d_shared": draft["d_ff"] * shared,
            "d_ff": fields.whole("prefix_dense_intermediate_size", draft["d_ff"]),
            **({"norm": "rmsnorm", "norm_eps": by_rms} if by_rms else {}),
        },
        by_layer("experts", [0 if is_dense else count for is_dense in dense]),
        by_layer("window", widths),
        by_layer("positions", ["rotary" if is_turned else "none" for is_turned in turned]),
    )


def _write_mixture(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    forced = any(layer.positions == "rotary" and not layer.window and not layer.experts for layer in layers)
    return {
        **windows(_KINDS).write(config),
        "mlp_layer_types": ["sparse" if layer.experts else "dense" for layer in layers],
        "prefix_dense_sliding_window_pattern": 1 if forced else 2,
        "num_experts": config.experts,
        "num_shared_experts": config.d_shared // config.d_expert,
        "shared_expert_combination_strategy": "sum",
        "intermediate_size": config.d_expert,
        "prefix_dense_intermediate_size": config.d_ff,
        "rms_norm_eps": config.norm_eps if config.norm == "rmsnorm" else None,
    }


COHERE2_MOE = replace(
    COHERE,
    name="Cohere 2 MoE",
    model_type="cohere2_moe",
    classes={"none": "Cohere2MoeModel", "lm": "Cohere2MoeForCausalLM"},
    needs=("experts",),
    settings=(
        *_SHARED,
        *_OF_COHERE,
        ROPE,
        lm_head(),
        Key("num_experts_per_tok", "experts_per_token", 2),
        Key("expert_selection_fn", "router", "softmax", {"softmax": "softmax", "sigmoid": "sigmoid"}),
        Group(
            lambda fields, draft, tensors: {
                "routes_renormed": fields.flag("norm_topk_prob", True) or draft["router"] == "softmax"
            },
            lambda config: {"norm_topk_prob": config.routes_renormed},
        ),
        Group(_read_mixture, _write_mixture),
    ),
    harmless=TRAINING,
    stored={
        **COHERE.stored,
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.gate"),
        **experts("layers.{n}.mlp.experts"),
        **shared_expert("layers.{n}.mlp.shared_experts"),
    },
)
"""Cohere 2026: experts after a few dense layers."""

NEMOTRON = replace(
    LLAMA,
    name="Nemotron",
    model_type="nemotron",
    classes={"none": "NemotronModel", "lm": "NemotronForCausalLM"},
    fixed={"positions": "rotary"},
    settings=(
        *_SHARED,
        rope(share=0.5),
        Key("norm_eps", "norm_eps", 1e-5),
        Key("hidden_act", "activation", "relu2", ACTIVATIONS),
        _BIASES,
        Key("mlp_bias", "ffn_bias", False),
        lm_head(),
    ),
    stored={name: replace(layout, offset=1.0) if "norm" in name else layout for name, layout in LLAMA.stored.items()},
)
"""Parmar et al. 2024: ReLU², and gains that are stored minus 1."""

PHI = replace(
    LLAMA,
    name="Phi",
    model_type="phi",
    classes={"none": "PhiModel", "lm": "PhiForCausalLM"},
    fixed={"positions": "rotary", "residual": "parallel", "shared_norm": True},
    settings=(
        *_SHARED,
        rope(share=0.5, odd=False),
        _EPS,
        Key("hidden_act", "activation", "gelu_new", {"gelu_new": "gelu_tanh", **ACTIVATIONS}),
        Key("qk_layernorm", "qk_norm", False),
        lm_head(biased=True),
    ),
    stored={
        **LLAMA.stored,
        "blocks.{n}.attention.o": Stored("layers.{n}.self_attn.dense"),
        "blocks.{n}.attention.q_norm": Stored("layers.{n}.self_attn.q_layernorm"),
        "blocks.{n}.attention.k_norm": Stored("layers.{n}.self_attn.k_layernorm"),
        "blocks.{n}.ffn.up": Stored("layers.{n}.mlp.fc1"),
        "blocks.{n}.ffn.down": Stored("layers.{n}.mlp.fc2"),
        "final_norm": Stored("final_layernorm"),
    },
)
"""Phi-1, 1.5 and 2 (Gunasekar et al. 2023): GPT-J's block, with biases everywhere."""

PERSIMMON = replace(
    PHI,
    name="Persimmon",
    model_type="persimmon",
    classes={"none": "PersimmonModel", "lm": "PersimmonForCausalLM"},
    fixed={"positions": "rotary"},
    settings=(
        *SIZES,
        Key("max_position_embeddings", "context"),
        Key("tie_word_embeddings", "tied_head", False),
        rope(share=0.5, odd=False),
        _EPS,
        Key("hidden_act", "activation", "relu2", ACTIVATIONS),
        Key("qk_layernorm", "qk_norm", True),
        lm_head(),
    ),
    stored={
        **PHI.stored,
        **fused("layers.{n}.self_attn.query_key_value", by_head="n_kv_heads"),
        "blocks.{n}.ffn.up": Stored("layers.{n}.mlp.dense_h_to_4h"),
        "blocks.{n}.ffn.down": Stored("layers.{n}.mlp.dense_4h_to_h"),
    },
)
"""Adept 2023: ReLU², and queries and keys normed in each head."""


def _read_residual(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    parallel = fields.flag("use_parallel_residual", False)
    return {"residual": "parallel" if parallel else "sequential", "shared_norm": parallel}


def _write_residual(config: ModelConfig) -> dict[str, Any]:
    return {"use_parallel_residual": config.residual == "parallel"}


_BY_HEAD = {"qk_norm": True, "qk_norm_across": "heads", "qk_norm_bias": False}
STABLELM = replace(
    LLAMA,
    name="StableLM",
    model_type="stablelm",
    classes={"none": "StableLmModel", "lm": "StableLmForCausalLM"},
    fixed=_GATED,
    settings=(
        *_SHARED,
        rope(share=0.25, odd=False),
        _EPS,
        _SILU,
        Key("use_qkv_bias", "qkv_bias", False),
        Group(_read_residual, _write_residual),
        Group(
            lambda fields, draft, tensors: _BY_HEAD if fields.flag("qk_layernorm", False) else {},
            lambda config: {"qk_layernorm": config.qk_norm},
        ),
        lm_head(),
    ),
    stored={
        **LLAMA.stored,
        "blocks.{n}.attention.q_norm": Stored("layers.{n}.self_attn.q_layernorm.norms.{e}", by_row="n_heads"),
        "blocks.{n}.attention.k_norm": Stored("layers.{n}.self_attn.k_layernorm.norms.{e}", by_row="n_kv_heads"),
    },
)
"""Bellagente et al. 2024: RoPE on a quarter of each head."""
