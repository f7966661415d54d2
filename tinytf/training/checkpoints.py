"""Checkpoints of a run: folders that are there whole or not at all, and from which a run goes on to the bit.

``RUN/checkpoints/step-000250`` holds a model as any run directory does (config.json, model.safetensors,
tokenizer.json), and beside it optimizer.safetensors (moments, random state) and training.json (all the rest). The
model of the newest one is also that of the run itself.
"""

import contextlib
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from tinytf.checkpoints.run import load_run, write_run
from tinytf.checkpoints.run_config import CHECKPOINTS, checkpoint_step, checkpoints_of
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, TrainingError
from tinytf.fields import Limits, fields_of, require_fields
from tinytf.files import flush_folder, read_json, replacing, to_json, write_whole
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.processes import Whole
from tinytf.training.run_files import remove_checkpoint

_RANDOM = "random state"


@dataclass
class Progress:
    """Where a run is: ``step`` optimiser steps are done. ``best`` is the lowest held-out loss, at ``best_step``.

    ``corpus`` is the fingerprint of what is trained on, ``processes`` how many train, ``milestones`` the state of
    what is told of heads.
    """

    step: int = 0
    best: float | None = None
    best_step: int = 0
    corpus: str = ""
    processes: int = 1
    milestones: dict[str, dict[str, int]] = field(default_factory=dict)


_PROGRESS = fields_of(Progress, dict.fromkeys(("step", "best_step", "processes"), Limits(least=0)))


@dataclass(frozen=True)
class State:
    """All numbers of a run at one step, whole, on the processor, by the names that they have in the files."""

    config: ModelConfig
    weights: dict[str, Tensor]
    optimiser: dict[str, Tensor]

    @classmethod
    def of(
        cls, model: Transformer, optimiser: torch.optim.Optimizer, random: Sequence[Tensor], holding: Whole
    ) -> "State":
        """``random`` is the state of torch's random numbers in every process."""

        def stored(tensor: Tensor) -> Tensor:
            return holding.whole(tensor.detach()).cpu().contiguous()

        weights = {name: stored(tensor) for name, tensor in model.state_dict().items()}
        moments = {
            f"{name}.{moment}": stored(optimiser.state[parameter][moment])
            for name, parameter in model.named_parameters()
            if parameter in optimiser.state
            for moment in _MOMENTS
        }
        return cls(model.config, weights, moments | _random_tensors(random))


def save_checkpoint(run: Path, state: State, tokenizer: Tokenizer, progress: Progress) -> Path:
    """Write one checkpoint beside its place, and rename it there when all of it is on the disk.

    Raises TrainingError when it cannot be written, for want of room for example; what was there stays.
    """
    place = run / CHECKPOINTS / f"step-{progress.step:06d}"
    beside = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        beside.mkdir(parents=True)
        write_run(beside, state.config, state.weights, tokenizer)
        write_whole(beside / "optimizer.safetensors", save_tensors(state.optimiser))
        write_whole(beside / "training.json", to_json(vars(progress)))
        flush_folder(beside)
        if place.exists():
            remove_checkpoint(place)
        if place.exists():  # somebody keeps files of his own in it
            for path in sorted(beside.iterdir()):  # training.json comes last
                path.replace(place / path.name)
            beside.rmdir()
        else:
            beside.replace(place)
        flush_folder(place.parent)
        for name in _MODEL:
            _publish(place / name, run / name)
    except OSError as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(beside)
        before = checkpoints_of(run)
        kept = f"; the checkpoint of step {checkpoint_step(before[-1]):,} is whole" if before else ""
        raise TrainingError(
            f"cannot write the checkpoint of step {progress.step:,}: {error.strerror or error}{kept}",
            "make room, then go on with --resume" if before else "make room, or give another --out",
        ) from None
    return place


_MODEL = ("tokenizer.json", "model.safetensors", "config.json")


def _publish(stored: Path, place: Path) -> None:
    """Let the run itself be opened, with the newest weights: the same file under a second name, where that can be."""
    with replacing(place) as beside:
        try:
            os.link(stored, beside)
        except OSError:
            shutil.copyfile(stored, beside)


def keep_checkpoints(run: Path, count: int, also: Collection[int]) -> None:
    """Remove all checkpoints but the last ``count`` and those of the steps in ``also``."""
    for place in checkpoints_of(run)[:-count]:
        if checkpoint_step(place) not in also:
            remove_checkpoint(place)


def resume(place: Path, model: Transformer, optimiser: torch.optim.Optimizer, rank: int, holding: Whole) -> Progress:
    """Put model, optimiser and torch's random numbers where the checkpoint left them, in the process ``rank``.

    Raises CheckpointError, naming the file, for one that is damaged or of another model.
    """
    stored = load_run(place)
    if stored.config != model.config:
        raise CheckpointError(f"{place} is of another model than the recipe describes")
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), stored.parameters(), strict=True):
            mine.copy_(holding.divided(theirs, mine))  # a copy: the file stays free to be replaced
    path = place / "optimizer.safetensors"
    try:
        tensors = load_tensors(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path.name} in {place}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            optimiser.state[parameter] = _state_of(names[parameter], tensors, parameter, path, holding)
    _restore_random(tensors, path, rank)
    path = place / "training.json"
    return Progress(**require_fields(read_json(path), _PROGRESS, "training", CheckpointError, path))


_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def _random_tensors(random: Sequence[Tensor]) -> dict[str, Tensor]:
    tensors = {f"{_RANDOM} {rank}": state for rank, state in enumerate(random)}
    if torch.cuda.is_available():
        tensors[f"{_RANDOM} of cuda"] = torch.cuda.get_rng_state()
    return tensors


def _state_of(
    name: str, tensors: dict[str, Tensor], parameter: Tensor, path: Path, holding: Whole
) -> dict[str, Tensor]:
    found = {}
    for moment in _MOMENTS:
        tensor = tensors.get(f"{name}.{moment}")
        if tensor is None or (moment != "step" and tensor.shape != parameter.shape):
            raise CheckpointError(f"{path} lacks {name}.{moment}, or has it in another shape")
        # Fused optimisers want the number of steps on the device of the parameter.
        found[moment] = tensor.to(parameter.device) if moment == "step" else holding.divided(tensor, parameter)
    return found


def _restore_random(tensors: dict[str, Tensor], path: Path, rank: int) -> None:
    if f"{_RANDOM} 0" not in tensors:
        raise CheckpointError(f"{path} lacks the {_RANDOM}")
    torch.set_rng_state(tensors.get(f"{_RANDOM} {rank}", tensors[f"{_RANDOM} 0"]))
    if torch.cuda.is_available() and f"{_RANDOM} of cuda" in tensors:
        torch.cuda.set_rng_state(tensors[f"{_RANDOM} of cuda"])
