"""Sources of models: one class for each kind of name that ``--model`` takes.

A source reads its configuration from headers only, its tokenizer without the weights, and its weights last.
"""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch

from tinytf.checkpoints.gguf import checkpoint_of, parts_of, read_gguf, read_parts, tokenizer_of
from tinytf.checkpoints.gguf.header import Header
from tinytf.checkpoints.hub import fetch
from tinytf.checkpoints.huggingface.adapter import Adapter
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.checkpoints.huggingface.memory import read_module
from tinytf.checkpoints.huggingface.sentence import read_cut, read_late, read_pair_template, read_prompts
from tinytf.checkpoints.load import Checkpoint, LoadedModel
from tinytf.checkpoints.run import load_run
from tinytf.checkpoints.run_config import CHECKPOINTS, FORMAT, read_config
from tinytf.checkpoints.stores import HUB_CACHE, STORES
from tinytf.checkpoints.weights import weight_files
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, UsageError
from tinytf.files import path_exists, read_json, register_model, resolve_links
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean, near_path
from tinytf.presets import BUILT_IN, PRESETS, preset
from tinytf.runs.naming import named_run
from tinytf.text.choice import NOTHING, Settings, TokenizerChoice, setting_words
from tinytf.text.huggingface import Vocabulary, load_tokenizer_directory, tokenizer_in_memory
from tinytf.text.late import LateInteraction
from tinytf.text.pair import PairTemplate
from tinytf.text.printable import printable
from tinytf.text.prompts import NO_PROMPTS, Prompts
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.remembered import files_of

ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class Source(ABC):
    """A model that can be opened: ``where`` describes it in a few words, its files are at ``path``.

    ``family`` is the kind of its files.
    """

    name: str
    where: str
    path: Path

    @property
    @abstractmethod
    def family(self) -> str: ...

    @abstractmethod
    def config(self) -> ModelConfig:
        """The architecture, without reading the values of the weights."""

    def glance(self) -> tuple[ModelConfig, list[Path]]:
        """The architecture and the weight files, fast enough for a list of models; not checked against each other."""
        return self.config(), weight_files(self.path)

    @abstractmethod
    def vocabulary(self, given: Settings = NOTHING) -> Vocabulary:
        """The tokenizer, without the weights, with settings that are ``given`` instead of those of its files.

        Raises UsageError for a setting that it does not read.
        """

    def tokenizer_is_open(self) -> bool:
        """Whether the files may leave settings of the tokenizer open, found without reading it."""
        return False

    def weigh(self, dtype: torch.dtype, seed: int, *, keep: bool = False) -> LoadedModel:
        """The weights; ``seed`` draws those of a preset, and with ``keep`` they stay in their file.

        Raises UsageError where weights of this kind cannot stay there.
        """
        if keep:
            raise UsageError(
                f"{self.name} is not a file of transformers or llama.cpp, whose weights can stay as they are stored",
                "leave out --keep-quantized",
            )
        return self._weighed(dtype, seed)

    @abstractmethod
    def _weighed(self, dtype: torch.dtype, seed: int) -> LoadedModel:
        """The weights in memory."""

    def merged(self, adapter: Adapter, transformer: Transformer) -> Transformer:
        """The model with a PEFT adapter merged into its weights. Raises like ``Adapter.merge``."""
        raise UsageError(
            f"{self.name} is not a model of transformers, so an adapter does not fit it",
            "convert it with tinytf export",
        )

    def _refuse(self, given: Settings) -> None:
        for name in given:
            raise UsageError(f"the tokenizer of {self.name} has no setting {name!r}", "its files say everything")

    def card(self) -> dict[str, Any] | None:
        """The model card, or None."""
        return None

    def prompts(self) -> Prompts:
        """What its files say to put before a text whose vector is asked for."""
        return NO_PROMPTS

    def cuts_at(self) -> int:
        """The number of tokens at which its files say that a text is cut; 0 for none."""
        return 0

    def late(self) -> LateInteraction | None:
        """How its files say to read queries and documents for late interaction; None where they do not."""
        return None

    def pair_template(self) -> PairTemplate | None:
        """How its files say to render a pair of texts; None where the tokenizer joins them."""
        return None

    def corpus(self) -> Path | None:
        """A text file of the kind that the model was trained on, or None."""
        return None


class PresetSource(Source):
    """An architecture with random weights; it borrows the tokenizer of a built-in model."""

    family = "preset"

    def config(self) -> ModelConfig:
        return preset(self.name.removeprefix("preset:"))

    def glance(self) -> tuple[ModelConfig, list[Path]]:
        return self.config(), []

    def vocabulary(self, given: Settings = NOTHING) -> Vocabulary:
        self._refuse(given)
        built_in = "tiny" if self.config().causal else "tiny-encoder"
        note = f"borrowed from {built_in}: a preset has no vocabulary of its own"
        return Vocabulary(Tokenizer.load(ASSETS / built_in / "tokenizer.json"), note)

    def _weighed(self, dtype: torch.dtype, seed: int) -> LoadedModel:
        return LoadedModel(Transformer.initialised(self.config(), seed).to(dtype))


class RunSource(Source):
    """A run directory of tinytf; built-in models are run directories too."""

    family = "tinytf run"

    def config(self) -> ModelConfig:
        return self._config

    @cached_property
    def _config(self) -> ModelConfig:
        return read_config(self.path)

    def vocabulary(self, given: Settings = NOTHING) -> Vocabulary:
        self._refuse(given)
        return Vocabulary(Tokenizer.load(self.path / "tokenizer.json"))

    def _weighed(self, dtype: torch.dtype, seed: int) -> LoadedModel:
        return LoadedModel(load_run(self.path, dtype, self._config))

    def card(self) -> dict[str, Any] | None:
        return read_json(self.path / "card.json") if (self.path / "card.json").exists() else None

    def corpus(self) -> Path | None:
        """The held-out text of a built-in model; else the first file that the run was trained on."""
        run = self.path.parents[1] if self.path.absolute().parent.name == CHECKPOINTS else self.path
        return next((path for path in (self.path / "held_out.txt", *files_of(run)) if path.is_file()), None)


class DirectorySource(Source):
    """A directory written by transformers."""

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return read_directory(self.path)

    @property
    def family(self) -> str:
        return self.checkpoint.table.name

    def config(self) -> ModelConfig:
        return self.checkpoint.config

    def vocabulary(self, given: Settings = NOTHING) -> Vocabulary:
        return load_tokenizer_directory(self.path, given)

    def tokenizer_is_open(self) -> bool:
        return not (self.path / "tokenizer.json").exists()

    def weigh(self, dtype: torch.dtype, seed: int, *, keep: bool = False) -> LoadedModel:
        return self.checkpoint.load(dtype, keep=keep)

    def _weighed(self, dtype: torch.dtype, seed: int) -> LoadedModel:
        return self.weigh(dtype, seed)

    def prompts(self) -> Prompts:
        return read_prompts(self.path)

    def cuts_at(self) -> int:
        return read_cut(self.path, self.config().context)

    def late(self) -> LateInteraction | None:
        return read_late(self.path)

    def pair_template(self) -> PairTemplate | None:
        return read_pair_template(self.path)

    def merged(self, adapter: Adapter, transformer: Transformer) -> Transformer:
        return adapter.merge(transformer, self.checkpoint.table)

    def scales(self, adapter: Adapter, transformer: Transformer) -> dict[str, float]:
        return adapter.scales(transformer, self.checkpoint.table)


@dataclass(frozen=True)
class MemorySource(DirectorySource):
    """A model of transformers in memory, with its tokenizer."""

    module: Any
    tokenizer: Any

    @classmethod
    def of(cls, module: Any, tokenizer: Any) -> Self:
        """The source of a module, named after the model that it was opened from, or else its class."""
        opened_from, kind = getattr(getattr(module, "config", None), "_name_or_path", ""), type(module).__name__
        return cls(printable(str(opened_from or kind), spaces=False), f"{kind} in memory", Path(), module, tokenizer)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return read_module(self.module)

    def vocabulary(self, given: Settings = NOTHING) -> Vocabulary:
        self._refuse(given)
        return tokenizer_in_memory(self.tokenizer, self.module)

    def prompts(self) -> Prompts:
        return NO_PROMPTS


class GgufSource(DirectorySource):
    """A ``.gguf`` file: configuration, vocabulary and weights in one."""

    family = "GGUF"

    @cached_property
    def header(self) -> Header:
        return read_parts(self.path)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return checkpoint_of(self.header)

    def merged(self, adapter: Adapter, transformer: Transformer) -> Transformer:
        return Source.merged(self, adapter, transformer)

    def glance(self) -> tuple[ModelConfig, list[Path]]:
        return read_gguf(self.path, brief=True).config, parts_of(self.path)

    def tokenizer_is_open(self) -> bool:
        return self.header.metadata.get("tokenizer.ggml.model") == "bert"

    def vocabulary(self, given: Settings = NOTHING) -> Vocabulary:
        note = ", with ".join(filter(None, ("from the file's metadata", setting_words(given))))
        return Vocabulary(tokenizer_of(self.header, given), note)


def find_source(model: str) -> Source:
    """The source for a name or path; a built-in name wins over a path, a path over a run of this name in runs/,
    and that over a name of the hub cache.

    Raises UsageError for an unknown name, with the nearest; CheckpointError for a file or folder that is not a model.
    """
    prefix, colon, name = model.partition(":")
    if colon and prefix == "preset":
        source = PresetSource(model, "random weights", Path())
        source.config()  # raises for an unknown preset
        return source
    if colon and prefix == "hub":
        return stored_source(name, fetch(name))
    for store in STORES:
        if colon and prefix + colon == store.prefix:
            return stored_source(model, store.find(name))
    if model in BUILT_IN:
        return RunSource(model, "built in", ASSETS / model)
    if not model:
        raise UsageError("the name of the model is empty", "tinytf models lists those available here")
    if path_exists(model):
        return source_at(Path(model))
    if path_exists(str(run := named_run(Path(model)))):
        return source_at(run)
    if HUB_CACHE.has(model):
        return stored_source(model, HUB_CACHE.find(model))
    if model.lower().endswith(".gguf") or (os.sep in model and not HUB_CACHE.is_name(model)):
        raise UsageError(f"there is no file or folder {model!r}", near_path(Path(model)) or _HINT)
    raise UsageError(f"there is no model {model!r}", _nearest(model))


def stored_source(name: str, path: Path) -> Source:
    """The source of a model that another program stores at ``path``."""
    register_model(path)
    return GgufSource(name, str(path), path) if path.is_file() else DirectorySource(name, str(path), path)


def vocabulary_of(source: Source, tokenizer: str | None = None) -> Vocabulary:
    """The tokenizer of a source, or the one that ``tokenizer`` names or sets, as ``TokenizerChoice.parse`` reads it."""
    choice = TokenizerChoice.parse(tokenizer or "")
    if not choice.place:
        return source.vocabulary(choice.settings)
    vocabulary = _vocabulary_at(choice.place, choice.settings)
    return replace(vocabulary, note=", ".join(filter(None, (f"that of {choice.place}", vocabulary.note))))


def open_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model, or of a folder or file with only a tokenizer. Raises like ``find_source``."""
    return _vocabulary_at(name).tokenizer


def _vocabulary_at(name: str, given: Settings = NOTHING) -> Vocabulary:
    path = Path(name)
    if path.is_file() and path.suffix.lower() in (".json", ".txt"):
        path = path.parent
    if path.is_dir() and not (path / "config.json").exists():
        return load_tokenizer_directory(path, given)
    return find_source(str(path) if path.is_dir() else name).vocabulary(given)


_HINT = "tinytf opens folders with a config.json, and .gguf files"


def source_at(path: Path) -> Source:
    """The source at a path: a run directory, a directory of transformers, or a GGUF file."""
    name = path.name or resolve_links(path).name
    register_model(path)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return GgufSource(name, str(path), path)
        is_beside = (path.parent / "config.json").exists()
        raise CheckpointError(f"{path} is a file", f"name its folder: {path.parent}" if is_beside else _HINT)
    if not path.is_dir():
        raise CheckpointError(f"{path} is neither a folder nor a file", _HINT)
    try:
        data = read_json(path / "config.json")
    except CheckpointError as error:
        if isinstance(error.__context__, FileNotFoundError):
            error.hint = _inside(path) or _HINT
        raise
    kind = RunSource if "model_type" not in data or data.get("format") == FORMAT else DirectorySource
    return kind(name, str(path), path)


def _inside(folder: Path) -> str:
    """The hint for a folder that is no model, but holds one or is an adapter; empty for another."""
    if (folder / "adapter_config.json").exists():
        return f"it is an adapter: name its model with -m, and this with --adapter {folder}"
    found = next((path for pattern in ("*.gguf", "*/config.json") for path in sorted(folder.glob(pattern))), None)
    return f"did you mean {found if found.suffix == '.gguf' else found.parent}?" if found else ""


def _nearest(model: str) -> str:
    """The hint for an unknown model."""
    known = (*BUILT_IN, *(f"preset:{name}" for name in PRESETS))
    if not HUB_CACHE.is_name(model):
        return did_you_mean(model, known, "a folder", "a .gguf file", "hub:ORG/NAME")
    suggestion = did_you_mean(model, (*known, *HUB_CACHE.names()))
    first_half = suggestion if suggestion.endswith("?") else "tinytf models lists those available here;"
    return f"{first_half} hub:{model} fetches it from the Hugging Face hub"
