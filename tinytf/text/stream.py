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
"""The number of characters after which a text may be cut; 0 for nowhere."""

MOST_IN_MEMORY = 2**29
"""The most bytes of a pipe or a device, which cannot be read again."""
_BLANK_LINE = re.compile(r"\n[ \t]*\r?\n")


def cut_anywhere(text: str) -> int:
    """Cut after the last character."""
    return len(text)


def cut_between_words(text: str) -> int:
    """Cut before the last space between two letters."""
    match = re.match(r"(?s:.*)[A-Za-z](?= [A-Za-z])", text)
    return match.end() if match else 0


def cut_nowhere(text: str) -> int:
    """Do not cut: keep documents whole, whatever their length."""
    return 0


def between_blank_lines(text: str) -> list[str]:
    """The pieces between blank lines, at least one; lines end in ``\\n`` or ``\\r\\n``."""
    *complete, rest = _BLANK_LINE.split(text)  # an optional \\r in front would make the search 15 times as slow
    return [*(piece.removesuffix("\r") for piece in complete), rest]


@dataclass(frozen=True)
class ByteSource:
    """A source of bytes: a file, read again in every pass, or ``data`` in memory."""

    name: str
    path: Path | None = None
    data: bytes = field(default=b"", repr=False)
    stamp: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, path: Path) -> "ByteSource":
        """The source at ``path``; a pipe or other special file is read into memory now. Raises OSError."""
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return cls(str(path), path, stamp=_stamp(status))
        data = read_once(path, MOST_IN_MEMORY + 1)
        if len(data) > MOST_IN_MEMORY:
            limit = f"{MOST_IN_MEMORY / 2**20:g} MiB"
            raise OSError(errno.EFBIG, f"it is not a regular file and has more than {limit}; save it to one", str(path))
        return cls(str(path), data=data)

    def read(self, size: int) -> Iterator[bytes]:
        """Yield the bytes, ``size`` at a time. Raises UsageError for a file that has changed since it was opened."""
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
            raise UsageError(
                f"{self.name} changed while it was being read", "start again when no other program writes to it"
            )


def decoded(name: str, parts: Iterable[bytes]) -> Iterator[str]:
    """Yield the text of a source, line ends unchanged. Raises UsageError for the first byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    n_decoded = n_carried = 0  # bytes that are decoded, and bytes that are read but not yet decoded
    try:
        for data in parts:
            yield decoder.decode(data)
            n_pending = len(decoder.getstate()[0])  # bytes of a character that the buffer splits
            n_decoded += len(data) + n_carried - n_pending
            n_carried = n_pending
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        position = n_decoded + error.start
        message = f"{name} is not UTF-8 text: {error.reason} at byte {position:,}"
        raise UsageError(message, "re-encode it, for example with iconv -t utf-8") from None


def mark_ends(texts: Iterable[str], document: str) -> Iterator[Piece]:
    """Yield pieces of documents, each with whether its document ends; a blank line may span two of ``texts``.

    A ``document`` is a paragraph, a line, or the whole file.
    """
    carry = ""
    for text in texts:
        if document == "file":
            yield text, False
            continue
        if document == "line":
            *complete, carry = (carry + text).split("\n")
            yield from ((line.removesuffix("\r"), True) for line in complete)
            continue
        *complete, rest = between_blank_lines(carry + text)
        yield from ((piece, True) for piece in complete)
        body = rest.removesuffix("\r").rstrip(" \t")
        border = len(body) - 1 - body.endswith("\r\n") if body.endswith("\n") else len(rest) - rest.endswith("\r")
        carry = rest[border:]  # possibly the beginning of a blank line
        yield rest[:border], False
    yield carry, True


def non_blank_documents(pieces: Iterable[Piece], cut: Cut, least: int) -> Iterator[Piece]:
    """Yield the documents that are not blank; those of ``least`` characters or more are cut where ``cut`` allows."""
    parts: list[str] = []
    size, has_begun = 0, False
    for text, ends in pieces:
        parts.append(text)
        size += len(text)
        if ends:
            document = "".join(parts)
            if has_begun or document.strip():
                yield document, True
            parts, size, has_begun = [], 0, False
        elif size >= least and (has_begun or text.strip()) and (position := cut(text)):
            yield "".join((*parts[:-1], text[:position])), False
            parts, size, has_begun = [text[position:]], len(text) - position, True


def split_in_two(pieces: Iterable[Piece], document: int, at: int) -> Iterator[Piece]:
    """Split one document, counted from 0, in two, after its first ``at`` characters."""
    remaining = at
    for text, ends in pieces:
        if document == 0 and 0 < remaining <= len(text):
            yield text[:remaining], True
            yield text[remaining:], ends
        else:
            yield text, ends
        remaining -= len(text) if document == 0 else 0
        document -= ends


def lengths(pieces: Iterable[Piece]) -> Iterator[int]:
    """Yield the number of characters of each document."""
    length = 0
    for text, ends in pieces:
        length += len(text)
        if ends:
            yield length
            length = 0


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino
