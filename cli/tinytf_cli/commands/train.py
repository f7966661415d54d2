"""``tinytf train``: a model from a text."""

from pathlib import Path
from typing import Any

import click

from tinytf.errors import UsageError

_OVERRIDES = ("objective", "tokenizer", "vocab_size", "block", "batch", "steps", "lr", "warmup", "seed", "eval_every")


@click.command("train")
@click.argument("corpus", nargs=-1, type=click.Path(path_type=Path))
@click.option("--recipe", type=click.Path(path_type=Path), help="A TOML file with model, data and optimiser.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder of the run; must be new.")
@click.option("--objective", type=click.Choice(["causal", "masked"]), help="Next token, or masked tokens.")
@click.option("--tokenizer", type=click.Choice(["char", "bpe", "wordpiece"]))
@click.option("--vocab-size", type=int, help="Tokens of the vocabulary (not for char).")
@click.option("--block", type=int, help="Training length in tokens.")
@click.option("--batch", type=int, help="Examples a step.")
@click.option("--steps", type=int, help="Optimiser steps.")
@click.option("--lr", type=float, help="Peak learning rate.")
@click.option("--warmup", type=int, help="Steps of linear warm-up.")
@click.option("--seed", type=int)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda", "mps"]), default="auto", show_default=True)
@click.option("--eval-every", type=int, help="Steps between held-out losses and checkpoints.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def command(corpus: tuple[Path, ...], recipe: Path | None, out: Path, device: str, **options: Any) -> None:
    """Train a model on the text files of CORPUS (- or nothing: standard input) and leave it in a run folder.

    A blank line separates documents. Progress goes to stderr, metrics to metrics.jsonl in the folder.
    """
    from tinytf.loading import pick_device
    from tinytf.training.loop import Metrics, Setup, train
    from tinytf.training.recipe import Recipe
    from tinytf_cli.progress import TrainingProgress

    if out == Path():
        raise UsageError("--out names no folder", "give a new one, such as --out runs/first")
    changes = {name: options[name] for name in _OVERRIDES if options[name] is not None}
    if recipe is not None:
        resolved = Recipe.load(recipe, **changes)
    else:
        steps = changes.get("steps", Recipe.steps)
        if changes.get("objective") == "masked":
            changes.setdefault("tokenizer", "wordpiece")
        resolved = Recipe.from_dict({"warmup": min(Recipe.warmup, steps // 10), **changes}, "options")
    texts = _read(corpus)
    progress = TrainingProgress(resolved.steps)

    def on_metrics(metrics: Metrics, setup: Setup) -> None:
        progress.update(metrics, setup)

    train(texts, resolved, out, on_metrics, pick_device(device))
    progress.finish(out)


def _read(corpus: tuple[Path, ...]) -> list[str]:
    """The texts of files and folders (their .txt files, sorted), or of standard input."""
    from tinytf_cli.inputs import read_texts

    if not corpus or corpus == (Path("-"),):
        return read_texts(("-",) if corpus else (), lines=False)
    files: list[Path] = []
    for path in corpus:
        if path.is_dir():
            inside = sorted(path.rglob("*.txt"))
            if not inside:
                raise UsageError(f"the folder {path} holds no .txt file")
            files += inside
        else:
            files.append(path)
    texts = []
    for path in files:
        try:
            texts.append(path.read_bytes().decode("utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start:,}") from None
    return texts
