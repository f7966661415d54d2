"""Calls of the ``tokenizers`` library, in this process or in a worker, with its exceptions as errors of tinytf."""

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
    """The id of each token of a text, the characters it covers, and 1 if it was added, else 0."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    masks: list[int]


BYTES, TOKENS = 2 * MEBI, 2**19
"""The most bytes of a text in UTF-8, and its most tokens.

Every byte may be a token, for which the library needs up to 200 bytes, and our Token some hundred more.
"""


class Limit(NamedTuple):
    """The most tokens of a text, and what sets the limit; checked before any Token is made."""

    tokens: int = TOKENS
    whose: str = "tinytf"
    hint: str = "give a part of it"
    of: str = "text"

    def require(self, count: int) -> None:
        """Raise UsageError for a text of more tokens."""
        if count > self.tokens:
            raise UsageError(
                f"the {self.of} has {count:,} tokens, and {self.whose} takes at most {self.tokens:,}", self.hint
            )

    def require_bytes(self, count: int) -> None:
        """Raise UsageError for a text of more bytes than tinytf tokenizes."""
        if count > BYTES:
            raise UsageError(f"the text has {count:,} bytes, and tinytf takes at most {BYTES:,}", self.hint)


DEFAULT_LIMIT = Limit()
"""The limit of tinytf itself."""


@contextmanager
def library_errors(kind: type[TinytfError], prefix: str) -> Iterator[None]:
    """Re-raise exceptions of the library (Exception and its PanicException) as ``kind``, with a ``prefix``."""
    try:
        yield
    except (kind, CheckpointError, UsageError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise kind(f"{prefix}: {printable(str(error), spaces=False)}") from None


def split(
    library: Library, text: str, special: bool, name: str = "the tokenizer", limit: Limit = DEFAULT_LIMIT
) -> Pieces:
    """The tokens of a text, with those that the tokenizer adds if ``special``. Raises TokenizerError and UsageError."""
    with library_errors(TokenizerError, f"{name} cannot take this text"):
        encoding = library.encode(text, add_special_tokens=special)
    limit.require(len(encoding))
    return Pieces(encoding.ids, encoding.offsets, encoding.special_tokens_mask)


class UntrustedTokenizer:
    """A tokenizer with parts that are not known to be harmless, loaded and run in a worker process.

    Raises CheckpointError, with its ``path``, if it is invalid or exceeds its budget.
    """

    in_json = True

    @property
    def files(self) -> dict[str, bytes]:
        """The contents of the files that hold it by name, where no tokenizer.json can; else none."""
        return {}

    """Whether a tokenizer.json can hold it."""

    def __init__(self, data: Mapping[str, Any], path: Path) -> None:
        self.path, self._worker = str(path), Worker(str(path))
        self._worker(_load, json.dumps(data), self.path)

    def follow(self, library: Library) -> None:
        """Use ``library``, read from the same file, from now on."""
        self._worker.begin_with(_load, library.to_str(), self.path, library.encode_special_tokens)

    def split(self, text: str, special: bool, limit: Limit = DEFAULT_LIMIT) -> Pieces:
        return self._worker(_split_loaded, text, special, limit)

    def decode(self, ids: list[int]) -> str:
        return self._worker(_decode_loaded, ids)


_loaded: list[tuple[str, Library]] = []
"""In the worker process: the file and the tokenizer that it serves."""


def _load(stored: str, path: str, encode_special_tokens: bool = False) -> None:
    with library_errors(CheckpointError, f"{path} is not a tokenizer"):
        library = Library.from_str(stored)
        library.encode_special_tokens = encode_special_tokens
    _loaded[:] = [(path, library)]


def _split_loaded(text: str, special: bool, limit: Limit) -> Pieces:
    path, library = _loaded[0]
    return split(library, text, special, path, limit)


def _decode_loaded(ids: list[int]) -> str:
    path, library = _loaded[0]
    with library_errors(TokenizerError, f"{path} cannot decode these ids"):
        return str(library.decode(ids, skip_special_tokens=True))


def untrusted_tokenizer(data: Mapping[str, Any], path: Path) -> UntrustedTokenizer | None:
    """The worker for a tokenizer.json that may be hazardous; None for one that is known to be harmless.

    Raises CheckpointError for a bomb, and as UntrustedTokenizer does.
    """
    return UntrustedTokenizer(data, path) if is_hazardous(data, path) else None
