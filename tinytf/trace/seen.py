"""A trace as tables and JSON show it: cells that a query cannot see hold no number."""

import math
from collections.abc import Sequence

from torch import Tensor

from tinytf.trace.address import Address
from tinytf.trace.parameters import ParameterAddress
from tinytf.trace.trace import Trace, visible


class MaskedTrace(Trace):
    """A trace in which the weight of a masked key is −∞, like its score, instead of 0."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace.model, trace.encoding, trace.recording, trace.source)
        self._trace, self.about = trace, trace.about

    def __getitem__(self, address: str | Address | ParameterAddress) -> Tensor:
        """The tensor at an address; tensors of TransformerLens are unchanged."""
        is_lens = isinstance(address, Address) and address.lens is not None
        return self._trace[address] if is_lens else super().__getitem__(address)

    def step(self, name: str, layer: int | None = None, heads: tuple[int, ...] | None = None) -> Tensor:
        tensor, step = self._trace.step(name, layer, heads), self.steps.at(name, layer)
        allowed = visible(self._trace, step, layer) if step.holds_shares else None
        return tensor if allowed is None else tensor.masked_fill(~allowed, -math.inf)

    def vocabulary(self, name: str, positions: Sequence[int]) -> Tensor:
        return self._trace.vocabulary(name, positions)
