"""A run of a few steps on a few sentences, stopped where a test wants it, and what it left."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tinytf.training.data.setup import Setup
from tinytf.training.loop import Observer
from tinytf.training.metrics import Metrics
from tinytf.training.recipe import Recipe
from tinytf.training.train import train

STORY = "\n\n".join(f"The {who} sat on the {what}. It was a {how} day." for who in ("cat", "dog", "hen", "fox")
                    for what in ("mat", "log") for how in ("fine", "wet", "long"))  # fmt: skip
MODEL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 16, "context": 32}
DROPPING = {**MODEL, "dropout": 0.1}
RECIPE = Recipe(model=MODEL, tokenizer="char", block=16, batch=4, steps=12, warmup=2, eval_every=4, held_out=0.2)
CAUSAL = Recipe(**{**RECIPE.to_dict(), "model": DROPPING, "repeats": 0.25})
FILMED = Recipe(**{**RECIPE.to_dict(), "block": 24, "steps": 6, "lr": 1e-2})


def changed(recipe: Recipe, **changes: object) -> Recipe:
    return Recipe(**{**recipe.to_dict(), **changes})


class Called(Observer):
    """Calls a function with the line of every step, once it is written, and the setup of the run."""

    reads_files = True

    def __init__(self, call: Callable[[Metrics, Setup], object]) -> None:
        self.call = call

    def step(self, line: Metrics) -> None:
        self.call(line, self.loop.setup)


def run_once(recipe: Recipe) -> Callable[[pytest.TempPathFactory], Path]:
    """A fixture: the run of a recipe, trained once for all tests of a file."""

    @pytest.fixture(scope="module")
    def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
        place = tmp_path_factory.mktemp("runs") / "run"
        train(STORY, recipe, place)
        return place

    return run


def stopping_after(steps: int) -> Callable[[], bool]:
    """An ``interrupted`` that ends the run after so many of its steps."""
    asked = iter([False] * (steps - 1) + [True] * 1000)
    return lambda: next(asked)


def files_of(run: Path) -> dict[str, bytes]:
    """Everything that is left in a run, but the lock, and how fast it went."""
    found = [path for path in run.rglob("[!.]*") if path.is_file() and path.name != "speed.jsonl"]
    return {str(path.relative_to(run)): path.read_bytes() for path in found}


def metrics_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
