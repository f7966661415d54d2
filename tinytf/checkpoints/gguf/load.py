"""Opening a GGUF file: configuration, tokenizer and weights."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from tinytf.checkpoints.gguf.architecture import ARCHITECTURES, table_of
from tinytf.checkpoints.gguf.header import Header, StoredTensor
from tinytf.checkpoints.gguf.split import read_parts
from tinytf.checkpoints.gguf.vocabulary import tokenizer_of
from tinytf.checkpoints.gguf.weights import GgufWeights
from tinytf.checkpoints.load import Checkpoint
from tinytf.checkpoints.table import FamilyTable
from tinytf.checkpoints.unsupported import explain_unsupported
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, faults_of, quoted
from tinytf.text.tokenizer import Tokenizer


def read_gguf(path: Path, brief: bool = False) -> Checkpoint:
    """The checkpoint of a file, from its header; if ``brief``, its vocabulary is skipped and its tensors not matched.

    Raises CheckpointError, naming file and key or tensor, for anything missing, unknown, damaged or not implemented.
    """
    return checkpoint_of(read_parts(path, brief), brief)


def checkpoint_of(header: Header, brief: bool = False) -> Checkpoint:
    """The checkpoint of a ``header``, as ``read_gguf`` gives it."""
    path, header = header.path, replace(header, tensors={name: _with_row_axis(t) for name, t in header.tensors.items()})
    table = _architecture_of(header)
    keys = Fields(header.metadata, path, prefix=f"{table.name}.")
    with faults_of(path):
        config = table.read(keys, header.tensors)
    keys.refuse_unknown(table.harmless)
    checkpoint = Checkpoint(path, table, config, GgufWeights(header), (_types_note(header), *_scaling_note(config)))
    if not brief:
        checkpoint.plan()
    return checkpoint


def settings_in(header: Header) -> frozenset[str]:
    """The settings that the architecture of a file has a place for, or that are the same in all its files."""
    table = _architecture_of(header)
    settings = table.read_fields(Fields(header.metadata, header.path, prefix=f"{table.name}."), header.tensors)
    return frozenset((*settings, *(name for name, _ in settings["by_layer"])))


def gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in the metadata of a file, whose architecture may be unknown."""
    return tokenizer_of(read_parts(path))


def _architecture_of(header: Header) -> FamilyTable:
    keys = Fields(header.metadata, header.path)
    kind = keys.text("general.type", "model")
    if kind != "model":
        raise CheckpointError(f"{header.path} holds a {quoted(kind)}, not a model")
    name = keys.text("general.architecture")
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{header.path}: the architecture {quoted(name)} is not one that tinytf opens from GGUF files: "
            f"{explain_unsupported(name, header.metadata)}",
            f"known: {', '.join(ARCHITECTURES)}",
        )
    return table_of(name, header.tensors)


def _types_note(header: Header) -> str:
    """A note that lists the tensor types of a file, by decreasing number of bytes."""
    bytes_of: Counter[str] = Counter()
    for tensor in header.tensors.values():
        bytes_of[tensor.kind.name] += tensor.n_bytes
    return f"weights stored as {', '.join(name for name, _ in bytes_of.most_common())}"


def _scaling_note(config: ModelConfig) -> tuple[str, ...]:
    if config.rope_scaling != "llama3":
        return ()
    return (f"rotary scaling of Llama 3, {config.rope_factor:g} × {config.rope_original_context:,} tokens",)


def _with_row_axis(tensor: StoredTensor) -> StoredTensor:
    """Give the gate of a shared expert its row axis: llama.cpp's converter writes the one-row matrix as a vector."""
    if tensor.name.endswith(".ffn_gate_inp_shexp.weight") and len(tensor.shape) == 1:
        return replace(tensor, shape=(1, *tensor.shape))
    return tensor
