"""Tiny GGUF files, written with the ``gguf`` library, and the models of transformers that hold the same numbers."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from architectures import enliven
from hard_strings import hard_strings
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, trainers
from torch import nn

from tinytf.text.train import train_bpe

Kind = gguf.GGMLQuantizationType
Array = np.ndarray[Any, Any]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_TEXT = (
    "The cat sat on the mat, and the other cats sat there too. It's what they'll do: don't they? We're in 2024, at "
    "12:30, with 365 days and 1000000 things.\n\tdef f(x):\n        return x + 1  # and on\n\n你好，世界！ naïve "
)
_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@cache
def byte_level_vocabulary(size: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens and merges of a byte-level BPE; the last three tokens are control tokens and one that a user defined."""
    learned = json.loads(train_bpe([_TEXT * 3], size - 2).to_json())["model"]
    tokens = sorted(learned["vocab"], key=learned["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in learned["merges"]]
    filled = [*tokens, *(f"[PAD{n}]" for n in range(size - 2 - len(tokens)))]
    return (*filled, "<|im_start|>", "<note>"), tuple(merges)


def byte_level_keys(size: int, pre: str = "gpt-2") -> dict[str, Any]:
    """The metadata of such a tokenizer."""
    tokens, merges = byte_level_vocabulary(size)
    types = [CONTROL, *[NORMAL] * (size - 3), CONTROL, USER_DEFINED]
    types = [UNUSED if token.startswith("[PAD") else kind for token, kind in zip(tokens, types, strict=True)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.bos_token_id": size - 2,
    }


@dataclass
class Parts:
    """What goes into a file: metadata, and tensors as the bytes of their type with rows first."""

    keys: dict[str, Any]
    tensors: dict[str, tuple[Array, Any]] = field(default_factory=dict)
    alignment: int | None = None

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.keys["general.architecture"])
        if self.alignment is not None:
            writer.add_custom_alignment(self.alignment)
        for key, value in self.keys.items():
            if key != "general.architecture":
                _add(writer, key, value)
        for name, (array, kind) in self.tensors.items():
            writer.add_tensor(name, array, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
        return
    kinds: tuple[tuple[type, Callable[..., None]], ...] = (
        (bool, writer.add_bool),
        (int, writer.add_uint32),
        (float, writer.add_float32),
        (str, writer.add_string),
    )
    next(add for kind, add in kinds if isinstance(value, kind))(key, value)


Quantise = Callable[[Array], tuple[Array, Array]]
"""From numbers in float32 to stored bytes, and to the numbers that those mean."""


def through_the_library(kind: Any) -> Quantise:
    def quantise(numbers: Array) -> tuple[Array, Array]:
        stored = gguf.quants.quantize(numbers, kind)
        return stored, gguf.quants.dequantize(stored, kind)

    return quantise


def paired(rows: Array, heads: int) -> Array:
    """What llama.cpp's converter does to q and k of a Llama (convert_hf_to_gguf.py, LlamaModel.permute)."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def converted_factors(d_head: int, theta: float, factor: float, context: int) -> Array:
    """As llama.cpp's converter writes them (convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors)."""
    found = []
    for frequency in 1.0 / theta ** (np.arange(0, d_head, 2, dtype=np.float32) / d_head):
        wavelength = 2 * np.pi / frequency
        smooth = (context / wavelength - 1) / (4 - 1)
        between = 1 / ((1 - smooth) / factor + smooth)
        found.append(1.0 if wavelength < context / 4 else factor if wavelength > context / 1 else between)
    return np.array(found, dtype=np.float32)


def stored_name(theirs: str) -> str:
    """The name in a GGUF file of a tensor of transformers' Llama or Qwen2."""
    module, _, kind = theirs.rpartition(".")
    if module in _OUTSIDE:
        return f"{_OUTSIDE[module]}.{kind}"
    _, _, layer, inside = module.split(".", 3)
    return f"blk.{layer}.{_LAYER[inside]}.{kind}"


SIZES: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 3e-5,
    "rope_theta": 700.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
SMALL = {**SIZES, "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}


@torch.no_grad()
def model_and_parts(
    architecture: str, kind: Any = Kind.F32, quantise: Quantise | None = None, **settings: Any
) -> tuple[nn.Module, Parts]:
    """A model of transformers, its matrices as they are once quantised, and the file that holds them.

    Rows are quantised before they are put in llama.cpp's order, so that the model needs no order undone.
    """
    given = {**SIZES, **settings}
    family = {"llama": "Llama", "qwen2": "Qwen2"}[architecture]
    config = getattr(transformers, f"{family}Config")(**given)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    enliven(model, 11)
    keys = {
        "general.architecture": architecture,
        "general.name": "tiny",
        f"{architecture}.block_count": config.num_hidden_layers,
        f"{architecture}.context_length": config.max_position_embeddings,
        f"{architecture}.embedding_length": config.hidden_size,
        f"{architecture}.feed_forward_length": config.intermediate_size,
        f"{architecture}.attention.head_count": config.num_attention_heads,
        f"{architecture}.attention.head_count_kv": config.num_key_value_heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{architecture}.rope.freq_base": config.rope_parameters["rope_theta"],
        **byte_level_keys(config.vocab_size),
    }
    if given.get("head_dim"):
        keys |= {f"{architecture}.attention.{name}_length": config.head_dim for name in ("key", "value")}
    parts = Parts(keys)
    for name, parameter in model.named_parameters():
        numbers = parameter.numpy()
        of_matrix = numbers.ndim == 2
        how = (quantise or through_the_library(kind)) if of_matrix else through_the_library(Kind.F32)
        stored, meant = how(numbers)
        parameter.copy_(torch.from_numpy(meant.copy()))
        if architecture == "llama" and ".q_proj." in name:
            stored = paired(stored, config.num_attention_heads)
        if architecture == "llama" and ".k_proj." in name:
            stored = paired(stored, config.num_key_value_heads)
        parts.tensors[stored_name(name)] = stored, kind if of_matrix else Kind.F32
    return model, parts


def small_parts(architecture: str = "llama", **settings: Any) -> Parts:
    """A file of a few kilobytes, to be bent and broken."""
    return model_and_parts(architecture, **{**SMALL, **settings})[1]


@cache
def pieces(count: int) -> tuple[tuple[str, float, int], ...]:
    """A SentencePiece vocabulary: pieces that were learned, each with a score that falls with its rank."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=count, limit_alphabet=150, show_progress=False)
    library.train_from_iterator(
        [*(text for text in hard_strings() if "<" not in text), *["the cat sat on the mat"] * 99], trainer
    )
    learned = sorted(library.get_vocab().items(), key=lambda entry: entry[1])
    control = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    byte_pieces = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    joined = [(piece, -float(rank), NORMAL) for rank, (piece, _) in enumerate(learned) if len(piece) > 1]
    single = [(piece, -1e6, NORMAL) for piece, _ in learned if len(piece) == 1]
    return (*control, *byte_pieces, *joined, *single, ("<note>", 0.0, USER_DEFINED))


def sentencepiece_parts(**keys: Any) -> Parts:
    entries = pieces(700)
    parts = small_parts(vocab_size=500)
    parts.keys = {key: value for key, value in parts.keys.items() if not key.startswith("tokenizer.")}
    parts.tensors["token_embd.weight"] = parts.tensors["output.weight"] = small_parts(vocab_size=len(entries)).tensors[
        "token_embd.weight"
    ]
    parts.keys |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece for piece, _, _ in entries],
        "tokenizer.ggml.scores": [score for _, score, _ in entries],
        "tokenizer.ggml.token_type": [kind for _, _, kind in entries],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    parts.keys |= {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return parts
