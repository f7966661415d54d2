"""Training: start a run, or resume it, in one process or several together."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from tinytf.checkpoints.run_config import checkpoints_of
from tinytf.errors import TinytfError, UsageError
from tinytf.files import resolve_links, to_json
from tinytf.kept import RUN, Kept
from tinytf.model.transformer import Transformer
from tinytf.outputs import make_folder, remove, remove_all, remove_folder, require_outside, write_state, writing
from tinytf.text.corpus import Corpus, find_files
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.setup import Setup
from tinytf.training.data.tokens import Stage
from tinytf.training.folder.remembered import remember
from tinytf.training.folder.run_files import (
    CORPUS,
    LOCK,
    METRICS,
    PIPED,
    RECIPE,
    TOKENS,
    holds_run,
    is_free,
    remove_run,
    written_files,
)
from tinytf.training.recipe import Recipe
from tinytf.training.run.branch import begin_branch
from tinytf.training.run.metrics import Metrics
from tinytf.training.run.run import Trainer
from tinytf.training.tuning.processes import TIMEOUT, Processes, processes
from tinytf.training.tuning.update import Update

_THREADS_A_CORE = 16
"""The most threads for each core: far more only wait for each other."""


def train(
    corpus: Corpus | str,
    recipe: Recipe,
    out: Path,
    on_metrics: Callable[[Metrics, Setup], None] = lambda *_: None,
    device: torch.device | str = "cpu",
    *,
    resume: bool = False,
    interrupted: Callable[[], bool] = lambda: False,
    tokenizer: Tokenizer | None = None,
    model: Transformer | None = None,
    overwrite: bool = False,
    explain: int = 0,
    explained: Sequence[str] = (),
    on_updates: Callable[[Sequence[Update]], None] = lambda _: None,
    shard: bool = False,
    timeout: float = TIMEOUT,
    tensorboard: bool = False,
    choose_speed: bool = False,
    on_progress: Stage = lambda *_: None,
    on_note: Callable[[str], None] = lambda _: None,
    within: Kept | None = None,
) -> Metrics:
    """Train a model on a corpus, or on one text, in the run directory ``out``; returns the last metrics.

    ``resume`` continues the run in ``out`` from its newest checkpoint, bit for bit as if it had not stopped (on the
    same machine and number of threads); a finished run stays as it is. The FREE fields of the recipe may differ from
    those of the run; ``on_note`` gets a line for each that does. ``overwrite`` removes a run in ``out`` once the new
    one can begin. ``interrupted`` is called after each step; if it returns True, the run saves a checkpoint and stops.
    ``model`` and ``tokenizer``, if given, are trained instead of new ones. At step ``explain`` (from 1; 0: never) the
    updates of the ``explained`` weights (see ``choose_weight``), or of some default ones, are recorded; ``on_updates``
    gets them at the end. ``shard`` divides model, gradients and moments among several processes, which wait for each
    other at most ``timeout`` seconds. ``tensorboard`` writes event files too. ``on_progress`` reports the stages before
    the first step, and the last measurement of the held-out text. ``within`` a sweep, ``out`` lies in its folder.

    Raises UsageError if ``out`` holds a run that is neither resumed nor overwritten, or anything else; if it lies in a
    kept folder; if its recipe or text differs; if it is to use far more threads than there are cores; if ``overwrite``
    would remove the text or the model to start from; or if another process trains it.
    Raises TrainingError if a number is not finite or a checkpoint cannot be written (the last good one stays).
    """
    require_free(out, resume=resume, overwrite=overwrite, within=within)
    cores = os.cpu_count() or 1
    if recipe.threads > (most := _THREADS_A_CORE * cores):
        raise UsageError(f"{recipe.threads:,} threads on {cores} cores wait for each other", f"use {most} at most")
    if shard and recipe.without:
        raise UsageError("--shard divides the matrices that --without cuts heads out of", "leave out one of them")
    if recipe.lora and (explain or shard or model is None):
        choice = "--explain" if explain else "--shard" if shard else "a new model"
        hint = "leave out one of them" if explain or shard else "name a model by --from"
        raise UsageError(f"LoRA does not go with {choice}", hint)
    if shard and (explain or recipe.compile):
        action = "explains an update" if explain else "compiles"
        raise UsageError(f"with --shard no process has the whole model, so none {action}", "leave out one of them")
    device = torch.device(device)
    with processes(device, shard=shard, timeout=timeout, on_note=on_note) as group, _lock_run(out, group):
        files = find_files(corpus, recipe.reading) if isinstance(corpus, str) else corpus
        if overwrite:
            _require_inputs_elsewhere(out, files, recipe)
        if recipe.at_step and (overwrite or not checkpoints_of(out)):
            if group.writes:
                if overwrite:
                    remove_run(out)
                with writing(out, "give another --out"):
                    remember(out, files)
                    write_state(out / RECIPE, to_json(recipe.to_dict()))
                begin_branch(files, recipe, out)
            group.wait()
            resume, overwrite = True, False
        run = Trainer(
            files,
            recipe,
            out,
            device,
            group,
            resume=resume,
            overwrite=overwrite,
            tokenizer=tokenizer,
            model=model,
            explain=explain,
            explained=explained,
            tensorboard=tensorboard,
            choose_speed=choose_speed,
            on_progress=on_progress if group.writes else lambda *_: None,
            on_note=on_note if group.writes else lambda _: None,
        )
        last = run.run(on_metrics if group.writes else lambda *_: None, interrupted)
        on_updates(run.updates)
        del run
        return last


@contextmanager
def _lock_run(out: Path, group: Processes) -> Iterator[None]:
    """Make the run directory and hold its lock, which the system releases however the process ends.

    An error before the first metrics leaves nothing behind.
    """
    new, lock = not out.exists(), FileLock(out / LOCK)
    if group.writes:
        with writing(out / LOCK, "give another --out", UsageError):
            make_folder(out)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise UsageError(
                    f"another process trains {out}", f"tinytf runs --follow {out} watches it; or give another --out"
                ) from None
    group.wait()
    try:
        yield
    except TinytfError:
        if group.writes and new and not (out / METRICS).exists():
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


def _require_inputs_elsewhere(out: Path, corpus: Corpus, recipe: Recipe) -> None:
    """Raise UsageError if overwriting the run would remove its text or the model that it begins from."""
    removed = {resolve_links(path) for path in written_files(out)}
    for file in corpus.files:
        if file.source.path is not None and resolve_links(file.source.path) in removed:
            raise UsageError(f"{file.source.path} is part of the run that --overwrite removes", "give another --out")
    begun_from = resolve_links(Path(recipe.begun_from)) if recipe.begun_from else None
    if begun_from is not None and any(path.is_relative_to(begun_from) for path in removed):
        raise UsageError(f"the run begins from {recipe.begun_from}, which --overwrite removes", "give another --out")
