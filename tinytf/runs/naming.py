"""The run that a name means, or that trained last when nothing is named; free of torch."""

from pathlib import Path

from tinytf.errors import TinytfError, UsageError
from tinytf.files import path_exists
from tinytf.runs.reader import read_history
from tinytf.runs.run_files import METRICS, RECIPE, find_runs

RUNS = Path("runs")
"""The folder of new runs, in the current one."""


def named_run(run: Path) -> Path:
    """The path itself if something is there, or nothing of this name in the folder of new runs; else what is there."""
    if path_exists(str(run)) or not path_exists(str(RUNS / run)):
        return run
    return RUNS / run


def default_folder() -> Path:
    """Where runs are looked for: in the folder of new runs, or in the current one without it."""
    return RUNS if RUNS.is_dir() else Path()


def newest_run(*, unfinished: bool = False) -> Path:
    """The run that trained last, or with ``unfinished``, of those that have steps left. Raises UsageError for none."""
    folder = default_folder()
    runs = sorted(find_runs(folder), key=_trained_at, reverse=True)
    for run in runs:
        if not unfinished or _has_steps_left(run):
            return run
    where = "the current folder" if folder == Path() else f"{folder}/"
    if runs:
        hint = f"name one with more --steps, such as: tinytf train --resume {runs[0]} --steps 2000"
        raise UsageError(f"every run in {where} has finished", hint)
    raise UsageError(f"there is no run in {where}", "tinytf train TEXT.txt makes one; or name the folder of a run")


def _trained_at(run: Path) -> float:
    return max(path.stat().st_mtime for path in (run / METRICS, run / RECIPE) if path.is_file())


def _has_steps_left(run: Path) -> bool:
    """False for a damaged run, too, which cannot be continued."""
    try:
        return not read_history(run).finished
    except TinytfError:
        return False
