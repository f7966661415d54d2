"""tinytf's own run directories: config.json, model.safetensors, tokenizer.json, and what training says of them."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from tinytf.checkpoints.weights import Safetensors, Shapes
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, ConfigError
from tinytf.files import read_json, to_json, write_whole
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.text.tokenizer import Tokenizer

FORMAT = "tinytf"
FORMAT_VERSION = 1
CHECKPOINTS = "checkpoints"
_STEP = re.compile(r"step-(\d{6,})")


def checkpoint_step(place: Path) -> int:
    """The step that a checkpoint's folder is named after."""
    found = _STEP.fullmatch(place.name)
    return int(found[1]) if found else -1


def _holds_checkpoint(place: Path) -> bool:
    """Not once its files were removed, and only those of somebody else are left."""
    return (place / "config.json").exists() or (place / "training.json").exists()


def checkpoints_of(run: Path) -> list[Path]:
    """The checkpoints of a run that is or was trained, the oldest first."""
    folder = run / CHECKPOINTS
    places = folder.iterdir() if folder.is_dir() else []
    found = [place for place in places if checkpoint_step(place) >= 0 and _holds_checkpoint(place)]
    return sorted(found, key=checkpoint_step)


def save_run(directory: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    """Write the model and its tokenizer; each file appears whole, the configuration last."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_run(directory, model.config, tensors, tokenizer)


def write_run(directory: Path, config: ModelConfig, tensors: Mapping[str, Tensor], tokenizer: Tokenizer) -> None:
    """The same from the model's tensors, on the processor, by their names."""
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / "model.safetensors", save_tensors(dict(tensors)))
    write_whole(directory / "tokenizer.json", tokenizer.to_json().encode("utf-8"))
    stored = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": config.to_dict()}
    write_whole(directory / "config.json", to_json(stored))


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


def load_run(directory: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """The model of a run directory, on the CPU, in eval mode, in ``dtype``.

    Raises CheckpointError naming the file, or the tensor with both shapes, when something is missing,
    truncated, left over or of another shape.
    """
    config = read_config(directory)
    weights = Safetensors(directory / "model.safetensors")
    with torch.device("meta"):
        model = Transformer(config)
    require_match({name: tuple(t.shape) for name, t in model.named_parameters()}, weights.shapes, weights.path)
    model.load_state_dict(dict(weights.tensors(dtype)), assign=True)
    return model.eval()


def require_match(expected: Shapes, found: Shapes, source: Path) -> None:
    """Every expected tensor is there in its shape, and no other; CheckpointError names the first that is not."""
    for name, shape in expected.items():
        if name not in found:
            missing = [other for other in expected if other not in found]
            raise CheckpointError(f"{source} lacks {name} ({len(missing)} of {len(expected)} tensors are missing)")
        if found[name] != shape:
            raise CheckpointError(f"{source}: {name} has shape {found[name]}, the configuration needs {shape}")
    for name in found:
        if name not in expected:
            raise CheckpointError(
                f"{source} holds {name}, which the model has no place for", did_you_mean(name, expected)
            )
