"""Training: a run is begun, or gone on with, by one process or several together."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from tinytf.checkpoints.run_config import checkpoints_of
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.corpus import Corpus, find_files
from tinytf.training.lock import locked
from tinytf.training.metrics import Metrics
from tinytf.training.processes import processes
from tinytf.training.recipe import Recipe
from tinytf.training.run import Trainer
from tinytf.training.run_files import holds_run, is_free, written_files
from tinytf.training.setup import Setup
from tinytf.training.update import Update, chosen


def train(
    corpus: Corpus | str,
    recipe: Recipe,
    out: Path,
    on_metrics: Callable[[Metrics, Setup], None] = lambda *_: None,
    device: torch.device | str = "cpu",
    *,
    going_on: bool = False,
    interrupted: Callable[[], bool] = lambda: False,
    tokenizer: Tokenizer | None = None,
    model: Transformer | None = None,
    overwrite: bool = False,
    explain: int = 0,
    explained: Sequence[str] = (),
    on_updates: Callable[[Sequence[Update]], None] = lambda _: None,
    shard: bool = False,
    tensorboard: bool = False,
) -> Metrics:
    """Train a model on a corpus, or on one text, and leave it in the run directory ``out``; returns the last metrics.

    ``going_on`` continues the run in ``out`` from its newest checkpoint, in every bit as if it had not stopped (on
    the same machine and number of threads); a run that is finished is left as it is. ``overwrite`` takes away a run
    that is there, once the new one can begin. After each step ``interrupted`` is asked whether to end there; a
    checkpoint is written first. A ``model`` to begin from,
    or a ``tokenizer``, is taken instead of a new one. ``on_updates`` is given, in the end, how some weights changed at
    step ``explain`` (counted from 1; 0: at none), where that step was among those that were made: those ``explained``
    (see ``chosen``), or some. ``shard`` has each
    of several processes hold a part of the model alone, and so of its gradients and moments. With ``tensorboard`` event
    files are written too.

    Raises UsageError when ``out`` holds a run already and nothing was said of going on, when it holds anything else,
    when it is of another recipe or text, when ``overwrite`` would remove what is trained on or begun from, and when
    another process trains it; TrainingError when a number is no number any more or a checkpoint
    cannot be written (the last good one stays).
    """
    _require_place(out, going_on=going_on, overwrite=overwrite)
    if shard and (explain or recipe.compile):
        what = "explains an update" if explain else "compiles"
        raise UsageError(f"--shard leaves no process a whole model, so none {what}", "leave out one of them")
    where = torch.device(device)
    with processes(where, shard=shard) as together, locked(out, together):
        files = find_files(corpus) if isinstance(corpus, str) else corpus
        if overwrite:
            _require_inputs_elsewhere(out, files, recipe)
        begin = partial(Trainer, files, recipe, out, where, together, tokenizer=tokenizer, model=model)
        run = begin(going_on=going_on, overwrite=overwrite)
        run.explain, run.tensorboard = explain, tensorboard and together.writes
        run.explained = [chosen(run.model, text) for text in explained]
        last = run.go(on_metrics if together.writes else lambda *_: None, interrupted)
        on_updates(run.updates)
        del run
        return last


def _require_place(out: Path, *, going_on: bool, overwrite: bool) -> None:
    """UsageError where a run must not write: over another one unasked, or beside files that no run wrote."""
    if not out.is_dir() or is_free(out):
        return
    if not holds_run(out):
        what = " to go on with" if going_on else " to overwrite" if overwrite else ", and it is not empty"
        raise UsageError(f"there is no run in {out}{what}", "name another folder by --out")
    if not (going_on or overwrite) and (checkpoints_of(out) or (out / "config.json").exists()):
        raise UsageError(
            f"{out} holds a run already",
            "go on with it by --resume, begin anew by --overwrite, or give another --out",
        )


def _require_inputs_elsewhere(out: Path, corpus: Corpus, recipe: Recipe) -> None:
    """UsageError where a file that is read is one of those that overwriting the run removes."""
    removed = {path.resolve() for path in written_files(out)}
    for file in corpus.files:
        if file.source.path is not None and file.source.path.resolve() in removed:
            raise UsageError(f"{file.source.path} is part of the run that --overwrite removes", "give another --out")
    begun_from = Path(recipe.begun_from).resolve() if recipe.begun_from else None
    if begun_from is not None and any(path.is_relative_to(begun_from) for path in removed):
        raise UsageError(f"the run begins from {recipe.begun_from}, which --overwrite removes", "give another --out")
