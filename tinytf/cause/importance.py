"""What an importance matrix says of the tensors in which two models differ, beside what they do to the predictions.

llama-quantize rounds a matrix so that Σ importance·ΔW² is small, where the importance of an input is its mean square on
a text. That is the squared change of the matrix's output if its inputs are uncorrelated. It says nothing of what
later layers make of the change; the damage does.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from tinytf.cause.model_pair import ModelPair
from tinytf.checkpoints.gguf.architecture import ARCHITECTURES, table_of
from tinytf.checkpoints.gguf.imatrix import Imatrix, read_imatrix
from tinytf.checkpoints.table import FamilyTable, Stored, layer_of
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.estimate import rank_correlation
from tinytf.fields import quoted
from tinytf.model.transformer import Transformer
from tinytf.report import Data
from tinytf.text_model import TextModel

AGREES, PARTLY = 0.7, 0.4
"""The rank correlations from which on an importance matrix agrees with the damage, and partly agrees."""
_TOP = 100  # one input in so many is among the largest


@dataclass(frozen=True)
class TensorImportance(Data):
    """One tensor, its ``name`` in the file, and the mean ``importance`` of its inputs.

    ``top_share`` of the importance belongs to the largest 1 % of the inputs. ``error`` is Σ importance·ΔW², and
    ``relative`` its root as a share of that of Σ importance·W². ``damage`` is the KL measured, None if it was not.
    """

    address: str
    name: str
    importance: float
    top_share: float
    error: float
    relative: float
    damage: float | None


@dataclass(frozen=True)
class Importance(Data):
    """The importance of the ``tensors`` that differ, the most damaging first; ``without`` are those the file lacks.

    It was measured on ``datasets``, in ``chunks`` of ``chunk_size`` tokens; None if the file does not say.
    """

    ALSO: ClassVar = ("rank_correlation", "rank_correlation_relative", "verdict")

    datasets: tuple[str, ...]
    chunks: int | None
    chunk_size: int | None
    tensors: tuple[TensorImportance, ...]
    without: tuple[str, ...]

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's, of the error with the damage; None for fewer than three tensors with both."""
        return self._correlation("error")

    @property
    def rank_correlation_relative(self) -> float | None:
        """Spearman's, of the relative error with the damage."""
        return self._correlation("relative")

    def _correlation(self, by: str) -> float | None:
        measured = [tensor for tensor in self.tensors if tensor.damage is not None]
        return rank_correlation([getattr(tensor, by) for tensor in measured], [tensor.damage for tensor in measured])

    @property
    def verdict(self) -> str | None:
        """Whether the errors rank the tensors as the damage does, in words."""
        correlation = self.rank_correlation
        if correlation is None:
            return None
        return "agrees" if correlation >= AGREES else "partly agrees" if correlation >= PARTLY else "does not agree"


@torch.no_grad()
def importance(
    model: TextModel, versus: TextModel, imatrix: str | Path, damages: Mapping[str, float] | None = None
) -> Importance:
    """Read an importance matrix, of llama-imatrix, and weigh with it how ``versus`` differs from the model.

    ``damages`` are the KLs of tensors alone, by path. Raises CheckpointError for a file that cannot be read, and
    UsageError for one of another model.
    """
    models, found = ModelPair(model, versus), read_imatrix(Path(imatrix))
    places = _places(models.first.model, found)
    tensors, without = [], []
    for path in models.changed:
        address = str(models.places[path][0])
        name, layout = places.get(path, ("", None))
        means = found.means.get(name)
        if layout is None or means is None or bool(means.isnan().all()):
            if len(models.ours[path][path].shape) > 1:
                without.append(address)
            continue
        ours, theirs = (values[path][path].float() for values in (models.ours, models.theirs))
        weights = _as_ours(means, ours, layout, layer_of(path, model.config), found.path, name).to(ours)
        error, size = (float((weights * change.square()).sum(dtype=torch.float64)) for change in (theirs - ours, ours))
        counted = means[~means.isnan()]
        largest = counted.topk(-(-len(counted) // _TOP)).values
        tensors.append(
            TensorImportance(
                address,
                name,
                importance=float(counted.mean()),
                top_share=float(largest.sum() / counted.sum()) if bool(counted.any()) else 0.0,
                error=error,
                relative=math.sqrt(error / size) if size else 0.0,
                damage=(damages or {}).get(path),
            )
        )
    tensors.sort(key=lambda tensor: -math.inf if tensor.damage is None else tensor.damage, reverse=True)
    return Importance(found.datasets, found.chunks, found.chunk_size, tuple(tensors), tuple(without))


def _places(model: Transformer, found: Imatrix) -> dict[str, tuple[str, Stored]]:
    """The GGUF name and layout of each parameter, in the first architecture that has all names of the file."""
    message, parameters = "", [path for path, _ in model.named_parameters()]
    for architecture in ARCHITECTURES:
        table = table_of(architecture, found.means)
        fits = all(model.config.setting(name) == value for name, value in table.fixed.items())
        if not fits or not all(table.has(path) for path in parameters):
            continue
        places = {path: _place(table, model, path, found) for path in parameters}
        known = {name for name, _ in places.values()}
        unknown = next((name for name in found.means if name not in known), None)
        if unknown is not None:
            message = message or f"it has {quoted(unknown)}, and the model does not"
        elif blocks := _blocks(known) - _blocks(found.means):
            message = message or f"it has nothing of blk.{min(blocks)}"
        else:
            return places
    if message:
        raise UsageError(f"{found.path} is an importance matrix of another model: {message}")
    raise UsageError("there are no GGUF names for the tensors of this model", "leave out the importance matrix")


def _place(table: FamilyTable, model: Transformer, path: str, found: Imatrix) -> tuple[str, Stored]:
    """The name and layout of a parameter, as the file has it; experts that are stored separately have none."""
    name, layout = table.place(path, model.config)
    (other, other_layout), *more = table.locations(path, 1, model.config, stored=found.means)
    return (name, layout) if more else (other, other_layout)


def _blocks(names: Iterable[str]) -> set[int]:
    return {int(name.split(".")[1]) for name in names if name.startswith("blk.")}


def _as_ours(means: Tensor, ours: Tensor, layout: Stored, config: ModelConfig, path: Path, name: str) -> Tensor:
    """The importance of the input of every weight, in the layout of our tensor."""
    stored = layout.stored_shape(tuple(ours.shape), config)
    matrices, inputs = (stored[0] if len(stored) > 2 else 1), stored[-1]
    if means.numel() != matrices * inputs:
        raise UsageError(
            f"{path} is an importance matrix of another model: {name} has {means.numel():,} inputs there, and "
            f"{matrices * inputs:,} here"
        )
    rows = means.nan_to_num().view(matrices, 1, inputs)  # no tokens, no importance
    spread = rows.expand(matrices, math.prod(stored) // (matrices * inputs), inputs).reshape(stored)
    return replace(layout, offset=0.0, factor=1.0, rate=False).read(spread, config)
