"""MiniMax (2025): lightning attention, softmax attention in some layers, experts, and residuals of normed inputs."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tinytf.checkpoints.huggingface.experts import MIXTRAL
from tinytf.checkpoints.huggingface.llama import HEAD_AND_ACTIVATION, UNTURNED
from tinytf.checkpoints.huggingface.qwen_next import LINEAR
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import by_layer, merge_fields
from tinytf.checkpoints.huggingface.windows import FULL, window_of
from tinytf.checkpoints.table import Computed, Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields
from tinytf.steps.operations import FadeAtRate

_KINDS = {FULL: "attention", LINEAR: "lightning"}
_FACTORS = {"kept_scale": "alpha", "residual_scale": "beta"}
_PARTS = ("full_attn", "linear_attn", "mlp")


def _read_mixers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The mixer of each layer, and the decays of its state, which are slower the higher it is."""
    layers = draft["n_layers"]
    layer_types = fields.array("layer_types", str, [(FULL, LINEAR)[n % 2] for n in range(layers)], count=layers)
    kinds = [fields.meaning("layer_types", kind, _KINDS) for kind in layer_types]
    scales = [1 - n / (layers - 1 + 1e-5) + 1e-5 if kind == "lightning" else 1.0 for n, kind in enumerate(kinds)]
    return merge_fields(by_layer("mixer", kinds), by_layer("decay_scale", scales))


def _write_mixers(config: ModelConfig) -> dict[str, Any]:
    words = {ours: kind for kind, ours in _KINDS.items()}
    return {"layer_types": [words.get(config.at(layer).mixer) for layer in range(config.n_layers)]}


def _read_factors(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The factors of the normed input and of what is added, which must be the same for all parts of a layer."""
    found: dict[str, Any] = {}
    for ours, word in _FACTORS.items():
        factors = {part: fields.number(f"{part}_{word}_factor", 1.0) for part in _PARTS}
        if len({*factors.values()}) > 1:
            told = ", ".join(f"{part}_{word}_factor {factor:g}" for part, factor in factors.items())
            raise fields.fault(f"{told}: different factors are not implemented")
        found[ours] = factors["mlp"]
    return found


def _write_factors(config: ModelConfig) -> dict[str, Any]:
    return {f"{part}_{word}_factor": getattr(config, ours) for ours, word in _FACTORS.items() for part in _PARTS}


def _remaining(config: ModelConfig, stored: Tensor, name: str) -> Computed:
    """The rates s of a layer's heads, (H, 1, 1), or what they leave of a state over a block of that many tokens."""
    rates = torch.tensor(FadeAtRate(config.n_heads, config.decay_scale).rates(), dtype=torch.float64)[:, None, None]
    if name == "slope_rate":
        return Computed(rates, 2e-7)
    block = stored.shape[-1] if name == "diagonal_decay" else stored.shape[-2]
    at = torch.arange(1, block + 1)[:, None]
    if name == "diagonal_decay":
        return Computed((-rates * (at - at.mT).abs()).exp().tril()[None], 1e-6 * block)
    return Computed((-rates * (at if name == "query_decay" else block - at)).exp(), 1e-6 * block)


def _buffer(name: str) -> Skip:
    return Skip(
        rf"layers\.\d+\.self_attn\.{name}",
        "decays of lightning attention, a buffer",
        computed=lambda config, stored: _remaining(config, stored, name),
    )


_WINDOW = Group(
    lambda fields, draft, tensors: {"window": window_of(fields, 0)},
    lambda config: {
        "sliding_window": next((layer.mixer.window for layer in config.blocks if hasattr(layer.mixer, "window")), 0)
        or None
    },
)
_JOINT: dict[str, Any] = {"parts": ("d_head",) * 3, "by_head": "n_heads"}
_LIGHTNING = {"norm": "norm", "gate": "output_gate", "o": "out_proj"}

MINIMAX = replace(
    MIXTRAL,
    name="MiniMax",
    model_type="minimax",
    classes={"none": "MiniMaxModel", "lm": "MiniMaxForCausalLM"},
    fixed={**MIXTRAL.fixed, "residual_of": "normed"},
    needs=("experts",),
    settings=(
        *UNTURNED,
        Key("head_dim", "d_head", lambda draft: draft["d_model"] // draft["n_heads"]),
        rope(1_000_000.0),
        *HEAD_AND_ACTIVATION,
        _WINDOW,
        Key("num_local_experts", "experts", 8),
        Key("num_experts_per_tok", "experts_per_token", 2),
        Group(_read_mixers, _write_mixers),
        Group(_read_factors, _write_factors),
    ),
    harmless=(*MIXTRAL.harmless, "block_size"),
    stored={
        **MIXTRAL.stored,
        **{
            f"blocks.{{n}}.lightning.{name}": Stored("layers.{n}.self_attn.qkv_proj", part=part, **_JOINT)
            for part, name in enumerate("qkv")
        },
        **{
            f"blocks.{{n}}.lightning.{ours}": Stored(f"layers.{{n}}.self_attn.{name}")
            for ours, name in _LIGHTNING.items()
        },
    },
    skipped=(*MIXTRAL.skipped, *map(_buffer, ("slope_rate", "query_decay", "key_decay", "diagonal_decay"))),
)
