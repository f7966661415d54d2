"""One process (or one group of them) a run."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tinytf.errors import TrainingError, UsageError
from tinytf.training.processes import Processes
from tinytf.training.run_files import LOCK, TOKENS


@contextmanager
def locked(out: Path, together: Processes) -> Iterator[None]:
    """Hold the lock of a run directory, which is made; the system lets go of it however the process ends.

    What fails before anything was written leaves nothing.
    """
    there = out.exists()
    lock = _lock_of(out) if together.writes else None
    together.wait()
    try:
        yield
    except (UsageError, TrainingError):
        if lock is not None and not there and not (out / "metrics.jsonl").exists():
            lock.release()
            _remove_empty(out)
        raise
    finally:
        if lock is not None:
            lock.release()


def _lock_of(out: Path) -> FileLock:
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(f"another process trains {out}", "wait for it, or give another --out") from None
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}") from None
    return lock


def _remove_empty(out: Path) -> None:
    (out / LOCK).unlink(missing_ok=True)
    shutil.rmtree(out / TOKENS, ignore_errors=True)
    if not any(out.iterdir()):
        out.rmdir()
