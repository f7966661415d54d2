"""Which models are at hand: built in, by preset, in a folder, and in the cache of the Hugging Face hub."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tinytf.analysis.size import parameter_count
from tinytf.checkpoints.hub import cached
from tinytf.checkpoints.weights import weight_files
from tinytf.config import ModelConfig
from tinytf.errors import TinytfError
from tinytf.presets import PRESETS
from tinytf.report import Data, Report, plain
from tinytf.sources import ASSETS, BUILT_IN, DirectorySource, PresetSource, RunSource, Source, source_at


@dataclass(frozen=True)
class Entry(Data):
    """A model at hand: ``name`` is what --model takes, ``place`` where it was found.

    Where it cannot be opened, ``problem`` says why, ``config`` is None and ``family`` empty. ``bytes`` is the size of
    its weight files, 0 for a preset.
    """

    ALSO: ClassVar = ("opens", "parameters")

    name: str
    place: str
    family: str = ""
    config: ModelConfig | None = None
    bytes: int = 0
    problem: str = ""

    @property
    def opens(self) -> bool:
        return not self.problem

    @property
    def parameters(self) -> int | None:
        """How many parameters the configuration amounts to."""
        return parameter_count(self.config) if self.config else None


@dataclass(frozen=True)
class Catalogue(Report):
    """The models at hand; ``folder`` is where directories and files were looked for."""

    KIND = "models"

    entries: tuple[Entry, ...]
    folder: Path

    def fields(self) -> dict[str, Any]:
        return {"models": plain(self.entries)}

    def events(self) -> Iterator[dict[str, Any]]:
        """One event per model."""
        for entry in self.entries:
            yield {"type": "model", **entry.to_dict()}


def catalogue(folder: Path) -> Catalogue:
    """Every model at hand, judged by its headers alone; searches ``folder`` and two levels of folders in it."""
    return Catalogue(tuple(_entries(folder)), folder)


def _entries(folder: Path) -> Iterator[Entry]:
    for name in BUILT_IN:
        yield entry_of(name, "built in", RunSource(name, "built in", ASSETS / name), ASSETS / name)
    for name in PRESETS:
        yield entry_of(f"preset:{name}", "preset", PresetSource(f"preset:{name}"), None)
    for path in _candidates(folder):
        shown = path.name if folder == Path() else str(path)
        try:
            source = source_at(path)
        except TinytfError as error:
            yield Entry(shown, "folder", problem=error.message)
        else:
            yield entry_of(shown, "folder", source, path)
    for name, path in cached():
        yield entry_of(f"hub:{name}", "hub cache", DirectorySource(name, f"hub:{name}", path), path)


def _candidates(folder: Path) -> list[Path]:
    """What looks like a model in a folder and the folders in it."""
    configs = (path for pattern in ("*/config.json", "*/*/config.json") for path in folder.glob(pattern))
    files = (path for pattern in ("*.gguf", "*/*.gguf", "*/*/*.gguf") for path in folder.glob(pattern))
    return sorted({*(path.parent for path in configs), *files})


def entry_of(name: str, place: str, source: Source, path: Path | None) -> Entry:
    """What is known of a source from its headers; ``path`` is where its files are."""
    try:
        config, family = source.config(), source.family
        files = [] if path is None else [path] if path.is_file() else weight_files(path)
        return Entry(name, place, family, config, sum(file.stat().st_size for file in files))
    except (TinytfError, OSError) as error:
        return Entry(name, place, problem=getattr(error, "message", str(error)))
