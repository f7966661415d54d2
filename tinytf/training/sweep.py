"""A sweep: the runs of a grid of recipes and seeds, several at a time, in processes or over a cluster of Ray."""

import importlib.util
import itertools
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from tinytf.config import FIELDS
from tinytf.errors import TinytfError, UsageError
from tinytf.text.weighted import find_corpus
from tinytf.training.folder.reader import read_history
from tinytf.training.folder.run_files import is_run
from tinytf.training.loop import train
from tinytf.training.recipe import FIELDS as RECIPE
from tinytf.training.recipe import Recipe
from tinytf.training.run.checkpoints import is_published

_MOST_RUNS = 10_000
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_POLL = 0.2
"""Seconds between looks at whether to stop."""

Begin = Callable[[Recipe], tuple[Any, Any]]
"""Gives the tokenizer and the model that a recipe begins from, or None for each."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: its folder's ``name``, by what differs, and its recipe."""

    name: str
    recipe: Recipe


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: ``problem`` says why it failed, and is empty where it did not."""

    trial: Trial
    finished: bool
    problem: str = ""


def values_of(name: str, text: str) -> tuple[Any, ...]:
    """The values of an axis: ``1e-3,3e-3`` as those of a field. Raises UsageError for one of another type."""
    known = RECIPE.get(name) or FIELDS.get(name)
    kind = known.kind if known else str
    found = []
    for word in (word.strip() for word in text.split(",")):
        try:
            value = _WORDS[word.lower()] if kind is bool else kind(word) if kind in (int, float) else word
        except (KeyError, ValueError):
            raise UsageError(f"{word!r} is no value of {name}", "several are separated by commas: 1e-3,3e-3") from None
        found.append(value)
    if len(set(found)) < len(found):
        raise UsageError(f"{name} has a value twice: {text}")
    return tuple(found)


def grid(recipe: Recipe, axes: Mapping[str, Sequence[Any]], seeds: int) -> list[Trial]:
    """A trial for each combination of values, with ``seeds`` seeds from that of the recipe on.

    Raises UsageError for a recipe that cannot be, before any is trained.
    """
    axes = {**axes, **({"seed": range(recipe.seed, recipe.seed + seeds)} if seeds > 1 else {})}
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > _MOST_RUNS:
        raise UsageError(f"the grid has {count:,} runs, and {_MOST_RUNS:,} are the most")
    varying = [name for name, values in axes.items() if len(values) > 1]
    found = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        of_run = {name: value for name, value in chosen.items() if name in Recipe.__dataclass_fields__}
        model = {**recipe.model, **{name: value for name, value in chosen.items() if name not in of_run}}
        if model and recipe.begun_from:
            raise UsageError("the recipe begins from a model, which brings its own architecture")
        if "steps" in of_run and "warmup" not in of_run:
            of_run["warmup"] = min(recipe.warmup, of_run["steps"])
        trial = replace(recipe, model=model, **of_run)
        trial.model_config(trial.vocab_size or 1000)
        found.append(Trial("-".join(f"{name}-{chosen[name]}" for name in varying) or "run", trial))
    return found


def sweep(
    corpus: Sequence[Path],
    trials: Sequence[Trial],
    out: Path,
    *,
    begin: Begin,
    jobs: int,
    ray: bool = False,
    on_begin: Callable[[Trial], None] = lambda _: None,
    on_end: Callable[[Outcome], None] = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Train each trial in a folder of its own in ``out``; those that are finished are left, begun ones go on.

    ``jobs`` trials at a time share the cores. One that fails does not end the others. Once ``interrupted`` says so,
    none is begun and the running ones stop with a checkpoint. With ``ray`` they are tasks of Ray, whose machines have
    to share the folders. Raises UsageError where Ray is not installed.
    """
    if ray and importlib.util.find_spec("ray") is None:
        raise UsageError("Ray is not installed", 'pip install "tinytf[ray]", or leave out --ray')
    done = {trial.name for trial in trials if _is_finished(out / trial.name)}
    outcomes = [Outcome(trial, True) for trial in trials if trial.name in done]
    for outcome in outcomes:
        on_end(outcome)
    threads = max(1, (os.cpu_count() or 1) // jobs)
    files, out = [path.absolute() for path in corpus], out.absolute()
    calls = [(trial, (files, trial.recipe, out / trial.name, begin, threads)) for trial in trials]
    run = _over_ray if ray else _in_processes
    for outcome in run([call for call in calls if call[0].name not in done], jobs, on_begin, interrupted):
        outcomes.append(outcome)
        on_end(outcome)
    return outcomes


_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _is_finished(run: Path) -> bool:
    """Whether a run came to its end, also with its model; one that was killed before that is resumed."""
    try:
        history = read_history(run) if is_run(run) else None
        return history is not None and history.finished and is_published(run, history.last)
    except TinytfError:  # a damaged one is told when it is resumed
        return False


def train_one(corpus: list[Path], recipe: Recipe, out: Path, begin: Begin, threads: int) -> tuple[bool, str]:
    """Begin or resume one run; whether it is finished, and why it failed. The first signal stops it."""
    stopped: list[int] = []
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, lambda number, _: stopped.append(number))
    torch.set_num_threads(threads)
    try:
        tokenizer, model = begin(recipe)
        files = find_corpus(corpus, recipe.reading)
        last = train(
            files, recipe, out, resume=is_run(out), tokenizer=tokenizer, model=model, interrupted=lambda: bool(stopped)
        )
    except TinytfError as error:
        return False, error.message
    return last.step >= recipe.steps or last.stopped is not None, ""


Call = tuple[Trial, tuple[Any, ...]]


def _in_processes(
    calls: Sequence[Call], jobs: int, on_begin: Callable[[Trial], None], interrupted: Callable[[], bool]
) -> Iterator[Outcome]:
    """Each in a process of its own."""
    context, waiting = multiprocessing.get_context("spawn"), deque(calls)
    running: dict[Any, tuple[Trial, Any]] = {}
    told = False
    while waiting or running:
        if interrupted() and not told:
            told = True
            waiting.clear()
            for _, process in running.values():
                process.terminate()  # which leaves a checkpoint
        while waiting and len(running) < jobs:
            trial, arguments = waiting.popleft()
            heard, said = context.Pipe(duplex=False)
            process = context.Process(target=_told, args=(said, arguments))
            process.start()
            said.close()
            running[heard] = trial, process
            on_begin(trial)
        ready = wait(list(running), _POLL)
        for heard in [one for one in running if one in ready]:
            trial, process = running.pop(heard)
            try:
                finished, problem = heard.recv()
            except EOFError:
                process.join()
                finished, problem = False, "" if told else f"its process ended with status {process.exitcode}"
            process.join()
            yield Outcome(trial, finished, problem)


def _told(said: Any, arguments: tuple[Any, ...]) -> None:
    said.send(train_one(*arguments))


def _over_ray(
    calls: Sequence[Call], jobs: int, on_begin: Callable[[Trial], None], interrupted: Callable[[], bool]
) -> Iterator[Outcome]:
    """Each as a task of Ray, which decides where; ``jobs`` at a time."""
    import ray  # type: ignore[import-not-found,unused-ignore]

    if not ray.is_initialized():
        ray.init(log_to_driver=False, configure_logging=False)
    waiting, running, told = deque(calls), dict[Any, Trial](), False
    while waiting or running:
        if interrupted() and not told:
            told = True
            waiting.clear()
            for reference in running:
                ray.cancel(reference)  # resumed from its last checkpoint
        while waiting and len(running) < jobs:
            trial, arguments = waiting.popleft()
            task = ray.remote(num_cpus=arguments[-1], max_retries=0)(_unsignalled)
            running[task.remote(*arguments)] = trial
            on_begin(trial)
        for reference in ray.wait(list(running), timeout=_POLL)[0]:
            trial = running.pop(reference)
            try:
                finished, problem = ray.get(reference)
            except Exception as error:  # Ray wraps whatever happened over there
                finished, problem = False, "" if told else str(error).splitlines()[0]
            yield Outcome(trial, finished, problem)


def _unsignalled(*arguments: Any) -> tuple[bool, str]:
    """As ``train_one``; Ray's workers have signal handlers of their own."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    try:
        return train_one(*arguments)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
