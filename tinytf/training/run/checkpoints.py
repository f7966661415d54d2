"""Checkpoints of a run: folders that appear whole or not at all, and from which a run resumes to the bit.

``RUN/checkpoints/step-000250`` holds a model as any run directory does (config.json, model.safetensors,
tokenizer.json), optimizer.safetensors (moments, random state), training.json (all the rest) and SHA256SUMS, as
sha256sum writes it. The model of the newest is also that of the run itself.
"""

import filecmp
import hashlib
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
from tinytf.outputs import beside, flush_folder, link, make_folder, move, remedy, remove_all, remove_folder, write_state
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.folder.run_files import remove_checkpoint
from tinytf.training.tuning.lora import Adapters
from tinytf.training.tuning.sharding import part_like, whole

RANDOM = "random state"
_SUMS = "SHA256SUMS"
_MODEL = ("tokenizer.json", "model.safetensors", "config.json")
_FILES = (*_MODEL, "optimizer.safetensors", "training.json")


@dataclass
class Progress:
    """The progress of a run: ``step`` optimiser steps are done. ``best`` is the lowest held-out loss, at ``best_step``.

    ``corpus`` is the fingerprint of the text, ``processes`` how many train, ``milestones`` see ``update_milestones``.
    ``pending`` is the line of metrics of the last step, whose held-out text is measured once it is saved.
    """

    step: int = 0
    best: float | None = None
    best_step: int = 0
    corpus: str = ""
    processes: int = 1
    milestones: dict[str, dict[str, int]] = field(default_factory=dict)
    pending: dict[str, Any] = field(default_factory=dict)


_PROGRESS = fields_of(Progress, dict.fromkeys(("step", "best_step", "processes"), Limits(least=0)))


@dataclass(frozen=True)
class RunState:
    """All numbers of a run at one step, whole, on the CPU, by their names in the files."""

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
        """``random`` are the states of torch's random numbers in every process. Weights have ``adapters`` merged."""

        def stored(tensor: Tensor) -> Tensor:
            return whole(tensor.detach()).cpu().contiguous()

        weights = {name: stored(tensor) for name, tensor in model.named_parameters()}
        tensors = {
            f"{name}.{moment}": stored(optimiser.state[parameter][moment])
            for name, parameter in _trained(model, adapters)
            if parameter in optimiser.state
            for moment in optimiser.state[parameter]
        }
        if adapters is not None:
            weights |= adapters.merged()
            tensors |= {name: stored(parameter) for name, parameter in adapters.named()}
        tensors |= {f"{RANDOM} {rank}": state for rank, state in enumerate(random)}
        if torch.cuda.is_available():
            tensors[f"{RANDOM} of cuda"] = torch.cuda.get_rng_state()
        return cls(model.config, weights, tensors)


def _trained(model: Transformer, adapters: Adapters | None) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters by their names in a checkpoint: the model's, and those of its adapters."""
    yield from model.named_parameters()
    yield from () if adapters is None else adapters.named()


def place_of(run: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return run / CHECKPOINTS / f"step-{step:06d}"


def save_checkpoint(run: Path, state: RunState, tokenizer: Tokenizer, progress: Progress) -> Path:
    """Write one checkpoint beside its place, and rename it when all of it is on the disk.

    Raises TrainingError when it cannot be written, for example on a full disk; the checkpoints before it stay.
    """
    place = place_of(run, progress.step)
    folder = beside(place)
    try:
        make_folder(folder)
        write_run(folder, state.config, state.weights, tokenizer)
        write_state(folder / "optimizer.safetensors", save_tensors(state.optimiser))
        write_state(folder / "training.json", to_json(vars(progress)))
        write_state(folder / _SUMS, b"".join(_sum_line(folder / name) for name in _FILES))
        flush_folder(folder)
        if place.exists():
            remove_checkpoint(place)
        if place.exists():  # it holds files that no run wrote
            for path in sorted(folder.iterdir()):
                move(path, place / path.name)
            remove_folder(folder)
        else:
            move(folder, place)
        flush_folder(place.parent)
    except OSError as error:
        remove_all(folder)
        before = checkpoints_of(run)
        kept = f"; the checkpoint of step {checkpoint_step(before[-1]):,} is whole" if before else ""
        file = str(error.filename or place).replace(folder.name, place.name)
        raise TrainingError(
            f"cannot write {file}: {error.strerror or error}{kept}",
            remedy(error, "continue with --resume" if before else "give another --out"),
        ) from None
    return place


def publish(run: Path, step: int) -> None:
    """Give the run itself the model of a checkpoint: second names of its files, or copies where that is impossible."""
    for name in _MODEL:
        link(place_of(run, step) / name, run / name)


def is_published(run: Path, step: int) -> bool:
    """Whether the newest checkpoint is of this step, and the run itself has its model."""
    place = place_of(run, step)
    try:
        same = [filecmp.cmp(run / name, place / name, shallow=False) for name in _MODEL]
    except OSError:
        return False
    return checkpoints_of(run)[-1:] == [place] and all(same)


def keep_checkpoints(run: Path, step: int, count: int, also: Collection[int]) -> None:
    """Remove all checkpoints but the last ``count`` up to ``step`` and those of the steps in ``also``.

    Those of later steps were damaged, since the run went on from an earlier one.
    """
    found = checkpoints_of(run)
    reached = [place for place in found if checkpoint_step(place) <= step]
    for place in found:
        if place not in reached[-count:] and checkpoint_step(place) not in also:
            remove_checkpoint(place)


def _sum_line(path: Path) -> bytes:
    """A line of SHA256SUMS: as ``sha256sum --check`` reads it."""
    with open_bytes(path) as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n".encode("ascii")


def newest_whole(run: Path, on_note: Callable[[str], None] = lambda _: None) -> Path | None:
    """The newest checkpoint whose files are what they were when they were written; None without any.

    ``on_note`` hears of those passed over. Raises CheckpointError where all are damaged.
    """
    faults: list[CheckpointError] = []
    for place in reversed(checkpoints_of(run)):
        try:
            require_whole(place)
        except CheckpointError as error:
            faults.append(error)
            continue
        for fault in faults:
            on_note(f"{fault.message}; the run goes on from the checkpoint of step {checkpoint_step(place):,}")
        return place
    if faults:
        raise CheckpointError(faults[0].message, "no checkpoint of this run is whole; begin another run")
    return None


def require_whole(place: Path) -> None:
    """Raise CheckpointError for a checkpoint whose files differ from their checksums, or that says nonsense."""
    progress, sums = read_progress(place), place / _SUMS
    if progress.step != checkpoint_step(place):
        raise CheckpointError(f"{place / 'training.json'} is of step {progress.step:,}, and its folder is {place.name}")
    if not sums.exists():  # an older checkpoint
        return
    try:
        written = read_bytes(sums, SMALL).splitlines(keepends=True)
        changed = [name for name in _FILES if _sum_line(place / name) not in written]
    except OSError as error:
        raise CheckpointError(f"{place} is damaged: cannot read {error.filename}: {error.strerror}") from None
    if changed:
        raise CheckpointError(f"{place / changed[0]} is damaged: it differs from its checksum in {_SUMS}")


def read_progress(place: Path) -> Progress:
    """What training.json of a checkpoint says. Raises CheckpointError, naming the field."""
    path = place / "training.json"
    return Progress(**require_fields(read_json(path), _PROGRESS, "training", CheckpointError, path))


def restore(
    place: Path, model: Transformer, optimiser: torch.optim.Optimizer, rank: int, adapters: Adapters | None = None
) -> Progress:
    """Put model, optimiser and torch's random numbers where the checkpoint left them, in the process ``rank``.

    Raises CheckpointError, naming the file, for one that is damaged or of another model. With ``adapters`` the model
    itself stays: it is the one that the run began from, which the checkpoint has merged with them.
    """
    stored = load_run(place)
    if stored.config != model.config:
        raise CheckpointError(f"{place} is of another model than the recipe describes")
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), stored.parameters(), strict=True):
            if adapters is None:
                mine.copy_(part_like(mine, theirs))  # a copy: the file can still be replaced
    path = place / "optimizer.safetensors"
    try:
        tensors = load_tensors(reading(path).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path.name} in {place}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    names = {parameter: name for name, parameter in _trained(model, adapters)}
    if adapters is not None:
        _restore_adapters(adapters, tensors, stored, path)
    for parameter in (one for group in optimiser.param_groups for one in group["params"]):
        optimiser.state[parameter] = state = {}
        for moment in ("step", "exp_avg", "exp_avg_sq"):
            tensor = tensors.get(name := f"{names[parameter]}.{moment}")
            if tensor is None or (moment != "step" and tensor.shape != parameter.shape):
                raise CheckpointError(f"{path} lacks {name}, or has it in another shape")
            # Fused optimisers want the number of steps on the device of the parameter.
            state[moment] = tensor.to(parameter.device) if moment == "step" else part_like(parameter, tensor)
    if f"{RANDOM} 0" not in tensors:
        raise CheckpointError(f"{path} lacks the {RANDOM}")
    torch.set_rng_state(tensors.get(f"{RANDOM} {rank}", tensors[f"{RANDOM} 0"]))
    if torch.cuda.is_available() and f"{RANDOM} of cuda" in tensors:
        torch.cuda.set_rng_state(tensors[f"{RANDOM} of cuda"])
    return read_progress(place)


@torch.no_grad()
def _restore_adapters(adapters: Adapters, tensors: Mapping[str, Tensor], stored: Transformer, path: Path) -> None:
    """Put the adapters where the checkpoint left them. Raises CheckpointError where the model below them is another."""
    for name, parameter in adapters.named():
        if (tensor := tensors.get(name)) is None or tensor.shape != parameter.shape:
            raise CheckpointError(f"{path} lacks {name}, or has it in another shape")
        parameter.copy_(tensor)
    for name, weight in adapters.merged().items():
        if not torch.allclose(weight, stored.get_parameter(name), rtol=1e-4, atol=1e-6):
            raise CheckpointError(f"{name} is not what the run began from", "name the model that --from named then")
