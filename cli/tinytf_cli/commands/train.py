"""``tinytf train``: a model from a text."""

import itertools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import UsageError
from tinytf_cli.inputs import read_texts
from tinytf_cli.interrupt import current
from tinytf_cli.options import asks, option, output_options
from tinytf_cli.output import Output, Result
from tinytf_cli.recipe_options import recipe_options, resolved_recipe

if TYPE_CHECKING:
    from tinytf.training.recipe import Recipe


@dataclass(frozen=True)
class RunOptions:
    """Where the run is, and what it begins from."""

    out: Path | None = option(type=click.Path(path_type=Path), help="The folder of the run; else a new one in runs/.")
    resume: bool = option(is_flag=True, help="Go on with the run in --out, as if it had never stopped.")
    overwrite: bool = option(is_flag=True, help="Remove the run in --out first.")
    recipe: Path | None = option(type=click.Path(path_type=Path), help="A TOML file with model, data and optimiser.")
    preset: str | None = option(metavar="NAME", help="The architecture of a preset, such as llama-tiny.")
    begin_from: str | None = option("--from", metavar="MODEL", help="Begin from this model and its tokenizer.")
    tokenizer: str | None = option(
        metavar="KIND", help="char, bpe:SIZE, wordpiece:SIZE, or a model whose tokenizer it is."
    )


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    skip_unreadable: bool = option(is_flag=True, help="Pass over files of a folder that are no text, and name them.")
    explain: int | None = option(
        type=click.IntRange(1), metavar="STEP", help="Write out Adam's update of some weights."
    )
    explained: tuple[str, ...] = option(
        "--weight", multiple=True, metavar="NAME",
        help="The weight to write out, such as blocks.0.attention.q.weight, or one entry: …[3,5]. Repeatable.",
    )  # fmt: skip
    tensorboard: bool = option(is_flag=True, help="Write event files too, into the folder tensorboard of the run.")
    shard: bool = option(is_flag=True, help="Of several processes each holds a part of the model (torchrun; FSDP2).")
    device: str = option(type=click.Choice(["auto", "cpu", "cuda", "mps"]), shown="auto")


@click.command("train")
@click.argument("corpus", nargs=-1, type=click.Path(path_type=Path))
@asks(RunOptions, "run")
@recipe_options
@asks(Asked)
@output_options
def command(corpus: tuple[Path, ...], run: RunOptions, fields: Mapping[str, Any], asked: Asked, output: Output) -> int:
    """Train a model on the text files of CORPUS (- or nothing: standard input) and leave it in a run folder.

    A blank line separates documents. A run that goes on knows its files, and need not be told them again.
    Every field of the model is an option too: --d-model 256 --n-layers 6.
    Progress goes to stderr, metrics to metrics.jsonl in the folder, a report to stdout: what was learned from, an
    example, the loss before and after. Ctrl-C ends after the step, with a checkpoint.
    """
    from tinytf.checkpoints.run import load_run
    from tinytf.loading import pick_device
    from tinytf.training.loop import train
    from tinytf.training.metrics import Metrics
    from tinytf.training.setup import Setup
    from tinytf.training.tensorboard import summary_writer
    from tinytf.training.update import Update
    from tinytf_cli.progress import TrainingProgress
    from tinytf_cli.views.train import TrainView

    if run.out is None and (run.resume or run.overwrite):
        raise UsageError("--resume and --overwrite are of a run that is there", "say which by --out")
    out = _new_run(corpus) if run.out is None else run.out
    if out == Path():
        raise UsageError("--out names no folder", "give a new one, such as --out runs/first")
    if asked.explained and asked.explain is None:
        raise UsageError("--weight names what --explain writes out", "say at which step, such as --explain 100")
    if run.resume and run.overwrite:
        raise UsageError("--resume goes on with a run, and --overwrite removes it", "leave one of them out")
    if asked.tensorboard:
        summary_writer()  # that it is missing is said before anything is removed or read
    resolved = resolved_recipe(
        fields, run.recipe, run.preset, run.begin_from, run.tokenizer, out if run.resume else None
    )
    own_tokenizer, model = _begin(resolved.begun_from, run.tokenizer, asked.device)
    files = _read(corpus, asked.skip_unreadable, out if run.resume else None, output)
    progress = TrainingProgress(resolved.steps, out)

    setups: list[Setup] = []
    updates: list[Update] = []

    def on_metrics(metrics: Metrics, setup: Setup) -> None:
        if not setups and own_tokenizer is None and not run.resume:
            _say_how_many_tokens(resolved, setup.tokenizer.vocab_size, output)
        setups[:] = [setup]
        progress.update(metrics, setup)

    stop = current()
    with stop.held():
        last = train(
            files,
            resolved,
            out,
            on_metrics,
            pick_device(asked.device),
            going_on=run.resume,
            overwrite=run.overwrite,
            interrupted=lambda: stop.happened,
            tokenizer=own_tokenizer,
            model=model,
            explain=asked.explain or 0,
            explained=asked.explained,
            on_updates=updates.extend,
            tensorboard=asked.tensorboard,
            shard=asked.shard,
        )
    if os.environ.get("RANK", "0") == "0":  # of several processes the first speaks
        progress.finish(last.step)
        if setups:
            # What was divided is whole in the checkpoint.
            setup = replace(setups[0], model=load_run(out)) if asked.shard else setups[0]
            view = TrainView(out, resolved, setup, updates)
            output.show(Result(view.blocks, view.data, view.events))
        if asked.explain and not updates:
            output.note(
                f"step {asked.explain:,} was not among those that were made, so there is no update to write out"
            )
    return 130 if last.step < resolved.steps else 0


def _new_run(corpus: tuple[Path, ...]) -> Path:
    """A folder in runs/ that is not there yet, named after the text."""
    name = (corpus[0].resolve().stem if corpus and corpus[0] != Path("-") else "") or "text"
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(path for name in names if not (path := Path("runs") / name).exists())


def _begin(begun_from: str, tokenizer: str | None, device: str) -> tuple[Any, Any]:
    """The tokenizer and the model to begin from, where they are not to be made."""
    from tinytf.loading import load
    from tinytf.sources import find_source

    if begun_from:
        if tokenizer is not None:
            raise UsageError("--from brings its own tokenizer", "leave out --tokenizer")
        opened = load(begun_from, device=device)
        return opened.tokenizer, opened.transformer
    if tokenizer is None or tokenizer.partition(":")[0] in ("char", "bpe", "wordpiece"):
        return None, None
    try:
        return find_source(tokenizer).vocabulary().tokenizer, None
    except UsageError as error:
        said = f"tokenizer {tokenizer!r} is not one of char, bpe, wordpiece; {error.message}"
        raise UsageError(said, error.hint) from None


def _say_how_many_tokens(recipe: "Recipe", count: int, output: Output) -> None:
    """A vocabulary that nobody gave a size is smaller than usual where the text yields no more."""
    from tinytf.training.recipe import USUAL_VOCABULARY

    if recipe.tokenizer != "char" and not recipe.vocab_size and count < USUAL_VOCABULARY:
        output.note(f"the text yields a vocabulary of {count:,} tokens, and {USUAL_VOCABULARY:,} are usual")


def _read(paths: tuple[Path, ...], skip_unreadable: bool, run: Path | None, output: Output) -> Any:
    """The files that were named, those of folders, or standard input; without any, those of the run to go on with."""
    from tinytf.training.corpus import find_files
    from tinytf.training.remembered import remembered

    if not paths and run is not None:
        if (known := remembered(run)) is not None:
            return known
        if not (run / "recipe.json").exists():
            raise UsageError(f"there is no run in {run} to go on with", "leave out --resume to begin one")
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError(f"{run} does not know where its text is", "name the same files, or pipe the text in")
    if not paths or paths == (Path("-"),):
        (text,) = read_texts(("-",) if paths else (), lines=False)
        return find_files(text)
    found = find_files(paths, skip_unreadable=skip_unreadable)
    for skipped in found.skipped:
        output.note(f"{skipped.path} is passed over: {skipped.why}")
    return found
