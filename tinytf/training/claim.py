"""Claim the folder of a run: that it is free or holds the run to continue, and that no other process trains there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from tinytf.checkpoints.run_config import checkpoints_of
from tinytf.errors import TinytfError, UsageError
from tinytf.files import resolve_links
from tinytf.kept import RUN, Kept
from tinytf.outputs import make_folder, remove, remove_all, remove_folder, require_outside, writing
from tinytf.runs.run_files import (
    CORPUS,
    LOCK,
    METRICS,
    PIPED,
    RECIPE,
    TOKENS,
    holds_run,
    is_free,
    written_files,
)
from tinytf.text.corpus import Corpus


@contextmanager
def claimed(out: Path, *, writes: bool, wait: Callable[[], None]) -> Iterator[None]:
    """Make the run directory and hold its lock, which the system releases however the process ends.

    Only the process that ``writes`` does so; the others ``wait`` for it. An error before the first metrics leaves
    nothing behind.
    """
    new, lock = not out.exists(), FileLock(out / LOCK)
    if writes:
        with writing(out / LOCK, "give another --out", UsageError):
            make_folder(out)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise UsageError(
                    f"another process trains {out}", f"tinytf runs --follow {out} watches it; or give another --out"
                ) from None
    wait()
    try:
        yield
    except TinytfError:
        if writes and new and not (out / METRICS).exists():
            lock.release()
            with suppress(OSError):
                if not (out / RECIPE).exists():
                    for folder in (TOKENS, PIPED):
                        remove_all(out / folder)
                    remove(out / CORPUS)
                remove(out / LOCK)
                remove_folder(out)  # fails unless it is empty
        raise
    finally:
        lock.release()


def require_free(out: Path, *, resume: bool, overwrite: bool, within: Kept | None = None) -> None:
    """Raise UsageError if ``out`` holds another run, unless it is to be replaced, or files that no run wrote.

    So it does if ``out`` lies in a kept folder other than ``within``.
    """
    require_outside(out, RUN, within)
    if not out.is_dir() or is_free(out):
        return
    if not holds_run(out):
        reason = " to resume" if resume else " to overwrite" if overwrite else ", but it is not empty"
        raise UsageError(f"there is no run in {out}{reason}", "name another folder by --out")
    if not (resume or overwrite) and (checkpoints_of(out) or (out / "config.json").exists()):
        raise UsageError(
            f"{out} holds a run already",
            "continue it with --resume, replace it with --overwrite, or give another --out",
        )


def require_inputs_elsewhere(out: Path, corpus: Corpus, begun_from: str) -> None:
    """Raise UsageError if overwriting the run would remove its text or the model that it begins from."""
    removed = {resolve_links(path) for path in written_files(out)}
    for file in corpus.files:
        if file.source.path is not None and resolve_links(file.source.path) in removed:
            raise UsageError(f"{file.source.path} is part of the run that --overwrite removes", "give another --out")
    if begun_from and any(path.is_relative_to(resolve_links(Path(begun_from))) for path in removed):
        raise UsageError(f"the run begins from {begun_from}, which --overwrite removes", "give another --out")
