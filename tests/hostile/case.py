"""One try: words of the command line in a folder of files that somebody else may have made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Made = bytes | Callable[[Path], None]
"""What lies in a file; or what makes something else at a path: a pipe, a link, a device."""


@dataclass(frozen=True)
class Case:
    """``about`` says what is hostile; ``words`` name files by their names in ``files``, relative to the folder.

    Each of ``lines`` of a session may fail by itself. The files and folders ``unchanged`` must be left as they
    are made, and those of ``leaves`` be so afterwards.
    """

    about: str
    words: tuple[str, ...]
    files: Mapping[str, Made] = field(default_factory=dict)
    stdin: bytes = b""
    environment: Mapping[str, str] = field(default_factory=dict)
    lines: int = 1
    unchanged: tuple[str, ...] = ()
    leaves: Mapping[str, bytes] = field(default_factory=dict)
