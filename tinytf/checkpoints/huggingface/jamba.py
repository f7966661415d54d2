"""Jamba (AI21 2024): Mamba with normed queries, keys and steps, attention and experts in some layers each."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import FIXED, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.mamba2 import MAMBA, channels, read_rank
from tinytf.checkpoints.huggingface.table import by_layer, merge_fields, mixers
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _every(fields: Fields, what: str, period: int, offset: int, layers: int) -> list[bool]:
    """Which layers have it: one in each period, at the offset; these are defaults."""
    period = fields.whole(f"{what}_layer_period", period, least=1)
    offset = fields.whole(f"{what}_layer_offset", offset, least=0)
    return [layer % period == offset for layer in range(layers)]


def _written(what: str, having: list[bool]) -> dict[str, int]:
    """The period and the offset of the layers that have it; nothing where there are none."""
    offset = having.index(True) if any(having) else len(having)
    periods = range(offset + 1, len(having) + 2)
    fits = (p for p in periods if having == [layer % p == offset for layer in range(len(having))])
    return {f"{what}_layer_{key}": number for p in [*fits][:1] for key, number in (("period", p), ("offset", offset))}


def _read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The mixer of each layer, its heads, and its experts; a single expert is a dense feed-forward."""
    layers, attention = draft["n_layers"], {**draft, "d_head": draft["d_model"] // draft["n_heads"]}
    attending, routed = _every(fields, "attn", 8, 4, layers), _every(fields, "expert", 2, 1, layers)
    count = fields.whole("num_local_experts" if "num_local_experts" in fields.data else "num_experts", 16, least=1)
    inner = fields.whole("mamba_expand", 2, least=1) * draft["d_model"]
    sizes = channels(inner, fields.whole("mamba_d_state", 16, least=1))
    return {
        **merge_fields(
            mixers(attention, ["attention" if here else "mamba" for here in attending], {"mamba": sizes}),
            by_layer("experts", [count * (here and count > 1) for here in routed]),
        ),
        "dt_rank": read_rank(fields, "mamba_dt_rank", draft),
        "d_expert": draft["d_ff"],
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    mamba = next((layer for layer in layers if layer.mixer == "mamba"), None)
    if mamba is None:
        return {}
    return {
        **_written("attn", [layer.mixer == "attention" for layer in layers]),
        **_written("expert", [layer.experts > 0 for layer in layers]),
        "num_experts": config.experts or 1,
        "mamba_expand": mamba.n_heads * mamba.value_width // config.d_model,
        "mamba_d_state": mamba.d_head,
        "mamba_dt_rank": mamba.dt_rank,
    }


JAMBA = replace(
    LLAMA,
    name="Jamba",
    model_type="jamba",
    classes={"none": "JambaModel", "lm": "JambaForCausalLM"},
    only={"mamba_proj_bias": (False,), "hidden_act": ("silu", "swish")},
    harmless=(*TRAINING, "use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep"),
    fixed={**FIXED, "positions": "none", "activation": "silu", "inner_norm": "learned", "routes_renormed": False},
    settings=(
        *UNTURNED,
        *HEAD_AND_ACTIVATION[1:],
        Key("mamba_d_conv", "conv_width", 4),
        Key("mamba_conv_bias", "conv_bias", True),
        Key("num_experts_per_tok", "experts_per_token", 2),
        Group(_read, _write),
    ),
    stored={
        **LLAMA.stored,
        **{
            name: replace(
                layout, module=layout.module.replace("mixer", "mamba"), bias=layout.bias.replace("mixer", "mamba")
            )
            for name, layout in MAMBA.stored.items()
            if ".mamba." in name
        },
        **{
            f"blocks.{{n}}.mamba.{ours}_norm": Stored(f"layers.{{n}}.mamba.{name}_layernorm")
            for ours, name in {"q": "c", "k": "b", "dt": "dt"}.items()
        },
        "blocks.{n}.norm2": Stored("layers.{n}.pre_ff_layernorm"),
        **{
            f"blocks.{{n}}.ffn.{name}": Stored(f"layers.{{n}}.feed_forward.{name}_proj")
            for name in ("gate", "up", "down")
        },
        "blocks.{n}.ffn.router": Stored("layers.{n}.feed_forward.router"),
        **experts("layers.{n}.feed_forward.experts"),
        "final_norm": Stored("final_layernorm"),
    },
)
