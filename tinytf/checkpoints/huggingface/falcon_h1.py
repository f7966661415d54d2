"""Falcon-H1 (TII 2025): Mamba-2 and attention side by side, both of the same normed input.

A layer of transformers is two layers here, Mamba-2 and attention. Its multipliers are part of our weights, as in GGUF.
"""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import HEAD_AND_ACTIVATION, SHARED
from tinytf.checkpoints.huggingface.mamba import BAMBA, read_mamba, write_mamba
from tinytf.checkpoints.huggingface.table import by_layer, merge_fields
from tinytf.checkpoints.table import Draft, Group, Key, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    layers = draft["n_layers"]
    if fields.flag("mamba_norm_before_gate", True) and draft["state_norm"]:
        raise fields.fault("mamba_norm_before_gate is true, but only a norm after the gate is implemented")
    return {
        "n_layers": 2 * layers,
        **merge_fields(
            read_mamba(fields, draft, ["mamba2", "attention"] * layers),
            by_layer("d_ff", [0, draft["d_ff"]] * layers),
            by_layer("norm_below", [False, True] * layers),
        ),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    mixers = [layer.mixer.called for layer in config.blocks]
    if mixers != ["mamba2", "attention"] * (config.n_layers // 2):
        return {}
    keys = write_mamba(config)
    inner = keys["mamba_n_heads"] * keys["mamba_d_head"]
    return {"num_hidden_layers": config.n_layers // 2, **keys, "mamba_d_ssm": inner, "mamba_norm_before_gate": False}


def _factors(fields: Fields) -> dict[str, float]:
    """The multipliers of a file, by the matrix whose input or output each of them scales."""

    def number(name: str) -> float:
        return float(fields.number(f"{name}_multiplier", 1.0))

    gate, down = fields.array("mlp_multipliers", float, (1.0, 1.0), count=2)
    states = fields.array("ssm_multipliers", float, (1.0,) * 5, count=5)
    read = number("attention_in")
    return {
        **{
            f"blocks.{{n}}.mamba.{name}": number("ssm_in") * state
            for name, state in zip(("gate", "v", "k", "q", "dt_in"), states, strict=True)
        },
        "blocks.{n}.mamba.o": number("ssm_out"),
        "blocks.{n}.attention.q": read,
        "blocks.{n}.attention.k": read * number("key"),
        "blocks.{n}.attention.v": read,
        "blocks.{n}.attention.o": number("attention_out"),
        "blocks.{n}.ffn.gate": gate,
        "blocks.{n}.ffn.down": down,
    }


FALCON_H1 = replace(
    BAMBA,
    name="Falcon-H1",
    model_type="falcon_h1",
    classes={"none": "FalconH1Model", "lm": "FalconH1ForCausalLM"},
    only={
        **BAMBA.only,
        **dict.fromkeys(("attention_bias", "mlp_bias", "projectors_bias"), (False,)),
    },
    harmless=("mamba_chunk_size", "num_logits_to_keep", "layer_types", "layers_block_type", "mamba_use_mlp"),
    settings=(
        *SHARED,
        *HEAD_AND_ACTIVATION,
        Key("embedding_multiplier", "embed_scale", 1.0),
        Key("lm_head_multiplier", "logit_scale", 1.0),
        Key("mamba_rms_norm", "state_norm", False),
        Group(_read, _write),
    ),
    split=2,
    factors=_factors,
)
