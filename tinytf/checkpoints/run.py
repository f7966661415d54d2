"""tinytf's own run directories: config.json, model.safetensors, tokenizer.json, and what training says of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, ConfigError
from tinytf.files import write_whole
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.text.tokenizer import Tokenizer

FORMAT = "tinytf"
FORMAT_VERSION = 1


def to_json(data: object) -> bytes:
    """JSON as it is stored: UTF-8, indented, ending in a newline."""
    return (json.dumps(data, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


def save_run(directory: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    """Write the model and its tokenizer; each file appears whole, the configuration last."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_whole(directory / "model.safetensors", save_tensors(tensors))
    write_whole(directory / "tokenizer.json", tokenizer.to_json().encode("utf-8"))
    config = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": model.config.to_dict()}
    write_whole(directory / "config.json", to_json(config))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; CheckpointError, naming file and place, when it is missing or is not one."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path.name} in {path.parent}") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        message = f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise CheckpointError(message) from None
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise CheckpointError(f"{path} is no JSON that a model has: {error}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds a {type(data).__name__}, not a JSON object")
    return data


def read_config(directory: Path) -> ModelConfig:
    """The model configuration of a run directory."""
    data = read_json(directory / "config.json")
    if data.get("format") != FORMAT:
        raise CheckpointError(
            f"{directory / 'config.json'} is not a tinytf configuration (format {data.get('format')!r})",
            "tinytf opens the run directories that tinytf train writes",
        )
    if data.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{directory} has format version {data.get('format_version')!r}; this tinytf reads {FORMAT_VERSION}"
        )
    if not isinstance(data.get("model"), dict):
        raise CheckpointError(f"{directory / 'config.json'} has no 'model' object")
    try:
        return ModelConfig.from_dict(data["model"])
    except ConfigError as error:
        raise CheckpointError(f"{directory / 'config.json'}: {error.message}", error.hint) from None


def load_run(directory: Path) -> tuple[Transformer, Tokenizer]:
    """The model (float32, on the CPU, in eval mode) and the tokenizer of a run directory.

    Raises CheckpointError naming the file, or the tensor with both shapes, when something is missing,
    truncated, left over or of another shape.
    """
    config = read_config(directory)
    tokenizer = Tokenizer.load(directory / "tokenizer.json")
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} tokens, the model room for {config.vocab_size}"
        )
    weights = directory / "model.safetensors"
    try:
        tensors = load_tensors(weights.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"there is no {weights.name} in {directory}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{weights} is damaged: {error}") from None
    with torch.device("meta"):
        model = Transformer(config)
    require_match({name: tuple(t.shape) for name, t in model.state_dict().items()}, tensors, weights)
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)
    return model.eval(), tokenizer


def require_match(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, torch.Tensor], source: Path) -> None:
    """Every expected tensor is there in its shape, and no other; CheckpointError names the first that is not."""
    for name, shape in expected.items():
        if name not in found:
            missing = [other for other in expected if other not in found]
            raise CheckpointError(f"{source} lacks {name} ({len(missing)} of {len(expected)} tensors are missing)")
        if tuple(found[name].shape) != shape:
            raise CheckpointError(
                f"{source}: {name} has shape {tuple(found[name].shape)}, the configuration needs {shape}"
            )
    for name in found:
        if name not in expected:
            raise CheckpointError(
                f"{source} holds {name}, which the model has no place for", did_you_mean(name, expected)
            )
