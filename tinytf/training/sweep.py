"""A sweep: the runs of a grid of recipes and seeds, several at a time, in processes or on a cluster of Ray."""

import importlib.util
import itertools
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from tinytf.config import FIELDS
from tinytf.errors import TinytfError, UsageError
from tinytf.files import to_json
from tinytf.kept import RUN, SWEEP, SWEPT
from tinytf.outputs import make_folder, remove, require_outside, write_state, writing
from tinytf.runs.reader import read_history
from tinytf.runs.run_files import is_run
from tinytf.text.weighted import find_corpus
from tinytf.training.checkpoint import is_published
from tinytf.training.recipe import FIELDS as RECIPE
from tinytf.training.recipe import Recipe
from tinytf.training.train import train
from tinytf.version import __version__

_MAX_RUNS = 10_000
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_POLL = 0.2
"""Seconds between checks for an interrupt."""

Begin = Callable[[Recipe], tuple[Any, Any]]
"""Returns the tokenizer and the model that a recipe begins from, each possibly None."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: the ``name`` of its folder, made of the settings that vary, and its recipe."""

    name: str
    recipe: Recipe


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: ``problem`` says why it failed, and is empty if it did not."""

    trial: Trial
    finished: bool
    problem: str = ""


def values_of(name: str, text: str) -> tuple[Any, ...]:
    """The values of an axis of the grid, such as ``1e-3,3e-3``. Raises UsageError for a value of another type."""
    field = RECIPE.get(name) or FIELDS.get(name)
    kind = field.kind if field else str
    values = []
    for word in (word.strip() for word in text.split(",")):
        try:
            value = _BOOLEANS[word.lower()] if kind is bool else kind(word) if kind in (int, float) else word
        except (KeyError, ValueError):
            raise UsageError(
                f"{word!r} is not a value of {name}", "several are separated by commas: 1e-3,3e-3"
            ) from None
        values.append(value)
    if len(set(values)) < len(values):
        raise UsageError(f"{name} has a value twice: {text}")
    return tuple(values)


def grid(fields: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], seeds: int) -> list[Trial]:
    """A trial for each combination of values, with ``seeds`` seeds from that of the recipe on.

    ``fields`` are those that the recipe gives: what follows from others is derived for each trial. Raises UsageError
    for an invalid recipe, before any run begins.
    """
    first = Recipe.from_dict({name: value for name, value in fields.items() if name not in axes}).seed
    axes = {**axes, **({"seed": range(first, first + seeds)} if seeds > 1 else {})}
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > _MAX_RUNS:
        raise UsageError(f"the grid has {count:,} runs; the limit is {_MAX_RUNS:,}")
    varying = [name for name, values in axes.items() if len(values) > 1]
    trials = []
    for values in itertools.product(*axes.values()):
        values_of_run = dict(zip(axes, values, strict=True))
        changes = {name: value for name, value in values_of_run.items() if name in Recipe.__dataclass_fields__}
        model = {name: value for name, value in values_of_run.items() if name not in changes}
        trial = Recipe.from_dict({**fields, **changes, "model": {**fields.get("model", {}), **model}})
        if trial.model and trial.begun_from:
            raise UsageError("the recipe begins from a model, which brings its own architecture")
        trial.model_config(trial.vocab_size or 1000)
        trials.append(Trial("-".join(f"{name}-{values_of_run[name]}" for name in varying) or "run", trial))
    return trials


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
    """Train each trial in a folder of its own in ``out``; finished trials are skipped, begun ones are resumed.

    ``jobs`` trials at a time share the cores. A trial that fails does not end the others. Once ``interrupted`` returns
    True, no more trials begin and the running ones stop with a checkpoint. With ``ray`` they are tasks of Ray, whose
    machines must share the folders. Raises UsageError if Ray is not installed, and like ``require_free``.
    """
    if ray and importlib.util.find_spec("ray") is None:
        raise UsageError("Ray is not installed", 'pip install "tinytf[ray]", or leave out --ray')
    require_free(trials, out)
    _mark(out)
    finished = {trial.name for trial in trials if _is_finished(out / trial.name)}
    outcomes = [Outcome(trial, True) for trial in trials if trial.name in finished]
    for outcome in outcomes:
        on_end(outcome)
    threads = max(1, torch.get_num_threads() // jobs)  # as many as OMP_NUM_THREADS says
    files, out = [path.absolute() for path in corpus], out.absolute()
    calls = [(trial, (files, trial.recipe, out / trial.name, begin, threads)) for trial in trials]
    run = _over_ray if ray else _in_processes
    for outcome in run([call for call in calls if call[0].name not in finished], jobs, on_begin, interrupted):
        outcomes.append(outcome)
        on_end(outcome)
    return outcomes


def require_free(trials: Sequence[Trial], out: Path) -> None:
    """Raise UsageError if ``out`` is a kept folder of anything but a sweep, or lies in one."""
    for trial in trials:
        require_outside(out / trial.name, RUN, SWEEP)


def _mark(out: Path) -> None:
    """Mark a folder that has nothing in it, or what a killed process left of the mark, as that of a sweep.

    In a folder with anything else only the runs are kept. Raises UsageError if it cannot be made.
    """
    with writing(out, "give another --out", UsageError):
        make_folder(out)
        left = list(out.iterdir())
        if all(path.name.startswith(f".{SWEPT}.") for path in left):
            for path in left:
                remove(path)
            write_state(out / SWEPT, to_json({"kind": "sweep", "tinytf": __version__}))


_STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _is_finished(run: Path) -> bool:
    """Whether a run reached its end and published its model; a run killed before that is resumed."""
    try:
        history = read_history(run) if is_run(run) else None
        return history is not None and history.finished and is_published(run, history.last)
    except TinytfError:  # resuming a damaged run reports the damage
        return False


def run_trial(corpus: list[Path], recipe: Recipe, out: Path, begin: Begin, threads: int) -> tuple[bool, str]:
    """Begin or resume one run; returns whether it finished, and why it failed. The first signal stops it."""
    stopped: list[int] = []
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # such as SIGHUP under nohup
            signal.signal(number, lambda number, _: stopped.append(number))
    torch.set_num_threads(threads)
    try:
        tokenizer, model = begin(recipe)
        files = find_corpus(corpus, recipe.reading)
        last = train(
            files, recipe, out, resume=is_run(out), tokenizer=tokenizer, model=model,
            interrupted=lambda: bool(stopped), within=SWEEP,
        ).last  # fmt: skip
    except TinytfError as error:
        return False, error.message
    return last.step >= recipe.steps or last.stopped is not None, ""


Call = tuple[Trial, tuple[Any, ...]]


def _in_processes(
    calls: Sequence[Call], jobs: int, on_begin: Callable[[Trial], None], interrupted: Callable[[], bool]
) -> Iterator[Outcome]:
    """Run each trial in a process of its own."""
    context, pending = multiprocessing.get_context("spawn"), deque(calls)
    running: dict[Any, tuple[Trial, Any]] = {}
    stopping = False
    while pending or running:
        if interrupted() and not stopping:
            stopping = True
            pending.clear()
            for _, process in running.values():
                process.terminate()  # the run stops with a checkpoint
        while pending and len(running) < jobs:
            trial, arguments = pending.popleft()
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send_result, args=(sender, arguments))
            process.start()
            sender.close()
            running[receiver] = trial, process
            on_begin(trial)
        ready = wait(list(running), _POLL)
        for receiver in [receiver for receiver in running if receiver in ready]:
            trial, process = running.pop(receiver)
            try:
                finished, problem = receiver.recv()
            except EOFError:
                process.join()
                finished, problem = False, "" if stopping else f"its process ended with status {process.exitcode}"
            process.join()
            yield Outcome(trial, finished, problem)


def _send_result(sender: Any, arguments: tuple[Any, ...]) -> None:
    sender.send(run_trial(*arguments))


def _over_ray(
    calls: Sequence[Call], jobs: int, on_begin: Callable[[Trial], None], interrupted: Callable[[], bool]
) -> Iterator[Outcome]:
    """Run each trial as a task of Ray, which chooses the machine; ``jobs`` at a time."""
    import ray  # type: ignore[import-not-found,unused-ignore]

    if not ray.is_initialized():
        ray.init(log_to_driver=False, configure_logging=False)
    pending, running, stopping = deque(calls), dict[Any, Trial](), False
    while pending or running:
        if interrupted() and not stopping:
            stopping = True
            pending.clear()
            for reference in running:
                ray.cancel(reference)  # the next sweep resumes it from its last checkpoint
        while pending and len(running) < jobs:
            trial, arguments = pending.popleft()
            task = ray.remote(num_cpus=arguments[-1], max_retries=0)(_run_with_signals_restored)
            running[task.remote(*arguments)] = trial
            on_begin(trial)
        for reference in ray.wait(list(running), timeout=_POLL)[0]:
            trial = running.pop(reference)
            try:
                finished, problem = ray.get(reference)
            except Exception as error:  # Ray wraps any error of the remote process
                finished, problem = False, "" if stopping else str(error).splitlines()[0]
            yield Outcome(trial, finished, problem)


def _run_with_signals_restored(*arguments: Any) -> tuple[bool, str]:
    """Call ``run_trial``, then restore the signal handlers of Ray's worker."""
    handlers = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    try:
        return run_trial(*arguments)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
