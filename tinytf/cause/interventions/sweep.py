"""Run many interventions on one text in a few forward passes: each row of a batch has its own.

Everything before an intervention is the same as in the plain run, which is recorded once. So a row begins at its layer,
and in a decoder at its first changed position, with the plain run's keys and values: nothing is computed twice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tinytf.cause.interventions.hooks import Change, HookPoint, Intervention, changed, logits_with
from tinytf.model.batches import most_tokens, typed
from tinytf.model.transformer import Transformer, evaluating
from tinytf.report import Progress, Verified, ignore_progress
from tinytf.resume_log import ResumeLog
from tinytf.steps.operations.operation import Carried
from tinytf.tolerance import Coarse, TwoResults, compare
from tinytf.trace.trace import Trace

Interventions = tuple[Intervention, ...]
"""The interventions of one row of a batch, all in one layer."""
Result = TypeVar("Result")
_LOGITS = 2**24
"""The most logits that are computed together."""


def sweep(
    trace: Trace,
    rows: Mapping[str, Interventions],
    read: Sequence[int],
    measured: Callable[[Tensor], Sequence[Result]],
    size: Callable[[Result], float],
    on_progress: Progress = ignore_progress,
    *,
    resume: Path | None,
    subject: object,
    from_data: Callable[[Any], Result],
) -> tuple[list[Result | None], Verified]:
    """Measure the logits (B, P, V) at positions ``read`` under each of ``rows`` with ``measured``; results in order.

    The check compares the row of the largest ``size`` with a forward pass of its own. ``trace`` is the plain run of the
    text, recorded in every layer. After an interrupt, rows not yet measured are None. The file ``resume`` keeps results
    under ``subject``, so that none is measured twice; ``from_data`` makes a result of its JSON data.
    """
    names, interventions = tuple(rows), tuple(rows.values())
    values = [intervention.value for row in interventions for intervention in row]
    log = ResumeLog(resume, subject, list(read), trace.model, trace.encoding.ids, names, *values)
    results = {number: from_data(log.found[name]) for number, name in enumerate(names) if name in log.found}
    remaining = [number for number in range(len(interventions)) if number not in results]
    remaining = remaining or [max(results, key=lambda number: size(results[number]))]  # which the check needs
    strongest, its_logits = -1, torch.empty(0)
    try:
        for numbers, logits in logits_of_rows(trace, interventions, remaining, read, on_progress):
            new = dict(zip(numbers, measured(logits), strict=True))
            log.add({names[i]: result if isinstance(result, float) else vars(result) for i, result in new.items()})
            results |= new
            best = max(numbers, key=lambda number: size(results[number]))
            if strongest < 0 or size(results[best]) > size(results[strongest]):
                strongest, its_logits = best, logits[numbers.index(best)].clone()
    except KeyboardInterrupt:
        if strongest < 0:
            raise
    check = verify_logits(
        f"{names[strongest]}, run by itself, gives the same logits",
        trace.model,
        its_logits,
        lambda: logits_with(trace, interventions[strongest], read),
    )
    return [results.get(number) for number in range(len(interventions))], check


def verify_logits(
    claim: str, model: Transformer, logits: Tensor, run: Callable[[], Tensor], recorded: Tensor | None = None
) -> Verified:
    """Verify that ``run`` gives ``logits`` (V,), within rounding; ``recorded`` is what it gave, if that is known."""

    def ways() -> TwoResults:
        return TwoResults("logits", claim, logits, run())

    first = ways() if recorded is None else TwoResults("logits", claim, logits, recorded)
    comparison = compare(first, logits.dtype, Coarse(model.parameters()), ways)
    return Verified(claim, comparison.difference, comparison.allowed)


@torch.no_grad()
def logits_of_rows(
    trace: Trace, rows: Sequence[Interventions], remaining: Sequence[int], read: Sequence[int], on_progress: Progress
) -> Iterator[tuple[list[int], Tensor]]:
    """Yield numbers of the ``remaining`` rows with their logits (B, P, V) at positions ``read``, batch by batch."""
    model = trace.model
    if rows[0][0].point.stack:  # what the decoder reads is another in each row
        for done, number in enumerate(remaining, 1 + len(rows) - len(remaining)):
            yield [number], logits_with(trace, rows[number], read)[None]
            on_progress(done, len(rows))
        return
    # The trace has the keys and values of the tokens before a change, but no recurrent state, nor the window of a
    # convolution; and a layer that reads a source has two kinds of keys.
    attends = len(trace.steps.attention_layers) == model.config.n_layers and not trace.steps.convolves
    attends = attends and not any(step.of_source for step, _ in trace.steps.rows)
    length, causal = len(trace.tokens), attends and not model.recomputes
    max_tokens = most_tokens(trace.last_hidden.device)
    starts = [min(intervention.first for intervention in row) if causal else 0 for row in rows]
    order = sorted(remaining, key=lambda number: (starts[number], rows[number][0].point.layer))
    done, n_resumed = 0, len(rows) - len(order)
    while done < len(order):
        start = min(starts[order[done]], *read)
        batch = order[done : done + max(1, max_tokens // (length - start))]
        with evaluating(model):
            numbers, hidden = _through(trace, {number: rows[number] for number in batch}, start)
            states = model.finish_rows(hidden, [position - start for position in read])  # (B, P, C)
        at_once = max(1, _LOGITS // (len(read) * model.config.vocab_size))
        for first in range(0, len(numbers), at_once):
            yield numbers[first : first + at_once], model.unembed(states[first : first + at_once])
        done += len(batch)
        on_progress(n_resumed + done, len(rows))


def _through(trace: Trace, rows: dict[int, Interventions], start: int) -> tuple[list[int], Tensor]:
    """Run rows through the stack from position ``start`` on: their numbers, and the last block's output (B, T, C)."""
    model = trace.model
    numbers: list[int] = []
    x: Tensor | None = None
    carried: Carried | None = None
    for layer in range(min(row[0].point.layer for row in rows.values()), model.config.n_layers):
        block: Any = model.blocks[layer]
        starting = [number for number, row in rows.items() if row[0].point.layer == layer]
        arguments = (start, None, _before(trace, layer, start))
        parts = [] if x is None else [block(x, *arguments, carried)]
        carrying = [] if x is None else [carried]
        if starting:
            plain = trace.step(trace.steps.input, layer)[None, start:]  # (1, T, C)
            carrying.append(_carried(trace, layer, start))
            with changed(model, written([rows[number] for number in starting], start)):
                # one row goes in, one for each of ``rows`` comes out, also where they only differ beside the stream
                parts.append(block(plain, *arguments, carrying[-1]).expand(len(starting), -1, -1))
        numbers += starting
        x, carried = torch.cat(parts), _joined(carrying, [len(part) for part in parts])
    assert x is not None
    return numbers, x


def written(rows: Sequence[Interventions], start: int = 0) -> list[tuple[HookPoint, Change]]:
    """Changes that write the values of each row into its part of a batch; a batch of one is expanded into ``rows``."""

    def change(step: tuple[str, int]) -> Change:
        def write_all(tensor: Tensor) -> Tensor:
            tensor = tensor.expand(len(rows), *tensor.shape[1:]).clone()
            for number, row in enumerate(rows):
                for intervention in row:
                    if (intervention.point.step, intervention.point.layer) == step:
                        intervention.write(tensor[number], start)
            return tensor

        return write_all

    steps = dict.fromkeys((sent.point.step, sent.point.layer) for row in rows for sent in row)
    return [(HookPoint(*step), change(step)) for step in steps]


@dataclass(frozen=True)
class _Before:
    """What a cache ``remembers`` of the tokens before the computed ones, such as keys (G, T, D), in its place."""

    remembers: dict[str, Tensor]

    def extend(self, name: str, new: Tensor) -> Tensor:
        """The earlier keys or values followed by the new ones, (B, G, T, D)."""
        earlier = self.remembers[name]
        return torch.cat((earlier.expand(len(new), *earlier.shape), new), -2)


def _before(trace: Trace, layer: int, start: int) -> _Before | None:
    """What the steps of a layer remember of the tokens before ``start``."""
    if not start:
        return None
    remembered = (
        (name, trace.step(*trace.steps.sources(step, layer)[number]))
        for step in trace.steps.in_layer(layer)
        for number, name in step.operation.remembers
    )
    return _Before({name: tensor[..., :start, :] for name, tensor in remembered})


def _carried(trace: Trace, layer: int, start: int) -> Carried | None:
    """What the blocks from ``layer`` on take of the plain run beside the stream, from position ``start`` on."""
    if not trace.steps.reads_beside:
        return None
    steps: dict[str, Tensor] = {}
    for full, (name, at) in trace.steps.carried.items():
        if at is None or at < layer:
            axis, tensor = trace.steps.at(name, at).token_axis or 0, trace.step(name, at)
            steps[full] = tensor.narrow(axis, start, tensor.shape[axis] - start)[None]
    device, encoding = trace.last_hidden.device, trace.encoding
    types = typed([encoding.types[start:]], device)
    return Carried(torch.tensor([encoding.ids[start:]], device=device), steps, types)


def _joined(parts: Sequence[Carried | None], counts: Sequence[int]) -> Carried | None:
    """What several groups of ``counts`` rows carry, as one."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    steps = {
        full: torch.cat(
            [part.steps[full].expand(n, *tensor.shape[1:]) for part, n in zip(present, counts, strict=True)]
        )
        for full, tensor in present[0].steps.items()
    }
    return Carried(present[0].ids, steps, present[0].types)
