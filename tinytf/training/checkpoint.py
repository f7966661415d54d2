"""Checkpoints of a run: folders that appear complete or not at all, and from which a run resumes bit for bit.

``RUN/checkpoints/step-000250`` holds a model as any run directory does (config.json, model.safetensors,
tokenizer.json), optimizer.safetensors (moments, random state), training.json (everything else) and SHA256SUMS in the
format of sha256sum. The model of the newest checkpoint is also the model of the run itself.
"""

import filecmp
import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from tinytf.checkpoints.run import load_run, write_run
from tinytf.checkpoints.run_config import CHECKPOINTS, checkpoint_step, checkpoints_of
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, TrainingError
from tinytf.fields import Limits, fields_of, require_fields
from tinytf.files import SMALL, open_bytes, read_bytes, read_json, reading, to_json
from tinytf.model.transformer import Transformer
from tinytf.outputs import (
    flush_folder,
    link,
    make_folder,
    move,
    remedy,
    remove_all,
    remove_folder,
    temporary_path,
    write_state,
)
from tinytf.runs.lines import number_or_nan
from tinytf.runs.run_files import remove_checkpoint
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.tuning.lora import Adapters
from tinytf.training.tuning.sharding import gather, shard_like

RANDOM = "random state"
_CHECKSUMS = "SHA256SUMS"
_MODEL = ("tokenizer.json", "model.safetensors", "config.json")
_FILES = (*_MODEL, "optimizer.safetensors", "training.json")


@dataclass
class Progress:
    """The progress of a run: ``step`` optimiser steps are done. ``best`` is the lowest held-out loss, at ``best_step``.

    ``corpus`` is the fingerprint of the text, ``processes`` their number; for ``milestones`` see ``update_milestones``.
    ``pending`` is the line of metrics of the last step, which is saved before its held-out loss is measured.
    """

    step: int = 0
    best: float | None = None
    best_step: int = 0
    corpus: str = ""
    processes: int = 1
    milestones: dict[str, dict[str, int]] = field(default_factory=dict)
    pending: dict[str, Any] = field(default_factory=dict)

    def note_best(self, held_out: object, step: int) -> None:
        """Keep the loss and its step if it is a finite number, and the lowest so far."""
        loss = number_or_nan(held_out)
        if math.isfinite(loss) and (self.best is None or loss < self.best):
            self.best, self.best_step = loss, step


_PROGRESS = fields_of(Progress, dict.fromkeys(("step", "best_step", "processes"), Limits(least=0)))


@dataclass(frozen=True)
class RunState:
    """All numbers of a run at one step, unsharded, on the CPU, by their names in the files."""

    config: ModelConfig
    weights: dict[str, Tensor]
    optimiser: dict[str, Tensor]

    @classmethod
    def of(
        cls,
        model: Transformer,
        optimiser: torch.optim.Optimizer,
        random: Sequence[Tensor],
        adapters: Adapters | None = None,
    ) -> "RunState":
        """Collect a state. ``random`` are torch's random states in every process; ``adapters`` are merged."""

        def on_cpu(tensor: Tensor) -> Tensor:
            return gather(tensor.detach()).cpu().contiguous()

        weights = {name: on_cpu(tensor) for name, tensor in model.named_parameters()}
        tensors = {
            f"{name}.{moment}": on_cpu(optimiser.state[parameter][moment])
            for name, parameter in _trained(model, adapters)
            if parameter in optimiser.state
            for moment in optimiser.state[parameter]
        }
        if adapters is not None:
            weights |= adapters.merged_weights()
            tensors |= {name: on_cpu(parameter) for name, parameter in adapters.named_factors()}
        tensors |= {f"{RANDOM} {rank}": state for rank, state in enumerate(random)}
        if torch.cuda.is_available():
            tensors[f"{RANDOM} of cuda"] = torch.cuda.get_rng_state()
        return cls(model.config, weights, tensors)


def _trained(model: Transformer, adapters: Adapters | None) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters of the model and its adapters, by their names in a checkpoint."""
    yield from model.named_parameters()
    yield from () if adapters is None else adapters.named_factors()


def checkpoint_folder(run: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return run / CHECKPOINTS / f"step-{step:06d}"


def save_checkpoint(run: Path, state: RunState, tokenizer: Tokenizer, progress: Progress) -> Path:
    """Write a checkpoint beside its folder, and rename it once all of it is on the disk.

    Raises TrainingError if it cannot be written, for example on a full disk; earlier checkpoints stay.
    """
    target = checkpoint_folder(run, progress.step)
    folder = temporary_path(target)
    try:
        make_folder(folder)
        write_run(folder, state.config, state.weights, tokenizer)
        write_state(folder / "optimizer.safetensors", save_tensors(state.optimiser))
        write_state(folder / "training.json", to_json(vars(progress)))
        write_state(folder / _CHECKSUMS, b"".join(_checksum_line(folder / name) for name in _FILES))
        flush_folder(folder)
        if target.exists():
            remove_checkpoint(target)
        if target.exists():  # it holds files that no run wrote
            for path in sorted(folder.iterdir()):
                move(path, target / path.name)
            remove_folder(folder)
        else:
            move(folder, target)
        flush_folder(target.parent)
    except OSError as error:
        remove_all(folder)
        checkpoints = checkpoints_of(run)
        saved = f"; the checkpoint of step {checkpoint_step(checkpoints[-1]):,} is intact" if checkpoints else ""
        file = str(error.filename or target).replace(folder.name, target.name)
        raise TrainingError(
            f"cannot write {file}: {error.strerror or error}{saved}",
            remedy(error, "continue with --resume" if checkpoints else "give another --out"),
        ) from None
    return target


def publish(run: Path, step: int) -> None:
    """Give the run itself the model of a checkpoint: hard links to its files, or copies where links are impossible."""
    for name in _MODEL:
        link(checkpoint_folder(run, step) / name, run / name)


def is_published(run: Path, step: int) -> bool:
    """Whether the newest checkpoint is of this step, and the run itself has its model."""
    checkpoint = checkpoint_folder(run, step)
    try:
        same = [filecmp.cmp(run / name, checkpoint / name, shallow=False) for name in _MODEL]
    except OSError:
        return False
    return checkpoints_of(run)[-1:] == [checkpoint] and all(same)


def keep_checkpoints(run: Path, step: int, count: int, also: Collection[int]) -> None:
    """Remove all checkpoints except the last ``count`` up to ``step`` and those of the steps in ``also``.

    Checkpoints of later steps are damaged, since the run resumed from an earlier one.
    """
    checkpoints = checkpoints_of(run)
    up_to_step = [checkpoint for checkpoint in checkpoints if checkpoint_step(checkpoint) <= step]
    for checkpoint in checkpoints:
        if checkpoint not in up_to_step[-count:] and checkpoint_step(checkpoint) not in also:
            remove_checkpoint(checkpoint)


def _checksum_line(path: Path) -> bytes:
    """A line of SHA256SUMS, as ``sha256sum --check`` reads it."""
    with open_bytes(path) as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n".encode("ascii")


def newest_intact(run: Path, on_note: Callable[[str], None] = lambda _: None) -> Path | None:
    """The newest checkpoint whose files match their checksums; None if the run has no checkpoint.

    ``on_note`` is told of every damaged one skipped. Raises CheckpointError if all are damaged.
    """
    faults: list[CheckpointError] = []
    for checkpoint in reversed(checkpoints_of(run)):
        try:
            require_intact(checkpoint)
        except CheckpointError as error:
            faults.append(error)
            continue
        for fault in faults:
            on_note(f"{fault.message}; the run continues from the checkpoint of step {checkpoint_step(checkpoint):,}")
        return checkpoint
    if faults:
        raise CheckpointError(faults[0].message, "no checkpoint of this run is intact; begin another run")
    return None


def require_intact(folder: Path) -> None:
    """Raise CheckpointError if a checkpoint's files differ from their checksums, or its training.json is wrong."""
    progress, checksums = read_progress(folder), folder / _CHECKSUMS
    if progress.step != checkpoint_step(folder):
        raise CheckpointError(
            f"{folder / 'training.json'} is of step {progress.step:,}, but its folder is {folder.name}"
        )
    if not checksums.exists():  # an older checkpoint
        return
    try:
        lines = read_bytes(checksums, SMALL).splitlines(keepends=True)
        changed = [name for name in _FILES if _checksum_line(folder / name) not in lines]
    except OSError as error:
        raise CheckpointError(f"{folder} is damaged: cannot read {error.filename}: {error.strerror}") from None
    if changed:
        raise CheckpointError(f"{folder / changed[0]} is damaged: it differs from its checksum in {_CHECKSUMS}")


def read_progress(folder: Path) -> Progress:
    """Read training.json of a checkpoint. Raises CheckpointError, naming the field."""
    path = folder / "training.json"
    return Progress(**require_fields(read_json(path), _PROGRESS, "training", CheckpointError, path))


def restore(
    folder: Path, model: Transformer, optimiser: torch.optim.Optimizer, rank: int, adapters: Adapters | None = None
) -> Progress:
    """Restore model, optimiser and torch's random state from a checkpoint, in the process ``rank``.

    Raises CheckpointError, naming the file, if it is damaged or of another model. With ``adapters`` the model itself is
    not restored: it is the one that the run began from, while the checkpoint's model has the adapters merged.
    """
    stored = load_run(folder)
    if stored.config != model.config:
        raise CheckpointError(f"{folder} holds another model than the recipe describes")
    with torch.no_grad():
        for parameter, saved in zip(model.parameters(), stored.parameters(), strict=True):
            if adapters is None:
                parameter.copy_(shard_like(parameter, saved))  # a copy, so that the file can be replaced
    path = folder / "optimizer.safetensors"
    try:
        tensors = load_tensors(reading(path).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path.name} in {folder}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    names = {parameter: name for name, parameter in _trained(model, adapters)}
    if adapters is not None:
        _restore_adapters(adapters, tensors, stored, path)
    for parameter in (parameter for group in optimiser.param_groups for parameter in group["params"]):
        optimiser.state[parameter] = state = {}
        for moment in ("step", "exp_avg", "exp_avg_sq"):
            tensor = tensors.get(name := f"{names[parameter]}.{moment}")
            if tensor is None or (moment != "step" and tensor.shape != parameter.shape):
                raise CheckpointError(f"{path} lacks {name}, or has it in another shape")
            # Fused optimisers need the step count on the parameter's device.
            state[moment] = tensor.to(parameter.device) if moment == "step" else shard_like(parameter, tensor)
    if f"{RANDOM} 0" not in tensors:
        raise CheckpointError(f"{path} lacks the {RANDOM}")
    torch.set_rng_state(tensors.get(f"{RANDOM} {rank}", tensors[f"{RANDOM} 0"]))
    if torch.cuda.is_available() and f"{RANDOM} of cuda" in tensors:
        torch.cuda.set_rng_state(tensors[f"{RANDOM} of cuda"])
    return read_progress(folder)


@torch.no_grad()
def _restore_adapters(adapters: Adapters, tensors: Mapping[str, Tensor], stored: Transformer, path: Path) -> None:
    """Restore the adapters from a checkpoint. Raises CheckpointError if the model under them differs."""
    for name, parameter in adapters.named_factors():
        if (tensor := tensors.get(name)) is None or tensor.shape != parameter.shape:
            raise CheckpointError(f"{path} lacks {name}, or has it in another shape")
        parameter.copy_(tensor)
    for name, weight in adapters.merged_weights().items():
        if not torch.allclose(weight, stored.get_parameter(name), rtol=1e-4, atol=1e-6):
            raise CheckpointError(
                f"{name} is not what the run began from", "give --from the model that the run began from"
            )
