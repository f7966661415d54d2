"""Record the activations of a corpus: a stream of windows in, shards of a folder out.

The corpus is cut into shards by its tokens alone, so a shard is the same whoever computes it: a run that was
interrupted, or several processes, skip the shards that are there or are not theirs. Shapes: B windows, T tokens of a
window, n recorded tokens.
"""

import json
import math
import shutil
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor

from tinytf import outputs
from tinytf.bulk.folder import (
    DOCUMENT,
    DTYPES,
    FORMAT,
    IDS,
    INDEX,
    KIND,
    POSITION,
    ROWS,
    SOURCE_DOCUMENT,
    SOURCE_IDS,
    read_index,
)
from tinytf.bulk.passes import Passes, Target, targets_of
from tinytf.bulk.windows import Window, corpus_windows, require_form, window_length
from tinytf.checkpoints.weights import Safetensors
from tinytf.errors import UsageError
from tinytf.files import parse_json, reading, to_json
from tinytf.kept import RECORDING
from tinytf.report import About, Data, Progress, Report, ignore_progress
from tinytf.resume_log import checksum
from tinytf.sentences import first_of, plural
from tinytf.tables import Array, ColumnStyle, in_bytes
from tinytf.tensor_file import safetensors
from tinytf.text.corpus import Corpus
from tinytf.text_model import TextModel
from tinytf.version import __version__

WINDOW = 1024
"""The most tokens of a window, by default."""
SHARD_MB, _SHARD_MB = 64, (0.001, 1_000_000)
"""The size of a shard in megabytes, and its limits."""
"""The default size of a shard, in megabytes."""
_GROUP = 64
"""Windows that are sorted by length before they go through the model in batches."""
_SHOWN = 100
"""Characters that an error shows of each side of a difference."""
_SAMPLE = 100_000
"""Characters of the corpus from which the number of its tokens is estimated."""


class Together(Protocol):
    """Processes that record one corpus: this one is ``rank`` of ``count``."""

    @property
    def rank(self) -> int: ...
    @property
    def count(self) -> int: ...
    def wait(self) -> None: ...
    def total(self, number: float) -> float: ...


@dataclass(frozen=True)
class _OneProcess:
    rank: int = 0
    count: int = 1

    def wait(self) -> None: ...

    def total(self, number: float) -> float:
        return number


ALONE = _OneProcess()


@dataclass(frozen=True)
class StepSize(Data):
    """One recorded address: the axes and the shape of what a token has there."""

    COLUMNS: ClassVar = {
        "at": ColumnStyle("at", role="strong"),
        "axes": ColumnStyle("a row for each token", lambda axes: " × ".join(axes), shrink=12),
        "shape": ColumnStyle("numbers", lambda shape: " × ".join(f"{size:,}" for size in shape), align="right"),
        "bytes": ColumnStyle("size", in_bytes, align="right"),
    }

    at: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class CorpusRecording(Report):
    """What was recorded: ``steps`` of ``tokens`` tokens in ``documents`` documents, in the shards of a folder.

    ``resumed`` is how many of the tokens an earlier run had recorded. Of two stacks the ``sources`` are kept too.
    It is not ``complete`` after Ctrl-C; the same call continues.
    """

    KIND = "record"
    ROWS = "steps"
    EVENTS: ClassVar = {"steps": "step"}
    ALWAYS_SAID = True

    folder: str
    steps: tuple[StepSize, ...]
    dtype: str
    tokens: int
    documents: int
    shards: int
    bytes: int
    resumed: int
    complete: bool
    sources: bool = False

    def in_a_sentence(self) -> str:
        if not self.tokens:
            return f"{self.folder} holds nothing yet; the same command begins again."
        names = first_of([step.at for step in self.steps], 3)
        of = f"{plural(self.tokens, 'token')} of {plural(self.documents, 'document')}"
        again = f", {self.resumed:,} of them by an earlier run" if self.resumed else ""
        done = f"{self.folder} holds {names} at {of}{again}: {in_bytes(self.bytes)} as {self.dtype}"
        return f"{done}." if self.complete else f"{done}; it is not complete, and the same command continues."

    @property
    def interrupted(self) -> bool:
        return not self.complete

    def fields(self) -> dict[str, Any]:
        return self.members(
            "folder", "dtype", "tokens", "documents", "shards", "bytes", "resumed", "complete", "sources", "steps"
        )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What is recorded, and how: everything that decides the bytes of a recording."""

    model: TextModel
    corpus: Corpus
    targets: tuple[Target, ...]
    dtype: str
    every_token: bool
    window: int
    shard_size: float
    limit: int | None

    @cached_property
    def row_bytes(self) -> int:
        return sum(torch.Size(shape).numel() * dtype.itemsize for _, shape, dtype in self.stored.values())

    @cached_property
    def stored(self) -> dict[str, tuple[tuple[str, ...], tuple[int, ...], torch.dtype]]:
        """The axes, the shape of a row and the dtype of every tensor of a shard, in their order."""
        beside = {IDS: torch.int32, DOCUMENT: torch.int64, POSITION: torch.int64}
        return {
            **{name: (("token",), (), dtype) for name, dtype in beside.items()},
            **{t.at: (("token", *t.axes), t.shape, DTYPES[self.dtype]) for t in self.targets},
        }

    def rows_of(self, window: Window) -> int:
        """How many rows a window gives: one for each own token, or for the last of its document."""
        return len(window.own) if self.every_token else int(window.ends)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What the index says before anything is recorded; another run continues it only if all of this is equal."""
        model, transformer = self.model, self.model.transformer
        changes = [*model.lacks, *model.numbers, *transformer.exchanged, *transformer.edited]
        files = [{"name": file.source.name, "sha256": file.sha256, "field": file.field} for file in self.corpus.files]
        return {
            "format": FORMAT,
            "kind": KIND,
            "tinytf": __version__,
            "model": {
                "name": model.name,
                "checksum": checksum(transformer),
                "dtype": str(next(transformer.parameters()).dtype).removeprefix("torch."),
                "changes": changes,
            },
            "tokenizer": checksum(model.tokenizer.library.to_str()),
            "corpus": files,
            "document": self.corpus.reading.document,
            "sources": self.sources,
            "at": {target.at: {"axes": list(target.axes), "shape": list(target.shape)} for target in self.targets},
            "dtype": self.dtype,
            "rows": ROWS[self.every_token],
            "window": self.window,
            "shard_size": self.shard_size,
            "limit": self.limit,
        }

    @property
    def sources(self) -> bool:
        """Whether each text is a source and its target."""
        return bool(self.model.config.d_source > 0)

    def estimated_rows(self) -> int:
        """About how many rows there will be, from the first characters of the corpus."""
        most = self.limit or sys.maxsize
        documents = self.corpus.documents()
        if not self.every_token:
            return min(most, len(documents))
        characters = tokens = 0
        for text in documents.texts():
            characters += len(text)
            own = parse_json(text)[1] if self.sources else text
            tokens += len(self.model.tokenizer.encode(own, special=False).ids)
            if characters >= _SAMPLE:
                break
        total = self.corpus.characters
        return min(most, tokens if characters >= total else math.ceil(tokens * total / max(1, characters)))

    def windows(self) -> Iterator[Window]:
        """The windows that give rows, up to the limit."""
        rows, most = 0, self.limit or sys.maxsize
        for window in corpus_windows(self.model, self.corpus.documents(), self.window):
            if rows >= most:
                return
            if self.every_token and rows + len(window.own) > most:
                own = range(window.own.start, window.own.start + most - rows)
                ids = [*window.ids[: own.stop], *window.ids[window.own.stop :]]
                window = replace(window, ids=ids, own=own, ends=False)
            if taken := self.rows_of(window):
                rows += taken
                yield window

    def shards(self) -> Iterator[list[Window]]:
        """The windows of each shard, which is full with the window that reaches its size."""
        most = max(1, int(self.shard_size * 1e6 / self.row_bytes))
        shard, rows = list[Window](), 0
        for window in self.windows():
            shard.append(window)
            rows += self.rows_of(window)
            if rows >= most:
                yield shard
                shard, rows = [], 0
        if shard:
            yield shard


def record(
    model: TextModel,
    corpus: Corpus,
    at: Sequence[str],
    folder: str | Path,
    *,
    dtype: str = "float32",
    every_token: bool = True,
    window: int | None = None,
    shard_size: float = SHARD_MB,
    limit: int | None = None,
    force: bool = False,
    group: Together = ALONE,
    on_estimate: Progress = ignore_progress,
    on_progress: Progress = ignore_progress,
) -> CorpusRecording:
    """Write the activations of a corpus, of ``tinytf.text.corpus.find_files``, at some addresses to a folder.

    Each token of the text gets a row; without ``every_token`` only the last of each document. Documents are read in
    windows of ``window`` tokens (by default the context, at most 1,024); the tokens that the tokenizer adds are read
    but not recorded. Rows are stored as ``dtype``, in shards of ``shard_size`` megabytes; ``limit`` is the most rows.
    Of two stacks the corpus is pairs, of which each target has its rows, and its source is kept beside them.
    A folder with a part of the same recording is continued; Ctrl-C ends early with what is done. ``on_estimate`` gets
    the rows and bytes to expect. Of several processes in a ``group`` each writes its own shards, the first the index.

    Raises UsageError for addresses, a window or a dtype that cannot be recorded, for a folder with anything else in it,
    and, without ``force``, where the disk has too little room; TinytfError for numbers that are not finite, or that the
    dtype cannot hold.
    """
    path, length = Path(folder), window_length(model, window, WINDOW)
    if dtype not in DTYPES:
        raise UsageError(f"activations are not stored as {dtype}", f"known: {', '.join(DTYPES)}")
    least, most = _SHARD_MB
    if not least <= shard_size <= most:
        raise UsageError(f"shards of {shard_size:g} megabytes are not from {least} to {most:,}", "such as 64")
    require_form(model, corpus.documents())
    plan = Plan(model, corpus, targets_of(at, model.config), dtype, every_token, length, shard_size, limit)
    if group.rank == 0:
        _begin(path, plan.identity)
    group.wait()
    index = read_index(path)
    if index["complete"]:
        return _report(path, plan, index, index["tokens"])
    rows = plan.estimated_rows()
    on_estimate(rows, rows * plan.row_bytes)
    _require_room(path, rows * plan.row_bytes, force)
    index, resumed = _fill(path, plan, group, lambda done: on_progress(done, max(rows, done)))
    if group.rank == 0:
        with outputs.writing(path):
            outputs.write_state(path / INDEX, to_json(index))
    return _report(path, plan, index, resumed)


def _fill(path: Path, plan: Plan, group: Together, on_rows: Callable[[int], None]) -> tuple[dict[str, Any], int]:
    """Write the shards of this process, and return the index of all, with the rows that were there before."""
    table, resumed, first, complete = list[dict[str, Any]](), 0, 0, True
    try:
        with Passes(plan.model.transformer, plan.targets, DTYPES[plan.dtype], plan.every_token) as passes:
            for number, windows in enumerate(plan.shards()):
                file, rows = path / f"shard-{number:05d}.safetensors", [*accumulate(map(plan.rows_of, windows))]
                stop = rows[-1]
                if number % group.count == group.rank:
                    begun = _rows_in(file)
                    on_more = partial(_from, on_rows, first)
                    stop = begun if begun >= stop else _write_shard(file, plan, passes, windows, begun, on_more)
                    resumed += begun
                if stop:
                    documents = windows[0].document, windows[bisect_left(rows, stop)].document
                    table.append({"file": file.name, "first": first, "stop": first + stop, "documents": documents})
                first += stop
                if stop < rows[-1]:
                    complete = False
                    break
    except KeyboardInterrupt:
        complete = False
    if group.count > 1:
        if not complete:
            raise KeyboardInterrupt
        resumed = int(group.total(resumed))  # waits for the shards of the others
    if complete and not table:
        raise UsageError("the corpus has no token to record", "give one with longer documents")
    count = table[-1]["documents"][-1] + 1 if table else 0
    return {**plan.identity, "complete": complete, "tokens": first, "documents": count, "shards": table}, resumed


def _from(on_rows: Callable[[int], None], first: int, rows: int) -> None:
    on_rows(first + rows)


def _report(path: Path, plan: Plan, index: Mapping[str, Any], resumed: int) -> CorpusRecording:
    tokens, size = index["tokens"], DTYPES[plan.dtype].itemsize
    steps = tuple(StepSize(t.at, t.axes, t.shape, tokens * t.numbers * size) for t in plan.targets)
    shards = len(index["shards"])
    return CorpusRecording(
        str(path), steps, plan.dtype, tokens, index["documents"], shards, tokens * plan.row_bytes, resumed,
        index["complete"], plan.sources, about=About(plan.model),
    )  # fmt: skip


def _begin(path: Path, identity: Mapping[str, Any]) -> None:
    """Make the folder of a recording with its index, or find it there. Raises UsageError for any other folder."""
    outputs.require_outside(path, RECORDING)
    if (path / INDEX).is_file():
        _require_same(path, read_index(path), identity)
        for part in path.glob(".*.part"):  # of a process that was killed
            with outputs.writing(part):
                outputs.remove(part)
        return
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is not an empty folder, nor one of a recording", "name a new folder")
    with outputs.writing(path, "name another folder", UsageError):
        outputs.make_folder(path)
        index = {**identity, "complete": False, "tokens": 0, "documents": 0, "shards": []}
        outputs.write_state(path / INDEX, to_json(index))


def _require_same(path: Path, index: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise UsageError, with what differs, for the index of another recording."""
    try:
        for name, (words, brief) in _DIFFERS.items():
            before, now = brief(index[name]), brief(identity[name])
            if before != now:
                hint = "name a new folder with --out, or give the command that began this one"
                shown = (text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…" for text in map(str, (before, now)))
                raise UsageError(f"{path} was recorded {words}: {', not '.join(shown)}", hint)
    except (LookupError, TypeError, AttributeError):
        raise UsageError(f"the index of {path} is damaged", "name a new folder") from None


def _model_in_words(model: Any) -> str:
    changed = f" without {', '.join(model['changes'])}" if model["changes"] else ""
    return f"{model['name']} in {model['dtype']}{changed} ({model['checksum']})"


def _files_in_words(files: Any) -> str:
    return ", ".join(
        f"{Path(file['name']).name}{file['field'] and ':'}{file['field']} ({file['sha256'][:8]})" for file in files
    )


_DIFFERS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "model": ("with another model", _model_in_words),
    "tokenizer": ("with another tokenizer", str),
    "corpus": ("from another corpus", _files_in_words),
    "document": ("from other documents", str),
    "at": ("at other addresses", lambda at: ", ".join(at)),
    "dtype": ("as another type", str),
    "rows": ("at other tokens", str),
    "window": ("with another window", str),
    "shard_size": ("with another size of shards", str),
    "limit": ("with another limit", str),
}
"""What may differ from a recording that is there, by the member of the index, and how it is said in few words."""


def _require_room(path: Path, needed: int, force: bool) -> None:
    needed -= sum(file.stat().st_size for file in path.glob("shard-*.safetensors"))
    free = shutil.disk_usage(path).free
    if needed > free and not force:
        raise UsageError(
            f"the recording takes about {in_bytes(needed)} more, and {in_bytes(free)} are free in {path}",
            "record fewer addresses, --limit the tokens, or --save-as float16; --force records anyway",
        )


def _rows_in(file: Path) -> int:
    """How many rows a shard has; 0 without a file. Raises CheckpointError for a damaged file."""
    return Safetensors(file).shapes[IDS][0] if file.is_file() else 0


def _sources(plan: Plan, windows: Sequence[Window], rows: int) -> dict[str, Tensor]:
    """What the encoder read for the first ``rows`` of some windows: the tokens and their documents, (M,) each."""
    read = windows[: bisect_right([*accumulate(map(plan.rows_of, windows))], rows)]
    ids = [token for window in read for token in window.source]
    documents = [window.document for window in read for _ in window.source]
    tensors = {SOURCE_IDS: torch.tensor(ids, dtype=torch.int32), SOURCE_DOCUMENT: torch.tensor(documents)}
    return tensors if plan.sources else {}


def _write_shard(
    file: Path, plan: Plan, passes: Passes, windows: Sequence[Window], begun: int, on_rows: Callable[[int], None]
) -> int:
    """Write the shard of some windows, of which ``begun`` rows are there; return its rows, fewer after Ctrl-C."""
    planned = sum(map(plan.rows_of, windows))
    shard = {name: torch.empty(planned, *shape, dtype=dtype) for name, (_, shape, dtype) in plan.stored.items()}
    stored = load_file(reading(file)) if begun else {}
    for name in shard if begun else ():
        shard[name][:begun] = stored[name]
    rows = 0
    try:
        for first in range(0, len(windows), _GROUP):
            some = windows[first : first + _GROUP]
            stop = rows + sum(map(plan.rows_of, some))
            if stop > begun:
                for name, tensor in passes(some).items():
                    shard[name][rows:stop] = tensor
            rows = stop
            on_rows(rows)
    except KeyboardInterrupt:
        if rows <= begun:
            return begun
    arrays = [Array.of(name, axes, shard[name][:rows]) for name, (axes, *_) in plan.stored.items()]
    arrays += [Array.of(name, ("source",), ids) for name, ids in _sources(plan, windows, rows).items()]
    about = {"kind": KIND, "axes": {array.name: list(array.axes) for array in arrays}}
    with outputs.writing(file, "give the same command again"), outputs.replacing(file) as stream:
        for data in safetensors(arrays, {"tinytf": json.dumps(about)}):
            stream.write(data)
    return rows
