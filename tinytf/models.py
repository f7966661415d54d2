"""Which models are available: built in, presets, in a folder, and in the folders of other programs."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tinytf.checkpoints.stores import STORES, Store, is_model_file
from tinytf.config import ModelConfig
from tinytf.errors import TinytfError
from tinytf.look.info import parameter_count
from tinytf.presets import BUILT_IN, PRESETS
from tinytf.report import Data, Report, plain
from tinytf.sources import ASSETS, RunSource, Source, find_source, source_at, stored_source
from tinytf.tables import ColumnStyle, count, in_bytes


@dataclass(frozen=True)
class AvailableModel(Data):
    """An available model: ``name`` is what --model takes, ``place`` where it was found.

    If it cannot be opened, ``problem`` says why, ``config`` is None and ``family`` empty. ``bytes`` is the size of its
    weight files, 0 for a preset.
    """

    ALSO: ClassVar = ("opens", "parameters")
    COLUMNS: ClassVar = {
        "name": ColumnStyle("model", role="strong", shrink=24),
        "family": ColumnStyle("family"),
        "size": ColumnStyle("layers × heads", align="right", drop=1),
        "parameters": ColumnStyle("parameters", count, align="right"),
        "bytes": ColumnStyle("on disk", lambda size: in_bytes(size) if size else "", align="right"),
        "problem": ColumnStyle(
            "opens", lambda why: f"no: {why}" if why else "yes", role=lambda why: "bad" if why else "good", shrink=12
        ),
    }

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
    def size(self) -> str:
        """``4 × 4``: its layers and the heads of each."""
        return f"{self.config.n_layers} × {self.config.n_heads}" if self.config else ""

    @property
    def parameters(self) -> int | None:
        """The number of parameters of the configuration."""
        return parameter_count(self.config) if self.config else None


@dataclass(frozen=True)
class Catalogue(Report):
    """The available models; ``folder`` is where directories and files were searched for."""

    KIND = "models"
    TABLE = ("models",)
    ROWS = "entries"

    entries: tuple[AvailableModel, ...]
    folder: Path

    def fields(self) -> dict[str, Any]:
        return {"models": plain(self.entries)}

    def events(self) -> Iterator[dict[str, Any]]:
        """One event per model."""
        for entry in self.entries:
            yield {"type": "model", **entry.to_dict()}


def catalogue(folder: Path) -> Catalogue:
    """Every available model, from its headers only; searches ``folder`` and two levels of folders below it."""
    return Catalogue(tuple(_entries(folder)), folder)


def _entries(folder: Path) -> Iterator[AvailableModel]:
    for name in BUILT_IN:
        yield entry_of("built in", RunSource(name, "built in", ASSETS / name))
    for name in PRESETS:
        yield entry_of("preset", find_source(f"preset:{name}"))
    for path in _candidates(folder):
        shown = path.name if folder == Path() else str(path)
        try:
            source = source_at(path)
        except TinytfError as error:
            yield AvailableModel(shown, "folder", problem=error.message)
        else:
            yield entry_of("folder", replace(source, name=shown))
    for store in STORES:
        for name in store.names():
            yield _stored(store, name)


def _stored(store: Store, name: str) -> AvailableModel:
    """A model of another program; named by its path if the name means another model here."""
    try:
        path = store.find(name.removeprefix(store.prefix))
    except TinytfError as error:
        return AvailableModel(name, store.place, problem=error.message)
    hidden = not store.prefix and (name in BUILT_IN or os.path.lexists(name))
    return entry_of(store.place, stored_source(str(path) if hidden else name, path))


def _candidates(folder: Path) -> list[Path]:
    """The paths that look like models in a folder and two levels below it."""
    configs = (path for pattern in ("*/config.json", "*/*/config.json") for path in folder.glob(pattern))
    files = (path for pattern in ("*.gguf", "*/*.gguf", "*/*/*.gguf") for path in folder.glob(pattern))
    return sorted({*(path.parent for path in configs), *(path for path in files if is_model_file(path.name))})


def entry_of(place: str, source: Source) -> AvailableModel:
    """The catalogue entry of a source, from its headers."""
    try:
        config, files = source.glance()
        return AvailableModel(source.name, place, source.family, config, sum(file.stat().st_size for file in files))
    except Exception as error:  # one broken model must not hide the others
        return AvailableModel(source.name, place, problem=getattr(error, "message", str(error)))
