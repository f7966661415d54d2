"""A cache of tokens and tokenizers for other runs on the same text, by fingerprint, in the user's cache folder.

``TINYTF_CACHE`` names another location; an empty value turns the cache off. Everything is in one folder that tinytf
made and marked (bford.info/cachedir); nothing else is ever counted or removed. The cache may be deleted at any time.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from tinytf.errors import UsageError
from tinytf.kept import CACHE_SIGNATURE, CACHE_TAG
from tinytf.outputs import is_fenced, link, make_folder, remove, remove_folder, write_state

MIN_TEXT_BYTES, MAX_CACHE_BYTES = 1 << 20, 4 << 30
"""The smallest text that is cached, and the size of the cache, which keeps the entries used last."""
FOLDER, TAG, MARK = "tinytf-tokens", CACHE_TAG, ".tinytf-cache"
"""The folder in the user's cache, the file that marks it, and the file that marks each entry."""
_FINGERPRINT = re.compile(r"(?:[a-z]+-)?[0-9a-f]{64}")
_ENTRY = re.compile(rf"\.?{re.escape(MARK)}.*|\.?(?:tokenizer|index)\.json.*|\.?(?:train|held_out)\.bin.*")
"""The files of an entry, and the leftovers of a killed process."""


def cache_folder() -> Path | None:
    """Make and mark the cache folder; None if the cache is off, or the folder is not tinytf's."""
    location = os.environ.get("TINYTF_CACHE")
    if location == "" or is_fenced():
        return None
    folder = (user_cache_path("tinytf") if location is None else Path(location)) / FOLDER
    try:
        make_folder(folder)
        if all(path.name.startswith(f".{TAG}.") for path in folder.iterdir()):  # left by a killed process
            write_state(folder / TAG, CACHE_SIGNATURE)
        return folder if (folder / TAG).read_bytes() == CACHE_SIGNATURE else None
    except (OSError, UsageError):
        return None


@contextmanager
def cached_entry(fingerprint: str, size: int) -> Iterator[Path | None]:
    """Lock and yield the folder of a fingerprint; None for a small text, or where nothing can be cached.

    Afterwards, entries are removed, oldest use first, until the cache is within ``MAX_CACHE_BYTES``.
    """
    cache = cache_folder() if size >= MIN_TEXT_BYTES else None
    if cache is None:
        yield None
        return
    entry, lock = cache / fingerprint, FileLock(cache / f"{fingerprint}.lock")
    try:
        lock.acquire()
        make_folder(entry)
        if not (entry / MARK).is_file():
            write_state(entry / MARK, b"")
    except (OSError, UsageError):
        lock.release()
        yield None
        return
    try:
        yield entry
    finally:
        with suppress(OSError):
            os.utime(entry)
        lock.release()
        _shrink(cache, entry)


def _shrink(cache: Path, protected: Path) -> None:
    """Remove the entries used longest ago, except ``protected`` and entries that a process has locked."""
    with suppress(OSError):
        entries = sorted(filter(_is_entry, cache.iterdir()), key=lambda entry: entry.stat().st_mtime)
        sizes = {entry: sum(file.lstat().st_size for file in entry.iterdir()) for entry in entries}
        total = sum(sizes.values())
        for entry in entries:
            if total <= MAX_CACHE_BYTES or entry == protected:
                continue
            with suppress(OSError, Timeout), FileLock(cache / f"{entry.name}.lock", timeout=0):
                for file in [file for file in entry.iterdir() if _ENTRY.fullmatch(file.name)]:
                    remove(file)
                remove_folder(entry)
                total -= sizes[entry]


def _is_entry(folder: Path) -> bool:
    """Whether a folder is an entry that tinytf made."""
    has_name = _FINGERPRINT.fullmatch(folder.name) is not None
    return has_name and not folder.is_symlink() and (folder / MARK).is_file()


def share_files(source: Path, target: Path, names: tuple[str, ...]) -> None:
    """Link files of one folder into another, in this order, or copy them. Raises OSError."""
    make_folder(target)
    for name in names:
        remove(target / name)
    for name in names:
        link(source / name, target / name)
