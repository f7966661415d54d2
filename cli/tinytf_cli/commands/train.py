"""``tinytf train``: train a model on a text."""

import itertools
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tinytf.errors import UsageError
from tinytf.files import resolve_links
from tinytf.text.printable import printable
from tinytf_cli.command import command, option
from tinytf_cli.inputs import read_texts
from tinytf_cli.output import Output
from tinytf_cli.ranges import Whole
from tinytf_cli.recipe_options import RecipeOverrides, RunOptions, resolved_recipe

if TYPE_CHECKING:
    from tinytf.text.corpus import Corpus, OnRead, Reading
    from tinytf.training.recipe import Recipe


@dataclass(frozen=True)
class UnreadableOptions:
    """What to do with files that cannot be read."""

    GROUP: ClassVar = "Data"

    skip_unreadable: bool = option(is_flag=True, help="Skip files in a folder that are not text, and list them.")


@dataclass(frozen=True)
class MachineOptions:
    """Where to compute."""

    GROUP: ClassVar = "Machine"

    device: str = option(type=click.Choice(["auto", "cpu", "cuda", "mps"]), shown="auto", help="Where to compute.")
    shard: bool = option(is_flag=True, help="Shard the model over several processes (torchrun; FSDP2).")
    process_timeout: int = option(
        type=Whole(1, 86_400),
        metavar="SECONDS",
        shown=600,
        help="How long processes wait for each other.",
    )


@dataclass(frozen=True)
class Options:
    """What else to do during training."""

    GROUP: ClassVar = "Watching"

    dry_run: bool = option(is_flag=True, help="Show the schedule, sizes and first gradient; train and write nothing.")
    explain: int | None = option(
        type=Whole(1), metavar="STEP", help="Show the arithmetic of Adam's update at this step."
    )
    explained: tuple[str, ...] = option(
        "--weight", multiple=True, metavar="NAME",
        help="With --explain: this weight, such as blocks.0.attention.q.weight or one entry …[3,5]. Repeatable.",
    )  # fmt: skip
    tensorboard: bool = option(
        is_flag=True, help="Also write TensorBoard event files, to the folder tensorboard of the run."
    )


@command("train", first=(
    "--out", "--resume", "--recipe", "--from", "--tokenizer", "--block", "--batch", "--steps", "--lr", "--dry-run",
))  # fmt: skip
def train(
    run: RunOptions,
    overrides: RecipeOverrides,
    unreadable: UnreadableOptions,
    options: Options,
    machine: MachineOptions,
    output: Output,
) -> int:
    """CORPUS is files or folders, optionally with weights, as in book.txt=3 code/=1; - or nothing reads standard input.
    A blank line separates documents. The model is saved in a run folder; a resumed run finds its own files. Every field
    of the model is an option too: --d-model 256 --n-layers 6. Progress goes to stderr, metrics to metrics.jsonl in the
    run folder, and a report to stdout: vocabulary, examples, loss before and after. Ctrl-C and SIGTERM stop after the
    current step and save a checkpoint; a second one stops at once.
    """
    from tinytf.checkpoints.run import load_run
    from tinytf.loading import pick_device
    from tinytf.training.clashes import require_compatible
    from tinytf.training.observers.tensorboard import summary_writer
    from tinytf.training.plan import plan
    from tinytf.training.train import report_of
    from tinytf.training.train import train as train_model
    from tinytf.training.tuning.processes import rank_and_count
    from tinytf_cli.progress import TrainingProgress
    from tinytf_cli.views import train as _train  # noqa: F401 - registers its view
    from tinytf_cli.views import train_plan as _plan  # noqa: F401 - registers its view

    if run.resume and run.out is None:
        run = _named_or_newest(run)
        output.note(f"continuing {run.out}")
    if run.overwrite and run.out is None:
        raise UsageError("--overwrite needs an existing run", "name it with --out")
    parent = Path(run.begin_from or "") if run.at_step and not run.resume else None
    out = _new_run(run.corpus or (() if parent is None else (parent,))) if run.out is None else run.out
    if out == Path():
        raise UsageError("--out names no folder", "give a new one, such as --out runs/first")
    if options.explained and options.explain is None:
        raise UsageError("--weight needs --explain", "name the step, such as --explain 100")
    require_compatible({**vars(options), **vars(run), "shard": machine.shard})
    if options.tensorboard:
        summary_writer()  # raises before anything is removed or read
    resumed = out if run.resume else None
    recipe = resolved_recipe(overrides, run, resumed)
    if not run.resume and not recipe.begun_from:
        _say_if_unwritable(recipe, output)
    begun_from = "" if recipe.at_step else recipe.begun_from  # a branch starts from its own checkpoint
    own_tokenizer, model = _begin(begun_from, run.tokenizer, machine.device)
    device = pick_device(machine.device)
    progress = TrainingProgress(recipe.steps, out)
    click.get_current_context().call_on_close(progress.clear)  # before an error is printed
    reading = partial(progress.prepare, "bytes of text read")
    files = _read(run.corpus, recipe.reading, unreadable.skip_unreadable, resumed or parent, output, reading)
    progress.clear()
    if options.dry_run:
        training_plan = plan(
            files, recipe, out, device, tokenizer=own_tokenizer, model=model, overwrite=run.overwrite,
            on_progress=progress.prepare,
        )  # fmt: skip
        progress.clear()
        output.draw(training_plan)
        return 0
    with output.interrupt.deferred() as interrupted:
        trained = train_model(
            files,
            recipe,
            out,
            device,
            observers=[progress],
            resume=run.resume,
            overwrite=run.overwrite,
            interrupted=interrupted,
            tokenizer=own_tokenizer,
            model=model,
            explain=options.explain or 0,
            explained=options.explained,
            tensorboard=options.tensorboard,
            shard=machine.shard,
            timeout=machine.process_timeout,
            choose_speed="OMP_NUM_THREADS" not in os.environ,
            on_progress=progress.prepare,
            on_note=output.note,
        )
    last = trained.last
    if rank_and_count()[0] == 0:  # only the first of several processes reports
        if last.stopped is not None:
            output.note(f"step {last.step:,} was the last of the run: {last.stopped}")
        progress.finish(last.step if last.stopped is None else recipe.steps)
        if progress.first_step is not None:
            # A sharded model is complete only in its checkpoint.
            setup = replace(trained.setup, model=load_run(out)) if machine.shard else trained.setup
            # Without a pager: nobody may be there to quit it.
            replace(output, pager=None).draw(report_of(out, recipe, setup, trained.updates))
        if options.explain and not trained.updates:
            output.note(f"step {options.explain:,} was not among the steps of this run, so there is no update to show")
    return 130 if last.step < recipe.steps and last.stopped is None else 0


def _say_if_unwritable(recipe: "Recipe", output: Output) -> None:
    """Say before a new model is trained that no family of transformers has it."""
    from tinytf.checkpoints.huggingface.export import writable
    from tinytf.training.recipe import USUAL_VOCABULARY

    config = recipe.model_config(recipe.vocab_size or USUAL_VOCABULARY)
    try:
        writable(config)
    except UsageError as error:
        output.note(f"this model will run in tinytf alone: no family of transformers has it; {error.hint}")


def _new_run(corpus: tuple[Path, ...]) -> Path:
    """A new folder in runs/, named after the corpus."""
    from tinytf.runs.naming import RUNS

    name = (resolve_links(corpus[0]).stem if corpus and corpus[0] != Path("-") else "") or "text"
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(path for name in names if not (path := RUNS / name).exists())


def _named_or_newest(run: RunOptions) -> RunOptions:
    """``--resume`` without --out: the run in place of the CORPUS, or else the newest that has steps left."""
    from tinytf.runs.naming import named_run, newest_run
    from tinytf.runs.run_files import is_run

    if len(run.corpus) == 1 and is_run(folder := named_run(run.corpus[0])):
        return replace(run, corpus=(), out=folder)
    if len(run.corpus) == 1 and not run.corpus[0].exists() and run.corpus != (Path("-"),):
        raise UsageError(f"there is no run {printable(str(run.corpus[0]), spaces=False)}", "tinytf runs lists the runs")
    return replace(run, out=newest_run(unfinished=True))


def _begin(begun_from: str, tokenizer: str | None, device: str) -> tuple[Any, Any]:
    """Open the tokenizer and model to start from; None for each that is new."""
    from tinytf.loading import load
    from tinytf.sources import open_tokenizer
    from tinytf.training.recipe import TOKENIZERS

    if begun_from:
        if tokenizer is not None:
            raise UsageError("--from brings its own tokenizer", "leave out --tokenizer")
        opened = load(begun_from, device=device)
        return opened.tokenizer, opened.transformer
    if tokenizer is None or tokenizer.partition(":")[0] in TOKENIZERS:
        return None, None
    try:
        return open_tokenizer(tokenizer), None
    except UsageError as error:
        message = f"tokenizer {tokenizer!r} is not one of {', '.join(TOKENIZERS)}; {error.message}"
        raise UsageError(message, error.hint) from None


def _read(
    paths: tuple[Path, ...],
    reading: "Reading",
    skip_unreadable: bool,
    resumed: Path | None,
    output: Output,
    on_read: "OnRead",
) -> "Corpus":
    """Read the named files and folders, or standard input. A resumed run without any reads its own files again."""
    from tinytf.runs.run_files import RECIPE
    from tinytf.text.corpus import find_files
    from tinytf.text.weighted import find_corpus
    from tinytf.training.remembered import find_remembered_corpus

    if not paths and resumed is not None:
        if not (resumed / RECIPE).exists():
            raise UsageError(f"there is no run in {resumed} to resume", "leave out --resume to begin one")
        if (corpus := find_remembered_corpus(resumed, reading, on_read)) is not None:
            return corpus
        hint = "name the same files, or - for standard input"
        raise UsageError(f"{resumed} does not know where its text is", hint)
    if not paths or paths == (Path("-"),):
        (text,) = read_texts(("-",) if paths else (), lines=False)
        return find_files(text, reading)
    corpus = find_corpus(paths, reading, skip_unreadable=skip_unreadable, on_read=on_read)
    for skipped in corpus.skipped:
        output.note(f"{skipped.path} is skipped: {skipped.why}")
    for file in corpus.files:
        if file.field and not reading.field:
            output.note(f"of {file.source.name}, the field {file.field} of {file.paragraphs:,} rows is learned")
    return corpus
