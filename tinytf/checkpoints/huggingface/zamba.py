"""Zamba and Zamba2 (Zyphra 2024): state spaces, and blocks of attention beside the stream that share their weights.

A hybrid layer of transformers is two layers here: its shared block, and its state space, which reads what the block
gives. Zamba has one block and Mamba in several heads; Zamba2 has several blocks with adapters, and Mamba-2.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import FIXED, LLAMA
from tinytf.checkpoints.huggingface.mamba import STATE_SPACE
from tinytf.checkpoints.huggingface.mamba2 import read_rank
from tinytf.checkpoints.huggingface.rope import ROPE
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, Family, by_layer, lm_head, merge_fields, mixers
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields


class _Hybrid(Family):
    """A family whose hybrid layers are two of ours, and whose shared blocks are stored in the first layer with each."""

    def pairs_as(self, config: ModelConfig) -> bool:
        return any(block.memory.memory == "gives" for block in config.blocks)

    def stored_layer(self, layer: int, config: ModelConfig) -> int:
        return sum(block.memory.memory != "gives" for block in config.blocks[:layer])

    def place(self, parameter: str, config: ModelConfig | None = None) -> tuple[str, Stored]:
        name, layout = super().place(parameter, config)
        if config is None or not parameter.startswith("blocks."):
            return name, layout
        layer = int(parameter.split(".")[1])
        if "{i}" in name:  # all adapters of a block are stored in the first layer with it
            number = str(self.stored_layer(layer, config))
            first, turn = self._turns(config)[number]
            return name.replace(number, first, 1).replace("{i}", str(turn)), layout
        if config.blocks[layer].memory.memory == "takes":
            name = re.sub(r"^(layers\.\d+)", r"\1.mamba_decoder", name)
        return name, layout

    def original(self, plain: str, config: ModelConfig) -> str:
        found = re.match(r"layers\.(\d+)(?=\.shared_transf)", plain)
        first, _ = self._turns(config).get(found[1], ("", 0)) if found else ("", 0)
        if not found or first in ("", found[1]):
            return super().original(plain, config)
        return f"layers.{first}{plain[found.end() :]}"

    def _turns(self, config: ModelConfig) -> dict[str, tuple[str, int]]:
        """The first stored layer with the block of each hybrid one, and how many blocks come before, by its number."""
        giving = [layer for layer, block in enumerate(config.blocks) if block.memory.memory == "gives"]
        numbers = [str(self.stored_layer(layer, config)) for layer in giving]
        return {number: (numbers[turn % config.memory_sets], turn) for turn, number in enumerate(numbers)}

    def pattern(self, name: str) -> str:
        return re.sub(r"(?<=_adapter_list\.)\d+", "{i}", super().pattern(name).replace(".mamba_decoder", "", 1))


def _read_layers(
    fields: Fields, draft: Draft, kinds: Sequence[str], mixer: str, sizes: dict[str, int]
) -> dict[str, Any]:
    """The layers, by default of these ``kinds``, and the ``sizes`` of their heads; a hybrid one is two of ours."""
    key = "layers_block_type"
    alone, hybrid = [(mixer, "none")], [("attention", "gives"), (mixer, "takes")]
    words = {"linear_attention": alone, "mamba": alone, "hybrid": hybrid}
    stored = [fields.meaning(key, word, words) for word in fields.array(key, str, kinds)]
    numbers = [number for number, layers in enumerate(stored) if layers is hybrid]
    if not numbers:
        raise fields.fault(f"{key} has no hybrid layer, so no layer has attention")
    fields.require("hybrid_layer_ids", (numbers,))
    fields.require("attention_hidden_size", (2 * draft["d_model"],))
    width = fields.whole("attention_head_dim", 2 * draft["d_model"] // draft["n_heads"], least=1)
    ours = [layer for layers in stored for layer in layers]
    mixing = [layer for layer, _ in ours]
    return {
        "n_layers": len(ours),
        "attention_divisor": math.sqrt(width / 2),
        **merge_fields(
            mixers({**draft, "d_head": width, "d_value": width}, mixing, {mixer: sizes}),
            by_layer("memory", [memory for _, memory in ours]),
            by_layer("d_ff", [draft["d_ff"] * (layer == "attention") for layer in mixing]),
        ),
    }


def _write_layers(config: ModelConfig, mixer: str) -> tuple[ModelConfig | None, dict[str, Any]]:
    """The configuration of a layer with this ``mixer``, and the keys of the layers; nothing where others are mixed."""
    every = [config.at(layer) for layer in range(config.n_layers)]
    giving, stored = ([layer for layer in every if (layer.memory == "gives") is gives] for gives in (True, False))
    if not giving or any(layer.mixer != mixer for layer in stored):
        return None, {}
    return stored[0], {
        "num_hidden_layers": len(stored),
        "layers_block_type": ["hybrid" if layer.memory == "takes" else "linear_attention" for layer in stored],
        "attention_head_dim": giving[0].d_head,
        "mamba_d_state": stored[0].d_head,
        "mamba_expand": stored[0].n_heads * stored[0].value_width // config.d_model,
    }


def _read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Heads whose states are matrices, together mamba_expand times as wide as the model."""
    heads = fields.whole("n_mamba_heads", 8, least=1)
    width = fields.whole("mamba_expand", 2, least=1) * draft["d_model"] // heads
    fields.require("mamba_headdim", (width,))
    groups, state = fields.whole("mamba_ngroups", 1, least=1), fields.whole("mamba_d_state", 64, least=1)
    sizes = {"n_heads": heads, "n_kv_heads": groups, "d_head": state, "d_value": width}
    words = {"m": "linear_attention", "h": "hybrid"}
    kinds = [words[letter] for letter in "mmmmmm" + "hmmmmm" * 6 + "hmmmmhmmmhmm"]
    return _read_layers(fields, draft, kinds, "mamba2", sizes)


def _write(config: ModelConfig) -> dict[str, Any]:
    mamba, keys = _write_layers(config, "mamba2")
    if mamba is None or not config.dt_floor:  # of which transformers takes the logarithm
        return {}
    return {**keys, "n_mamba_heads": mamba.n_heads, "mamba_ngroups": mamba.n_kv_heads}


def _read_positions(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    turned = fields.flag("use_mem_rope", False)
    return {"positions": "rotary", **ROPE.read(fields, draft, tensors)} if turned else {"positions": "none"}


def _write_positions(config: ModelConfig) -> dict[str, Any]:
    return {"use_mem_rope": config.positions == "rotary", **ROPE.write(config)}


_AROUND = {
    "embed.tokens": Stored("embed_tokens"),
    "blocks.{n}.memory.out": Stored("layers.{n}.linear"),
    "blocks.{n}.norm1": Stored("layers.{n}.input_layernorm"),
    "final_norm": Stored("final_layernorm"),
    "head.decoder": Stored("lm_head"),
}


def _block(path: str) -> dict[str, Stored]:
    """The norms, attention and last matrix of a shared block."""
    return {
        "blocks.{n}.memory.norm": Stored(f"{path}.input_layernorm"),
        **{f"blocks.{{n}}.attention.{name}": Stored(f"{path}.self_attn.{name}_proj") for name in "qkvo"},
        "blocks.{n}.norm2": Stored(f"{path}.pre_ff_layernorm"),
        "blocks.{n}.ffn.down": Stored(f"{path}.feed_forward.down_proj"),
    }


_ONLY = {"tie_word_embeddings": (True,)}
"""Without tied embeddings transformers ties no blocks either."""
_BLOCK = "layers.{n}.shared_transformer"
_FFN, _ADAPTERS, _HALVES = f"{_BLOCK}.feed_forward.gate_up_proj", "_adapter_list.{i}", ("d_ff", "d_ff")
ZAMBA2 = _Hybrid(
    name="Zamba2",
    model_type="zamba2",
    prefix=LLAMA.prefix,
    classes={"none": "Zamba2Model", "lm": "Zamba2ForCausalLM"},
    only={
        **_ONLY,
        "add_bias_linear": (False,),
        "use_long_context": (False,),
        "rms_norm_eps": (1e-5,),  # that of the norm in Mamba-2, which files do not say
    },
    fixed={**FIXED, "mixer": "mamba2", "norm_eps": 1e-5, "conv_bias": True},
    harmless=(
        "rope_parameters",  # of use_mem_rope
        "chunk_size", "kv_channels", "num_hidden_layers", "num_logits_to_keep", "num_query_groups", "time_step_floor",
        "time_step_max", "use_conv_bias", "use_mamba_kernels", "use_mem_eff_path",
    ),
    settings=(
        Key("vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_attention_heads", "n_heads", 32),
        Key("num_key_value_heads", "n_kv_heads", lambda draft: draft["n_heads"]),
        Key("intermediate_size", "d_ff", lambda draft: 4 * draft["d_model"]),
        Key("max_position_embeddings", "context", 4096),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        Key("mamba_d_conv", "conv_width", 4),
        Key("time_step_min", "dt_floor", 0.001),
        Key("num_mem_blocks", "memory_sets", 1),
        Key("adapter_rank", "adapter_rank", 128),
        Key("use_shared_attention_adapter", "adapted_attention", False),
        Group(_read_positions, _write_positions),
        Group(_read, _write),
    ),
    written=LLAMA.written,
    stored={
        **_AROUND,
        **_block(_BLOCK),
        **{
            f"blocks.{{n}}.attention.{name}_{part}": Stored(f"{_BLOCK}.self_attn.linear_{name}{_ADAPTERS}.{number}")
            for name in "qkv"
            for number, part in enumerate(("low", "adapter"))
        },
        "blocks.{n}.ffn.gate": Stored(_FFN, part=0, parts=_HALVES),
        "blocks.{n}.ffn.up": Stored(_FFN, part=1, parts=_HALVES),
        "blocks.{n}.ffn.low": Stored(f"{_FFN}{_ADAPTERS}.0"),
        "blocks.{n}.ffn.gate_adapter": Stored(f"{_FFN}{_ADAPTERS}.1", part=0, parts=_HALVES),
        "blocks.{n}.ffn.up_adapter": Stored(f"{_FFN}{_ADAPTERS}.1", part=1, parts=_HALVES),
        **STATE_SPACE,
    },
    skipped=LLAMA.skipped,
    copies=LLAMA.copies,
    outside=LLAMA.outside,
    heads=LLAMA.heads,
)  # fmt: skip


def _read_scan(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Channels in groups of up to 64, which change no number, and in the heads of the scan, which do."""
    inner, heads = fields.whole("mamba_expand", 2, least=1) * draft["d_model"], draft["scan_heads"]
    if inner % heads:
        raise fields.fault(f"mamba_expand · hidden_size is {inner:,}, which n_mamba_heads {heads} do not divide")
    width = math.gcd(inner // heads, 64)
    sizes = {"n_heads": inner // width, "d_head": fields.whole("mamba_d_state", 16, least=1), "d_value": width}
    period, offset = fields.whole("attn_layer_period", 6, least=1), fields.whole("attn_layer_offset", 4)
    later = range(fields.whole("num_hidden_layers", 76, least=1) - 3)
    hybrid = [False, False, True, *(layer % period == offset for layer in later)]
    kinds = ["hybrid" if one else "linear_attention" for one in hybrid]
    return {
        **_read_layers(fields, draft, kinds, "mamba", sizes),
        "dt_rank": read_rank(fields, "mamba_dt_rank", draft),
    }


def _write_scan(config: ModelConfig) -> dict[str, Any]:
    mamba, keys = _write_layers(config, "mamba")
    if mamba is None or keys["layers_block_type"].count("hybrid") < 2:  # transformers fails without a block to share
        return {}
    return {**keys, "mamba_dt_rank": mamba.dt_rank}


_MAMBA, _SHARED, _STEPS = "layers.{n}.mamba", "layers.{n}.shared_transf", ("dt_rank", "d_head", "d_head")
_BY_CHANNEL = Stored(f"{_MAMBA}.in_proj", parts=("switch", "switch"), by_head="n_heads·d_value")
ZAMBA = replace(
    ZAMBA2,
    name="Zamba",
    model_type="zamba",
    classes={"none": "ZambaModel", "lm": "ZambaForCausalLM"},
    only={**_ONLY, "mamba_proj_bias": (False,), "hidden_mamba_act": ("silu", "swish")},
    fixed={**FIXED, "positions": "none", "mixer": "mamba", "memory_sets": 1},
    harmless=(
        "num_logits_to_keep", "time_step_floor", "time_step_max", "time_step_min", "use_associative_scan",
        "use_mamba_kernels",
    ),
    settings=(
        Key("vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_attention_heads", "n_heads", 16),
        Key("num_key_value_heads", "n_kv_heads", 16),
        Key("intermediate_size", "d_ff", 14_848),
        Key("max_position_embeddings", "context", 4096),
        Key("rms_norm_eps", "norm_eps", 1e-5),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        Key("mamba_d_conv", "conv_width", 4),
        Key("mamba_conv_bias", "conv_bias", True),
        Key("n_mamba_heads", "scan_heads", 2),
        Group(_read_scan, _write_scan),
    ),
    stored={
        **_AROUND,
        **_block(_SHARED),
        **{f"blocks.{{n}}.ffn.{name}": Stored(f"{_SHARED}.feed_forward.{name}_proj") for name in ("gate", "up")},
        "blocks.{n}.mamba.v": _BY_CHANNEL,
        "blocks.{n}.mamba.gate": replace(_BY_CHANNEL, part=1),
        "blocks.{n}.mamba.v_conv": Stored(f"{_MAMBA}.conv1d", convolution=True),
        **{
            f"blocks.{{n}}.mamba.{name}": Stored(
                f"{_MAMBA}.x_proj_weight", part=part, parts=_STEPS, by_head="scan_heads", bare=True, apart="scan_heads"
            )
            for part, name in enumerate(("dt_low", "k", "q"))
        },
        "blocks.{n}.mamba.dt_in": Stored(f"{_MAMBA}.dt_proj_weight", bare=True, apart="scan_heads"),
        "blocks.{n}.mamba.dt": Stored(f"{_MAMBA}.dt_proj", bare=True, by_row="scan_heads"),
        "blocks.{n}.mamba.scan": Stored(f"{_MAMBA}.A_log", bare=True, bias=f"{_MAMBA}.D", apart="scan_heads"),
        "blocks.{n}.mamba.o": Stored(f"{_MAMBA}.out_proj"),
    },
)  # fmt: skip
