"""Importance matrices in the old format of llama-imatrix, as llama.cpp's tools/imatrix/imatrix.cpp writes it."""

import struct
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor


def old_format(path: Path, means: Mapping[str, Tensor], calls: int = 3, text: bytes | None = None) -> Path:
    """A file of these means; without a ``text``, as before the format had its name."""
    entries = [
        struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, value.numel())
        + (value * calls).numpy().astype("<f4").tobytes()
        for name, value in means.items()
    ]  # fmt: skip
    end = b"" if text is None else struct.pack("<ii", 7, len(text)) + text
    path.write_bytes(struct.pack("<i", len(entries)) + b"".join(entries) + end)
    return path
