"""A trace as tables and JSON show it: what a query does not see is no number."""

import math
from collections.abc import Sequence

from torch import Tensor

from tinytf.trace.address import Address
from tinytf.trace.parameters import ParameterAddress
from tinytf.trace.trace import Trace, visible


class Seen(Trace):
    """A trace in which the weight of a masked key is −∞, as its score is, instead of 0."""

    def __init__(self, of: Trace) -> None:
        super().__init__(of.model, of.encoding, of.recording)
        self._of, self.about = of, of.about

    def __getitem__(self, address: str | Address | ParameterAddress) -> Tensor:
        """What an address names; a tensor of TransformerLens is as it is there."""
        own = isinstance(address, Address) and address.lens is not None
        return self._of[address] if own else super().__getitem__(address)

    def step(self, name: str, layer: int | None = None, heads: tuple[int, ...] | None = None) -> Tensor:
        found, step = self._of.step(name, layer, heads), self.steps.at(name, layer)
        allowed = visible(self._of, step, layer) if step.is_distribution else None
        return found if allowed is None else found.masked_fill(~allowed, -math.inf)

    def vocabulary(self, name: str, positions: Sequence[int]) -> Tensor:
        return self._of.vocabulary(name, positions)
