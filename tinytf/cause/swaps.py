"""Other numbers for some parameters of a model: each swap in a run of its own, all of them in one pass of a text.

What comes before a swapped parameter is that of the plain run. So a run begins in the layer of its swap, and goes with
the others through all that it leaves as it is: nothing is computed twice. Shapes: R runs, T tokens, C width,
V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.model.transformer import Transformer

Values = Mapping[str, Tensor]
"""What parameters are to hold, by their paths."""

_TOKENS = 2**14  # tokens of all runs that are in memory at a time
_AT_ONCE = 2**11  # tokens that go through a block at a time; more gain no speed


@contextmanager
def swapped(model: Transformer, values: Values) -> Iterator[None]:
    """A stretch in which parameters hold other values; those of the model are not copied."""
    parameters = {path: model.get_parameter(path) for path in values}
    before = {path: parameter.data for path, parameter in parameters.items()}
    try:
        for path, parameter in parameters.items():
            parameter.data = values[path]
        yield
    finally:
        for path, parameter in parameters.items():
            parameter.data = before[path]


class Swapping:
    """A model, with where in it each parameter is used: -1 is the embedding, n_layers what comes after the blocks."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.depth = model, model.config.n_layers
        ends: tuple[tuple[int, nn.Module | None], ...] = (
            (-1, model.embed),
            *enumerate(model.blocks),
            (self.depth, model.final_norm),
            (self.depth, model.head),
        )
        users: dict[int, set[int]] = {}
        for place, module in ends:
            for parameter in () if module is None else module.parameters():
                users.setdefault(id(parameter), set()).add(place)
        if model.head is not None:
            users[id(model.unembedding)].add(self.depth)
        self.used = {path: frozenset(users.get(id(one), ())) for path, one in model.named_parameters()}
        """A parameter that no prediction depends on, as that of a pooler, is used nowhere."""

    def places(self, values: Values) -> frozenset[int]:
        """Where a run with these values is another than the plain one."""
        return frozenset[int]().union(*(self.used[path] for path in values))

    def streams(self, ids: Tensor) -> list[Tensor]:
        """The plain run: what goes into each block, and what the last one gives, (1, T, C) each; ids (1, T)."""
        found = [self.model.embed(ids)]
        for block in self.model.blocks:
            found.append(block(found[-1], 0, None))
        return found

    def runs(
        self, ids: Tensor, streams: Sequence[Tensor], swaps: Sequence[Values]
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Some of the swaps at a time, by their numbers, with what the last block gives in their runs, (R, T, C)."""
        starts = {number: min(self.places(values), default=self.depth) for number, values in enumerate(swaps)}
        order = sorted(starts, key=starts.__getitem__)
        most = max(1, _TOKENS // ids.shape[1])
        for first in range(0, len(order), most):
            numbers = order[first : first + most]
            yield numbers, self._together(ids, streams, {number: swaps[number] for number in numbers}, starts)

    def logits(self, x: Tensor, swaps: Sequence[Values]) -> Tensor:
        """From what the last block gives in some runs, (R, P, C), to their logits (R, P, V)."""
        own = [number for number, values in enumerate(swaps) if self.depth in self.places(values)]
        found = self._unembedded(x) if len(own) < len(swaps) else None
        for number in own:
            with swapped(self.model, swaps[number]):
                alone = self._unembedded(x[number])
            found = alone.new_empty(len(swaps), *alone.shape) if found is None else found
            found[number] = alone
        assert found is not None, "there is a run"
        return found

    def _unembedded(self, x: Tensor) -> Tensor:
        return self.model.unembed(self.model.final_norm(x))

    def _together(
        self, ids: Tensor, streams: Sequence[Tensor], swaps: Mapping[int, Values], starts: Mapping[int, int]
    ) -> Tensor:
        """Some swaps through the stack, (R, T, C), in their order: that of where they begin."""
        waiting = list(swaps)
        running: list[int] = []
        parts = [streams[0][:0]]
        while waiting and starts[waiting[0]] < 0:
            running.append(waiting.pop(0))
            with swapped(self.model, swaps[running[-1]]):
                parts.append(self.model.embed(ids))
        x = torch.cat(parts)
        for layer in range(min(starts[number] for number in swaps) if not running else 0, self.depth):
            while waiting and starts[waiting[0]] == layer:
                running.append(waiting.pop(0))
                x = torch.cat((x, streams[layer]))
            x = self._through(layer, x, [swaps[number] for number in running])
        return torch.cat((x, streams[-1].expand(len(waiting), -1, -1)))

    def _through(self, layer: int, x: Tensor, swaps: Sequence[Values]) -> Tensor:
        """One block for the runs ``x``: those that are swapped in it one by one, the others side by side."""
        block: Any = self.model.blocks[layer]
        own = [number for number, values in enumerate(swaps) if layer in self.places(values)]
        others = [number for number in range(len(swaps)) if number not in own]
        found = torch.empty_like(x)
        for number in own:
            with swapped(self.model, swaps[number]):
                found[number] = block(x[number : number + 1], 0, None)[0]
        for some in torch.tensor(others, dtype=torch.long).split(max(1, _AT_ONCE // x.shape[1])):
            found[some] = block(x[some], 0, None)
        return found
