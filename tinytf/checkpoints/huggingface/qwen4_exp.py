"""Qwen4-Exp, text only (Qwen 2026): gated delta rules, indexed attention, gated streams and n-gram embeddings."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinytf.checkpoints.huggingface.llama import BIASES, HEAD_AND_ACTIVATION, UNTURNED
from tinytf.checkpoints.huggingface.qwen_next import MIXERS, QWEN3_5_MOE
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import by_layer
from tinytf.checkpoints.table import Computed, Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields
from tinytf.parts.ngrams import firsts_of, multipliers_of, sizes_of

_OF_NGRAMS = {
    "ngram_order": ("ngram_size", 3),
    "ngram_heads": ("heads_per_ngram", 8),
    "ngram_rows": ("ngram_vocab_size_base", 20_000_000),
    "ngram_multiple": ("make_ngram_vocab_size_divisible_by", 128),
    "ngram_parts": ("split_ngram_parts", 512),
    "ngram_conv": ("ple_conv_kernel_size", 4),
    "ngram_seed": ("seed", 1234),
}


def _read_ngrams(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Which layers have n-gram embeddings, counted from 1, and their sizes; nothing in a model without them."""
    count, layers = draft["n_layers"], sorted(set(fields.array("ple_layer_ids", int, ())))
    sizes = {ours: fields.whole(key, default) for ours, (key, default) in _OF_NGRAMS.items()}
    width = fields.whole("ple_embed_dim", draft["d_model"], least=1)
    if not layers:
        return {}
    if layers[0] < 1 or layers[-1] > count:
        raise fields.fault(f"ple_layer_ids has {layers[0]} … {layers[-1]}, and the layers are numbered 1 … {count}")
    several = isinstance(fields.data.get("eos_token_id"), list)
    ends = fields.array("eos_token_id", int) if several else [fields.whole("eos_token_id", least=0)]
    if not ends:
        raise fields.fault("ple_layer_ids needs an eos_token_id")
    numbers = [layers.index(layer) + 1 if layer in layers else 0 for layer in range(1, count + 1)]
    return {
        **by_layer("ngram_number", numbers),
        **sizes,
        "ngram_end": ends[0],
        "d_ngram": 0 if width == draft["d_model"] else width,
    }


def _write_ngrams(config: ModelConfig) -> dict[str, Any]:
    layers = [layer + 1 for layer in range(config.n_layers) if config.at(layer).ngram_number]
    if not layers:
        return {"ple_layer_ids": []}
    sizes = {key: getattr(config, ours) for ours, (key, _) in _OF_NGRAMS.items()}
    width = config.d_ngram or config.d_model
    return {"ple_layer_ids": layers, "ple_embed_dim": width, "eos_token_id": config.ngram_end, **sizes}


_BUFFERS: dict[str, Callable[[ModelConfig], Sequence[int]]] = {
    "layer_multipliers": multipliers_of,
    "ngram_heads_vocab_sizes": sizes_of,
    "ngram_heads_offsets": firsts_of,
}


def _buffer(name: str) -> Skip:
    return Skip(
        rf"layers\.\d+\.ple\.ple_embedding\.{name}",
        "numbers of a hash, a buffer",
        computed=lambda config, _: Computed(torch.tensor(_BUFFERS[name](config), dtype=torch.float64)),
    )


_INDEXER, _TABLE = "layers.{n}.self_attn.indexer", "layers.{n}.ple.ple_embedding.ngram_embedding"
_JOINED = ("index_heads·index_width", "index_width")
_LEFT_OUT = ("blocks.{n}.norm1", "blocks.{n}.norm2", "final_norm")
_STREAMS = {"streams": "hc_norm", "low": "input_mix_weight_down", "gate": "input_mix_weight_up"}
_READERS = {
    "blocks.{n}.read1": "layers.{n}.attn_hyper_connection",
    "blocks.{n}.read2": "layers.{n}.mlp_hyper_connection",
    "final_norm": "hyper_connection_mixer",
}
_CONSTANTS = tuple((f"layers.{{n}}.ple.ple_embedding.{name}", numbers) for name, numbers in _BUFFERS.items())
_NGRAM_NORMS = {"key_norm": "norm_key", "query": "norm_query", "gated_norm": "norm_conv"}

QWEN4_EXP = replace(
    QWEN3_5_MOE,
    name="Qwen4-Exp",
    model_type="qwen4_exp_text",
    classes={"none": "Qwen4ExpTextModel", "lm": "Qwen4ExpForCausalLM"},
    needs=("attention_gate", "experts", "shared_gate", "stream_rank", "index_block"),
    only={"indexer_kv_heads": (1,)},
    harmless=(*QWEN3_5_MOE.harmless, "intermediate_size", "number_of_conv_states"),  # of a dense layer, of a cache
    written={**QWEN3_5_MOE.written, "indexer_kv_heads": 1},
    settings=(
        Key("moe_intermediate_size", "d_expert d_ff", 512),  # no layer is dense
        *(key for key in UNTURNED if key.name != "intermediate_size"),
        Key("head_dim", "d_head", 256),
        rope(10_000.0, share=1.0, sections=True),
        *HEAD_AND_ACTIVATION,
        BIASES,
        Key("num_experts", "experts", 512),
        Key("num_experts_per_tok", "experts_per_token", 10),
        Key("shared_expert_intermediate_size", "d_shared", 512),
        Key("norm_topk_prob", "routes_renormed", True),
        Key("output_gate_type", "read_gate", "silu", {"silu": "silu", "sigmoid": "sigmoid"}),
        Group(
            lambda fields, draft, tensors: {"extra_streams": fields.whole("hc_count", 4, least=2) - 1},
            lambda config: {"hc_count": config.extra_streams + 1},
        ),
        Key("hc_lowrank", "stream_rank", 320),
        Key("indexer_budget", "index_keys"),
        Key("indexer_n_heads", "index_heads"),
        Key("indexer_head_dim", "index_width"),
        Key("indexer_compress_ratio", "index_block"),
        MIXERS,
        Group(_read_ngrams, _write_ngrams),
    ),
    stored={
        **{name: layout for name, layout in QWEN3_5_MOE.stored.items() if name not in _LEFT_OUT},
        **{
            f"{ours}.{row}": Stored(f"{theirs}.{name}", offset=float(row == "streams"))
            for ours, theirs in _READERS.items()
            for row, name in _STREAMS.items()
        },
        "blocks.{n}.write1.in": Stored("layers.{n}.attn_hyper_connection.block_inject_weight"),
        "blocks.{n}.write2.in": Stored("layers.{n}.mlp_hyper_connection.block_inject_weight"),
        "blocks.{n}.attention.index_q": Stored(f"{_INDEXER}.index_qk_proj", part=0, parts=_JOINED),
        "blocks.{n}.attention.index_k": Stored(f"{_INDEXER}.index_qk_proj", part=1, parts=_JOINED),
        "blocks.{n}.attention.index_q_norm": Stored(f"{_INDEXER}.q_layernorm", offset=1.0),
        "blocks.{n}.attention.index_k_norm": Stored(f"{_INDEXER}.k_layernorm", offset=1.0),
        "blocks.{n}.ngram.tokens": Stored(f"{_TABLE}.shard_{{e}}", by_row="ngram_parts", instead=Stored(_TABLE)),
        "blocks.{n}.ngram.key": Stored("layers.{n}.ple.key_proj"),
        "blocks.{n}.ngram.conv": Stored("layers.{n}.ple.conv1d", convolution=True),
        "blocks.{n}.ngram.value": Stored("layers.{n}.ple.value_proj", beside=_CONSTANTS),
        **{
            f"blocks.{{n}}.ngram.{ours}": Stored(f"layers.{{n}}.ple.{name}", offset=1.0)
            for ours, name in _NGRAM_NORMS.items()
        },
    },
    skipped=(
        *QWEN3_5_MOE.skipped,
        *map(_buffer, _BUFFERS),
    ),
)
