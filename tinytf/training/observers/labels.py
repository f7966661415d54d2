"""What the data of any loop says of its labels: which token the predictions fit, and whether batches differ."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tinytf.files import to_json
from tinytf.outputs import write_state, writing
from tinytf.runs.run_files import SIZES
from tinytf.runs.verdict import fits_another
from tinytf.training.data.baselines import COMPARED, hashes
from tinytf.training.loop import Loop, Observer
from tinytf.training.metrics import Metrics
from tinytf.training.observers.layers import tensors_in
from tinytf.training.tuning.losses import SHIFTED, losses_by_shift


class Labels(Observer):
    """Adds losses by the shift of the labels to every ``every``-th line, and notes in text.json whether batches differ.

    Both only for a model that reads ids (B, T) and returns logits (B, T, V). Predictions of a model that sees later
    tokens, an encoder, may fit the token itself: it has no such losses.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.rows: list[Any] = []
        self.shifts: tuple[float, ...] | None = None
        self.is_causal: bool | None = None
        self.repeat: Callable[[], bool] = lambda: True

    def begin(self, loop: Loop) -> None:
        super().begin(loop)
        self.handle = loop.model.register_forward_hook(self._see, with_kwargs=True)

    def step(self, line: Metrics) -> None:
        if self.shifts is not None and fits_another(self.shifts) and self.is_causal is None:
            self.is_causal = self.repeat()
        if self.shifts is not None:
            line.shifts, self.shifts = (None if self.is_causal is False else self.shifts), None

    def end(self) -> None:
        self.handle.remove()

    @torch.no_grad()
    def _see(self, model: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        compares, due = len(self.rows) < COMPARED, (self.loop.progress.step + 1) % self.every == 0
        ids = _ids_in(arguments, named) if (compares or due) and _is_trained(output) else None
        if ids is None or (logits := _logits_for(ids, output)) is None:  # which waits for the device
            return
        if compares:
            self._compare(ids, logits.shape[-1])
        if due and ids.shape[1] > 2:
            asked = torch.ones_like(ids[:SHIFTED, 2:], dtype=torch.bool)
            shifts = losses_by_shift(logits[:SHIFTED, :-2].flatten(0, 1), ids[:SHIFTED], asked)
            self.shifts = shifts if all(map(math.isfinite, shifts)) else None
            self.repeat = partial(sees_nothing_later, model, ids, arguments, named)

    def _compare(self, ids: Tensor, vocab_size: int) -> None:
        self.rows.append(hashes(ids.cpu().numpy()))
        if len(self.rows) not in (1, COMPARED):
            return
        facts = {"vocab_size": vocab_size, "first_examples": len(np.unique(self.rows[0]))}
        if len(self.rows) == COMPARED:
            facts["examples"] = len(np.unique(np.concatenate(self.rows)))
        with writing(self.loop.out, "give another run"):
            write_state(self.loop.out / SIZES, to_json(facts))


def _is_trained(output: Any) -> bool:
    """Whether a gradient can come from these results."""
    return any(tensor.requires_grad for tensor in tensors_in(output))


def _ids_in(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """The ids (B, T) that a model reads: ``input_ids``, or else its first integers with two axes."""
    for value in (named.get("input_ids"), *arguments, *named.values()):
        if isinstance(value, Tensor) and value.dim() == 2 and value.dtype in (torch.int64, torch.int32):
            return value
    return None


def _logits_for(ids: Tensor, output: Any) -> Tensor | None:
    """The logits (B, T, V) for these ids among the results of a model."""
    fits = (x for x in tensors_in(output) if x.dim() == 3 and x.shape[:2] == ids.shape and x.shape[2] > int(ids.max()))
    return next(fits, None)


@torch.no_grad()
def sees_nothing_later(model: nn.Module, ids: Tensor, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether the logits of the first token stay the same after others; the random state stays as it was."""

    def first(ids_read: Tensor) -> Tensor | None:
        named_read = {name: ids_read if value is ids else value for name, value in named.items()}
        with torch.random.fork_rng():  # the same dropout
            logits = _logits_for(
                ids, model(*(ids_read if value is ids else value for value in arguments), **named_read)
            )
        return None if logits is None else logits[:, 0]

    logits, others = first(ids), first(ids[:, :1].expand_as(ids).contiguous())
    return logits is not None and others is not None and torch.allclose(logits, others, rtol=1e-3, atol=1e-3)
