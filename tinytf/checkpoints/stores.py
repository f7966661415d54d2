"""Models that other programs keep on this disk, located by the layout of their folders; read-only, free of torch.

These are the cache of the Hugging Face hub, Ollama and LM Studio. None of these programs needs to be installed.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import quoted
from tinytf.files import SMALL, read_bytes, read_json
from tinytf.kept import MODEL_WEIGHTS
from tinytf.nearest import did_you_mean

_NOT_A_MODEL = re.compile(r"mmproj|.*-(?!0*1-of-)\d+-of-\d+\.gguf", re.IGNORECASE)
"""An image projector, or a later part of a split file."""


def _list_names(folder: Path) -> list[str]:
    """The visible names in a folder, sorted; empty for a missing or unreadable folder, and for a file."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (OSError, ValueError):
        return []


def _folder(variable: str, otherwise: str) -> Path:
    return Path(os.path.expanduser(os.environ.get(variable) or otherwise))


def is_model_file(name: str) -> bool:
    """Whether ``name`` is that of a GGUF model or of its first part."""
    return name.lower().endswith(".gguf") and not _NOT_A_MODEL.match(name)


def _gguf_files(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in _list_names(folder) if is_model_file(name)}


def _is_directory(folder: Path) -> bool:
    """Whether a folder has a configuration and weights as transformers writes them; broken links do not count."""
    return os.path.exists(folder / "config.json") and any(os.path.exists(folder / name) for name in MODEL_WEIGHTS)


def _contents(folder: Path) -> dict[str, Path]:
    """The models in a downloaded repository: its GGUF files by name, and under "" the default one.

    The default is a directory of transformers, or the only GGUF file.
    """
    files = _gguf_files(folder)
    if _is_directory(folder):
        return {"": folder, **files}
    return {"": next(iter(files.values()))} if len(files) == 1 else files


def _file_of(folder: Path, file: str, name: str) -> Path:
    """The path of a ``file`` in a repository, or of its default model. Raises UsageError, listing existing names."""
    files = {**_gguf_files(folder), **_contents(folder)}
    if file not in files:
        names = [f"{name}/{file_name}" for file_name in files if file_name] or [name]
        fault = f"has no file {file}" if file else f"holds {len(files)} models"
        raise UsageError(
            f"{name} {fault}", did_you_mean(f"{name}/{file}" if file else "", names, otherwise=f"such as {names[0]}")
        )
    return files[file]


class Store(ABC):
    """A collection of models on disk; their names begin with ``prefix``."""

    place: ClassVar[str]
    prefix: ClassVar[str]

    @abstractmethod
    def names(self) -> Iterator[str]:
        """The names that --model takes, in order, from listings of folders alone."""

    @abstractmethod
    def find(self, name: str) -> Path:
        """The directory or GGUF file of a model; ``name`` is without the prefix.

        Raises UsageError for an unknown name, CheckpointError for a model whose files are missing.
        """

    def missing(self, name: str) -> UsageError:
        """The error for an unknown name."""
        names = list(self.names())
        hint = did_you_mean(self.prefix + name, names) if names else f"nothing of {self.place} was found on this disk"
        return UsageError(
            f"there is no model {self.prefix + name!r}", hint or "tinytf models lists the models on this disk"
        )


class HubCache(Store):
    """The cache of huggingface_hub: ``models--ORG--NAME/snapshots/COMMIT``; ``refs/main`` holds a commit.

    A name is ORG/NAME, ORG/NAME@REVISION, or ORG/NAME/FILE.gguf; some old names have no ORG.
    """

    place, prefix = "hub cache", ""
    _NAME = re.compile(r"((?:\w[\w.-]*/)?\w[\w.-]*?)(?:/([\w.-]+\.gguf))?(?:@([\w./-]+))?", re.ASCII | re.IGNORECASE)

    @property
    def folder(self) -> Path:
        """HF_HUB_CACHE, HF_HOME/hub, or ~/.cache/huggingface/hub."""
        home = _folder("HF_HOME", str(_folder("XDG_CACHE_HOME", "~/.cache") / "huggingface"))
        return _folder("HF_HUB_CACHE", os.environ.get("HUGGINGFACE_HUB_CACHE") or str(home / "hub"))

    def is_name(self, name: str) -> bool:
        """Whether the hub could have a model or a file of this name."""
        return self._NAME.fullmatch(name) is not None and ".." not in name and "--" not in name

    def names(self) -> Iterator[str]:
        for folder in _list_names(self.folder):
            name = folder.removeprefix("models--").replace("--", "/")
            if name != folder and (snapshot := self._snapshot(name)) is not None:
                yield from (f"{name}/{file}".removesuffix("/") for file in _contents(snapshot) or [""])

    def has(self, name: str) -> bool:
        """Whether a snapshot of the repository is cached."""
        return self.is_name(name) and self._split(name)[0] is not None

    def find(self, name: str) -> Path:
        snapshot, file, repository = self._split(name) if self.is_name(name) else (None, "", "")
        if snapshot is None:
            raise self.missing(name)
        if not file and not _contents(snapshot):
            gap = "no weights" if os.path.exists(snapshot / "config.json") else "no config.json"
            hint = f"hub:{repository} fetches what is missing"
            raise CheckpointError(f"{repository} has {gap} in the cache, {snapshot}", hint)
        return _file_of(snapshot, file, repository)

    def _split(self, name: str) -> tuple[Path | None, str, str]:
        """The snapshot, the file and the repository of a name."""
        match = self._NAME.fullmatch(name)
        assert match is not None
        repository, file, revision = match.groups("")
        return self._snapshot(repository, revision or "main"), file, repository

    def _snapshot(self, repository: str, revision: str = "main") -> Path | None:
        """The snapshot of a revision; for main without weights, the newest snapshot that has them."""
        folder = self.folder / f"models--{repository.replace('/', '--')}"
        try:
            commit = read_bytes(folder / "refs" / revision, SMALL).decode("ascii", "replace").strip()
        except OSError:
            commit = revision
        snapshots = [folder / "snapshots" / name for name in _list_names(folder / "snapshots")]
        matches = [path for path in snapshots if path.name == commit]
        if revision != "main":
            return matches[0] if matches else None
        newest = sorted(snapshots, key=lambda path: path.lstat().st_mtime, reverse=True)
        return next((path for path in (*matches, *newest) if _contents(path)), next(iter((*matches, *newest)), None))


class Ollama(Store):
    """Manifests at ``manifests/HOST/NAMESPACE/NAME/TAG``, whose layers are files at ``blobs/sha256-…``.

    A name is NAME[:TAG], USER/NAME[:TAG] or HOST/USER/NAME[:TAG]; the default tag is latest.
    """

    place, prefix = "Ollama", "ollama:"
    SHARED = "/usr/share/ollama/.ollama/models"  # where the installer for Linux puts them, under a user of its own
    _USUAL = ("registry.ollama.ai", "library")
    _LAYER = "application/vnd.ollama.image."
    _DIGEST = re.compile("sha256[:-]([0-9a-f]{64})")

    @property
    def folders(self) -> tuple[Path, ...]:
        """OLLAMA_MODELS or ~/.ollama/models, then the folder that all users share."""
        return _folder("OLLAMA_MODELS", "~/.ollama/models"), Path(self.SHARED)

    def names(self) -> Iterator[str]:
        names = []
        for folder in self.folders:
            parts: list[tuple[str, ...]] = [()]
            for _ in ("host", "namespace", "name", "tag"):
                parts = [(*path, name) for path in parts for name in _list_names(folder.joinpath("manifests", *path))]
            names += [self._short_name(*path) for path in parts]
        yield from dict.fromkeys(names)

    def _short_name(self, host: str, namespace: str, name: str, tag: str) -> str:
        parts = [host, namespace, name]
        while len(parts) > 1 and parts[0] == self._USUAL[3 - len(parts)]:
            parts = parts[1:]
        return f"{self.prefix}{'/'.join(parts)}:{tag}"

    def find(self, name: str) -> Path:
        path, _, last = name.rpartition("/")
        last, _, tag = last.partition(":")
        parts = [*path.split("/"), last] if path else [last]
        parts = [*self._USUAL[: max(0, 3 - len(parts))], *parts, tag or "latest"]
        if len(parts) != 4 or any(part.startswith(".") or not part for part in parts):
            raise self.missing(name)
        for folder in self.folders:
            manifest = folder.joinpath("manifests", *parts)
            if os.path.isfile(manifest):
                return self._blob(manifest, folder / "blobs", name)
        raise self.missing(name)

    def _blob(self, manifest: Path, blobs: Path, name: str) -> Path:
        """The GGUF file of a manifest."""
        layers = read_json(manifest, SMALL).get("layers")
        if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
            raise CheckpointError(f"{manifest} has no layers, so it is not a model of Ollama")
        kinds = [str(layer.get("mediaType")).removeprefix(self._LAYER) for layer in layers]
        if "adapter" in kinds:
            raise CheckpointError(f"ollama:{name} has a LoRA adapter on top of its weights, which is not implemented")
        if kinds.count("model") != 1:
            raise CheckpointError(
                f"ollama:{name} has {kinds.count('model')} GGUF files; only models with one can be opened"
            )
        stored = str(layers[kinds.index("model")].get("digest"))
        digest = self._DIGEST.fullmatch(stored)
        if digest is None:
            raise CheckpointError(f"{manifest} has a digest that is not SHA-256: {quoted(stored)}")
        blob = blobs / f"sha256-{digest[1]}"
        if not os.path.isfile(blob):
            raise CheckpointError(f"ollama:{name} lacks its file {blob}", f"ollama pull {name} fetches it")
        return blob


class LmStudio(Store):
    """Folders ``ORG/NAME`` with GGUF files, or directories of transformers.

    A name is ORG/NAME, or ORG/NAME/FILE if there are several files.
    """

    place, prefix = "LM Studio", "lmstudio:"
    FOLDERS = ("~/.lmstudio/models", "~/.cache/lm-studio/models")

    @property
    def folders(self) -> Iterator[Path]:
        """The folders of the current version and of older ones."""
        return (Path(os.path.expanduser(folder)) for folder in self.FOLDERS)

    def names(self) -> Iterator[str]:
        orgs = [(root, org) for root in self.folders for org in _list_names(root)]
        folders = [(f"{org}/{name}", root / org / name) for root, org in orgs for name in _list_names(root / org)]
        files = (f"{self.prefix}{name}/{file}" for name, folder in folders for file in _contents(folder))
        yield from dict.fromkeys(file.removesuffix("/") for file in files)

    def find(self, name: str) -> Path:
        org, _, rest = name.partition("/")
        repository, _, file = rest.partition("/")
        if org and repository and not org.startswith(".") and not repository.startswith("."):
            for folder in (root / org / repository for root in self.folders):
                if _contents(folder):
                    return _file_of(folder, file, f"{self.prefix}{org}/{repository}")
        raise self.missing(name)


HUB_CACHE, OLLAMA, LM_STUDIO = HubCache(), Ollama(), LmStudio()
STORES: tuple[Store, ...] = (HUB_CACHE, OLLAMA, LM_STUDIO)
