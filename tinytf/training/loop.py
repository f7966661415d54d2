"""Training: start a run, or resume it, in one process or several together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from tinytf.checkpoints.run_config import checkpoints_of
from tinytf.errors import TinytfError, UsageError
from tinytf.files import resolved, to_json
from tinytf.model.transformer import Transformer
from tinytf.outputs import make_folder, remove, remove_all, remove_folder, write_state, writing
from tinytf.text.corpus import Corpus, find_files
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.setup import Setup
from tinytf.training.data.tokens import Stage
from tinytf.training.folder.run_files import (
    LOCK,
    METRICS,
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
    choose_threads: bool = False,
    on_progress: Stage = lambda *_: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Metrics:
    """Train a model on a corpus, or on one text, in the run directory ``out``; returns the last metrics.

    ``resume`` continues the run in ``out`` from its newest checkpoint, in every bit as if it had not stopped (on
    the same machine and number of threads); a finished run is left as it is. The FREE fields of the recipe may
    differ from those of the run; ``on_note`` is told which do, a line each. ``overwrite`` removes a run in ``out``
    once the new one can begin. After each step ``interrupted`` is asked whether to stop, after a checkpoint. A
    ``model`` or ``tokenizer`` to start from replaces a new one. At step ``explain`` (from 1; 0: never) the updates of
    the ``explained`` weights (see ``chosen``), or of some, are recorded, and ``on_updates`` gets them at the end.
    ``shard`` divides model, gradients and moments among several processes, which wait for each other ``timeout``
    seconds at most. With ``tensorboard`` event files are
    written too. ``on_progress`` hears what comes before the first step, and how far the last measurement of the
    held-out text is.

    Raises UsageError when ``out`` holds a run already and is neither resumed nor overwritten, when it holds anything
    else, when its recipe or text differ, when ``overwrite`` would remove the text or the model to start from, and when
    another process trains it; TrainingError when a number is not finite or a checkpoint cannot be written (the last
    good one stays).
    """
    require_place(out, resume=resume, overwrite=overwrite)
    if shard and recipe.without:
        raise UsageError("--shard divides the matrices that --without cuts heads out of", "leave out one of them")
    if recipe.lora and (explain or shard or model is None):
        said = "--explain" if explain else "--shard" if shard else "a new model"
        hint = "leave out one of them" if explain or shard else "name one by --from"
        raise UsageError(f"LoRA does not go with {said}", hint)
    if shard and (explain or recipe.compile):
        what = "explains an update" if explain else "compiles"
        raise UsageError(f"--shard leaves no process a whole model, so none {what}", "leave out one of them")
    where = torch.device(device)
    with processes(where, shard=shard, timeout=timeout, on_note=on_note) as group, _locked(out, group):
        files = find_files(corpus, recipe.reading) if isinstance(corpus, str) else corpus
        if overwrite:
            _require_inputs_elsewhere(out, files, recipe)
        if recipe.at_step and (overwrite or not checkpoints_of(out)):
            if group.writes:
                if overwrite:
                    remove_run(out)
                with writing(out, "give another --out"):
                    write_state(out / RECIPE, to_json(recipe.to_dict()))
                begin_branch(files, recipe, out)
            group.wait()
            resume, overwrite = True, False
        run = Trainer(
            files,
            recipe,
            out,
            where,
            group,
            resume=resume,
            overwrite=overwrite,
            tokenizer=tokenizer,
            model=model,
            explain=explain,
            explained=explained,
            tensorboard=tensorboard,
            choose_threads=choose_threads,
            on_progress=on_progress if group.writes else lambda *_: None,
            on_note=on_note if group.writes else lambda _: None,
        )
        last = run.go(on_metrics if group.writes else lambda *_: None, interrupted)
        on_updates(run.updates)
        del run
        return last


@contextmanager
def _locked(out: Path, group: Processes) -> Iterator[None]:
    """Hold the lock of a run directory, which is made; the system releases it however the process ends.

    An error before anything was written leaves nothing behind.
    """
    new, lock = not out.exists(), FileLock(out / LOCK)
    if group.writes:
        with writing(out / LOCK, "give another --out", UsageError):
            make_folder(out)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise UsageError(f"another process trains {out}", "wait for it, or give another --out") from None
    group.wait()
    try:
        yield
    except TinytfError:
        if group.writes and new and not (out / METRICS).exists():
            lock.release()
            remove_all(out / TOKENS)
            with suppress(OSError):
                remove(out / LOCK)
                remove_folder(out)  # unless it is not empty
        raise
    finally:
        lock.release()


def require_place(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Raise UsageError where a run must not write: over another one unasked, or beside files that no run wrote."""
    if not out.is_dir() or is_free(out):
        return
    if not holds_run(out):
        what = " to resume" if resume else " to overwrite" if overwrite else ", and it is not empty"
        raise UsageError(f"there is no run in {out}{what}", "name another folder by --out")
    if not (resume or overwrite) and (checkpoints_of(out) or (out / "config.json").exists()):
        raise UsageError(
            f"{out} holds a run already",
            "continue it with --resume, replace it with --overwrite, or give another --out",
        )


def _require_inputs_elsewhere(out: Path, corpus: Corpus, recipe: Recipe) -> None:
    """Raise UsageError where overwriting the run would remove a file that is read."""
    removed = {resolved(path) for path in written_files(out)}
    for file in corpus.files:
        if file.source.path is not None and resolved(file.source.path) in removed:
            raise UsageError(f"{file.source.path} is part of the run that --overwrite removes", "give another --out")
    begun_from = resolved(Path(recipe.begun_from)) if recipe.begun_from else None
    if begun_from is not None and any(path.is_relative_to(begun_from) for path in removed):
        raise UsageError(f"the run begins from {recipe.begun_from}, which --overwrite removes", "give another --out")
