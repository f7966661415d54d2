"""What writes files: a training run and its resumption, a sweep, recordings, exports, a session, what is remembered."""

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from hostile.bases import ours
from training_runs import CAUSAL, STORY, changed, stopping_after

from tinytf.errors import TinytfError
from tinytf.text.corpus import find_files
from tinytf.training import sweep as sweeps
from tinytf.training.data import cache
from tinytf.training.train import train
from tinytf_cli.commands.sweep import _begin
from tinytf_cli.failing import explained, say
from tinytf_cli.learn import Bookmark
from tinytf_cli.main import run
from tinytf_cli.repl import history

RECIPE = changed(
    CAUSAL, model={**CAUSAL.model, "d_model": 8, "n_layers": 1, "d_ff": 8, "context": 16}, block=8, batch=2, steps=2,
    warmup=1, eval_every=1, save_every=1, keep=1, probe_every=1,
)  # fmt: skip
"""Every kind of file is written, and after the second step a checkpoint removed."""

SAME, TIDY, REFUSED, ANY = "same", "tidy", "refused", "any"
"""After a fault the act leaves the same; and no temporary file; or is refused; or looks itself at what it leaves."""

Act = Callable[[], int]


@dataclass(frozen=True)
class Scenario:
    """``prepare`` makes what stands before in the folder that it is in, ``act`` writes there; both in that folder.

    ``again`` is done after a fault; what it is to leave says ``then``. It first ``removes`` what is asked to.
    """

    name: str
    prepare: Callable[[], None]
    act: Act
    again: Act
    then: str = SAME
    removes: bool = False

    def __str__(self) -> str:
        return self.name


def command(*words: str) -> Act:
    """The command line, in this process."""
    return lambda: run(list(words))


def library(act: Callable[[], object]) -> Act:
    """A call of the library, whose error is said as the command line says it."""

    def call() -> int:
        try:
            act()
        except TinytfError as error:
            failure = explained(error)
            say(failure.message, failure.hint)
            return failure.status
        return 0

    return call


def _model() -> None:
    for name, data in ours().items():
        path = Path("model", name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def _text() -> None:
    Path("corpus.txt").write_text(STORY, "utf-8")


def _trained(steps: int = 2, seed: int = 0) -> Callable[[], None]:
    """A run that was interrupted after some of its steps."""

    def prepare() -> None:
        _text()
        recipe = changed(RECIPE, seed=seed)
        train(find_files([Path("corpus.txt")]), recipe, Path("run"), interrupted=stopping_after(steps))

    return prepare


def _train(**how: bool) -> Act:
    return library(lambda: train(find_files([Path("corpus.txt")]), RECIPE, Path("run"), **how))


class _Unread(StringIO):
    """A standard input that nothing may read."""

    def __getattribute__(self, name: str) -> object:
        if name in ("read", "readline", "readlines", "__next__", "buffer", "fileno"):
            raise AssertionError(f"standard input is not to be read: {name}")
        return super().__getattribute__(name)


def _resumed_or(again: Act) -> Act:
    """Resume what is there, without a word about its text; ``again`` only where nothing of a run is there.

    A folder with a recipe resumes, or its checkpoints are damaged and it says so.
    """

    def act() -> int:
        is_run = Path("run", "recipe.json").exists()
        said = StringIO()
        with patch.dict(os.environ, OMP_NUM_THREADS="1"), patch.object(sys, "stdin", _Unread()), redirect_stderr(said):
            status = run(["train", "--out", "run", "--resume"])
        if is_run or not status:
            sys.stderr.write(said.getvalue())
            return status
        if not said.getvalue().startswith("tinytf: error: there is no run in run to resume\nhint: "):
            raise AssertionError(said.getvalue())
        return again()

    return act


def _cached() -> Act:
    """Training whose tokenizer and tokens are kept in a cache."""

    def act() -> int:
        with (
            patch.dict(os.environ, {"TINYTF_CACHE": str(Path("cache").absolute())}),
            patch.object(cache, "MIN_TEXT_BYTES", 1),
        ):
            return _train(resume=True)()

    return act


def _cached_anew() -> int:
    """Another run on the same text, which needs the cache."""
    shutil.rmtree("run", ignore_errors=True)
    return _cached()()


def _sweep() -> Act:
    """Two runs of a grid, one after the other in this process."""

    def here(calls, jobs, on_begin, interrupted):  # as sweeps._in_processes
        for trial, arguments in calls:
            on_begin(trial)
            yield sweeps.Outcome(trial, *sweeps._run_with_signals_restored(*arguments))

    def act() -> int:
        trials = sweeps.grid(changed(RECIPE, steps=1, warmup=0, probe_every=0).to_dict(), {}, seeds=2)
        with patch.object(sweeps, "_in_processes", here):
            outcomes = sweeps.sweep([Path("corpus.txt")], trials, Path("out"), begin=_begin, jobs=os.cpu_count() or 1)
        if problems := "; ".join(outcome.problem for outcome in outcomes if outcome.problem):
            say(problems)
        return int(bool(problems))

    return act


def _before(name: str) -> Callable[[], None]:
    def prepare() -> None:
        _model()
        Path(name).write_text("what stood before", "utf-8")

    return prepare


def _output(name: str, *words: str) -> Scenario:
    act = command(*words)
    return Scenario(f"{' '.join(words[:1])} {name}", _before(name), act, act)


def _history() -> None:
    Path("state").mkdir(mode=0o700)
    Path("state", "history").write_text("".join(f"run line {number}\n" for number in range(30)), "utf-8")


def _remember() -> int:
    """Two more lines than are kept."""
    with patch.object(history, "KEPT", 10):
        file = history.FileHistory(Path("state", "history"))
        for line in ("run The cat", "step"):
            file.store_string(line)
    return 0


def _remember_again() -> int:
    """Raises where the file then holds a line that nobody typed, or lacks the last ones."""
    _remember()
    found = list(history.FileHistory(Path("state", "history")).load_history_strings())
    typed = {"run The cat", "step", *(f"run line {number}" for number in range(30))}
    strange = [line for line in found if not any(one.startswith(line) for one in typed)]
    if strange or found[:2] != ["step", "run The cat"]:
        raise AssertionError(f"the history holds {strange or found[:2]}")
    return 0


def _lesson() -> None:
    Path("state").mkdir()
    Bookmark(Path("state", "learn.json")).write(3)


def _next_lesson() -> int:
    Bookmark(Path("state", "learn.json")).write(4)
    return 0


_TRACE = ("trace", "The cat", "-m", "model", "-o")
_SESSION = ("repl", "-m", "model", "-c", "run The cat", "-c")
_EXPORT = ("export", "model", "new/folder", "--to", "huggingface")
_SWEPT = ("ablate", "The cat sat", "--sweep", "heads", "-m", "model", "--resume", "heads.ndjson")

SCENARIOS = (
    Scenario("train", _text, _train(resume=True), _resumed_or(_train(resume=True)), TIDY),
    Scenario("resume", _trained(1), _train(resume=True), _resumed_or(_train(resume=True)), TIDY),
    Scenario("overwrite", _trained(2, seed=9), _train(overwrite=True), _train(overwrite=True), TIDY, removes=True),
    Scenario("train with a cache", _text, _cached(), _cached_anew),
    Scenario("sweep", _text, _sweep(), _sweep(), TIDY),
    _output("rec.safetensors", *_TRACE, "rec.safetensors"),
    _output("x.json", *_TRACE, "x.json"),
    _output("x.html", "heads", "-m", "model", "-o", "x.html"),
    _output("x.session", *_SESSION, "save --force x.session"),
    _output("x.txt", *_SESSION, "tokens The > x.txt"),
    Scenario("measurement", _model, command(*_SWEPT), command(*_SWEPT)),
    Scenario("export", _model, command(*_EXPORT), command(*_EXPORT), REFUSED),
    Scenario("history", _history, _remember, _remember_again, ANY),
    Scenario("lesson", _lesson, _next_lesson, _next_lesson),
)
