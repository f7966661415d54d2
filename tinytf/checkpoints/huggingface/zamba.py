"""Zamba2 (Zyphra 2024): Mamba-2, and blocks of attention beside the stream that share their weights.

A hybrid layer of transformers is two layers here: its shared block, and its Mamba-2, which reads what the block gives.
"""

import math
import re
from typing import Any

from tinytf.checkpoints.huggingface.llama import FIXED, LLAMA
from tinytf.checkpoints.huggingface.mamba import STATE_SPACE
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
        found = re.match(r"(layers\.)(\d+)(\.shared_transformer\..*)", plain)
        first, _ = self._turns(config).get(found[2], (found[2], 0)) if found else ("", 0)
        copied = found is not None and first != found[2]
        return f"{found[1]}{first}{found[3]}" if found and copied else super().original(plain, config)

    def _turns(self, config: ModelConfig) -> dict[str, tuple[str, int]]:
        """The first stored layer with the block of each hybrid one, and how many blocks come before, by its number."""
        giving = [layer for layer, block in enumerate(config.blocks) if block.memory.memory == "gives"]
        numbers = [str(self.stored_layer(layer, config)) for layer in giving]
        return {number: (numbers[turn % config.memory_sets], turn) for turn, number in enumerate(numbers)}

    def pattern(self, name: str) -> str:
        return re.sub(r"(?<=_adapter_list\.)\d+", "{i}", super().pattern(name).replace(".mamba_decoder", "", 1))


_MAMBA, _HYBRID = [("mamba2", "none")], [("attention", "gives"), ("mamba2", "takes")]
_LAYERS = {"linear_attention": _MAMBA, "mamba": _MAMBA, "hybrid": _HYBRID}
_DEFAULT = (*"m" * 6, "h", *("mmmmmh" * 6), *"mmmmhmmmhmm")


def _layers(fields: Fields) -> list[tuple[str, str]]:
    """The mixer of each of our layers, and what it does beside the stream."""
    key, words = "layers_block_type", {"m": "mamba", "h": "hybrid"}
    kinds = [fields.meaning(key, kind, _LAYERS) for kind in fields.array(key, str, [words[one] for one in _DEFAULT])]
    if _HYBRID not in kinds:
        raise fields.fault(f"{key} has no hybrid layer, so no layer has attention")
    fields.require("hybrid_layer_ids", ([number for number, kind in enumerate(kinds) if kind is _HYBRID],))
    return [layer for kind in kinds for layer in kind]


def _read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The layers, each hybrid one as two, and the sizes of their heads."""
    ours = _layers(fields)
    mixing = [mixer for mixer, _ in ours]
    heads = fields.whole("n_mamba_heads", 8, least=1)
    inner = fields.whole("mamba_expand", 2, least=1) * draft["d_model"]
    width = fields.whole("attention_head_dim", 2 * draft["d_model"] // draft["n_heads"], least=1)
    fields.require("attention_hidden_size", (2 * draft["d_model"],))
    fields.require("mamba_headdim", (inner // heads,))
    mamba = {
        "n_heads": heads,
        "n_kv_heads": fields.whole("mamba_ngroups", 1, least=1),
        "d_head": fields.whole("mamba_d_state", 64, least=1),
        "d_value": inner // heads,
    }
    return {
        "n_layers": len(ours),
        "attention_divisor": math.sqrt(width / 2),
        **merge_fields(
            mixers({**draft, "d_head": width, "d_value": width}, mixing, {"mamba2": mamba}),
            by_layer("memory", [memory for _, memory in ours]),
            by_layer("d_ff", [draft["d_ff"] * (mixer == "attention") for mixer in mixing]),
        ),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    every = [config.at(layer) for layer in range(config.n_layers)]
    layers = [layer for layer in every if layer.memory != "gives"]
    hybrid = [layer.memory == "takes" for layer in layers]
    mixers_fit = all(layer.mixer == "mamba2" for layer in layers)
    if not any(hybrid) or not mixers_fit or not config.dt_floor:  # of which transformers takes the logarithm
        return {}
    mamba = layers[0]
    return {
        "num_hidden_layers": len(layers),
        "layers_block_type": ["hybrid" if one else "linear_attention" for one in hybrid],
        "n_mamba_heads": mamba.n_heads,
        "mamba_ngroups": mamba.n_kv_heads,
        "mamba_d_state": mamba.d_head,
        "attention_head_dim": next(layer.d_head for layer in every if layer.memory == "gives"),
        "mamba_expand": mamba.n_heads * mamba.value_width // config.d_model,
    }


def _read_positions(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    turned = fields.flag("use_mem_rope", False)
    return {"positions": "rotary", **ROPE.read(fields, draft, tensors)} if turned else {"positions": "none"}


def _write_positions(config: ModelConfig) -> dict[str, Any]:
    return {"use_mem_rope": config.positions == "rotary", **ROPE.write(config)}


_BLOCK = "layers.{n}.shared_transformer"
_ATTENTION, _FFN, _ADAPTERS = f"{_BLOCK}.self_attn", f"{_BLOCK}.feed_forward.gate_up_proj", "_adapter_list.{i}"
_HALVES = ("d_ff", "d_ff")
ZAMBA2 = _Hybrid(
    name="Zamba2",
    model_type="zamba2",
    prefix=LLAMA.prefix,
    classes={"none": "Zamba2Model", "lm": "Zamba2ForCausalLM"},
    only={
        "add_bias_linear": (False,),
        "use_long_context": (False,),
        "rms_norm_eps": (1e-5,),  # that of the norm in Mamba-2, which files do not say
        "tie_word_embeddings": (True,),  # else transformers ties no blocks either
    },
    fixed={**FIXED, "mixer": "mamba2", "norm_eps": 1e-5, "conv_bias": True},
    harmless=(
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
        "embed.tokens": Stored("embed_tokens"),
        "blocks.{n}.memory.norm": Stored(f"{_BLOCK}.input_layernorm"),
        **{f"blocks.{{n}}.attention.{name}": Stored(f"{_ATTENTION}.{name}_proj") for name in "qkvo"},
        **{
            f"blocks.{{n}}.attention.{name}_{part}": Stored(f"{_ATTENTION}.linear_{name}{_ADAPTERS}.{number}")
            for name in "qkv"
            for number, part in enumerate(("low", "adapter"))
        },
        "blocks.{n}.norm2": Stored(f"{_BLOCK}.pre_ff_layernorm"),
        "blocks.{n}.ffn.gate": Stored(_FFN, part=0, parts=_HALVES),
        "blocks.{n}.ffn.up": Stored(_FFN, part=1, parts=_HALVES),
        "blocks.{n}.ffn.low": Stored(f"{_FFN}{_ADAPTERS}.0"),
        "blocks.{n}.ffn.gate_adapter": Stored(f"{_FFN}{_ADAPTERS}.1", part=0, parts=_HALVES),
        "blocks.{n}.ffn.up_adapter": Stored(f"{_FFN}{_ADAPTERS}.1", part=1, parts=_HALVES),
        "blocks.{n}.ffn.down": Stored(f"{_BLOCK}.feed_forward.down_proj"),
        "blocks.{n}.memory.out": Stored("layers.{n}.linear"),
        "blocks.{n}.norm1": Stored("layers.{n}.input_layernorm"),
        **STATE_SPACE,
        "final_norm": Stored("final_layernorm"),
        "head.decoder": Stored("lm_head"),
    },
    skipped=LLAMA.skipped,
    copies=LLAMA.copies,
    outside=LLAMA.outside,
    heads=LLAMA.heads,
)  # fmt: skip
