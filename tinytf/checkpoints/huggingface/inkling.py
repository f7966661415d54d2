"""Inkling, text only (Thinking Machines 2026): convolutions after projections, and biases by profiles of distance."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import LLAMA
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, by_layer, lm_head, merge_fields
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_LOCAL, _GLOBAL = "hybrid_sliding", "hybrid"
_OF_HEADS = {"n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads", "d_head": "head_dim"}
_DEFAULTS = {_GLOBAL: (64, 8, 128), _LOCAL: (64, 16, 128)}


def _read_vocabulary(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The tokens that have logits; tables have more rows, which stand for no token."""
    rows = fields.whole("vocab_size", least=1)
    tokens = fields.whole("unpadded_vocab_size", rows, least=1)
    return {"vocab_size": min(tokens, rows), "padding_rows": max(0, rows - tokens)}


def _write_vocabulary(config: ModelConfig) -> dict[str, Any]:
    padded = config.padding_rows > 0
    return {
        "vocab_size": config.vocab_size + config.padding_rows,
        "unpadded_vocab_size": config.vocab_size if padded else None,
    }


def _read_layers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The heads of each layer, and how far they see: fewer tokens, by heads of their own, in most layers."""
    count, window = draft["n_layers"], fields.whole("sliding_window_size", 512, least=1)
    local = fields.array("local_layer_ids", int, [layer for layer in range(count) if (layer + 1) % 6])
    default = [_LOCAL if layer in local else _GLOBAL for layer in range(count)]
    kinds = fields.array("layer_types", str, default, count=count)
    within = {_LOCAL: window, _GLOBAL: 0}
    windows = [fields.meaning("layer_types", kind, within) for kind in kinds]
    heads = {
        kind: {
            ours: fields.whole(f"{'swa_' * (kind == _LOCAL)}{key}", usual, least=1)
            for (ours, key), usual in zip(_OF_HEADS.items(), _DEFAULTS[kind], strict=True)
        }
        for kind in within
    }
    since = fields.whole("log_scaling_n_floor", 0, least=0)
    strength = fields.number("log_scaling_alpha", 0.1)
    growth = strength if since else 0.0
    extents = {_LOCAL: window, _GLOBAL: fields.whole("rel_extent", 1024, least=1)}
    return merge_fields(
        {"score_scale_from": since if growth else 0, "profiles": fields.whole("d_rel", 16, least=1)},
        *(by_layer(ours, [heads[kind][ours] for kind in kinds]) for ours in _OF_HEADS),
        by_layer("window", windows),
        by_layer("profile_extent", [extents[kind] for kind in kinds]),
        by_layer("attention_divisor", [float(heads[kind]["d_head"]) for kind in kinds]),
        by_layer("score_scale", [0.0 if kind == _LOCAL else growth for kind in kinds]),
    )


def _write_layers(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    keys: dict[str, Any] = {
        "layer_types": [_LOCAL if layer.window else _GLOBAL for layer in layers],
        "d_rel": config.profiles,
        "log_scaling_n_floor": config.score_scale_from or None,
    }
    for layer in layers:
        prefix = "swa_" if layer.window else ""
        keys |= {f"{prefix}{key}": getattr(layer, ours) for ours, key in _OF_HEADS.items()}
        if layer.window:
            keys["sliding_window_size"] = layer.window
        else:
            keys |= {"rel_extent": layer.profile_extent, "log_scaling_alpha": layer.score_scale}
    return keys


def _read_experts(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Which layers have experts, of which the last take every token."""
    count, dense = draft["n_layers"], fields.whole("dense_mlp_idx", 0, least=0)
    default = ["dense" if layer < dense else "sparse" for layer in range(count)]
    kinds = fields.array("mlp_layer_types", str, default, count=count)
    width, own = fields.whole("intermediate_size", 24_576, least=1), fields.whole("dense_intermediate_size", 0, least=0)
    shared = fields.whole("n_shared_experts", 2, least=1)
    every = fields.whole("n_routed_experts", 256, least=1) + shared
    of_kinds = {"dense": 0, "sparse": every}
    return {
        "d_ff": own or width,
        "d_expert": width if own else fields.whole("moe_intermediate_size", 3072, least=1),
        "always_experts": shared,
        "experts_per_token": fields.whole("num_experts_per_tok", 6, least=1) + shared,
        **by_layer("experts", [fields.meaning("mlp_layer_types", kind, of_kinds) for kind in kinds]),
    }


def _write_experts(config: ModelConfig) -> dict[str, Any]:
    always = config.always_experts
    return {
        "mlp_layer_types": ["sparse" if config.at(layer).experts else "dense" for layer in range(config.n_layers)],
        "intermediate_size": config.d_ff,
        "moe_intermediate_size": config.d_expert,
        "n_shared_experts": always,
        "n_routed_experts": config.experts - always,
        "num_experts_per_tok": config.experts_per_token - always,
    }


def _taking_turns(units: str, part: int, **layout: Any) -> dict[str, Any]:
    """Rows of gate and up that take turns, as published."""
    return {"part": part, "parts": ("switch", "switch"), "by_head": units, **layout}


def _experts(name: str, part: int) -> Stored:
    """Gates or hidden units of the experts that are chosen, and of those that take every token."""
    routed, shared = "layers.{n}.mlp.experts", "layers.{n}.mlp.shared_experts"
    turns = _taking_turns("d_expert", part, axis=1, bare=True)
    return Stored(
        f"{routed}.gate_up_proj", part=part, parts=("d_expert", "d_expert"), axis=1, bare=True,
        always=Stored(f"{shared}.{name}_proj", bare=True),
        instead=Stored(f"{routed}.w13_weight", **turns, always=Stored(f"{shared}.shared_w13_weight", **turns)),
    )  # fmt: skip


_ATTENTION = "layers.{n}.self_attn"
_PUBLISHED = {"q": "q_du", "k": "k_dv", "v": "v_dv", "r": "r_du", "o": "o_ud"}
INKLING = replace(
    LLAMA,
    name="Inkling",
    model_type="inkling_text",
    classes={"none": "InklingTextModel", "lm": "InklingForCausalLM"},
    only={},
    fixed={
        **LLAMA.fixed,
        "positions": "none",
        "embed_norm": True,
        "qk_norm": True,
        "ffn_scale": True,
        "router": "sigmoid",
        "choice_bias": True,
        "routes_renormed": True,
        "routes_epsilon": 0.0,
        "tied_head": False,
    },
    needs=("profiles", "added_conv", "always_experts"),
    harmless=(
        "tie_word_embeddings",  # it never ties them
        *("chain_hidden_post_norm", "number_of_conv_states", "rms_norm_eps_moe_gate", "shared_expert_sink"),  # not read
    ),
    settings=(
        Group(_read_vocabulary, _write_vocabulary),
        Key("hidden_size", "d_model"),
        Key("num_hidden_layers", "n_layers"),
        Key("max_position_embeddings", "context"),
        Key("rms_norm_eps", "norm_eps", 1e-6),
        Key("hidden_act", "activation", "silu", ACTIVATIONS),
        Key("conv_kernel_size", "added_conv", 4),
        Key("route_scale", "routed_scale", 8.0),
        Group(
            lambda fields, draft, tensors: {"logit_scale": 1 / fields.number("logits_mup_width_multiplier", 24.0)},
            lambda config: {"logits_mup_width_multiplier": 1 / config.logit_scale},
        ),
        Group(_read_layers, _write_layers),
        Group(_read_experts, _write_experts),
        lm_head(),
    ),
    stored={
        **{name: layout for name, layout in LLAMA.stored.items() if "embed" not in name and "head" not in name},
        "embed.tokens": Stored("embed_tokens", unread="padding_rows", gives="embed.norm"),
        "embed.norm": Stored("embed_tokens.embed_norm"),
        "head.decoder": Stored("lm_head", unread="padding_rows", gives="logits"),
        "blocks.{n}.attention.r": Stored(f"{_ATTENTION}.r_proj"),
        "blocks.{n}.attention.profile": Stored(f"{_ATTENTION}.rel_logits_proj.proj", bare=True),
        **{
            f"blocks.{{n}}.{ours}": Stored(f"{theirs}.conv1d", convolution=True, last_offset=1.0)
            for ours, theirs in (
                ("attention.k_conv", f"{_ATTENTION}.k_sconv"),
                ("attention.v_conv", f"{_ATTENTION}.v_sconv"),
                ("attn_conv", "layers.{n}.attn_sconv"),
                ("ffn_conv", "layers.{n}.mlp_sconv"),
            )
        },
        "blocks.{n}.ffn_gain": Stored("layers.{n}.mlp.global_scale", bare=True),
        "blocks.{n}.ffn.gain": Stored("layers.{n}.mlp.gate.global_scale", bare=True),
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.gate.weight", bare=True),
        "blocks.{n}.ffn.preference": Stored("layers.{n}.mlp.gate.e_score_correction_bias", bare=True),
        **{
            f"blocks.{{n}}.ffn.{name}": Stored(
                f"layers.{{n}}.mlp.{name}_proj", instead=Stored("layers.{n}.mlp.w13_dn", **_taking_turns("d_ff", part))
            )
            for part, name in enumerate(("gate", "up"))
        },
        **{f"blocks.{{n}}.ffn.experts.{name}": _experts(name, part) for part, name in enumerate(("gate", "up"))},
        "blocks.{n}.ffn.experts.down": Stored(
            "layers.{n}.mlp.experts.down_proj",
            bare=True,
            always=Stored("layers.{n}.mlp.shared_experts.down_proj", bare=True),
        ),
    },
    spellings=(
        (r"\bembed\.weight$", "embed_tokens.weight"),
        (r"(?<!embed_tokens\.)\bembed_norm\.", "embed_tokens.embed_norm."),
        (r"\bunembed\.", "lm_head."),
        *((rf"\battn\.w{word}\.", f"self_attn.{name}_proj.") for name, word in _PUBLISHED.items()),
        (r"\battn\.(q_norm|k_norm|rel_logits_proj)\b", r"self_attn.\1"),
        (r"\battn\.([kv]_sconv)\.weight$", r"self_attn.\1.conv1d.weight"),
        (r"\b(attn|mlp)_sconv\.weight$", r"\1_sconv.conv1d.weight"),
        (r"\battn_norm\.", "input_layernorm."),
        (r"\bmlp_norm\.", "post_attention_layernorm."),
        (r"\bw2_md\.", "down_proj."),
        (r"\b(shared_)?w2_weight$", "down_proj"),
        (r"\bgate\.bias$", "gate.e_score_correction_bias"),
    ),
    skipped=(*LLAMA.skipped, Skip(r"mtp\..*", "layers that predict tokens further ahead", noted=True)),
    copies={},
)
