"""Other numbers for some parameters of a model: each swap is a run of its own, all of them in one pass of a text.

Everything before a swapped parameter is the same as in the plain run. So a run begins in the layer of its swap, and is
batched with the others in all layers that it leaves alone: nothing is computed twice. Shapes: R runs, T tokens,
C width, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.model.turn import using
from tinytf.steps.table import table_of

Values = Mapping[str, Tensor]
"""New values of parameters, by their paths."""

_TOKENS = 2**14  # tokens of all runs in memory at a time
_AT_ONCE = 2**11  # tokens that go through a block at a time; more are no faster


@contextmanager
def swapped(model: Transformer, values: Values) -> Iterator[None]:
    """Give parameters other values inside the ``with`` block, for this thread alone; the model's own are not copied."""
    with using(model):
        parameters = {path: model.get_parameter(path) for path in values}
        originals = {path: parameter.data for path, parameter in parameters.items()}
        try:
            for path, parameter in parameters.items():
                parameter.data = values[path]
            yield
        finally:
            for path, parameter in parameters.items():
                parameter.data = originals[path]


class Swapping:
    """A model, and the stages in which each parameter is used: -1 the embedding, a layer, n_layers after the blocks."""

    def __init__(self, model: Transformer) -> None:
        if table_of(model.config).carried or table_of(model.config).reads_text:
            raise UsageError(
                "layers of this model take keys or embeddings of earlier ones, so that swapped tensors do not spread "
                "through the stream alone: that is not implemented"
            )
        if model.averaged is not None:
            raise UsageError(
                "the head of this model reads the mean of all tokens, for which swapped tensors are not implemented"
            )
        self.model, self.depth = model, model.config.n_layers
        stages: tuple[tuple[int, nn.Module | None], ...] = (
            (-1, model.embed),
            *enumerate(model.blocks),
            (self.depth, model.final_norm),
            (self.depth, model.head),
        )
        users: dict[int, set[int]] = {}
        for stage, module in stages:
            for parameter in () if module is None else module.parameters():
                users.setdefault(id(parameter), set()).add(stage)
        if model.head is not None:
            users[id(model.unembedding)].add(self.depth)
        self.used = {path: frozenset(users.get(id(parameter), ())) for path, parameter in model.named_parameters()}
        """Empty for a parameter that no prediction depends on, such as a pooler's."""

    def places(self, values: Values) -> frozenset[int]:
        """The stages in which a run with these values differs from the plain run."""
        return frozenset[int]().union(*(self.used[path] for path in values))

    def streams(self, ids: Tensor) -> list[Tensor]:
        """The plain run: the input of each block and the output of the last, (1, T, C) each; ids (1, T)."""
        streams = [self.model.embed(ids)]
        for block in self.model.blocks:
            streams.append(block(streams[-1], 0, None))
        return streams

    def runs(
        self, ids: Tensor, streams: Sequence[Tensor], swaps: Sequence[Values]
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the numbers of some swaps at a time, with the last block's output in their runs, (R, T, C)."""
        starts = {number: min(self.places(values), default=self.depth) for number, values in enumerate(swaps)}
        order = sorted(starts, key=starts.__getitem__)
        batch_size = max(1, _TOKENS // ids.shape[1])
        for first in range(0, len(order), batch_size):
            numbers = order[first : first + batch_size]
            yield numbers, self._together(ids, streams, {number: swaps[number] for number in numbers}, starts)

    def logits(self, x: Tensor, swaps: Sequence[Values]) -> Tensor:
        """The logits (R, P, V) of some runs, from the last block's output (R, P, C)."""
        swapped_runs = [number for number, values in enumerate(swaps) if self.depth in self.places(values)]
        logits = self._unembedded(x) if len(swapped_runs) < len(swaps) else None
        for number in swapped_runs:
            with swapped(self.model, swaps[number]):
                run_logits = self._unembedded(x[number])
            logits = run_logits.new_empty(len(swaps), *run_logits.shape) if logits is None else logits
            logits[number] = run_logits
        assert logits is not None, "there is a run"
        return logits

    def _unembedded(self, x: Tensor) -> Tensor:
        return self.model.unembed(self.model.final_norm(x))

    def _together(
        self, ids: Tensor, streams: Sequence[Tensor], swaps: Mapping[int, Values], starts: Mapping[int, int]
    ) -> Tensor:
        """Run some swaps, sorted by the stage where they begin, through the stack: (R, T, C)."""
        running = [number for number in swaps if starts[number] < 0]
        x = streams[0].expand(len(running), -1, -1).clone()
        for run, number in enumerate(running):
            with swapped(self.model, swaps[number]):
                x[run] = self.model.embed(ids)[0]
        for layer in range(self.depth):
            starting = [number for number in swaps if starts[number] == layer]
            running += starting
            x = torch.cat((x, streams[layer].expand(len(starting), -1, -1)))
            if running:
                x = self._through(layer, x, [swaps[number] for number in running])
        return torch.cat((x, streams[-1].expand(len(swaps) - len(running), -1, -1)))

    def _through(self, layer: int, x: Tensor, swaps: Sequence[Values]) -> Tensor:
        """Run one block on ``x``: the runs swapped in it one by one, the others batched."""
        block: Any = self.model.blocks[layer]
        swapped_runs = [number for number, values in enumerate(swaps) if layer in self.places(values)]
        unswapped = [number for number in range(len(swaps)) if number not in swapped_runs]
        outputs = torch.empty_like(x)
        for number in swapped_runs:
            with swapped(self.model, swaps[number]):
                outputs[number] = block(x[number : number + 1], 0, None)[0]
        for batch in torch.tensor(unswapped, dtype=torch.long).split(max(1, _AT_ONCE // x.shape[1])):
            outputs[batch] = block(x[batch], 0, None)
        return outputs
