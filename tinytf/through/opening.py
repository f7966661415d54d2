"""Open a directory through transformers: with eager attention, from local files, without code of the directory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tinytf.checkpoints.huggingface.load import has_table, read_directory
from tinytf.config import MOST_LAYERS
from tinytf.errors import CheckpointError, TinytfError, UsageError
from tinytf.files import TOKENIZER, lasting_files, read_json
from tinytf.loading import DTYPES, pick_device
from tinytf.memory import require_free
from tinytf.model.turn import using
from tinytf.sentences import first_of
from tinytf.sources import DirectorySource, GgufSource, Source, find_source
from tinytf.text.hazards import is_hazardous
from tinytf.text.huggingface import Vocabulary, load_tokenizer_directory, tokenizer_in_memory
from tinytf.text.printable import printable

_CODE_HINT = "its code runs only with --through transformers --trust-remote-code"
LOCAL = {"trust_remote_code": False, "local_files_only": True}


def has_no_table(model: str) -> bool:
    """Whether a model is a directory of transformers with an architecture that tinytf does not implement.

    A model of the hub is not fetched for that.
    """
    if model.startswith("hub:"):
        return False
    source = find_source(model)
    is_directory = isinstance(source, DirectorySource) and not isinstance(source, GgufSource)
    return is_directory and not has_table(source.path)


def directory_of(name: str | os.PathLike[str]) -> Source:
    """The source of a directory of transformers. Raises UsageError for any other kind of model."""
    source = find_source(os.fspath(name))
    if not isinstance(source, DirectorySource) or isinstance(source, GgufSource):
        raise UsageError(
            f"{source.name} is not a directory of transformers", "tinytf export MODEL DIRECTORY writes one"
        )
    return source


@lasting_files()
def open_module(
    directory: Path, *, device: str | torch.device = "auto", dtype: str = "float32", trust_remote_code: bool = False
) -> nn.Module:
    """The model that transformers makes of a directory, in eval mode.

    Raises UsageError if transformers is not installed, CheckpointError if it cannot open the directory, would make up
    weights that are not in the files, or would ignore some that are. Code in the directory runs only with
    ``trust_remote_code``.
    """
    local = {**LOCAL, "trust_remote_code": trust_remote_code}
    has_code = "auto_map" in read_json(directory / "config.json") and not trust_remote_code
    with open_transformers(directory, _CODE_HINT if has_code else "") as transformers:
        config = transformers.AutoConfig.from_pretrained(directory, **local)
        name = (config.architectures or [""])[0]
        kind = getattr(transformers, name, None)
        if kind is None:
            remote = getattr(config, "auto_map", None) or {}
            kinds = ("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModel")
            kind = getattr(transformers, next((auto for auto in kinds if auto in remote), "AutoModel"))
        if not trust_remote_code:
            _require_modest(kind, config, DTYPES[dtype])
        options = {"dtype": DTYPES[dtype], "attn_implementation": "eager", "weights_only": True, **local}
        model, loaded = kind.from_pretrained(directory, config=config, output_loading_info=True, **options)
    missing, ignored = (first_of(sorted(loaded[keys]), 3) for keys in ("missing_keys", "unexpected_keys"))
    if missing:
        names = printable(missing, spaces=False)
        raise CheckpointError(f"transformers finds no {names} in {directory}, and would make it up")
    if ignored and not _has_place_for_all(directory):
        raise CheckpointError(
            f"transformers would ignore tensors of {directory}, for which {kind.__name__} has no place: "
            f"{printable(ignored, spaces=False)}",
            "config.json may lack its quantization_config, or name another class in architectures",
        )
    module: nn.Module = model.eval().to(pick_device(device))
    return module


def _has_place_for_all(directory: Path) -> bool:
    """Whether tinytf's table for a directory reads every tensor in it, or says why it skips it."""
    try:
        read_directory(directory).plan()
    except TinytfError:
        return False
    return True


def _require_modest(kind: Any, config: Any, dtype: torch.dtype) -> None:
    """Refuse a configuration of more layers than tinytf opens, or of weights that do not fit into the free memory."""
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise CheckpointError(f"the model has {layers:,} layers, and tinytf opens at most {MOST_LAYERS:,}")
    with torch.device("meta"):
        module = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    n_bytes = sum(parameter.numel() for parameter in module.parameters()) * dtype.itemsize
    require_free("the weights take", n_bytes, torch.device("cpu"), "choose --dtype bfloat16, or a smaller model")


def vocabulary_of(directory: Path, module: Any) -> Vocabulary:
    """The tokenizer of a directory: as tinytf reads it, else transformers' own if it is harmless, else one of ids."""
    try:
        return load_tokenizer_directory(directory)
    except CheckpointError as error:
        reason = error.message
    stored = directory / "tokenizer.json"
    if stored.exists() and not is_hazardous(read_json(stored, TOKENIZER), stored):
        with open_transformers(directory) as transformers:
            theirs = transformers.AutoTokenizer.from_pretrained(directory, **LOCAL)
        vocabulary = tokenizer_in_memory(theirs, module)
        return Vocabulary(vocabulary.tokenizer, "as transformers reads it")
    ids = tokenizer_in_memory(None, module)
    return Vocabulary(ids.tokenizer, f"{ids.note}; {reason}")


@contextmanager
def open_transformers(directory: Path, hint: str = "") -> Iterator[Any]:
    """Yield transformers, quiet; turns its errors into CheckpointError with this hint."""
    try:
        with quiet_transformers() as transformers:
            yield transformers
    except TinytfError:
        raise
    except Exception as error:  # the library may raise anything
        raise CheckpointError(f"transformers cannot open {directory}: {reason_of(error)}", hint) from None


@contextmanager
def quiet_transformers() -> Iterator[Any]:
    """Yield transformers, without progress bars and warnings, for this thread alone.

    Its switches, and torch's seed, which its models draw from, belong to the process; so do hooks on its modules.
    Raises UsageError if it is not installed.
    """
    try:
        import transformers
    except ImportError:
        message = "this goes through transformers, which is not installed"
        raise UsageError(message, 'pip install "tinytf[hf]"') from None
    logging: Any = transformers.utils.logging
    with using(transformers):
        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield transformers
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()


def reason_of(error: Exception) -> str:
    """The first line of an error of another library."""
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return printable(reason, spaces=False)[:300].rstrip(": ")
