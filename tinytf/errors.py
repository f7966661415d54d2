"""The kinds of errors.

Every message says what is wrong, by how much, and the limit; ``hint`` gives the remedy in one line.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class TinytfError(Exception):
    """Something failed; ``exit_status`` is the exit status for a command line."""

    exit_status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(TinytfError):
    """The request itself is wrong: an unknown name, a text that is too long, a missing argument."""

    exit_status = 2


@contextmanager
def at_line(number: int, name: str) -> Iterator[None]:
    """Put the line of a file before the message of a UsageError."""
    try:
        yield
    except UsageError as error:
        kind = type(error) if isinstance(error, UnevenError) else UsageError
        raise kind(f"line {number:,} of {name}: {error.message}", error.hint) from None


class CacheError(UsageError):
    """A function that edits a step and changes tokens whose keys and values are cached already."""


class UnevenError(UsageError):
    """Two texts with different numbers of tokens, or the same ones, which a question compares token by token."""


class ConfigError(UsageError):
    """A model configuration whose values do not fit together."""


class AddressError(UsageError):
    """An address that does not parse, or that names a missing layer, head, step or cell."""


class TokenizerError(UsageError):
    """A text that the tokenizer cannot take, or a tokenizer that does not fit its model."""


class CheckpointError(TinytfError):
    """A model directory that is missing, damaged, or not what its configuration says."""


class DumpError(TinytfError):
    """A file of activations that is missing, damaged, refused, or of another model."""


class MemoryShortage(TinytfError):
    """A request that would not fit into the free memory."""


class TrainingError(TinytfError):
    """Training cannot start, or cannot continue."""


class GenerationError(TinytfError):
    """A text cannot be continued: the model's numbers are not finite, or its context is full."""


class PlacedError(UsageError):
    """An error at one position of a line: ``line`` is the whole line, ``column`` the position, from 0."""

    def __init__(self, message: str, line: str, column: int, hint: str = "") -> None:
        super().__init__(message, hint)
        self.line = line
        self.column = column
