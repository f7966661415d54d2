"""Opening a GGUF file: configuration, tokenizer and weights."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from tinytf.checkpoints.gguf.architecture import architecture_of, config_of
from tinytf.checkpoints.gguf.header import Header, read_header
from tinytf.checkpoints.gguf.vocabulary import tokenizer_of
from tinytf.checkpoints.gguf.weights import Plan, plan, read_weights
from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class GgufModel:
    """A transformer in eval mode on the CPU, and ``notes``: what a banner should say of the file."""

    transformer: Transformer
    notes: tuple[str, ...]


def read_gguf_config(path: Path) -> ModelConfig:
    """The configuration of a file, from its header; CheckpointError also where its tensors are not those it needs."""
    return _planned(read_header(path)).model.config


def gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in the metadata of a file; its weights are not looked at, and may be of any architecture."""
    return tokenizer_of(read_header(path))


def load_gguf(path: Path, dtype: torch.dtype) -> GgufModel:
    """The model of a file, its weights dequantised to ``dtype``.

    Raises CheckpointError, naming the file and the key or tensor, for whatever is missing, left over, damaged or not
    implemented.
    """
    header = read_header(path)
    planned = _planned(header)
    planned.model.load_state_dict(read_weights(header, planned, dtype), assign=True)
    notes = (f"weights stored as {_kinds(header)}", *_scaled(planned.model.config))
    return GgufModel(planned.model.eval(), notes)


def _planned(header: Header) -> Plan:
    return plan(header, config_of(header), architecture_of(header))


def _kinds(header: Header) -> str:
    """The tensor types of a file, the one with most of its bytes first."""
    bytes_of: Counter[str] = Counter()
    for tensor in header.tensors.values():
        bytes_of[tensor.kind.name] += tensor.n_bytes
    return ", ".join(name for name, _ in bytes_of.most_common())


def _scaled(config: ModelConfig) -> tuple[str, ...]:
    if config.rope_scaling != "llama3":
        return ()
    return (f"rotary scaling of Llama 3, {config.rope_factor:g} × {config.rope_original_context:,} tokens",)
