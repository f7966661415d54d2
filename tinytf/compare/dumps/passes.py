"""Dumps in several files: the passes of a generation with a cache, or the shards of a tensor-parallel run.

Passes are a folder of numbered files, each with the tensors of its own tokens, or one file whose names begin with the
pass: ``step0/L0.q``. Shards are a folder of files ``rank0.npz``, ``rank1.npz`` …
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from tinytf.compare.dumps.read import IDS, SUFFIXES, Dump, open_dump
from tinytf.errors import DumpError
from tinytf.text.printable import printable

_NUMBERED = re.compile(r"\D*(\d+)\D*")
_PASS = re.compile(r"(?:step|pass|call|forward)[._ -]?(\d+)[./:]")
_SHARD = re.compile(r"(?i)(?:.*[._ -])?(?:rank|shard|tp)[._ -]?\d+")
_AS_NUMBERED = "one file a pass, numbered: step0.npz, step1.npz …, each with its own input_ids"


def is_passes(name: str) -> bool:
    """Whether a word names a folder of numbered files of activations, rather than a model."""
    path = Path(name)
    return path.is_dir() and not (path / "config.json").exists() and bool(_numbered(path))


def _numbered(folder: Path) -> list[Path]:
    """The files of activations in a folder, in the order of their numbers."""
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]
    numbers = {path: match for path in found if (match := _NUMBERED.fullmatch(path.stem))}
    return sorted(numbers, key=lambda path: int(numbers[path][1])) if len(numbers) == len(found) else []


def open_any(path: str | Path) -> Dump:
    """A file of activations, or the passes of a generation in a folder or in one file, as ``open_dump`` reads them."""
    path = Path(path)
    if path.is_dir() and ((files := _numbered(path)) or path.suffix.lower() not in SUFFIXES):
        if not files:
            raise DumpError(f"{path} holds no numbered files of activations", _AS_NUMBERED)
        dumps = [open_dump(file) for file in files]
        return (_of_shards if all(_SHARD.fullmatch(file.stem) for file in files) else _of_passes)(path, dumps)
    dump = open_dump(path)
    found: dict[int, dict[str, str]] = {}
    for name in dump.shapes:
        if match := _PASS.match(name):
            found.setdefault(int(match[1]), {})[name[match.end() :]] = name
    return _of_passes(path, [_part(dump, found[number]) for number in sorted(found)]) if found else dump


def _part(dump: Dump, names: dict[str, str]) -> Dump:
    """The tensors of one pass, by their own names."""
    shapes = {own: dump.shapes[name] for own, name in names.items()}
    return replace(dump, shapes=shapes, read=lambda own: dump.read(names[own]), metadata={})


def _of_passes(path: Path, passes: list[Dump]) -> Dump:
    """All passes as one dump. Raises DumpError where one lacks its token ids."""
    for number, one in enumerate(passes):
        if not one.ids:
            raise DumpError(f"{path}: pass {number} lacks its token ids", _AS_NUMBERED)
    shapes = {name: one.shapes[name] for one in reversed(passes) for name in one.shapes if name not in IDS}
    ids = [token for one in passes for token in one.ids or ()]

    return Dump(path, shapes, _apart, {"ids": ids}, tuple(passes))


def _of_shards(path: Path, shards: list[Dump]) -> Dump:
    """All shards as one dump, which is read shard by shard."""
    ids = next((one.ids for one in shards if one.ids), None)
    shapes = {name: one.shapes[name] for one in reversed(shards) for name in one.shapes}
    return Dump(path, shapes, _apart, {"ids": ids} if ids else {}, shards=tuple(shards))


def _apart(name: str) -> Tensor:
    raise AssertionError(f"{printable(name)} is read part by part")


def starts_of(passes: Iterable[Dump]) -> list[int]:
    """The position of the first token of each pass."""
    starts = [0]
    for one in passes:
        starts.append(starts[-1] + len(one.ids or ()))
    return starts[:-1]
