"""Reading a recorded corpus: the folder that ``tinytf record`` writes, as lazy tensors over its shards.

Shapes: N recorded tokens, C numbers of a token at one address.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from tinytf import kept
from tinytf.checkpoints.load import damage_error
from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import Field, Fields, Limits, quoted, shown
from tinytf.files import read_json, reading
from tinytf.nearest import did_you_mean
from tinytf.resume_log import checksum
from tinytf.sentences import first_of
from tinytf.short_repr import ShortRepr

INDEX, KIND, FORMAT = kept.INDEX, kept.RECORDED, 1
INDEX_BYTES = 2**28
"""The most bytes of an index: some two million shards."""
IDS, DOCUMENT, POSITION = "ids", "document", "position"
"""The tensors (N,) that stand in every shard beside the activations."""
SOURCE_IDS, SOURCE_DOCUMENT = "source_ids", "source_document"
"""The tensors (M,) of the tokens that an encoder read for the targets of a shard, and the document of each."""
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
ROWS = {True: "every token", False: "last token"}
"""What has a row, as an index says it: every token, or the last of each document."""
_MOST = 2**63 - 1
_COUNT = Limits(least=0, most=_MOST)
_FIELDS = (
    Field("model", dict),
    Field("at", dict),
    Field("dtype", str, limits=Limits(choices=DTYPES)),
    Field("rows", str, limits=Limits(choices=ROWS.values())),
    Field("window", int, limits=Limits(least=1, most=_MOST)),
    Field("tokens", int, limits=_COUNT),
    Field("documents", int, limits=_COUNT),
    Field("complete", bool),
    Field("shards", list, of=dict),
)
BATCH = 4096
"""Tokens in one batch, by default."""


def is_recorded(path: Path) -> bool:
    """Whether a path is the folder of a recorded corpus; its index is not checked further."""
    try:
        return read_json(path / INDEX, INDEX_BYTES).get("kind") == KIND
    except CheckpointError:
        return False


def recorded(folder: str | Path) -> "RecordedCorpus":
    """Open the folder that ``tinytf record`` wrote; no tensor is read yet.

    Raises UsageError for a folder that is none, or from which a shard is missing, CheckpointError for a damaged index.
    """
    path = Path(folder)
    if not (path / INDEX).is_file():
        raise UsageError(
            f"{path} is not a recorded corpus: it has no {INDEX}", "tinytf record CORPUS --out DIR makes one"
        )
    index = read_index(path)
    where, hint = path / INDEX, "record the corpus again"
    shards = tuple(_shard(path, Fields(row, where, hint=hint)) for row in index["shards"])
    steps = {}
    for name, row in index["at"].items():
        step = Fields({} if not isinstance(row, dict) else row, f"{where}: {quoted(name)}", hint=hint)
        steps[name] = RecordedStep(shards, name, tuple(step.array("axes", str)), tuple(step.array("shape", int)))
    if not shards:
        raise UsageError(f"{path} has no finished shard yet", "give the same tinytf record command again")
    if missing := [shard.path.name for shard in shards if not shard.path.is_file()]:
        raise UsageError(
            f"{path} lacks {first_of(missing, 3)}, which its index names", "give the same tinytf record command again"
        )
    numbers = sum(math.prod(step.row_shape) for step in steps.values())
    follow = shards[0].first == 0 and all(a.stop == b.first for a, b in pairwise(shards))
    if not follow or any(min(step.row_shape, default=1) < 1 for step in steps.values()):
        raise CheckpointError(f"{where} is damaged", hint)
    for shard in shards:  # each number takes a byte at least, so that no size in the index is larger than the disk
        if not 0 <= (shard.stop - shard.first) * (numbers + 1) <= shard.path.stat().st_size:
            raise CheckpointError(f"{where} is damaged: {shard.path.name} is of another size", hint)
    return RecordedCorpus(path, index, shards, steps)


def read_index(folder: Path) -> dict[str, Any]:
    """The index.json of a recorded corpus, with every field that it must have. Raises UsageError for another kind or
    format, CheckpointError for a damaged one.
    """
    index = read_json(folder / INDEX, INDEX_BYTES)
    if index.get("kind") != KIND:
        raise UsageError(f"{folder} is not a recorded corpus: its {INDEX} is of something else", "name a new folder")
    if index.get("format") != FORMAT:
        raise UsageError(f"{folder} is of format {shown(index.get('format'))}, and this tinytf reads {FORMAT}")
    fields = Fields(index, folder / INDEX, hint="record the corpus again")
    for field_ in _FIELDS:
        fields.get(field_)
    model = Fields(index["model"], f"{folder / INDEX}: model", hint="record the corpus again")
    model.text("name"), model.text("checksum")
    return index


@dataclass(frozen=True)
class Shard:
    """A safetensors file with the recorded tokens ``first`` to ``stop`` (exclusive)."""

    path: Path
    first: int
    stop: int

    def rows(self, name: str, start: int, stop: int, row_shape: tuple[int, ...] = ()) -> Tensor:
        """Some of its tokens at one address, counted from 0 in the shard. Raises CheckpointError for a damaged file."""
        tensor = self._read(name, slice(start, stop))
        if tensor.shape != (stop - start, *row_shape):
            raise damage_error(self.path, f"{name} has the shape {tuple(tensor.shape)} where its index says otherwise")
        return tensor

    def whole(self, name: str) -> Tensor:
        """All numbers of a tensor that has no row for each token. Raises CheckpointError for a damaged file."""
        return self._read(name, slice(None))

    def _read(self, name: str, rows: slice) -> Tensor:
        try:
            with safe_open(reading(self.path), framework="pt") as file:
                tensor: Tensor = file.get_slice(name)[rows]
        except (SafetensorError, OSError) as error:
            raise damage_error(self.path, str(error)) from None
        return tensor


def _shard(folder: Path, row: Fields) -> Shard:
    return Shard(
        folder / Path(row.text("file")).name,
        row.whole("first", least=0, most=_MOST),
        row.whole("stop", least=0, most=_MOST),
    )


@dataclass(frozen=True)
class RecordedStep(ShortRepr):
    """One address of a recorded corpus, (N, …): slices, indices and lists of indices read what they name and no more.

    ``axes`` name the axes after that of the tokens. ``np.asarray`` and ``[:]`` read everything.
    """

    shards: tuple[Shard, ...] = field(repr=False)
    name: str
    axes: tuple[str, ...] = ()
    row_shape: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.shards[-1].stop

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.row_shape)

    def __getitem__(self, at: int | slice | Sequence[int] | Tensor | NDArray[np.int64]) -> Tensor:
        """The rows at an index, a slice, or a list or tensor of indices, in that order, as they were stored.

        Raises IndexError beyond the end.
        """
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            return self._span(start, stop) if step == 1 else self._picked(torch.arange(len(self))[at])
        if isinstance(at, int | np.integer):
            return self._picked(torch.tensor([int(at)]))[0]
        return self._picked(torch.as_tensor(at))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Everything as one array; bfloat16, which numpy lacks, as float32."""
        tensor = self[:]
        return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(), dtype)

    def batches(self, size: int = BATCH) -> Iterator[Tensor]:
        """Yield all rows in order, ``size`` at a time."""
        yield from (self[start : start + size] for start in range(0, len(self), size))

    def _span(self, start: int, stop: int) -> Tensor:
        parts = [
            self._rows(shard, max(start, shard.first), min(stop, shard.stop))
            for shard in self.shards
            if shard.first < stop and start < shard.stop and shard.first < shard.stop
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else self._span(0, 1)[:0]

    def _picked(self, rows: Tensor) -> Tensor:
        """Rows by number: each shard is read from the first to the last of its own."""
        if rows.dtype == torch.bool:
            rows = rows.nonzero()[:, 0]
        rows = torch.where(rows < 0, rows + len(self), rows).long()
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise IndexError(f"{self.name} has {len(self):,} recorded tokens")
        ends = [shard.stop for shard in self.shards]
        owners = torch.tensor([bisect_right(ends, row) for row in rows.tolist()], dtype=torch.int64)
        picked = self._span(0, 1)[:0].new_empty((len(rows), *self.row_shape))
        for number in owners.unique().tolist():
            own = owners == number
            low, high = int(rows[own].min()), int(rows[own].max())
            picked[own] = self._rows(self.shards[number], low, high + 1)[rows[own] - low]
        return picked

    def _rows(self, shard: Shard, start: int, stop: int) -> Tensor:
        return shard.rows(self.name, start - shard.first, stop - shard.first, self.row_shape)


@dataclass(frozen=True)
class RecordedCorpus(ShortRepr):
    """The activations of a corpus on disk: ``at("L3.out")`` is a lazy tensor (N, C), a row for each recorded token.

    Row n is token ``tokens[n]``, at ``positions[n]`` of document ``documents[n]``, both counted from 0. ``index`` is
    the index.json of the ``folder``; ``complete`` is false if the recording was interrupted.
    """

    folder: Path
    index: Mapping[str, Any] = field(repr=False)
    shards: tuple[Shard, ...] = field(repr=False)
    steps: Mapping[str, RecordedStep] = field(repr=False)

    def repr_members(self) -> dict[str, Any]:
        return {"tokens": len(self), "at": list(self.steps)}

    def __len__(self) -> int:
        """The number of recorded tokens, N."""
        return self.shards[-1].stop

    @property
    def complete(self) -> bool:
        return bool(self.index.get("complete"))

    @property
    def every_token(self) -> bool:
        return bool(self.index["rows"] == ROWS[True])

    def at(self, address: str) -> RecordedStep:
        """The activations at an address, as it was recorded. Raises UsageError, with what there is, for any other."""
        if address not in self.steps:
            hint = did_you_mean(address, list(self.steps), otherwise=f"recorded: {first_of(list(self.steps), 6)}")
            raise UsageError(f"{self.folder} has no {address}", hint)
        return self.steps[address]

    @cached_property
    def tokens(self) -> RecordedStep:
        """The id of each recorded token, (N,)."""
        return RecordedStep(self.shards, IDS)

    @cached_property
    def documents(self) -> RecordedStep:
        """The number of the document of each recorded token, (N,), in ascending order."""
        return RecordedStep(self.shards, DOCUMENT)

    @cached_property
    def positions(self) -> RecordedStep:
        """The position of each recorded token in its document, (N,), without the tokens that the tokenizer adds."""
        return RecordedStep(self.shards, POSITION)

    @cached_property
    def sources(self) -> dict[int, tuple[int, ...]]:
        """The tokens that the encoder of two stacks read for each document; empty for one stack."""
        if not self.index.get("sources"):
            return {}
        sources: dict[int, list[int]] = {}
        for shard in self.shards:
            for token, document in zip(
                *(shard.whole(name).tolist() for name in (SOURCE_IDS, SOURCE_DOCUMENT)), strict=True
            ):
                sources.setdefault(document, []).append(token)
        return {document: tuple(ids) for document, ids in sources.items()}

    def batches(self, address: str, size: int = BATCH) -> Iterator[Tensor]:
        """Yield the activations at an address as float32 (n, C), ``size`` tokens at a time; heads side by side."""
        yield from (batch.flatten(1).float() for batch in self.at(address).batches(size))

    def require_model(self, model: nn.Module, name: str, window: int | None = None) -> None:
        """Raise UsageError unless the corpus was recorded with the weights of ``model``, which has this ``name``.

        Raises it also for a ``window`` that is asked for: the recording has its own.
        """
        if window is not None:
            raise UsageError(f"{self.folder} is recorded in windows of its own", "leave out --window")
        of = self.index["model"]
        if of["checksum"] != checksum(model):
            raise UsageError(
                f"{self.folder} was recorded with other weights, of {of['name']}, than {name} has",
                f"open that model, with -m, or record the corpus with {name}",
            )
