"""What the folder of a run says without its weights: its configuration and checkpoints; free of torch."""

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


def checkpoint_step(place: Path) -> int:
    """The step that a checkpoint's folder is named after."""
    found = _STEP.fullmatch(place.name)
    return int(found[1]) if found else -1


def _holds_checkpoint(place: Path) -> bool:
    """False once its files were removed and only others are left."""
    return (place / "config.json").exists() or (place / "training.json").exists()


def checkpoints_of(run: Path) -> list[Path]:
    """The checkpoints of a run that is or was trained, the oldest first."""
    folder = run / CHECKPOINTS
    places = folder.iterdir() if folder.is_dir() else []
    found = [place for place in places if checkpoint_step(place) >= 0 and _holds_checkpoint(place)]
    return sorted(found, key=checkpoint_step)


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
    """How many parameters a run directory holds, by the header of its weights; None where it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(directory / "model.safetensors", framework="np") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
