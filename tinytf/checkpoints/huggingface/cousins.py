"""Llama's nearest relatives: OLMo 2 and 3, Granite, SmolLM3, EXAONE 4, Ministral, Arcee, Seed-OSS, InternLM3 …"""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.buffers import constant
from tinytf.checkpoints.huggingface.llama import (
    BIASES,
    FIXED,
    HEAD_AND_ACTIVATION,
    LLAMA,
    SETTINGS,
    SHARED,
    UNTURNED,
    WINDOW,
)
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, by_layer, lm_head, merge_fields
from tinytf.checkpoints.huggingface.windows import FULL, SLIDING, all_but_nth, layer_kinds, window_of, windows
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields
from tinytf.steps.operations.xielu import BETA, NEAR_0

_FFN_BIAS = Key("mlp_bias", "ffn_bias", False)
_TIED = Key("tie_word_embeddings", "tied_head", True)
_EPS_1E_5 = Key("rms_norm_eps", "norm_eps", 1e-5)
_NORMED_OUTPUT = {
    **LLAMA.stored,
    "blocks.{n}.attn_norm": Stored("layers.{n}.post_attention_layernorm"),
    "blocks.{n}.ffn_norm": Stored("layers.{n}.post_feedforward_layernorm"),
}

OLMO2 = replace(
    LLAMA,
    name="OLMo 2",
    model_type="olmo2",
    classes={"none": "Olmo2Model", "lm": "Olmo2ForCausalLM"},
    fixed={**FIXED, "norm_order": "output", "qk_norm": True, "qk_norm_across": "all"},
    settings=(*SHARED, _EPS_1E_5, *HEAD_AND_ACTIVATION, BIASES),
    stored=_NORMED_OUTPUT,
)
"""OLMo 2 (Walsh et al. 2024): norms on the output of each part, and on queries and keys across all heads."""

_THREE_OF_FOUR = layer_kinds(lambda fields, layer: (layer + 1) % 4 != 0)
OLMO3 = replace(
    OLMO2,
    name="OLMo 3",
    model_type="olmo3",
    classes={"none": "Olmo3Model", "lm": "Olmo3ForCausalLM"},
    settings=(
        *UNTURNED,
        _EPS_1E_5,
        # where the file has one base for all layers, transformers gives layers with a window the default base
        rope(500_000.0, kinds=_THREE_OF_FOUR, local=lambda fields: 500_000.0),
        *HEAD_AND_ACTIVATION,
        BIASES,
        windows(_THREE_OF_FOUR, 4096),
    ),
)
"""OLMo 3 (Ai2 2025): OLMo 2 with windows in three of four layers; only the others are stretched by YaRN."""


def _inverse(key: str, field: str, default: float | None = None) -> Group:
    """Our field is the inverse of a key; a missing key without a ``default`` leaves our field unset."""

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        value = fields.number(key, 0.0 if default is None else default)
        if value == 0 and (default is not None or fields.data.get(key) is not None):
            raise fields.fault(f"{key} 0 is not above 0")
        return {field: 1 / value} if value else {}

    return Group(read, lambda config: {key: 1 / getattr(config, field) if getattr(config, field) else None})


_MULTIPLIERS = (
    Key("embedding_multiplier", "embed_scale", 1.0),
    Key("residual_multiplier", "residual_scale", 1.0),
)
GRANITE = replace(
    LLAMA,
    name="Granite",
    model_type="granite",
    classes={"none": "GraniteModel", "lm": "GraniteForCausalLM"},
    settings=(
        *LLAMA.settings,
        *_MULTIPLIERS,
        _inverse("attention_multiplier", "attention_divisor", 1.0),
        _inverse("logits_scaling", "logit_scale", 1.0),
    ),
)
"""Granite 3 (IBM 2024): multipliers for embeddings, scores, residual branches and logits."""


def _layers(config: ModelConfig) -> list[ModelConfig]:
    return [config.at(layer) for layer in range(config.n_layers)]


def _rotary_layers(fields: Fields, draft: Draft) -> list[bool]:
    """Whether each layer of a SmolLM3 has RoPE: all but every fourth, unless the file says otherwise."""
    interval = fields.whole("no_rope_layer_interval", 4, least=1)
    default = [int((layer + 1) % interval != 0) for layer in range(draft["n_layers"])]
    flags = fields.array("no_rope_layers", int, default, count=draft["n_layers"])
    return [flag != 0 for flag in flags]


def _read_smollm3(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    rotary, enabled = _rotary_layers(fields, draft), fields.flag("use_sliding_window", False)
    window = window_of(fields, 0) * enabled
    read_kinds = layer_kinds(lambda _, layer: enabled and window > 0 and not rotary[layer])
    return merge_fields(
        by_layer("positions", ["rotary" if is_rotary else "none" for is_rotary in rotary]),
        by_layer("window", [window if kind == SLIDING else 0 for kind in read_kinds(fields, draft)]),
    )


def _write_smollm3(config: ModelConfig) -> dict[str, Any]:
    layers = _layers(config)
    window = max(layer.window for layer in layers)
    return {
        "no_rope_layers": [int(layer.positions == "rotary") for layer in layers],
        "use_sliding_window": window > 0,
        "sliding_window": window or None,
        "layer_types": [SLIDING if layer.window else FULL for layer in layers],
    }


SMOLLM3 = replace(
    LLAMA,
    name="SmolLM3",
    model_type="smollm3",
    classes={"none": "SmolLM3Model", "lm": "SmolLM3ForCausalLM"},
    settings=(
        *UNTURNED,
        rope(2_000_000.0),
        Key("head_dim", "d_head", 0),
        *HEAD_AND_ACTIVATION,
        _TIED,
        lm_head(),
        BIASES,
        _FFN_BIAS,
        Group(_read_smollm3, _write_smollm3),
    ),
)
"""SmolLM3 (Hugging Face 2025): every fourth layer has no positions."""

MINISTRAL = replace(
    LLAMA,
    name="Ministral",
    model_type="ministral",
    classes={"none": "MinistralModel", "lm": "MinistralForCausalLM"},
    settings=(*SETTINGS, windows(layer_kinds(lambda fields, layer: window_of(fields, 4096) > 0), 4096)),
)

_EXAONE_KINDS = layer_kinds(
    lambda fields, layer: window_of(fields, 4096) > 0 and all_but_nth("sliding_window_pattern", 4)(fields, layer)
)


def _read_exaone4(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """If some layers have a window, the others have no positions."""
    read_kinds = _EXAONE_KINDS(fields, draft)
    hybrid = window_of(fields, 4096) > 0
    return by_layer("positions", ["rotary" if kind == SLIDING or not hybrid else "none" for kind in read_kinds])


def _write_exaone4(config: ModelConfig) -> dict[str, Any]:
    """No window where no layer has one: with any, layers without it lose their positions."""
    return {} if any(layer.window for layer in _layers(config)) else {"sliding_window": None}


EXAONE4 = replace(
    LLAMA,
    name="EXAONE 4",
    model_type="exaone4",
    classes={"none": "Exaone4Model", "lm": "Exaone4ForCausalLM"},
    fixed={**FIXED, "norm_order": "output", "qk_norm": True},
    settings=(*SETTINGS, _EPS_1E_5, windows(_EXAONE_KINDS, 4096), Group(_read_exaone4, _write_exaone4)),
    stored=_NORMED_OUTPUT,
)
"""EXAONE 4 (LG 2025): norms on the output of each part; layers without a window have no positions."""

ARCEE = replace(
    LLAMA,
    name="Arcee",
    model_type="arcee",
    classes={"none": "ArceeModel", "lm": "ArceeForCausalLM"},
    fixed={**FIXED, "gated": False},
    settings=(*LLAMA.settings, _EPS_1E_5, Key("hidden_act", "activation", "relu2", ACTIVATIONS)),
)
"""AFM (Arcee 2025): a feed-forward with ReLU² and no gate."""
BITNET = replace(
    LLAMA,
    name="BitNet",
    model_type="bitnet",
    classes={"none": "BitNetModel", "lm": "BitNetForCausalLM"},
    fixed={**FIXED, "out_norm": True, "act_norm": True},
    needs=("out_norm", "act_norm"),
    settings=(
        *UNTURNED,
        _EPS_1E_5,
        rope(500_000.0),
        *HEAD_AND_ACTIVATION[1:],
        Key("hidden_act", "activation", "relu2", ACTIVATIONS),
        BIASES,
    ),
    stored={
        **LLAMA.stored,
        "blocks.{n}.attention.out_norm": Stored("layers.{n}.self_attn.attn_sub_norm"),
        "blocks.{n}.ffn.act_norm": Stored("layers.{n}.mlp.ffn_sub_norm"),
    },
)
"""BitNet b1.58 (Microsoft 2025): norms inside attention and feed-forward; the weights that training keeps."""

SEED_OSS = replace(
    LLAMA,
    name="Seed-OSS",
    model_type="seed_oss",
    classes={"none": "SeedOssModel", "lm": "SeedOssForCausalLM"},
    settings=(
        *SETTINGS,
        Key("head_dim", "d_head", 128),
        Key("attention_bias", "qkv_bias", True),
        Key("attention_out_bias", "o_bias", False),
        _FFN_BIAS,
    ),
    harmless=("residual_dropout",),
)

INTERNLM3 = replace(
    LLAMA,
    name="InternLM3",
    model_type="internlm3",
    settings=(*SETTINGS, _EPS_1E_5, Key("head_dim", "d_head", 128), BIASES, _FFN_BIAS),
)


def require_rope(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Refuse a file without rotary settings, for families whose defaults are not implemented."""
    if not fields.data.get("rope_parameters") and not fields.data.get("rope_scaling"):
        raise fields.fault("rotary settings are missing, and this architecture's defaults are not implemented")
    return {}


CWM = replace(
    LLAMA,
    name="CWM",
    model_type="cwm",
    classes={"none": "CwmModel", "lm": "CwmForCausalLM"},
    only={"attention_bias": (False,)},
    settings=(
        *UNTURNED,
        _EPS_1E_5,
        Key("head_dim", "d_head", 128),
        Group(require_rope),
        rope(1_000_000.0),
        *HEAD_AND_ACTIVATION,
        _FFN_BIAS,
        windows(layer_kinds(lambda fields, layer: layer % 4 != 0), 8192),
    ),
)
"""Code World Model (Meta 2025): windows in three of four layers."""


def growing(turned: Group) -> Group:
    """These rotary settings, and queries that grow with their position beyond the context of their training."""

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        require_rope(fields, draft, tensors)
        rotary = fields.object("rope_parameters") or fields.object("rope_scaling") or fields
        original = rotary.whole("original_max_position_embeddings", least=1)
        growth = {"query_scale": rotary.number("llama_4_scaling_beta"), "query_scale_every": original}
        return turned.read(fields, draft, tensors) | growth

    def write(config: ModelConfig) -> dict[str, Any]:
        keys = turned.write(config)
        growth = {
            "llama_4_scaling_beta": config.query_scale,
            "original_max_position_embeddings": config.query_scale_every,
        }
        return keys and {**keys, "rope_parameters": {**keys["rope_parameters"], **growth}}

    return Group(read, write)


MINISTRAL3 = replace(
    LLAMA,
    name="Ministral 3",
    model_type="ministral3",
    classes={"none": "Ministral3Model", "lm": "Ministral3ForCausalLM"},
    needs=("query_scale",),
    settings=(
        *UNTURNED,
        _EPS_1E_5,
        growing(rope(1_000_000.0)),
        Key("head_dim", "d_head", 128),
        *HEAD_AND_ACTIVATION,
        WINDOW,
    ),
)
"""Ministral 3 (Mistral 2025): RoPE stretched by YaRN, and queries that grow with their position."""

_XIELU = "layers.{n}.mlp.act_fn"
APERTUS = replace(
    LLAMA,
    name="Apertus",
    model_type="apertus",
    classes={"none": "ApertusModel", "lm": "ApertusForCausalLM"},
    fixed={**FIXED, "gated": False, "qk_norm": True},
    settings=(
        *UNTURNED,
        _EPS_1E_5,
        Group(require_rope),
        rope(12_000_000.0),
        *HEAD_AND_ACTIVATION[1:],
        Key("hidden_act", "activation", "xielu", {**ACTIVATIONS, "xielu": "xielu"}),
        BIASES,
    ),
    stored={
        **LLAMA.stored,
        "blocks.{n}.norm1": Stored("layers.{n}.attention_layernorm"),
        "blocks.{n}.norm2": Stored("layers.{n}.feedforward_layernorm"),
        "blocks.{n}.ffn.act": Stored(
            f"{_XIELU}.alpha_p",
            bare=True,
            bias=f"{_XIELU}.alpha_n",
            beside=((f"{_XIELU}.beta", BETA), (f"{_XIELU}.eps", NEAR_0)),
        ),
    },
    skipped=(
        *LLAMA.skipped,
        Skip(r"layers\.\d+\.mlp\.act_fn\.beta", "the slope at 0", computed=constant(BETA)),
        Skip(r"layers\.\d+\.mlp\.act_fn\.eps", "a constant", computed=constant(NEAR_0)),
    ),
)
"""Swiss AI 2025: no gate, and an activation that learns its slopes in each layer."""

COUSINS = (
    APERTUS,
    OLMO2, OLMO3, GRANITE, MINISTRAL, SMOLLM3, EXAONE4, ARCEE, BITNET, SEED_OSS, INTERNLM3, CWM, MINISTRAL3,
)  # fmt: skip
