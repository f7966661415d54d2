"""Models of the Hugging Face hub: downloaded into the cache of huggingface_hub, opened like any directory."""

from pathlib import Path
from typing import Any

from tinytf.checkpoints.stores import HUB_CACHE
from tinytf.errors import CheckpointError, UsageError
from tinytf.outputs import is_fenced, require_unfenced

_SMALL_FILES = ("*.json", "merges.txt", "vocab.txt", "*.model")
_WEIGHTS = (
    ("model.safetensors", "model-*-of-*.safetensors", "*_Dense/model.safetensors"),
    ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "*_Dense/pytorch_model.bin"),
)


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise CheckpointError(
            "models of the hub need the package huggingface_hub", 'pip install "tinytf[hub]"'
        ) from None
    return huggingface_hub


def fetch(name: str) -> Path:
    """The cached directory of ``ORG/NAME`` or ``ORG/NAME@REVISION``, downloaded if necessary.

    huggingface_hub handles progress, token, offline mode and cache (HF_TOKEN, HF_HUB_OFFLINE, HF_HOME). Without that
    package, only cached models can be opened. Raises UsageError for an invalid name, CheckpointError for any error of
    the hub or the network.
    """
    repository, _, revision = name.partition("@")
    if repository.count("/") > 1 or not all(repository.split("/")):
        raise UsageError(
            f"hub:{name} is not the name of a model", "a name is ORG/NAME, such as hub:openai-community/gpt2"
        )
    try:
        library = _library()
    except CheckpointError:
        if HUB_CACHE.has(name):
            return HUB_CACHE.find(name)
        raise

    if is_fenced() and HUB_CACHE.has(name):
        return HUB_CACHE.find(name)  # the library would look for newer files
    require_unfenced(f"download hub:{name}")

    def snapshot(*patterns: str) -> Path:
        return Path(library.snapshot_download(repository, revision=revision or None, allow_patterns=list(patterns)))

    try:
        for weights in _WEIGHTS:
            directory = snapshot(*_SMALL_FILES, *weights)
            if any(path for pattern in weights for path in directory.glob(pattern)):
                break
    except (OSError, ValueError, library.errors.HfHubHTTPError) as error:
        reason = next(line for line in str(error).splitlines() if line.strip())
        raise CheckpointError(f"cannot fetch hub:{name}: {reason}", _hint(error)) from None
    return directory


def _hint(error: Exception) -> str:
    kind = type(error).__name__
    if "Offline" in kind or "LocalEntryNotFound" in kind:
        return "it is not in the cache, and the hub cannot be reached or HF_HUB_OFFLINE is set"
    if "Gated" in kind or "RepositoryNotFound" in kind:
        return "check the name; a private or gated model needs HF_TOKEN"
    return ""
