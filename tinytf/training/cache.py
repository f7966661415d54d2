"""What is worked out from a text and kept for other runs: tokens and tokenizers, by fingerprint, in the user's cache.

``TINYTF_CACHE`` names another folder; an empty one keeps nothing. Whatever is in it may be removed at any time.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

LEAST, MOST = 1 << 20, 4 << 30
"""Texts from so many bytes on are kept, and so many bytes of all that is made of them: the last ones used."""


def cache_folder() -> Path | None:
    """The folder; None if nothing is to be kept."""
    named = os.environ.get("TINYTF_CACHE")
    return user_cache_path("tinytf") / "training" if named is None else Path(named) if named else None


@contextmanager
def kept(fingerprint: str, size: int) -> Iterator[Path | None]:
    """The folder of one fingerprint, this process alone in it; None for a small text and where nothing can be kept.

    Then the folders that were used longest ago go, until all take ``MOST`` bytes.
    """
    cache = cache_folder() if size >= LEAST else None
    if cache is None:
        yield None
        return
    folder, lock = cache / fingerprint, FileLock(cache / f"{fingerprint}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        with suppress(OSError):
            os.utime(folder)
        lock.release()
        _shrink(cache, folder)


def _shrink(cache: Path, but: Path) -> None:
    """Remove what was used longest ago, but for the folder ``but`` and those that a process is in."""
    with suppress(OSError):
        folders = sorted((one for one in cache.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime)
        sizes = {one: sum(file.stat().st_size for file in one.iterdir()) for one in folders}
        total = sum(sizes.values())
        for folder in folders:
            if total <= MOST or folder == but:
                continue
            with suppress(Timeout), FileLock(cache / f"{folder.name}.lock", timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
                total -= sizes[folder]


def share(source: Path, target: Path, names: tuple[str, ...]) -> None:
    """Give a folder files of another one, in this order: as second names, or copies. Raises OSError."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        (target / name).unlink(missing_ok=True)
    for name in names:
        try:
            os.link(source / name, target / name)
        except OSError:
            shutil.copyfile(source / name, target / name)
