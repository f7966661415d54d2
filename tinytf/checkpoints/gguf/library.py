"""The ``gguf`` library, imported when a file is opened: names and sizes of tensor types, and how to dequantise them."""

from types import ModuleType

from tinytf.errors import CheckpointError


def gguf_library() -> ModuleType:
    """The library; CheckpointError that says how to install it where it is missing."""
    try:
        import gguf
    except ImportError:
        raise CheckpointError(
            "GGUF files are opened with the gguf library, which is not installed", 'pip install "tinytf[gguf]"'
        ) from None
    return gguf
