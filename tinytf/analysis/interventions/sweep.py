"""Many interventions on one text in a few forward passes: each row of a batch carries its own.

What comes before an intervention is that of the plain run, which is recorded once. So a row begins at its layer, and
in a decoder at its first changed position, with the plain run's keys and values before it: nothing is computed twice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.analysis.interventions.exchange import Change, Intervention, changed, evaluated, exchanged
from tinytf.analysis.interventions.sites import Site
from tinytf.trace.trace import Trace

Progress = Callable[[int, int], None]
Row = tuple[Intervention, ...]
"""What one row carries; all of it in one layer."""

_TOKENS = {"cpu": 1024}
"""Tokens of a batch; more fill no processor better, and only take memory."""
_TOKENS_ELSEWHERE = 16_384


@dataclass(frozen=True)
class _Before:
    """Keys and values of the tokens before those that are computed, in the place of a cache: (G, T, D) each."""

    keys: Tensor
    values: Tensor

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """They and the new ones, (B, G, T, D) each."""
        rows = (len(keys), -1, -1, -1)
        return torch.cat((self.keys.expand(rows), keys), 2), torch.cat((self.values.expand(rows), values), 2)


@torch.no_grad()
def swept(
    trace: Trace, rows: Sequence[Row], read: int, on_progress: Progress = lambda done, of: None
) -> Iterator[tuple[list[int], Tensor]]:
    """Logits at position ``read`` under each of ``rows``, batch by batch: which rows, and their logits (B, V).

    ``trace`` is the plain run of the text, recorded in every layer.
    """
    model = trace.model
    length, causal = len(trace.tokens), model.config.causal
    most = _TOKENS.get(trace.last_hidden.device.type, _TOKENS_ELSEWHERE)
    starts = [min(one.first for one in row) if causal else 0 for row in rows]
    order = sorted(range(len(rows)), key=lambda number: (starts[number], rows[number][0].site.layer))
    done = 0
    while done < len(order):
        start = min(starts[order[done]], read)
        batch = order[done : done + max(1, most // (length - start))]
        with evaluated(model):
            numbers, hidden = _through(trace, {number: rows[number] for number in batch}, start)
            logits = model.unembed(model.final_norm(hidden[:, read - start]))
        yield numbers, logits
        done += len(batch)
        on_progress(done, len(order))


def _through(trace: Trace, rows: dict[int, Row], start: int) -> tuple[list[int], Tensor]:
    """The rows through the stack, from position ``start`` on: their numbers, and the last block's output (B, T, C)."""
    model = trace.model
    numbers: list[int] = []
    x: Tensor | None = None
    for layer in range(min(row[0].site.layer for row in rows.values()), model.config.n_layers):
        block: Any = model.blocks[layer]
        joining = [number for number, row in rows.items() if row[0].site.layer == layer]
        around = (start, None, _before(trace, layer, start))
        parts = [] if x is None else [block(x, *around)]
        if joining:
            plain = trace.step("in", layer)[None, start:]  # (1, T, C)
            with changed(model, _changes([rows[number] for number in joining], model.config.d_head, start)):
                parts.append(block(plain, *around))  # one row goes in, and as many come out as are changed
        numbers += joining
        x = torch.cat(parts)
    assert x is not None
    return numbers, x


def _changes(rows: Sequence[Row], d_head: int, start: int) -> list[tuple[Site, Change]]:
    """For every step that any of the rows changes: the one row that comes there becomes ``rows``, each with its own."""
    steps = dict.fromkeys(one.site.step for row in rows for one in row)

    def change(step: str) -> Change:
        def of(tensor: Tensor) -> Tensor:
            tensor = tensor.expand(len(rows), -1, -1).clone()
            for number, row in enumerate(rows):
                for one in row:
                    if one.site.step == step:
                        exchanged(tensor, number, one, d_head, start)
            return tensor

        return of

    return [(Site(step, rows[0][0].site.layer), change(step)) for step in steps]


def _before(trace: Trace, layer: int, start: int) -> _Before | None:
    if not start:
        return None
    keys = trace.step(trace.steps.by_name["scores"].inputs[1], layer)
    return _Before(keys[:, :start], trace.step("v", layer)[:, :start])
