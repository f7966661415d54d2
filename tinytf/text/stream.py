"""Text as a stream: bytes to characters to documents, with no more in memory than a buffer or one document."""

import codecs
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tinytf.errors import UsageError
from tinytf.files import open_bytes, read_once

Piece = tuple[str, bool]
"""A part of a document, and whether the document ends with it."""

Cut = Callable[[str], int]
"""After how many characters a text may be cut; 0 where it may not."""

MOST_IN_MEMORY = 2**29
"""The most bytes of a pipe or a device, which cannot be read again."""
_BLANK_LINE = re.compile(r"\n[ \t]*\r?\n")


def anywhere(text: str) -> int:
    """Cut after the last character."""
    return len(text)


def between_words(text: str) -> int:
    """Cut before the last space between two letters."""
    found = re.match(r"(?s:.*)[A-Za-z](?= [A-Za-z])", text)
    return found.end() if found else 0


def nowhere(text: str) -> int:
    """Keep documents whole, whatever their length."""
    return 0


def between_blank_lines(text: str) -> list[str]:
    """The pieces that blank lines separate, at least one; lines end in ``\\n`` or ``\\r\\n``."""
    *whole, rest = _BLANK_LINE.split(text)  # an optional \\r in front would make the search 15 times as slow
    return [*(piece.removesuffix("\r") for piece in whole), rest]


@dataclass(frozen=True)
class ByteSource:
    """Where bytes come from: a file, read again in every pass, or ``data`` in memory that came from elsewhere."""

    name: str
    path: Path | None = None
    data: bytes = field(default=b"", repr=False)
    stamp: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, path: Path) -> "ByteSource":
        """The source that a path names; anything but a regular file, such as a pipe, is read now. Raises OSError."""
        found = path.stat()
        if stat.S_ISREG(found.st_mode):
            return cls(str(path), path, stamp=_stamp(found))
        data = read_once(path, MOST_IN_MEMORY + 1)
        if len(data) > MOST_IN_MEMORY:
            limit = f"{MOST_IN_MEMORY / 2**20:g} MiB"
            raise OSError(errno.EFBIG, f"it is no regular file and gives more than {limit}; save it to one", str(path))
        return cls(str(path), data=data)

    def read(self, size: int) -> Iterator[bytes]:
        """The bytes, ``size`` at a time. Raises UsageError for a file that has changed since it was found."""
        if self.path is None:
            yield from (self.data[start : start + size] for start in range(0, len(self.data), size))
            return
        try:
            with open_bytes(self.path) as stream:
                while data := stream.read(size):
                    yield data
                now = _stamp(os.fstat(stream.fileno()))
        except OSError as error:
            raise UsageError(f"cannot read {self.name}: {error.strerror}") from None
        if now != self.stamp:
            raise UsageError(f"{self.name} changed while it was being read", "start again when nothing writes to it")


def decoded(name: str, parts: Iterable[bytes]) -> Iterator[str]:
    """The characters of a source, line ends unchanged. Raises UsageError for the first byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    before = carried = 0  # bytes decoded, and those read that are not
    try:
        for data in parts:
            yield decoder.decode(data)
            waiting = len(decoder.getstate()[0])  # bytes of a character that the buffer cuts in two
            before += len(data) + carried - waiting
            carried = waiting
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        place = before + error.start
        message = f"{name} is not UTF-8 text: {error.reason} at byte {place:,}"
        raise UsageError(message, "re-encode it, for example with iconv -t utf-8") from None


def marked(texts: Iterable[str], document: str) -> Iterator[Piece]:
    """Parts of documents, each with whether its document ends; a blank line may lie across two of ``texts``.

    A ``document`` is a paragraph, a line, or all of the file.
    """
    held = ""
    for text in texts:
        if document == "file":
            yield text, False
            continue
        if document == "line":
            *whole, held = (held + text).split("\n")
            yield from ((line.removesuffix("\r"), True) for line in whole)
            continue
        *whole, rest = between_blank_lines(held + text)
        yield from ((piece, True) for piece in whole)
        body = rest.removesuffix("\r").rstrip(" \t")
        border = len(body) - 1 - body.endswith("\r\n") if body.endswith("\n") else len(rest) - rest.endswith("\r")
        held = rest[border:]  # what a blank line may begin with
        yield rest[:border], False
    yield held, True


def documents_of(marked: Iterable[Piece], cut: Cut, least: int) -> Iterator[Piece]:
    """Documents with a word in them; from ``least`` characters on they are cut where ``cut`` allows it."""
    parts: list[str] = []
    size, begun = 0, False
    for text, ends in marked:
        parts.append(text)
        size += len(text)
        if ends:
            whole = "".join(parts)
            if begun or whole.strip():
                yield whole, True
            parts, size, begun = [], 0, False
        elif size >= least and (begun or text.strip()) and (place := cut(text)):
            yield "".join((*parts[:-1], text[:place])), False
            parts, size, begun = [text[place:]], len(text) - place, True


def in_two(pieces: Iterable[Piece], at: int) -> Iterator[Piece]:
    """Split one document in two, after its first ``at`` characters."""
    left = at
    for text, ends in pieces:
        if 0 < left <= len(text):
            yield text[:left], True
            yield text[left:], ends
        else:
            yield text, ends
        left -= len(text)


def lengths(pieces: Iterable[Piece]) -> Iterator[int]:
    """The characters of each document."""
    length = 0
    for text, ends in pieces:
        length += len(text)
        if ends:
            yield length
            length = 0


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ino
