"""Reports of training runs: one run, several side by side, or one followed while it trains; free of torch."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tinytf.errors import TinytfError
from tinytf.files import resolve_links
from tinytf.report import Report, plain
from tinytf.runs.history import History, Series
from tinytf.runs.reader import RunReader, read_history
from tinytf.runs.run_files import find_runs, is_stopped
from tinytf.runs.verdict import NOISE, verdict_of
from tinytf.sentences import choices, first_of, listed
from tinytf.text.printable import printable

_NAMED = 3
"""The most settings that the sentence of several runs names."""


class _Streamed(Report):
    """A report whose ``fields`` give long lists as iterators."""

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = plain(self.streamed())
        return data

    def streamed(self) -> dict[str, Any]:
        return super().to_dict()


@dataclass(frozen=True)
class RunReport(_Streamed):
    """A training run so far; for a damaged run ``history`` is None, and ``problem`` says why.

    ``stopped``: no process trains it now, as far as that is known.
    """

    KIND = "run"
    TABLE = ("metrics",)
    ALWAYS_SAID: ClassVar[bool] = True

    name: str
    path: Path
    history: History | None
    problem: str = ""
    stopped: bool = False

    def in_a_sentence(self) -> str:
        """How unsure the model is about text that it did not train on, at its best and at first; or if it is lost."""
        history = self.history
        if history is None or history.best is None:
            return ""
        (first, before), (step, best), (last, now) = history.held_out[0], history.best, history.held_out[-1]
        if (now if step == first else best) > history.uniform_loss + NOISE:
            worse = f"worse than a guess among all {math.exp(history.uniform_loss):,.0f} tokens"
            return f"After {last:,} steps the model predicts text that it did not train on {worse}."
        unsure = "the model is as unsure about text that it did not train on as if it chose among"
        start = f"at step {first:,}" if first else "before training"
        if step == first:
            later = f"; {start} it was among {choices(before)}" if len(history.held_out) > 1 else ""
            return f"After {last:,} steps {unsure} {choices(now)} tokens{later}."
        heart = "; since then it has been learning by heart" if history.by_heart else ""
        return f"After {step:,} steps {unsure} {choices(best)} tokens, {start} among {choices(before)}{heart}."

    def fields(self) -> dict[str, Any]:
        """The fields as JSON: losses in nats per token; null for a value missing from a line."""
        return {**self.data(), **({} if self.history is None else {"seconds_left": self.history.seconds_left})}

    def data(self) -> dict[str, Any]:
        """Everything in the files of the run, with its steps in columns, as iterators."""
        history = self.history
        if history is None:
            return self.summary()
        columns = {name: map(_number, map(float, values)) for name, values in _columns(history).items()}
        return {
            **self.summary(),
            "recipe": dict(history.recipe),
            "config": None if history.config is None else history.config.to_dict(),
            "metrics": {"step": map(int, history.step), **columns},
            "held_out": (_held_out(history, *point) for point in history.held_out),
            "thorough": ({"step": step, **vars(measured)} for step, measured in history.thorough),
            "exact": ({"step": step, "share": share} for step, share in history.exact),
            "seen": ({"step": step, "loss": loss} for step, loss in history.seen),
            "copying": ({"step": step, "gain": gain} for step, gain in history.copying),
            "gaps": ({"step": step, "gap": gap} for step, gap in history.gaps),
            "updates": ({"step": step, "ratios": dict(ratios)} for step, ratios in history.updates),
            "noise": (
                {"step": step, "trace": trace, "square": square, "scale": _number(scale)}
                for (step, trace, square), (_, scale) in zip(history.noise, history.noise_scale, strict=True)
            ),
            "heads": (_heads_data(step, scores) for step, scores in history.heads),
            "health": (
                {"step": step, **{name: series.tolist() for name, series in numbers.items()}}
                for step, numbers in history.health
            ),
            "experts": ({"step": step, "shares": loads["shares"].tolist()} for step, loads in history.experts),
            "milestones": ({"step": step, "text": text} for step, text in history.milestones),
            "sample": None if history.sample is None else vars(history.sample),
            "checkpoints": ({"step": model.step, "path": str(model.path)} for model in history.checkpoints),
        }

    def summary(self) -> dict[str, Any]:
        """The progress and last numbers of the run."""
        history = self.history
        identity = {"name": self.name, "path": str(self.path)}
        if history is None:
            return {**identity, "state": "damaged", "problem": self.problem}
        last = {name: _number(float(v[-1])) if v.size else None for name, v in _columns(history).items()}
        return {
            **identity,
            "state": "finished" if history.finished else "stopped" if self.stopped else "unfinished",
            "problem": "",
            "step": history.last,
            "steps": history.planned,
            **last,
            "best_held_out": None if history.best is None else _held_out(history, *history.best),
            "epochs": history.epochs,
            "clip_rate": history.clip_rate,
            "risen": history.risen,
            "baselines": dict(history.baselines),
            "verdict": None if (verdict := verdict_of(history)) is None else vars(verdict),
            "spikes": [vars(spike) for spike in history.spikes],
            "elapsed_seconds": history.elapsed,
            "parameters": history.parameters,
            "tokens_per_second": history.tokens_per_second,
            "mfu": history.mfu,
            "memory_bytes": history.memory_bytes,
            "skipped_lines": history.skipped,
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The run, then each step with its measurements, and the latest sample."""
        history = self.history
        if history is None:
            yield {"type": "run", **self.summary()}
            return
        yield {"type": "run", **self.summary(), "recipe": dict(history.recipe)}
        held_out, heads, milestones = map(_by_step, (history.held_out, history.heads, history.milestones))
        for row, step in enumerate(history.step.tolist()):
            position = {"name": self.name, "step": step}
            yield {"type": "step", **position, **_row(history, row)}
            for loss in held_out(step)[-1:]:
                yield {"type": "held_out", **position, "loss": loss}
            for scores in heads(step)[-1:]:
                yield {"type": "heads", "name": self.name, **_heads_data(step, scores)}
            for text in milestones(step):
                yield {"type": "milestone", **position, "text": text}
        if history.sample is not None:
            yield {"type": "sample", "name": self.name, **vars(history.sample)}


@dataclass(frozen=True)
class Setting:
    """Runs whose recipes differ in the seed alone; ``mean`` and sample ``deviation`` of their best held-out losses."""

    values: Mapping[str, Any]
    runs: int
    mean: float
    deviation: float


@dataclass(frozen=True)
class RunsReport(_Streamed):
    """The runs in some folders, best first, damaged ones last; ``by`` is one of ORDERS."""

    KIND = "runs"
    TABLE = ("runs",)

    runs: tuple[RunReport, ...]
    folders: tuple[Path, ...]
    by: str = "held-out"
    ALWAYS_SAID: ClassVar[bool] = True

    def in_a_sentence(self) -> str:
        """The best run by the order, with its number, and in what the recipes differ; of one run, what it says."""
        if len(self.runs) < 2:
            return self.runs[0].sentence if self.runs else ""
        best = self.runs[0]
        history = best.history
        if history is None or (value := ORDERS[self.by](history)) is None or math.isnan(value):
            return ""
        unseen = "predicts text that it did not train on best"
        is_best = {
            "bits": f"{unseen}, in {value:.2f} bits a byte",
            "held-out": f"{unseen}, as if it chose among {choices(value)} tokens",
            "loss": f"predicts its own text best, as if it chose among {choices(value)} tokens",
            "speed": f"is fastest, with {-value:,.0f} tokens a second",
            "time": f"took the least time, {value:,.1f} seconds",
            "step": f"has trained longest, {-value:,.0f} steps",
        }[self.by]
        names = [name.removeprefix("model.") for name in self.differing]
        settings = first_of(names, _NAMED) if len(names) > _NAMED else listed(names or [""])
        differ = f"; they differ in {settings}" if names else ""
        return printable(f"Of {len(self.runs):,} runs, {best.name} {is_best}{differ}.", spaces=False)

    @property
    def differing(self) -> dict[str, list[Any]]:
        """The fields of the recipes that differ, ``model.norm`` among them, each with its value in every run.

        For a damaged run the value is None; fields that some recipe lacks are left out.
        """
        recipes = [{} if run.history is None else _flat(run.history.recipe) for run in self.runs]
        readable = [recipe for recipe in recipes if recipe]
        shared = [name for name in (readable[0] if readable else ()) if all(name in recipe for recipe in readable)]
        differing = [name for name in shared if any(recipe[name] != readable[0][name] for recipe in readable)]
        return {name: [recipe.get(name) for recipe in recipes] for name in differing}

    @property
    def settings(self) -> list[Setting]:
        """What several seeds were tried with, best first."""
        differing = self.differing
        if "seed" not in differing:
            return []
        groups: dict[str, tuple[dict[str, Any], list[float]]] = {}
        for index, run in enumerate(self.runs):
            if run.history is not None and run.history.best is not None:
                values = {name: of_runs[index] for name, of_runs in differing.items() if name != "seed"}
                groups.setdefault(repr(values), (values, []))[1].append(run.history.best[1])
        settings = [Setting(values, len(losses), float(np.mean(losses)), float(np.std(losses, ddof=1)))
                    for values, losses in groups.values() if len(losses) > 1]  # fmt: skip
        return sorted(settings, key=lambda setting: setting.mean)

    def fields(self) -> dict[str, Any]:
        return {
            "by": self.by,
            "differing": list(self.differing),
            "settings": [vars(setting) for setting in self.settings],
            "runs": (run.data() for run in self.runs),
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of each run."""
        for run in self.runs:
            yield from run.events()


def _flat(recipe: Mapping[str, Any]) -> dict[str, Any]:
    model = recipe.get("model")
    inside = {f"model.{name}": value for name, value in model.items()} if isinstance(model, Mapping) else {}
    return {**{name: value for name, value in recipe.items() if name != "model"}, **inside}


def _by_step(measured: Sequence[tuple[int, Any]]) -> Callable[[int], list[Any]]:
    """A function of a step that gives what was measured there; it is asked for later and later steps."""
    points = iter(measured)
    ahead = list(itertools.islice(points, 1))

    def at(step: int) -> list[Any]:
        values = []
        while ahead and ahead[0][0] <= step:
            when, value = ahead.pop()
            values += [value] if when == step else []
            ahead.extend(itertools.islice(points, 1))
        return values

    return at


def _columns(history: History) -> dict[str, Series]:
    return {"loss": history.loss, "lr": history.lr, "grad_norm": history.grad_norm}


def _row(history: History, row: int) -> dict[str, float | None]:
    return {name: _number(float(values[row])) for name, values in _columns(history).items()}


def _held_out(history: History, step: int, loss: float) -> dict[str, Any]:
    return {"step": step, "loss": loss, "bits_per_byte": history.bits_per_byte(loss)}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _heads_data(step: int, scores: Mapping[str, Series]) -> dict[str, Any]:
    return {"step": step, **{kind: values.tolist() for kind, values in scores.items()}}


def compare_runs(folders: Sequence[Path], *, must_open: bool = False, by: str | None = None) -> RunsReport:
    """The runs in ``folders``, see ``find_runs``; with ``must_open``, a folder that is a damaged run raises its error.

    They are ranked ``by`` one of ORDERS: by default bits per byte if all runs have them, else the held-out loss. Raises
    UsageError for a folder that does not exist.
    """
    reports: dict[Path, RunReport] = {}
    for folder in folders:
        for path in find_runs(folder):
            name = str(path.relative_to(folder)) if len(folders) == 1 and path != folder else str(path)
            name = resolve_links(path).name if name == "." else name
            try:
                run = RunReport(name, path, read_history(path), stopped=is_stopped(path))
            except TinytfError as error:
                if must_open and path == folder:
                    raise
                run = RunReport(name, path, None, error.message)
            reports.setdefault(resolve_links(path), run)
    if by is None:
        measured = [run.history for run in reports.values() if run.history is not None and run.history.best]
        by = "bits" if measured and all(_bits(history) is not None for history in measured) else "held-out"

    def order(run: RunReport) -> tuple[int, float, str]:
        if run.history is None:
            return 2, 0.0, run.name
        value = ORDERS[by](run.history)
        return (1, 0.0, run.name) if value is None or math.isnan(value) else (0, value, run.name)

    return RunsReport(tuple(sorted(reports.values(), key=order)), tuple(folders), by)


def _bits(history: History) -> float | None:
    return None if history.best is None else history.bits_per_byte(history.best[1])


ORDERS: dict[str, Callable[[History], float | None]] = {
    "bits": _bits,
    "held-out": lambda history: None if history.best is None else history.best[1],
    "loss": lambda history: history.recent_loss,
    "speed": lambda history: None if history.tokens_per_second is None else -history.tokens_per_second,
    "time": lambda history: history.elapsed,
    "step": lambda history: -float(history.last),
}
"""Rankings of runs, each with a number whose lowest value is best."""


@dataclass(frozen=True, kw_only=True)
class FollowedRun(RunReport):
    """A run while it trains. Its events are lazy on purpose: each pass over them waits for news, as ``follow`` does."""

    ALWAYS_SAID = False  # its lines come one at a time, and nobody knows the best yet

    reader: RunReader
    every: int
    interval: float

    def events(self) -> Iterator[dict[str, Any]]:
        return follow(self.name, self.reader, self.every, self.interval)


def follow(name: str, reader: RunReader, every: int, interval: float) -> Iterator[dict[str, Any]]:
    """Yield the run as it is now, then its new events, until it is finished or stopped; ``interval`` is in seconds."""
    history = reader.read()
    yield {"type": "run", **RunReport(name, reader.directory, history).summary()}
    last = history.last
    while not history.finished:
        stopped = is_stopped(reader.directory)  # asked before the last read, which may still find lines
        if not stopped:
            time.sleep(interval)
        history = reader.read()
        yield from _news(history, last, every)
        last = history.last
        if stopped and not history.finished:
            yield {"type": "stopped", "step": last, "steps": history.planned}
            return


def _news(history: History, after: int, every: int) -> Iterator[dict[str, Any]]:
    """Events after step ``after``: every ``every``-th step, and every measurement."""
    events: list[tuple[int, int, dict[str, Any]]] = []
    start = int(np.searchsorted(history.step, after, side="right"))
    later = history.step[start:]
    for row in (np.flatnonzero((later % every == 0) | (later == history.steps)) + start).tolist():
        pace = {"tokens_per_second": history.tokens_per_second, "seconds_left": history.seconds_left}
        events.append((int(history.step[row]), 0, {"type": "step", **_row(history, row), **pace}))
    events += [(step, 1, {"type": "held_out", "loss": loss}) for step, loss in history.held_out if step > after]
    events += [(step, 2, {"type": "milestone", "text": text}) for step, text in history.milestones if step > after]
    events += [
        (sample.step, 3, {"type": "sample", **vars(sample)}) for sample in history.samples if sample.step > after
    ]
    for step, _, event in sorted(events, key=lambda item: item[:2]):
        yield {"type": event["type"], "step": step, "steps": history.planned, **event}
