"""Texts that a mean or another text's value comes from."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tinytf.errors import UsageError
from tinytf.text.tokenizer import Encoding

TOKENS = 4096
"""Tokens of a reference that are run, of its first texts."""
_BYTES = 1 << 20  # more characters than that hold more tokens than are run, in any tokenizer


@dataclass(frozen=True)
class Reference:
    """Some tokenized texts, at least one, and what they are called."""

    name: str
    texts: tuple[Encoding, ...]

    @property
    def n_tokens(self) -> int:
        return sum(len(text.tokens) for text in self.texts)

    def __str__(self) -> str:
        texts = f"{len(self.texts):,} text{'s' if len(self.texts) > 1 else ''}"
        return f"{texts}, {self.n_tokens:,} tokens of {self.name}"


def read_reference(path: Path, name: str, encode: Callable[[str], Encoding]) -> Reference:
    """The paragraphs of a text file, as many of the first as hold TOKENS tokens; of a long one its beginning.

    ``encode`` makes tokens of a text and cuts what is too long for the model. Raises UsageError for a file that cannot
    be read, is no text, or has not a word in it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name a text file") from None
    text = _decoded(data, path)
    return reference_of(name, (part for part in re.split(r"\n\s*\n", text) if part.strip()), encode)


def reference_of(name: str, texts: Iterable[str], encode: Callable[[str], Encoding]) -> Reference:
    """A reference of texts, the first of them that hold TOKENS tokens."""
    found: list[Encoding] = []
    for text in texts:
        encoding = encode(text.strip())
        if found and sum(len(one.tokens) for one in found) + len(encoding.tokens) > TOKENS:
            break
        found.append(encoding)
    if not found:
        raise UsageError(f"{name} has no text with a word in it", "give texts with an empty line between them")
    return Reference(name, tuple(found))


def _decoded(data: bytes, path: Path) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(data) < _BYTES or error.start < len(data) - 4:
            raise UsageError(f"{path} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start:,}") from None
        text = data[: error.start].decode("utf-8")
    if "\0" in text:
        raise UsageError(f"{path} is a binary file", "name a text file")
    return text.replace("\r\n", "\n")
