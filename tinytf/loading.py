"""Open a model by its name or path, or from memory."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tinytf.api import Model
from tinytf.checkpoints.huggingface.adapter import Adapter, Merged
from tinytf.checkpoints.huggingface.memory import device_and_dtype
from tinytf.checkpoints.weights import not_finite
from tinytf.errors import CheckpointError, UsageError
from tinytf.files import lasting_files
from tinytf.look.info import Info
from tinytf.nearest import did_you_mean
from tinytf.presets import preset
from tinytf.sources import DirectorySource, MemorySource, PresetSource, RunSource, Source, find_source, vocabulary_of

__all__ = ["DEVICES", "DTYPES", "Model", "info", "load", "open_source", "pick_device"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
DEVICES = ("auto", "cpu", "cuda", "mps")


def pick_device(device: str | torch.device) -> torch.device:
    """The torch device of a word; ``auto`` is the first available one of cuda, mps, cpu.

    Raises UsageError if the device is unknown or not available here.
    """
    if isinstance(device, torch.device):
        return device
    available_by_name = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(name for name, available in available_by_name.items() if available))
    if device not in DEVICES:
        raise UsageError(f"there is no device {device!r}", did_you_mean(device, DEVICES))
    if not available_by_name[device]:
        raise UsageError(
            f"{device} is not available here", f"available: {', '.join(n for n, ok in available_by_name.items() if ok)}"
        )
    return torch.device(device)


def load(
    model: Any = "tiny",
    tokenizer: Any = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    seed: int = 0,
    adapter: str | os.PathLike[str] | None = None,
    keep_quantized: bool = False,
) -> Model:
    """Open a model: ``tiny``, ``tiny-encoder``, ``tiny-translator``, a path (run directory, directory of transformers,
    ``.gguf`` file), ``preset:NAME``, ``hub:ORG/NAME``, or a model of transformers in memory, with its ``tokenizer``.

    ``tokenizer`` of a name or path is another place to read it from, or settings that the files leave open, or both:
    ``"../vocab.txt,do_lower_case=false"``. By default ``device`` is ``auto`` and ``dtype`` float32. ``seed`` draws the
    weights of a preset. A model in memory stays on its device and in the dtype of most of its weights, which are
    shared, not copied, as far as their layout permits. Without a tokenizer its texts are ids, such as ``"464 3797"``.
    ``adapter`` is the folder of a LoRA adapter of PEFT, which is merged into the weights. With ``keep_quantized``, or
    where they do not fit into memory, the weights stay in their file as it stores them, and are converted at each use.

    Raises UsageError for an unknown name (with the nearest) or object, CheckpointError for files that are damaged or
    have an architecture that is not implemented.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"there is no dtype {dtype!r}", did_you_mean(dtype, DTYPES))
    if isinstance(model, str | os.PathLike):
        if tokenizer is not None and not isinstance(tokenizer, str):
            raise UsageError("a tokenizer in memory goes with a model in memory", "name a folder, a file or settings")
        source_by_name, target, kind = find_source(os.fspath(model)), device or "auto", dtype or "float32"
        return open_source(
            source_by_name, device=target, dtype=kind, seed=seed, adapter=adapter, tokenizer=tokenizer,
            keep_quantized=keep_quantized,
        )  # fmt: skip
    source = MemorySource.of(model, tokenizer)
    source.config()  # raises for anything but a model of transformers
    module_device, module_dtype = device_and_dtype(model)
    kind = dtype or str(module_dtype).removeprefix("torch.")
    return open_source(source, device=device or module_device, dtype=kind, adapter=adapter)


@lasting_files()
def open_source(
    source: Source,
    *,
    device: str | torch.device = "auto",
    dtype: str = "float32",
    seed: int = 0,
    adapter: str | os.PathLike[str] | None = None,
    tokenizer: str | None = None,
    keep_quantized: bool = False,
) -> Model:
    """Open the model of a source on a device and in a dtype. Raises like ``load``."""
    target = pick_device(device)
    if keep_quantized and target.type != "cpu":
        raise UsageError(f"weights stay in their file on the processor, not on {target.type}", "add --device cpu")
    config = source.config()
    vocabulary = vocabulary_of(source, tokenizer)
    notes: tuple[str, ...] = ()
    count = vocabulary.tokenizer.vocab_size
    if count > config.vocab_size:
        message = f"the tokenizer has {count:,} tokens, but the model takes {config.vocab_size:,}"
        if isinstance(source, RunSource):
            raise CheckpointError(f"{source.where}: {message}")
        notes = (message,)
    weighed = source.weigh(DTYPES[dtype], seed, keep=keep_quantized)
    transformer, name = weighed.transformer, source.name
    description = f"{source.where}, seed {seed}" if isinstance(source, PresetSource) else source.where
    merged: Merged | None = None
    if adapter is not None:
        lora = Adapter(Path(adapter))
        transformer, name = source.merged(lora, transformer), f"{name} + {lora.name}"
        assert isinstance(source, DirectorySource)
        scales = partial(source.scales, lora, transformer)
        merged = Merged(lora.name, lambda: source.weigh(DTYPES[dtype], seed).transformer, scales)
        description = f"{description}, with the adapter {lora.directory}"
    return Model(
        name,
        transformer.to(device=target),
        vocabulary.tokenizer,
        description,
        vocabulary.note,
        (*notes, *weighed.notes),
        source.corpus(),
        table=source.checkpoint.table if isinstance(source, DirectorySource) else None,
        prompts=source.prompts(),
        cuts_at=source.cuts_at(),
        late=source.late(),
        pair_template=source.pair_template(),
        merged=merged,
    )


def info(model: str, opened: Model | None = None) -> Info:
    """The sizes of ``model``; an ``opened`` model is not read again. Raises like ``load``."""
    if model.startswith("preset:"):
        return Info(model, preset(model.removeprefix("preset:")))
    source = find_source(model)
    if opened is None:
        weighed = source.weigh(torch.float32, seed=0)
        parameters = dict(weighed.transformer.named_parameters())
        count = sum(parameter.numel() for parameter in parameters.values())
        notes = (*weighed.notes, *_notes_on_tokenizer(source), *not_finite(parameters))
    else:
        count, notes = opened.n_parameters, opened.notes
    return Info(source.name, source.config(), source.family, count, notes, source.card())


def _notes_on_tokenizer(source: Source) -> tuple[str, ...]:
    """What is assumed about a tokenizer; nothing for a model without one."""
    if not source.tokenizer_is_open():
        return ()
    try:
        return source.vocabulary().tokenizer.notes
    except CheckpointError:
        return ()
