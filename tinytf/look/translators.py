"""Translators of a tuned lens: an affine map of the residual stream at each stage, and the files that hold them.

Belrose et al. 2023, "Eliciting Latent Predictions from Transformers with the Tuned Lens". A translator takes the stream
x of its stage to x + x·Aᵀ + b, which the model's final norm and head then read. Shapes: C d_model, S stages.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tinytf.checkpoints.weights import Pickled, Safetensors
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.files import read_json, reading
from tinytf.steps.table import StepKey, table_of

_PACKAGE = "linear_tuned_lens"
"""The kind of lens that the tuned-lens package writes, as its config.json calls it."""


def lens_stages(config: ModelConfig) -> list[StepKey]:
    """The stages that have translators: the embeddings, and the outputs of all layers but the last."""
    table = table_of(config)
    layers = [layer for layer in range(config.n_layers - 1) if table.has(table.output, layer)]
    return [(table.embedded, None), *((table.output, layer) for layer in layers)]


def stage_names(config: ModelConfig) -> list[str]:
    """The addresses of ``lens_stages``."""
    return [table_of(config).at(*stage).full_name(stage[1]) for stage in lens_stages(config)]


@dataclass(frozen=True, eq=False)
class Translators:
    """For each of S stages its ``weights``, A (C, C), and ``biases``, b (C,); ``source`` names their file."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    source: str = ""

    @classmethod
    def identity(cls, config: ModelConfig, device: torch.device | str = "cpu") -> "Translators":
        """Translators that change nothing."""
        count, width = len(lens_stages(config)), config.d_model
        weights = tuple(torch.zeros(width, width, device=device) for _ in range(count))
        return cls(weights, tuple(torch.zeros(width, device=device) for _ in range(count)))

    def __call__(self, stage: int, x: Tensor) -> Tensor:
        """The stream (…, C) of a stage, translated."""
        return x + (x @ self.weights[stage].to(x).T + self.biases[stage].to(x))


def read_translators(path: str | Path, config: ModelConfig) -> Translators:
    """The translators in a file that ``lens --train`` wrote, or in a folder or params.pt of the tuned-lens package.

    Raises UsageError for anything else, for translators of another width or number of layers, and for numbers that are
    not finite; CheckpointError for a damaged file, and a folder without config.json.
    """
    path, names = Path(path), stage_names(config)
    tensors = _tensors(path / "params.pt" if path.is_dir() else path)
    if path.is_dir() and (kind := read_json(path / "config.json").get("lens_type", _PACKAGE)) != _PACKAGE:
        raise UsageError(f"{path} is a lens of the kind {kind!r}", f"{_PACKAGE} is the kind that is read")
    if "0.weight" in tensors:  # the package numbers the inputs of all layers
        names = [str(number) for number in range(len(names))]
    held = {name.rpartition(".")[0] for name in tensors}
    if held != set(names):
        raise UsageError(
            f"{path} translates {len(held):,} stages, and this model has {len(names):,}, {names[0]} to {names[-1]}",
            "a lens belongs to the model that it was trained on",
        )
    without = torch.zeros(config.d_model)  # the package can leave biases out
    weights = (_checked(path, name, tensors.get(f"{name}.weight"), (config.d_model,) * 2) for name in names)
    biases = (_checked(path, name, tensors.get(f"{name}.bias", without), (config.d_model,)) for name in names)
    return Translators(tuple(weights), tuple(biases), str(path))


def _tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; a pickle is read without running its code. Raises CheckpointError if damaged."""
    try:
        file = (Safetensors if path.suffix.lower() == ".safetensors" else Pickled)(reading(path))
    except OSError as error:
        hint = "tinytf lens --train CORPUS -o lens.safetensors writes one"
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from None
    return {name: file.stored(name) for name in file.shapes}


def _checked(path: Path, name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    if tensor is None or tuple(tensor.shape) != shape:
        size = "missing" if tensor is None else f"{' × '.join(map(str, tensor.shape))} numbers"
        needed = " × ".join(map(str, shape))
        raise UsageError(f"a translator of {name} in {path} is {size}, and this model needs {needed}")
    if not tensor.isfinite().all():
        raise UsageError(f"the translator of {name} in {path} has numbers that are not finite")
    return tensor
