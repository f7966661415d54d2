"""A long text that arrives at once is a paste, also from a terminal that does not say so."""

import select
from typing import Any

from prompt_toolkit.input import Input

_BURST = 1_000
_BEGIN, _END = "\x1b[200~", "\x1b[201~"
_WAIT = 0.05
_MOST = 2**26


class Bursts:
    """What ``reader`` (prompt_toolkit's, of standard input) reads, with a burst of characters in one line bracketed.

    Nobody types that fast, and a character at a time a long text would be drawn again for every part of it.
    """

    def __init__(self, reader: Any, parser: Any) -> None:
        self._reader = reader
        self._parser = parser

    @property
    def closed(self) -> bool:
        return bool(self._reader.closed)

    def read(self) -> str:
        """What is there to read."""
        data: str = self._reader.read()
        inside = getattr(self._parser, "_in_bracketed_paste", False)
        if inside or len(data) < _BURST or not _is_text(data):
            return data
        parts, length = [data], len(data)
        while length < _MOST and select.select([self._reader.stdin_fd], [], [], _WAIT)[0]:
            more = self._reader.read(65536)
            if not more or not _is_text(more):
                return f"{_BEGIN}{''.join(parts)}{_END}{more}"
            parts.append(more)
            length += len(more)
        return f"{_BEGIN}{''.join(parts)}{_END}"


def bracketed(input: Input) -> Input:
    """The input, with its bursts as pastes where it is read from a terminal of POSIX."""
    reader = getattr(input, "stdin_reader", None)
    if reader is not None and hasattr(input, "vt100_parser"):
        input.stdin_reader = Bursts(reader, input.vt100_parser)  # type: ignore[attr-defined]
    return input


def _is_text(data: str) -> bool:
    return not any(char < " " or char == "\x7f" for char in data)
