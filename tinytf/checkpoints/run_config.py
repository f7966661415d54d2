"""The configuration and the checkpoints of a run directory, without its weights; free of torch."""

import math
import re
from pathlib import Path

from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError
from tinytf.fields import faults_of
from tinytf.files import read_json

FORMAT = "tinytf"
FORMAT_VERSION = 1
CHECKPOINTS = "checkpoints"
_STEP = re.compile(r"step-(\d{6,})")


def checkpoint_step(folder: Path) -> int:
    """The step in the name of a checkpoint's folder; -1 for any other folder."""
    match = _STEP.fullmatch(folder.name)
    return int(match[1]) if match else -1


def _holds_checkpoint(folder: Path) -> bool:
    """Whether a folder still has the files of a checkpoint."""
    return (folder / "config.json").exists() or (folder / "training.json").exists()


def checkpoints_of(run: Path) -> list[Path]:
    """The folders of a run's checkpoints, the oldest first."""
    parent = run / CHECKPOINTS
    folders = parent.iterdir() if parent.is_dir() else []
    checkpoints = [folder for folder in folders if checkpoint_step(folder) >= 0 and _holds_checkpoint(folder)]
    return sorted(checkpoints, key=checkpoint_step)


def read_config(directory: Path) -> ModelConfig:
    """The model configuration of a run directory."""
    path = directory / "config.json"
    data = read_json(path)
    if data.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a tinytf configuration (format {data.get('format')!r})",
            "tinytf opens the run directories that tinytf train writes",
        )
    if data.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{directory} has format version {data.get('format_version')!r}; this tinytf reads {FORMAT_VERSION}"
        )
    if not isinstance(data.get("model"), dict):
        raise CheckpointError(f"{path} has no 'model' object")
    with faults_of(path):
        return ModelConfig.from_dict(data["model"])


def read_parameter_count(directory: Path) -> int | None:
    """The number of parameters of a run, from the header of its weights; None if that cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(directory / "model.safetensors", framework="np") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
