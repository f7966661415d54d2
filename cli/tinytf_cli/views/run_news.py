"""A training run as it is followed: an event for what is new, and each of them in one line."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tinytf.text.printable import printable
from tinytf.training.history import History
from tinytf_cli.numbers import duration, loss_in_words, number
from tinytf_cli.views.run_data import finite


def news(history: History, after: int, every: int) -> Iterator[dict[str, Any]]:
    """What is worth a line among the steps later than ``after``, by step: events as they are followed."""
    found: list[tuple[int, int, dict[str, Any]]] = []
    start = int(np.searchsorted(history.step, after, side="right"))
    later = history.step[start:]
    for row in (np.flatnonzero((later % every == 0) | (later == history.steps)) + start).tolist():
        step = int(history.step[row])
        loss, lr, norm = (finite(float(c[row])) for c in (history.loss, history.lr, history.grad_norm))
        more = {"tokens_per_second": history.tokens_per_second, "seconds_left": history.seconds_left}
        found.append((step, 0, {"type": "step", "loss": loss, "lr": lr, "grad_norm": norm, **more}))
    found += [(step, 1, {"type": "held_out", "loss": loss}) for step, loss in history.held_out if step > after]
    found += [(step, 2, {"type": "milestone", "text": text}) for step, text in history.milestones if step > after]
    if history.sample is not None and history.sample.step > after:
        found.append((history.sample.step, 3, {"type": "sample", **vars(history.sample)}))
    for step, _, event in sorted(found, key=lambda one: one[:2]):
        yield {"type": event["type"], "step": step, "steps": history.steps, **event}


def event_in_words(event: Mapping[str, Any]) -> str:
    """A followed event as one line."""
    lead = f"step {event['step']:,} of {event['steps']:,}"
    kind = event["type"]
    if kind == "milestone":
        return f"{lead}  milestone: {printable(str(event['text']), spaces=False)}"
    if kind == "sample":
        prompt, text = (printable(event[name], spaces=False) for name in ("prompt", "text"))
        return f"{lead}  sample: {prompt}│{text}"
    words = f"{lead}  {'held-out loss' if kind == 'held_out' else 'loss'} {loss_in_words(event['loss'])}"
    for name, title, form in (("lr", "lr", "%.2e"), ("grad_norm", "gradient norm", "%.3f")):
        if event.get(name) is not None:
            words += f"  {title} {number(event[name], form)}"
    if kind == "run":
        ending = "  finished" if event["state"] == "finished" else ""
        return f"{printable(event['name'], spaces=False)}: {words}{ending}"
    if event.get("tokens_per_second") is not None:
        words += f"  {event['tokens_per_second']:,.0f} tokens/s"
    if event.get("seconds_left"):
        words += f"  {duration(event['seconds_left'])} left"
    return words
