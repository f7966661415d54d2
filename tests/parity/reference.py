"""Pairs of one tiny random model: transformers' and ours, with the same weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers
from architectures import BERT, LLAMA, enliven
from families import BERT_MASKED, BERT_POOLED, GPT2, give_weights
from families import LLAMA as LLAMA_NAMES
from torch import nn

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer

V, C, N, H, F, T = 41, 24, 3, 4, 40, 32
OURS: dict[str, Any] = {"vocab_size": V, "d_model": C, "n_layers": N, "n_heads": H, "d_ff": F, "context": T}
_BERT_SIZES: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": C,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": T,
}
_LLAMA_SIZES = {**_BERT_SIZES, "num_key_value_heads": 2, "rope_theta": 500.0, "rms_norm_eps": 1e-6}


@dataclass(frozen=True)
class Pair:
    theirs: nn.Module
    ours: Transformer


def gpt2() -> tuple[nn.Module, ModelConfig, dict[str, Any]]:
    config = transformers.GPT2Config(
        vocab_size=V, n_embd=C, n_layer=N, n_head=H, n_inner=F, n_positions=T, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config), ModelConfig(**OURS, activation="gelu_tanh"), GPT2


def bert_masked() -> tuple[nn.Module, ModelConfig, dict[str, Any]]:
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(**_BERT_SIZES))
    return theirs, ModelConfig(**OURS, **BERT, head="mlm", head_bias=True), BERT_MASKED


def bert_pooled() -> tuple[nn.Module, ModelConfig, dict[str, Any]]:
    theirs = transformers.BertModel(transformers.BertConfig(**_BERT_SIZES))
    return theirs, ModelConfig(**OURS, **BERT, head="none", pooler=True), BERT_POOLED


def llama() -> tuple[nn.Module, ModelConfig, dict[str, Any]]:
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_LLAMA_SIZES))
    return theirs, ModelConfig(**OURS, **LLAMA, n_kv_heads=2, rope_theta=500.0), LLAMA_NAMES


def qwen2() -> tuple[nn.Module, ModelConfig, dict[str, Any]]:
    theirs = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_LLAMA_SIZES))
    fields = {**LLAMA, "qkv_bias": True, "n_kv_heads": 2, "rope_theta": 500.0}
    return theirs, ModelConfig(**OURS, **fields), LLAMA_NAMES


def qwen3() -> tuple[nn.Module, ModelConfig, dict[str, Any]]:
    theirs = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**_LLAMA_SIZES, head_dim=10, tie_word_embeddings=True)
    )
    fields = {**LLAMA, "qk_norm": True, "d_head": 10, "n_kv_heads": 2, "rope_theta": 500.0, "tied_head": True}
    return theirs, ModelConfig(**OURS, **fields), LLAMA_NAMES


FAMILIES: dict[str, Callable[[], tuple[nn.Module, ModelConfig, dict[str, Any]]]] = {
    "gpt2": gpt2,
    "bert with a masked head": bert_masked,
    "bert with a pooler": bert_pooled,
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
}


def pair(family: str) -> Pair:
    theirs, config, names = FAMILIES[family]()
    enliven(theirs, 7)
    theirs.set_attn_implementation("eager")
    ours = Transformer.initialised(config, 1)
    give_weights(theirs, ours, names)
    return Pair(theirs.eval(), ours)
