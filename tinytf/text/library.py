"""What the ``tokenizers`` library makes of a text, in this process or in one of its own, and what it raises."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as Library

from tinytf.errors import CheckpointError, TinytfError, TokenizerError, UsageError
from tinytf.files import MEBI
from tinytf.text.hazards import is_hazardous
from tinytf.text.printable import printable
from tinytf.text.worker import Worker


class Pieces(NamedTuple):
    """Of each token of a text its id, the characters that it covers, and 1 where it was added."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    masks: list[int]


BYTES, TOKENS = 2 * MEBI, 2**19
"""The most of a text in UTF-8, and its most tokens.

A byte may be a token, for which the library takes up to 200 bytes; one that is kept is an object of some hundred more.
"""


class Limit(NamedTuple):
    """The most tokens of a text, and who takes no more; checked before anything is made of each token."""

    tokens: int = TOKENS
    whose: str = "tinytf"
    hint: str = "give a part of it"

    def require(self, count: int) -> None:
        """Raise UsageError for a text of more tokens."""
        if count > self.tokens:
            raise UsageError(
                f"the text has {count:,} tokens, and {self.whose} takes at most {self.tokens:,}", self.hint
            )

    def require_bytes(self, count: int) -> None:
        """Raise UsageError for a text of more bytes than are split into tokens at all."""
        if count > BYTES:
            raise UsageError(f"the text has {count:,} bytes, and tinytf takes at most {BYTES:,}", self.hint)


MOST = Limit()
"""What is taken where nothing else sets a limit."""


@contextmanager
def library_errors(kind: type[TinytfError], said: str) -> Iterator[None]:
    """Raise what the library raises, plain Exception and its own PanicException, as ``kind``, after ``said``."""
    try:
        yield
    except (kind, CheckpointError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise kind(f"{said}: {printable(str(error), spaces=False)}") from None


def split(library: Library, text: str, special: bool, name: str = "the tokenizer", limit: Limit = MOST) -> Pieces:
    """The tokens of a text; ``special`` adds the tokens that the tokenizer adds. Raises TokenizerError, UsageError."""
    with library_errors(TokenizerError, f"{name} cannot take this text"):
        found = library.encode(text, add_special_tokens=special)
    limit.require(len(found))
    return Pieces(found.ids, found.offsets, found.special_tokens_mask)


class Stranger:
    """A tokenizer with parts that are not known to be harmless, in a process of its own, in which it is read at once.

    Raises CheckpointError, with its ``path``, where it is none, or takes more than its budget.
    """

    def __init__(self, data: Mapping[str, Any], path: Path) -> None:
        self.path, self._apart = str(path), Worker(str(path))
        self._apart(_keep, json.dumps(data), self.path)

    def follow(self, library: Library) -> None:
        """Work as this one from now on, which is of the same file."""
        self._apart.begin_with(_keep, library.to_str(), self.path, library.encode_special_tokens)

    def split(self, text: str, special: bool, limit: Limit = MOST) -> Pieces:
        return self._apart(_split_kept, text, special, limit)

    def decode(self, ids: list[int]) -> str:
        return self._apart(_decode_kept, ids)


_kept: list[tuple[str, Library]] = []
"""In a process of its own: the tokenizer that it is for, and its file."""


def _keep(stored: str, path: str, encode_special_tokens: bool = False) -> None:
    with library_errors(CheckpointError, f"{path} is not a tokenizer"):
        library = Library.from_str(stored)
        library.encode_special_tokens = encode_special_tokens
    _kept[:] = [(path, library)]


def _split_kept(text: str, special: bool, limit: Limit) -> Pieces:
    path, library = _kept[0]
    return split(library, text, special, path, limit)


def _decode_kept(ids: list[int]) -> str:
    path, library = _kept[0]
    with library_errors(TokenizerError, f"{path} cannot decode these ids"):
        return str(library.decode(ids, skip_special_tokens=True))


def stranger_in(data: Mapping[str, Any], path: Path) -> Stranger | None:
    """The tokenizer of a tokenizer.json that is strange; None for one that is known to be harmless.

    Raises CheckpointError for a bomb, and as Stranger does.
    """
    return Stranger(data, path) if is_hazardous(data, path) else None
