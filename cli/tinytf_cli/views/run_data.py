"""A training run as data: one object, or an event for everything that a step logged."""

from collections.abc import Iterator
from typing import Any

from tinytf.training.history import HeadScores, History


def finite(value: float) -> float | None:
    """A number, or null for NaN, which stands for what a line lacks."""
    return None if value != value else value


def run_data(name: str, history: History) -> dict[str, Any]:
    """All that the files of a run say, as data; the steps side by side."""
    return {
        **summary_data(name, history),
        "recipe": dict(history.recipe),
        "config": None if history.config is None else history.config.to_dict(),
        "metrics": {
            "step": history.step.tolist(),
            "loss": [finite(v) for v in history.loss.tolist()],
            "lr": [finite(v) for v in history.lr.tolist()],
            "grad_norm": [finite(v) for v in history.grad_norm.tolist()],
        },
        "held_out": [{"step": step, "loss": loss} for step, loss in history.held_out],
        "heads": [_heads_data(heads) for heads in history.heads],
        "milestones": [{"step": step, "text": text} for step, text in history.milestones],
        "sample": None if history.sample is None else vars(history.sample),
        "checkpoints": [{"step": one.step, "path": str(one.path)} for one in history.checkpoints],
    }


def _heads_data(heads: HeadScores) -> dict[str, Any]:
    return {"step": heads.step, **{kind: scores.tolist() for kind, scores in heads.scores.items()}}


def summary_data(name: str, history: History) -> dict[str, Any]:
    """How far a run is, and its last numbers."""
    from tinytf.analysis.size import parameter_count

    logged = history.step.size > 0
    return {
        "name": name,
        "path": str(history.directory),
        "state": "finished" if history.finished else "unfinished",
        "problem": "",
        "step": history.last,
        "steps": history.steps,
        "loss": finite(float(history.loss[-1])) if logged else None,
        "lr": finite(float(history.lr[-1])) if logged else None,
        "grad_norm": finite(float(history.grad_norm[-1])) if logged else None,
        "best_held_out": None if history.best is None else {"step": history.best[0], "loss": history.best[1]},
        "parameters": None if history.config is None else parameter_count(history.config),
        "tokens_per_second": history.tokens_per_second,
        "memory_bytes": history.memory_bytes,
        "skipped_lines": history.skipped,
    }


def run_events(name: str, history: History) -> Iterator[dict[str, Any]]:
    """The same as a stream: the run, then what each step logged."""
    data = summary_data(name, history)
    yield {"type": "run", **data, "recipe": dict(history.recipe)}
    held_out = dict(history.held_out)
    measured = {heads.step: _heads_data(heads) for heads in history.heads}
    said: dict[int, list[str]] = {}
    for step, text in history.milestones:
        said.setdefault(step, []).append(text)
    columns = (history.loss, history.lr, history.grad_norm)
    for row, step in enumerate(history.step.tolist()):
        loss, lr, grad_norm = (finite(float(column[row])) for column in columns)
        yield {"type": "step", "name": name, "step": step, "loss": loss, "lr": lr, "grad_norm": grad_norm}
        if step in held_out:
            yield {"type": "held_out", "name": name, "step": step, "loss": held_out[step]}
        if step in measured:
            yield {"type": "heads", "name": name, **measured[step]}
        for text in said.get(step, ()):
            yield {"type": "milestone", "name": name, "step": step, "text": text}
    if history.sample is not None:
        yield {"type": "sample", "name": name, **vars(history.sample)}
