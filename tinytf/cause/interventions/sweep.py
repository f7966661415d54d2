"""Many interventions on one text in a few forward passes: each row of a batch carries its own.

What comes before an intervention is that of the plain run, which is recorded once. So a row begins at its layer, and
in a decoder at its first changed position, with the plain run's keys and values before it: nothing is computed twice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tinytf.cause.interventions.hooks import Change, HookPoint, Intervention, changed, evaluated, logits_with
from tinytf.model.batches import most_tokens
from tinytf.report import Progress, Verified, unheard
from tinytf.resume_log import ResumeLog
from tinytf.tolerance import Coarse, Ways, compare
from tinytf.trace.trace import Trace

Interventions = tuple[Intervention, ...]
"""What one row of a batch carries; all of it in one layer."""
Found = TypeVar("Found")


def sweep(
    trace: Trace,
    rows: Mapping[str, Interventions],
    read: int,
    measured: Callable[[Tensor], Sequence[Found]],
    size: Callable[[Found], float],
    on_progress: Progress = unheard,
    *,
    resume: Path | None,
    of: object,
    again: Callable[[Any], Found],
) -> tuple[list[Found | None], Verified]:
    """What is ``measured`` of the logits (B, V) at position ``read`` under each of ``rows``, in their order.

    The check compares the row of the largest ``size`` with a forward pass of its own. ``trace`` is the plain run of the
    text, recorded in every layer. After an interrupt what was not measured is None. With ``resume`` it is kept
    there, as what is measured ``of`` these rows, and not measured a second time; ``again`` makes it of its JSON data.
    """
    names, every = tuple(rows), tuple(rows.values())
    values = [one.value for row in every for one in row]
    kept = ResumeLog(resume, of, read, trace.model, trace.encoding.ids, names, *values)
    found = {number: again(kept.found[name]) for number, name in enumerate(names) if name in kept.found}
    left = [number for number in range(len(every)) if number not in found]
    left = left or [max(found, key=lambda number: size(found[number]))]  # which the check needs
    strongest, logits_there = -1, torch.empty(0)
    try:
        for numbers, logits in _batches(trace, every, left, read, on_progress):
            new = dict(zip(numbers, measured(logits), strict=True))
            kept.add({names[number]: one if isinstance(one, float) else vars(one) for number, one in new.items()})
            found |= new
            best = max(numbers, key=lambda number: size(found[number]))
            if strongest < 0 or size(found[best]) > size(found[strongest]):
                strongest, logits_there = best, logits[numbers.index(best)].clone()
    except KeyboardInterrupt:
        if strongest < 0:
            raise
    what = f"{names[strongest]} run by itself gives the same logits"

    def ways() -> Ways:
        return Ways(names[strongest], what, logits_there, logits_with(trace, every[strongest], read))

    told = compare(ways(), logits_there.dtype, Coarse(trace.model.parameters()), ways)
    check = Verified(what, told.difference, told.allowed)
    return [found.get(number) for number in range(len(every))], check


@torch.no_grad()
def _batches(
    trace: Trace, rows: Sequence[Interventions], left: Sequence[int], read: int, on_progress: Progress
) -> Iterator[tuple[list[int], Tensor]]:
    """Which of the rows that are ``left``, and their logits (B, V), batch by batch."""
    model = trace.model
    # of the tokens before a change keys and values are known, and no state
    attends = len(trace.steps.attending) == model.config.n_layers
    length, causal = len(trace.tokens), attends and not model.recomputes
    most = most_tokens(trace.last_hidden.device)
    starts = [min(one.first for one in row) if causal else 0 for row in rows]
    order = sorted(left, key=lambda number: (starts[number], rows[number][0].point.layer))
    done, before = 0, len(rows) - len(order)
    while done < len(order):
        start = min(starts[order[done]], read)
        batch = order[done : done + max(1, most // (length - start))]
        with evaluated(model):
            numbers, hidden = _through(trace, {number: rows[number] for number in batch}, start)
            logits = model.unembed(model.final_norm(hidden[:, read - start]))
        yield numbers, logits
        done += len(batch)
        on_progress(before + done, len(rows))


def _through(trace: Trace, rows: dict[int, Interventions], start: int) -> tuple[list[int], Tensor]:
    """The rows through the stack, from position ``start`` on: their numbers, and the last block's output (B, T, C)."""
    model = trace.model
    numbers: list[int] = []
    x: Tensor | None = None
    for layer in range(min(row[0].point.layer for row in rows.values()), model.config.n_layers):
        block: Any = model.blocks[layer]
        joining = [number for number, row in rows.items() if row[0].point.layer == layer]
        around = (start, None, _before(trace, layer, start))
        parts = [] if x is None else [block(x, *around)]
        if joining:
            plain = trace.step(trace.steps.input, layer)[None, start:]  # (1, T, C)
            with changed(model, _changes([rows[number] for number in joining], start)):
                parts.append(block(plain, *around))  # one row goes in, and one comes out for each of ``rows``
        numbers += joining
        x = torch.cat(parts)
    assert x is not None
    return numbers, x


def _changes(rows: Sequence[Interventions], start: int) -> list[tuple[HookPoint, Change]]:
    """For every step that any of the rows changes: the one row that comes there becomes ``rows``, each with its own."""

    def change(step: str) -> Change:
        def of(tensor: Tensor) -> Tensor:
            tensor = tensor.expand(len(rows), *tensor.shape[1:]).clone()
            for number, row in enumerate(rows):
                for one in row:
                    if one.point.step == step:
                        one.write(tensor[number], start)
            return tensor

        return of

    points = {one.point.step: one.point for row in rows for one in row}
    return [(point, change(step)) for step, point in points.items()]


@dataclass(frozen=True)
class _Before:
    """Keys and values of the tokens before those that are computed, in the place of a cache: (G, T, D) each."""

    keys: Tensor
    values: Tensor

    def extend(self, what: str, new: Tensor) -> Tensor:
        """The keys, or values, and the new ones, (B, G, T, D)."""
        before: Tensor = getattr(self, what)
        return torch.cat((before.expand(len(new), -1, -1, -1), new), 2)


def _before(trace: Trace, layer: int, start: int) -> _Before | None:
    """What the head's output and the scores were made of before ``start``."""
    if not start:
        return None
    table = trace.steps
    core = [step for step in table.layer_steps if step.core]
    keys, values = (trace.step(step.inputs[1], layer)[:, :start] for step in (core[0], core[-1]))
    return _Before(keys, values)
