"""What is worked out from a text and kept for other runs: tokens and tokenizers, by fingerprint, in the user's cache.

``TINYTF_CACHE`` names another place for it; an empty one keeps nothing. All is in one folder there that tinytf made and
marked (bford.info/cachedir); of other folders nothing is ever counted or removed. What is in it may be removed at any
time.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from tinytf.errors import UsageError
from tinytf.outputs import is_fenced, link, make_folder, remove, remove_folder, write_state

LEAST, MOST = 1 << 20, 4 << 30
"""Texts from so many bytes on are kept, and so many bytes of all that is made of them: the last ones used."""
FOLDER, TAG, MARK = "tinytf-tokens", "CACHEDIR.TAG", ".tinytf-cache"
"""The folder in the user's cache, the file that marks it, and the one that marks each entry in it."""
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n# A cache of tinytf. It may be removed at any time.\n"
_FINGERPRINT = re.compile(r"(?:[a-z]+-)?[0-9a-f]{64}")
_ENTRY = re.compile(rf"\.?{re.escape(MARK)}.*|\.?(?:tokenizer|index)\.json.*|\.?(?:train|held_out)\.bin.*")
"""The files of an entry, and what a process that was killed leaves of them."""


def cache_folder() -> Path | None:
    """The folder, made and marked; None if nothing is to be kept, or where it is not tinytf's."""
    named = os.environ.get("TINYTF_CACHE")
    if named == "" or is_fenced():
        return None
    folder = (user_cache_path("tinytf") if named is None else Path(named)) / FOLDER
    try:
        make_folder(folder)
        if all(path.name.startswith(f".{TAG}.") for path in folder.iterdir()):  # left by a killed process
            write_state(folder / TAG, _SIGNATURE)
        return folder if (folder / TAG).read_bytes() == _SIGNATURE else None
    except (OSError, UsageError):
        return None


@contextmanager
def kept(fingerprint: str, size: int) -> Iterator[Path | None]:
    """The folder of one fingerprint, this process alone in it; None for a small text and where nothing can be kept.

    Then the entries that were used longest ago go, until all take ``MOST`` bytes.
    """
    cache = cache_folder() if size >= LEAST else None
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


def _shrink(cache: Path, but: Path) -> None:
    """Remove what was used longest ago, but for the entry ``but`` and those that a process is in."""
    with suppress(OSError):
        entries = sorted(filter(_is_entry, cache.iterdir()), key=lambda entry: entry.stat().st_mtime)
        sizes = {entry: sum(file.lstat().st_size for file in entry.iterdir()) for entry in entries}
        total = sum(sizes.values())
        for entry in entries:
            if total <= MOST or entry == but:
                continue
            with suppress(OSError, Timeout), FileLock(cache / f"{entry.name}.lock", timeout=0):
                for file in [file for file in entry.iterdir() if _ENTRY.fullmatch(file.name)]:
                    remove(file)
                remove_folder(entry)
                total -= sizes[entry]


def _is_entry(folder: Path) -> bool:
    """Whether a folder is an entry that tinytf made."""
    named = _FINGERPRINT.fullmatch(folder.name) is not None
    return named and not folder.is_symlink() and (folder / MARK).is_file()


def share(source: Path, target: Path, names: tuple[str, ...]) -> None:
    """Give a folder files of another one, in this order: as second names, or copies. Raises OSError."""
    make_folder(target)
    for name in names:
        remove(target / name)
    for name in names:
        link(source / name, target / name)
