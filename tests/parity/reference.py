"""Pairs of one tiny random model with odd settings: transformers' own, and what tinytf opens of its directory."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from architectures import enliven
from torch import Tensor, nn

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.model.transformer import Transformer

V, C, N, H, F, T = 41, 24, 3, 4, 40, 32
_ENDS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
_GPT2: dict[str, Any] = {"vocab_size": V, "n_embd": C, "n_layer": N, "n_head": H, "n_positions": T, **_ENDS}
_BERT: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": C,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": T,
}
_ROBERTA: dict[str, Any] = {**_BERT, **_ENDS, "eos_token_id": 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_DISTILBERT: dict[str, Any] = {
    "vocab_size": V,
    "dim": C,
    "n_layers": N,
    "n_heads": H,
    "hidden_dim": F,
    "max_position_embeddings": T,
}
_LLAMA: dict[str, Any] = {**_BERT, **_ENDS, "num_key_value_heads": 2, "rms_norm_eps": 3e-5}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 700.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def _bert(kind: str, **settings: Any) -> nn.Module:
    return getattr(transformers, kind)(transformers.BertConfig(**_BERT, **settings))


_LABELS = {"id2label": {0: "no", 1: "perhaps", 2: "yes"}, "label2id": {"no": 0, "perhaps": 1, "yes": 2}}
_SEVERAL = {**_LABELS, "problem_type": "multi_label_classification"}


def _classes(family: str, task: str, sizes: dict[str, Any], **settings: Any) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(**{**sizes, **settings})
    return getattr(transformers, f"{family}For{task}")(config)


def _gpt2(kind: str = "GPT2LMHeadModel", **settings: Any) -> nn.Module:
    return getattr(transformers, kind)(transformers.GPT2Config(**{**_GPT2, **settings}))


def _decoder(family: str, kind: str = "ForCausalLM", **settings: Any) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(**{**_LLAMA, **settings})
    return getattr(transformers, f"{family}{kind}")(config)


def _neox(**settings: Any) -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 0.5}
    given = {**_BERT, **_ENDS, "hidden_size": 32, "rope_parameters": rope, **settings}
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**given))


def _gemma2(**settings: Any) -> nn.Module:
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "sliding_window": 4, "head_dim": 10}
    return _decoder("Gemma2", **{**caps, "pad_token_id": 0, "num_hidden_layers": N, **settings})


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: _gpt2(n_inner=F, layer_norm_epsilon=1e-4),
    "gpt2, inner width left out": lambda: _gpt2(activation_function="gelu"),
    "gpt2, untied": lambda: _gpt2(tie_word_embeddings=False, activation_function="relu"),
    "bert with a masked head": lambda: _bert("BertForMaskedLM", hidden_act="relu", layer_norm_eps=1e-3),
    "bert with an untied head": lambda: _bert("BertForMaskedLM", tie_word_embeddings=False),
    "bert with classes": lambda: _classes("Bert", "SequenceClassification", _BERT, **_LABELS),
    "bert with classes of tokens": lambda: _classes("Bert", "TokenClassification", _BERT, **_LABELS),
    "bert with a question head": lambda: _classes("Bert", "QuestionAnswering", _BERT),
    "roberta with several classes": lambda: _classes("Roberta", "SequenceClassification", _ROBERTA, **_SEVERAL),
    "distilbert with a number": lambda: _classes("DistilBert", "SequenceClassification", _DISTILBERT, num_labels=1),
    "llama with classes": lambda: _classes("Llama", "SequenceClassification", _LLAMA, pad_token_id=1, **_LABELS),
    "gpt2 with classes of tokens": lambda: _classes("GPT2", "TokenClassification", _GPT2, **_LABELS),
    "bert with a pooler": lambda: _bert("BertModel", hidden_act="gelu_new"),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**_ROBERTA, hidden_act="silu")),
    "roberta with a pooler": lambda: transformers.RobertaModel(transformers.RobertaConfig(**_ROBERTA, pad_token_id=1)),
    "distilbert": lambda: transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**_DISTILBERT)),
    "distilbert, relu and waves": lambda: transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(**_DISTILBERT, activation="relu", sinusoidal_pos_embds=True)
    ),
    "llama": lambda: _decoder("Llama", rope_theta=500.0),
    "llama, biases everywhere": lambda: _decoder("Llama", attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "llama, linear scaling and tied": lambda: _decoder(
        "Llama",
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 700.0},
        head_dim=10,
        tie_word_embeddings=True,
    ),
    "llama 3": lambda: _decoder("Llama", rope_parameters=_LLAMA3, num_key_value_heads=1),
    "mistral": lambda: _decoder("Mistral", sliding_window=4),
    "mistral without a window": lambda: _decoder("Mistral", sliding_window=None, head_dim=8),
    "qwen2": lambda: _decoder("Qwen2", rope_theta=500.0),
    "qwen2 with a window": lambda: _decoder("Qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=0),
    "qwen3": lambda: _decoder("Qwen3", head_dim=10, tie_word_embeddings=True),
    "pythia": lambda: _neox(),
    "pythia, one after the other": lambda: _neox(use_parallel_residual=False, hidden_act="relu", layer_norm_eps=1e-3),
    "pythia, turned whole and tied": lambda: _neox(
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
        attention_bias=False,
        tie_word_embeddings=True,
    ),
    "gemma 2": lambda: _gemma2(),
    "gemma 2, windows everywhere and untied": lambda: _gemma2(
        layer_types=["sliding_attention"] * N, tie_word_embeddings=False, query_pre_attn_scalar=70
    ),
    "gemma 2 without caps": lambda: _gemma2(attn_logit_softcapping=None, final_logit_softcapping=None),
    "qwen3, with biases": lambda: _decoder("Qwen3", head_dim=6, attention_bias=True),
}


@dataclass(frozen=True)
class Pair:
    theirs: nn.Module
    ours: Transformer


@cache
def saved(family: str) -> Path:
    """The directory that transformers writes of that model."""
    model = FAMILIES[family]()
    enliven(model, 7)
    directory = Path(tempfile.mkdtemp(prefix="tinytf-parity-"))
    model.save_pretrained(directory)
    return directory


def pair(family: str) -> Pair:
    theirs = FAMILIES[family]()
    enliven(theirs, 7)
    theirs.set_attn_implementation("eager")
    return Pair(theirs.eval(), read_directory(saved(family)).load().transformer)


def last_of(models: Pair, given: Any, result: Tensor, looked_at: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What theirs has ``given`` at last, and the same of ours: hidden states, or the logits of the tokens it reads.

    Only those are compared that are ``looked_at`` (B, T).
    """
    config = models.ours.config
    seen = torch.ones(result.shape[:2], dtype=torch.bool) if looked_at is None else looked_at
    if config.head == "sequence":
        place = 0 if config.head_reads == "first" else -1
        return given.logits[seen[:, place]], result[:, place][seen[:, place]]
    if config.head == "question":
        theirs = torch.stack([given.start_logits, given.end_logits], dim=-1)
    else:
        theirs = given.logits if models.ours.head is not None else given.last_hidden_state
    return theirs[seen], result[seen]
