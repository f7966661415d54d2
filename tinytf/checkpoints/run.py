"""tinytf's own run directories: config.json, model.safetensors and tokenizer.json."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from tinytf.checkpoints.load import empty_model, require_match, shapes_of
from tinytf.checkpoints.run_config import FORMAT, FORMAT_VERSION, read_config
from tinytf.checkpoints.weights import Safetensors
from tinytf.config import ModelConfig
from tinytf.files import to_json
from tinytf.model.transformer import Transformer
from tinytf.outputs import make_folder, write_state
from tinytf.text.tokenizer import Tokenizer


def save_run(directory: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    """Write the model and its tokenizer, each file atomically, the configuration last."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.named_parameters()}
    write_run(directory, model.config, tensors, tokenizer)


def write_run(directory: Path, config: ModelConfig, tensors: Mapping[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write a run directory from ``tensors`` by name, which are on the CPU."""
    make_folder(directory)
    write_state(directory / "model.safetensors", save_tensors(dict(tensors)))
    write_state(directory / "tokenizer.json", tokenizer.to_json(whole=True).encode("utf-8"))
    stored = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": config.to_dict()}
    write_state(directory / "config.json", to_json(stored))


def load_run(directory: Path, dtype: torch.dtype = torch.float32, config: ModelConfig | None = None) -> Transformer:
    """The model of a run directory, on the CPU, in eval mode, in ``dtype``; its ``config`` is read unless given.

    Raises CheckpointError, naming the file, or the tensor with both shapes, for anything missing, truncated, unknown or
    of another shape.
    """
    config = config or read_config(directory)
    weights = Safetensors(directory / "model.safetensors")
    model = empty_model(config, len(weights.shapes), weights.path)
    require_match(shapes_of(model), weights.shapes, weights.path)
    model.load_state_dict(dict(weights.tensors(dtype)), assign=True)
    model.mapped = weights.mapped
    return model.eval()
