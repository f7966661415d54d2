"""Kept folders: each belongs to one command or program, and nothing else writes into it.

A folder is recognised by its marker: names in it, and words in the first of them where other programs use that name
too. The code that writes or reads such a folder takes the names from here.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RECIPE, METRICS, LOCK, CORPUS = "recipe.json", "metrics.jsonl", ".lock", "corpus.json"
INDEX, RECORDED = "index.json", "recorded corpus"
SWEPT = "sweep.json"
ADAPTER_CONFIG, SAE_CONFIG = "adapter_config.json", "cfg.json"
CACHE_TAG = "CACHEDIR.TAG"
CACHE_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n# A cache of tinytf. It may be removed at any time.\n"
MODEL_WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"
)  # fmt: skip
SAE_LENS, SPARSIFY, GEMMA_SCOPE, GEMMA_SCOPE_2 = (
    "sae_weights.safetensors", "sae.safetensors", "params.npz", "params.safetensors"
)  # fmt: skip
TRANSCODERS = "config.yaml"

_HEAD_BYTES = 4096
_MAX_LINKS = 40
"""How many links Linux follows on the way to a file."""


@dataclass(frozen=True)
class Kept:
    """A kind of kept folder: it has all of ``names`` and one of ``either``, and ``says`` is at the start of the first.

    ``words`` name it after "the folder of".
    """

    words: str
    names: tuple[str, ...]
    either: tuple[str, ...] = ()
    says: bytes = b""

    def marks(self, folder: Path) -> bool:
        """Whether a folder has the marker of this kind. False for one that cannot be searched."""

        def has(name: str) -> bool:
            return os.path.exists(os.path.join(folder, name))

        is_named = all(map(has, self.names)) and (not self.either or any(map(has, self.either)))
        return is_named and (not self.says or re.search(self.says, _head(folder / self.names[0])) is not None)


RUN = Kept("a training run", (RECIPE,), (METRICS, LOCK, CORPUS))
SWEEP = Kept("a sweep", (SWEPT,), says=rb'"kind":\s*"sweep"')
RECORDING = Kept("a recording", (INDEX,), says=rb'"kind":\s*"%b"' % RECORDED.encode("ascii"))
MODEL = Kept("a model", ("config.json",), ("tokenizer.json", *MODEL_WEIGHTS))
KINDS = (
    RUN,
    SWEEP,
    RECORDING,
    MODEL,
    Kept("an adapter", (ADAPTER_CONFIG,)),
    Kept("an SAE", (SAE_CONFIG,), (SAE_LENS, SPARSIFY)),
    Kept("an SAE", ("config.json", GEMMA_SCOPE_2)),
    Kept("an SAE", (GEMMA_SCOPE,), says=rb"(?s)^PK.{28}(W_enc|W_dec|b_enc|b_dec|threshold)\.npy"),
    Kept("transcoders", (TRANSCODERS,), says=rb"(?m)^model_kind:"),
    Kept("a repository in the hub's cache", ("blobs", "refs", "snapshots")),
    Kept("Ollama's models", ("blobs", "manifests")),
    Kept("tinytf's cache", (CACHE_TAG,), says=re.escape(CACHE_SIGNATURE)),
)
"""The first that marks a folder names it."""


def kept_above(path: Path) -> tuple[Path, Kept] | None:
    """The innermost kept folder above a path, under any of its names, with its kind; None if there is none."""
    above = (folder for name in _names_of(path) for folder in name.parents)
    return next(((folder, kind) for folder in above for kind in KINDS if kind.marks(folder)), None)


def _names_of(path: Path) -> Iterator[Path]:
    """The absolute path of each link on the way to a file, and that of the file itself."""
    absolute = path.absolute()
    here, left, links = Path(absolute.anchor), list(reversed(absolute.parts[1:])), 0
    while left:
        part = left.pop()
        here = here.parent if part == ".." else here / part
        if part != ".." and links < _MAX_LINKS and os.path.islink(here):
            yield here
            target = Path(os.readlink(here))
            left += reversed(target.parts[1:] if target.anchor else target.parts)
            here, links = Path(target.anchor or here.parent), links + 1
    yield here


def _head(path: Path) -> bytes:
    """The first bytes of a regular file, which is not registered as read; nothing for any other."""
    try:
        if path.is_file():
            with path.open("rb") as file:
                return file.read(_HEAD_BYTES)
    except OSError:
        pass
    return b""
