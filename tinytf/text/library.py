"""What the ``tokenizers`` library makes of a text, in this process or in one of its own, and what it raises."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as Library

from tinytf.errors import CheckpointError, TinytfError, TokenizerError
from tinytf.text.apart import Apart
from tinytf.text.printable import printable
from tinytf.text.strange import is_strange


class Pieces(NamedTuple):
    """Of each token of a text its id, the characters that it covers, and 1 where it was added."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    masks: list[int]


@contextmanager
def library_errors(kind: type[TinytfError], said: str) -> Iterator[None]:
    """Raise what the library raises, plain Exception and its own PanicException, as ``kind``, after ``said``."""
    try:
        yield
    except (kind, CheckpointError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise kind(f"{said}: {printable(str(error), spaces=False)}") from None


def split(library: Library, text: str, special: bool, name: str = "the tokenizer") -> Pieces:
    """The tokens of a text; ``special`` adds the tokens that the tokenizer adds. Raises TokenizerError."""
    with library_errors(TokenizerError, f"{name} cannot take this text"):
        found = library.encode(text, add_special_tokens=special)
        return Pieces(found.ids, found.offsets, found.special_tokens_mask)


class Stranger:
    """A tokenizer with parts that are not known to be harmless, in a process of its own.

    ``path`` is the file that they are from. Raises CheckpointError for one that takes more than its budget.
    """

    def __init__(self, library: Library, path: str) -> None:
        self._apart = Apart(path, _keep, library.to_str(), path, library.encode_special_tokens)

    def split(self, text: str, special: bool) -> Pieces:
        return self._apart(_split_kept, text, special)

    def decode(self, ids: list[int]) -> str:
        return self._apart(_decode_kept, ids)


_kept: list[tuple[str, Library]] = []
"""In a process of its own: the tokenizer that it is for, and its file."""


def _keep(stored: str, path: str, encode_special_tokens: bool = False) -> None:
    with library_errors(CheckpointError, f"{path} is not a tokenizer"):
        library = Library.from_str(stored)
        library.encode_special_tokens = encode_special_tokens
    _kept[:] = [(path, library)]


def _split_kept(text: str, special: bool) -> Pieces:
    path, library = _kept[0]
    return split(library, text, special, path)


def _decode_kept(ids: list[int]) -> str:
    path, library = _kept[0]
    with library_errors(TokenizerError, f"{path} cannot decode these ids"):
        return str(library.decode(ids, skip_special_tokens=True))


def try_apart(data: Mapping[str, Any], path: Path) -> str:
    """The path of a tokenizer.json that is strange, once it was read in a process of its own; else nothing.

    Raises CheckpointError for one that takes more than its budget, or that is a bomb by what it says.
    """
    if not is_strange(data, path):
        return ""
    Apart(str(path))(_keep, json.dumps(data), str(path))
    return str(path)
