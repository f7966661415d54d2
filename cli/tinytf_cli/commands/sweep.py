"""``tinytf sweep``: train one recipe with several values and seeds."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tinytf_cli.command import argument, command, option
from tinytf_cli.host import host
from tinytf_cli.output import Output
from tinytf_cli.ranges import Whole
from tinytf_cli.recipe_options import Axes

if TYPE_CHECKING:
    from tinytf.training.recipe import Recipe
    from tinytf.training.sweep import Outcome, Trial


@dataclass(frozen=True)
class Options:
    """The recipe to sweep, its corpus, and how to run it."""

    GROUP: ClassVar = "Sweep"

    recipe: Path = argument(type=click.Path(path_type=Path), metavar="RECIPE")
    corpus: tuple[Path, ...] = argument(nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CORPUS...")
    out: Path | None = option(
        type=click.Path(path_type=Path), help="Folder of the runs.  [default: runs/sweep- and the name of the recipe]"
    )
    seeds: int = option(type=Whole(1, 10_000), shown=1, help="Seeds for each combination.")
    jobs: int | None = option(type=Whole(1, 1024), help="Runs at a time.  [default: one for each core]")
    ray: bool = option(is_flag=True, help="Run them as Ray tasks, here or on a cluster. Needs tinytf[ray].")


@command("sweep", first=("--out", "--seeds", "--jobs", "--block", "--batch", "--steps", "--lr", "--weight-decay"))
def sweep(options: Options, axes: Axes, output: Output) -> int:
    """RECIPE is a TOML file. Every field of the recipe and its model is an option that takes several values: --lr
    1e-3,3e-3 --d-model 64,128. Trains every combination, each in its own folder in --out, and compares them at the end.
    To continue an interrupted sweep, run the same command again. A failing run does not stop the others. CORPUS may
    have weights, as in book.txt=3 code/=1.
    """
    from tinytf.runs.runs import compare_runs
    from tinytf.text.weighted import find_corpus
    from tinytf.training.recipe import Recipe
    from tinytf.training.sweep import grid, require_free, values_of
    from tinytf.training.sweep import sweep as run_sweep

    if (session := host()) is not None:
        session.require_own("start the processes of a sweep")
    trials = grid(
        Recipe.given(options.recipe), {name: values_of(name, text) for name, text in axes.values.items()}, options.seeds
    )
    find_corpus(
        options.corpus, trials[0].recipe.reading
    )  # reports its errors once, and protects it from being overwritten
    out = options.out or Path("runs") / f"sweep-{options.recipe.stem}"
    require_free(trials, out)
    jobs = min(options.jobs or os.cpu_count() or 1, len(trials))
    output.note(f"{len(trials):,} runs in {out}, {jobs:,} at a time")
    finished_count = 0

    def on_end(outcome: "Outcome") -> None:
        nonlocal finished_count
        finished_count += outcome.finished or bool(outcome.problem)
        words = "finished" if outcome.finished else f"failed: {outcome.problem}" if outcome.problem else "stopped"
        output.note(f"{finished_count:,} of {len(trials):,}: {outcome.trial.name} {words}")

    def on_begin(trial: "Trial") -> None:
        output.note(f"{trial.name} begins")

    with output.interrupt.deferred() as interrupted:
        interrupted()  # from here on, a signal ends each run after a checkpoint
        outcomes = run_sweep(
            options.corpus, trials, out, begin=_begin, jobs=jobs, ray=options.ray,
            on_begin=on_begin, on_end=on_end, interrupted=interrupted,
        )  # fmt: skip
    output.draw(compare_runs([out]))
    if all(outcome.finished for outcome in outcomes) and len(outcomes) == len(trials):
        return 0
    return 1 if any(outcome.problem for outcome in outcomes) else 130


def _begin(recipe: "Recipe") -> tuple[Any, Any]:
    """Open the tokenizer and model that a recipe starts from, in the process of its run."""
    from tinytf.loading import load

    if not recipe.begun_from:
        return None, None
    opened = load(recipe.begun_from)
    return opened.tokenizer, opened.transformer
