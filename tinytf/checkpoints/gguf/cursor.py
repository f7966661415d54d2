"""A place in a mapped file that moves forwards, and never reads beyond the end."""

import mmap
import struct
from pathlib import Path

from tinytf.errors import CheckpointError

_LENGTH = struct.Struct("<Q")


class Cursor:
    """Little-endian numbers and strings of ``data``, one after the other.

    Whatever reaches beyond the end, or is not UTF-8, is a CheckpointError with the file, what it was and the byte.
    """

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path = data, path
        self.at = 0

    @property
    def left(self) -> int:
        """How many bytes there are from here to the end."""
        return len(self.data) - self.at

    def fail(self, message: str) -> CheckpointError:
        """The error for something that is wrong here."""
        return CheckpointError(f"{self.path} is damaged: {message}, at byte {self.at:,}")

    def require(self, count: int, size: int, what: str) -> None:
        """Refuse ``count`` things of at least ``size`` bytes where they have no room."""
        if count * size > self.left:
            raise self.fail(f"{what} would take {count * size:,} bytes or more, and {self.left:,} are left")

    def numbers(self, form: struct.Struct, what: str) -> tuple[int | float, ...]:
        """The numbers that ``form`` describes."""
        self.require(1, form.size, what)
        found = form.unpack_from(self.data, self.at)
        self.at += form.size
        return found

    def whole(self, form: struct.Struct, what: str) -> int:
        """One whole number."""
        return int(self.numbers(form, what)[0])

    def string(self, what: str) -> str:
        """A length and as many bytes of UTF-8."""
        return self.strings(1, what)[0]

    def strings(self, count: int, what: str) -> list[str]:
        """``count`` strings; a loop of its own, since a vocabulary has hundreds of thousands."""
        self.require(count, _LENGTH.size, what)
        data, at, end, length_at = self.data, self.at, len(self.data), _LENGTH.unpack_from
        found = []
        for _ in range(count):
            self.at = at
            if end - at < _LENGTH.size:
                self.require(1, _LENGTH.size, what)
            (length,) = length_at(data, at)
            at += _LENGTH.size
            if length > end - at:
                self.at = at
                self.require(length, 1, what)
            try:
                found.append(data[at : at + length].decode("utf-8"))
            except UnicodeDecodeError:
                raise self.fail(f"{what} is not UTF-8") from None
            at += length
        self.at = at
        return found
