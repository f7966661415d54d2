"""Opening a model by what a user calls it: a built-in name, a run directory, or ``preset:NAME``."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tinytf.checkpoints.run import load_run, read_config, read_json
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, TokenizerError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.presets import PRESETS, preset
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

ASSETS = Path(__file__).parent / "assets"
BUILT_IN = ("tiny", "tiny-encoder")
_BUILT_IN_SOURCE = "built in"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class Model:
    """A transformer with its tokenizer. ``source`` says what it is; ``tokenizer_note`` whose the vocabulary is."""

    name: str
    transformer: Transformer
    tokenizer: Tokenizer
    source: str
    tokenizer_note: str = ""

    @property
    def config(self) -> ModelConfig:
        return self.transformer.config

    @cached_property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.transformer.parameters())

    def encode(self, text: str, *, truncate: bool = False) -> Encoding:
        """Tokens of ``text`` as this model takes them.

        Raises UsageError for a text without a word, or longer than the context; ``truncate`` cuts its end instead.
        """
        if not text.strip():
            what = "empty" if not text else "only white space"
            raise UsageError(f"the text is {what}", "give a few words, such as: The cat sat")
        encoding = self.tokenizer.encode(text)
        beyond = [token for token in encoding.tokens if token.id >= self.config.vocab_size]
        if beyond:
            raise TokenizerError(
                f"token {beyond[0].shown} has id {beyond[0].id}, and the model knows {self.config.vocab_size} tokens"
            )
        limit = self.config.context
        if len(encoding.tokens) <= limit:
            return encoding
        if not truncate:
            raise UsageError(
                f"the text has {len(encoding.tokens):,} tokens, and {self.name} takes at most {limit:,}",
                "shorten it, or cut it on purpose with --truncate",
            )
        return encoding.truncated(limit)

    def trace(self, text: str, *, truncate: bool = False) -> Trace:
        """Record every step of ``text`` through the model."""
        return record(self.transformer, self.encode(text, truncate=truncate), self.tokenizer.mask_id)

    def card(self) -> dict[str, Any] | None:
        """The model card of a built-in model: data, recipe, seed, measured losses, limits."""
        return read_json(ASSETS / self.name / "card.json") if self.source == _BUILT_IN_SOURCE else None


def pick_device(device: str) -> torch.device:
    """The torch device of a word; ``auto`` is the first of cuda, mps, cpu that is there.

    Raises UsageError when the named one is not available here.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(name for name, available in there.items() if available))
    if device not in DEVICES:
        raise UsageError(f"there is no device {device!r}", did_you_mean(device, DEVICES))
    if not there[device]:
        raise UsageError(
            f"{device} is not available here", f"available: {', '.join(n for n, ok in there.items() if ok)}"
        )
    return torch.device(device)


def _preset_model(name: str, seed: int) -> Model:
    config = preset(name.removeprefix("preset:"))
    tokenizer, note = _borrowed_tokenizer(config)
    return Model(name, Transformer.initialised(config, seed), tokenizer, f"random weights, seed {seed}", note)


def load_tokenizer(model: str) -> tuple[str, Tokenizer, str, int]:
    """(name, tokenizer, note, context) of a model, without opening its weights."""
    if model.startswith("preset:"):
        config = preset(model.removeprefix("preset:"))
        tokenizer, note = _borrowed_tokenizer(config)
        return model, tokenizer, note, config.context
    directory = ASSETS / model if model in BUILT_IN else _run_directory(model)
    return directory.name, Tokenizer.load(directory / "tokenizer.json"), "", read_config(directory).context


def _borrowed_tokenizer(config: ModelConfig) -> tuple[Tokenizer, str]:
    lender = "tiny" if config.causal else "tiny-encoder"
    note = f"borrowed from {lender}: a preset has no vocabulary of its own"
    return Tokenizer.load(ASSETS / lender / "tokenizer.json"), note


def _run_directory(model: str) -> Path:
    path = Path(model)
    if path.is_file():
        raise CheckpointError(f"{model} is a file", "tinytf opens folders with a config.json")
    if not path.is_dir():
        known = (*BUILT_IN, *(f"preset:{name}" for name in PRESETS))
        hint = did_you_mean(model, known) or f"known: {', '.join(known)}, or the folder of a run"
        raise UsageError(f"there is no model {model!r}", hint)
    return path


def load(model: str = "tiny", *, device: str = "auto", dtype: str = "float32", seed: int = 0) -> Model:
    """Open a model: ``tiny``, ``tiny-encoder``, the path of a run directory, or ``preset:NAME``.

    ``seed`` makes the weights of a preset. Raises UsageError for a name that is nothing known (with the nearest),
    CheckpointError for a directory that is damaged.
    """
    if dtype not in DTYPES:
        raise UsageError(f"there is no dtype {dtype!r}", did_you_mean(dtype, DTYPES))
    where = pick_device(device)
    if model.startswith("preset:"):
        opened = _preset_model(model, seed)
    elif model in BUILT_IN:
        transformer, tokenizer = load_run(ASSETS / model)
        opened = Model(model, transformer, tokenizer, _BUILT_IN_SOURCE)
    else:
        path = _run_directory(model)
        transformer, tokenizer = load_run(path)
        opened = Model(path.name or str(path), transformer, tokenizer, str(path))
    opened.transformer.to(device=where, dtype=DTYPES[dtype])
    return opened
