"""Models that other programs keep on this disk: found by the layout of their folders, read only, without torch.

The cache of the Hugging Face hub, Ollama's models, and LM Studio's. None of these programs is needed.
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
from tinytf.nearest import did_you_mean

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_NOT_A_MODEL = re.compile(r"mmproj|.*-(?!0*1-of-)\d+-of-\d+\.gguf", re.IGNORECASE)
"""A projector of images, or a later part of a split file."""


def _names(folder: Path) -> list[str]:
    """What a folder holds, in order; nothing for one that is missing, closed to us, or a file."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (OSError, ValueError):
        return []


def _folder(variable: str, otherwise: str) -> Path:
    return Path(os.path.expanduser(os.environ.get(variable) or otherwise))


def is_model_file(name: str) -> bool:
    """Whether a file of this name is a GGUF model, or the first part of one."""
    return name.lower().endswith(".gguf") and not _NOT_A_MODEL.match(name)


def _gguf_files(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in _names(folder) if is_model_file(name)}


def _is_directory(folder: Path) -> bool:
    """Whether it has a configuration and weights as transformers writes them. A link that leads nowhere is missing."""
    return os.path.exists(folder / "config.json") and any(os.path.exists(folder / name) for name in _WEIGHTS)


def _contents(folder: Path) -> dict[str, Path]:
    """What can be opened of a downloaded repository: its GGUF files by name, and under "" what needs no name.

    That is a directory of transformers, or the only GGUF file.
    """
    files = _gguf_files(folder)
    if _is_directory(folder):
        return {"": folder, **files}
    return {"": next(iter(files.values()))} if len(files) == 1 else files


def _file_of(folder: Path, file: str, name: str) -> Path:
    """The path of a file of a repository, or of what needs no name; UsageError that names those that are there."""
    files = {**_gguf_files(folder), **_contents(folder)}
    if file not in files:
        known = [f"{name}/{one}" for one in files if one] or [name]
        said = f"has no file {file}" if file else f"holds {len(files)} models"
        raise UsageError(
            f"{name} {said}", did_you_mean(f"{name}/{file}" if file else "", known, otherwise=f"such as {known[0]}")
        )
    return files[file]


class Store(ABC):
    """A place of models: ``prefix`` is what their names begin with."""

    place: ClassVar[str]
    prefix: ClassVar[str]

    @abstractmethod
    def names(self) -> Iterator[str]:
        """What --model takes, in order; folders are listed, and no model is read."""

    @abstractmethod
    def find(self, name: str) -> Path:
        """The directory or GGUF file of a name, given without its prefix.

        Raises UsageError for a name that is not there, CheckpointError for a model that lacks its files.
        """

    def missing(self, name: str) -> UsageError:
        """The error for a name that is not there."""
        known = list(self.names())
        hint = did_you_mean(self.prefix + name, known) if known else f"nothing of {self.place} was found on this disk"
        return UsageError(f"there is no model {self.prefix + name!r}", hint or "tinytf models lists those that are")


class HubCache(Store):
    """What huggingface_hub fetched: ``models--ORG--NAME/snapshots/COMMIT``, and ``refs/main`` names a commit.

    A name is ORG/NAME, ORG/NAME@REVISION, or ORG/NAME/FILE.gguf; an old one has no ORG.
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
        for folder in _names(self.folder):
            name = folder.removeprefix("models--").replace("--", "/")
            if name != folder and (snapshot := self._snapshot(name)) is not None:
                yield from (f"{name}/{file}".removesuffix("/") for file in _contents(snapshot) or [""])

    def has(self, name: str) -> bool:
        """Whether anything of a repository was fetched."""
        return self.is_name(name) and self._split(name)[0] is not None

    def find(self, name: str) -> Path:
        snapshot, file, repository = self._split(name) if self.is_name(name) else (None, "", "")
        if snapshot is None:
            raise self.missing(name)
        if not file and not _contents(snapshot):
            lacks = "no weights" if os.path.exists(snapshot / "config.json") else "no config.json"
            hint = f"hub:{repository} fetches what is missing"
            raise CheckpointError(f"{repository} has {lacks} in the cache, {snapshot}", hint)
        return _file_of(snapshot, file, repository)

    def _split(self, name: str) -> tuple[Path | None, str, str]:
        """The snapshot of a name, its file, and the repository."""
        match = self._NAME.fullmatch(name)
        assert match is not None
        repository, file, revision = match.groups("")
        return self._snapshot(repository, revision or "main"), file, repository

    def _snapshot(self, repository: str, revision: str = "main") -> Path | None:
        """The folder of a revision; of main, where that lacks its weights, the newest that has them."""
        folder = self.folder / f"models--{repository.replace('/', '--')}"
        try:
            commit = read_bytes(folder / "refs" / revision, SMALL).decode("ascii", "replace").strip()
        except OSError:
            commit = revision
        there = [folder / "snapshots" / name for name in _names(folder / "snapshots")]
        named = [path for path in there if path.name == commit]
        if revision != "main":
            return named[0] if named else None
        newest = sorted(there, key=lambda path: path.lstat().st_mtime, reverse=True)
        return next((path for path in (*named, *newest) if _contents(path)), next(iter((*named, *newest)), None))


class Ollama(Store):
    """Manifests at ``manifests/HOST/NAMESPACE/NAME/TAG``, whose layers are files at ``blobs/sha256-…``.

    A name is NAME[:TAG], USER/NAME[:TAG] or HOST/USER/NAME[:TAG]; the tag is latest unless named.
    """

    place, prefix = "Ollama", "ollama:"
    SHARED = "/usr/share/ollama/.ollama/models"  # where its installer on Linux runs it as a user of its own
    _USUAL = ("registry.ollama.ai", "library")
    _LAYER = "application/vnd.ollama.image."
    _DIGEST = re.compile("sha256[:-]([0-9a-f]{64})")

    @property
    def folders(self) -> tuple[Path, ...]:
        """OLLAMA_MODELS or ~/.ollama/models, then the one that all users share."""
        return _folder("OLLAMA_MODELS", "~/.ollama/models"), Path(self.SHARED)

    def names(self) -> Iterator[str]:
        found = []
        for folder in self.folders:
            parts: list[tuple[str, ...]] = [()]
            for _ in ("host", "namespace", "name", "tag"):
                parts = [(*one, name) for one in parts for name in _names(folder.joinpath("manifests", *one))]
            found += [self._shown(*one) for one in parts]
        yield from dict.fromkeys(found)

    def _shown(self, host: str, namespace: str, name: str, tag: str) -> str:
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
            raise CheckpointError(f"ollama:{name} has an adapter (LoRA) over its weights, which is not implemented")
        if kinds.count("model") != 1:
            raise CheckpointError(f"ollama:{name} has {kinds.count('model')} GGUF files, and one is opened")
        said = str(layers[kinds.index("model")].get("digest"))
        digest = self._DIGEST.fullmatch(said)
        if digest is None:
            raise CheckpointError(f"{manifest} has a digest that is no SHA-256, {quoted(said)}")
        blob = blobs / f"sha256-{digest[1]}"
        if not os.path.isfile(blob):
            raise CheckpointError(f"ollama:{name} lacks its file {blob}", f"ollama pull {name} fetches it")
        return blob


class LmStudio(Store):
    """Folders ``ORG/NAME`` with GGUF files, or with a directory of transformers.

    A name is ORG/NAME, or ORG/NAME/FILE where there are several.
    """

    place, prefix = "LM Studio", "lmstudio:"
    FOLDERS = ("~/.lmstudio/models", "~/.cache/lm-studio/models")

    @property
    def folders(self) -> Iterator[Path]:
        """Where it keeps models, now and in older versions."""
        return (Path(os.path.expanduser(folder)) for folder in self.FOLDERS)

    def names(self) -> Iterator[str]:
        orgs = [(root, org) for root in self.folders for org in _names(root)]
        folders = [(f"{org}/{name}", root / org / name) for root, org in orgs for name in _names(root / org)]
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
