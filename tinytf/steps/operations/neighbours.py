"""Each token beside those next to it, the input of a convolution whose product is a linear map."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.steps.operations.mask import real_tokens
from tinytf.steps.operations.operation import Consumer, Operation, Pass, Quantity, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.short_conv import shifted
from tinytf.steps.operations.working import Value, Working, single


@dataclass(frozen=True)
class Neighbours(Operation):
    """(…, T, C) -> (…, T, C·W): each number of the ``width`` tokens W around a token, in their order.

    Number d of the token ``offset`` places on, from −(W − 1)/2 to (W − 1)/2, is at d·W + (W − 1)/2 + offset. Tokens
    before and after the text count as 0, and so does padding.
    """

    width: int

    words = "a number of a token nearby"
    over_tokens = True

    @property
    def offsets(self) -> range:
        return range(-(self.width // 2), self.width // 2 + 1)

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.stack([shifted(inputs[0], -offset) for offset in self.offsets], dim=-1).flatten(-2)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.forward(x if now.padding_mask is None else x * real_tokens(now.padding_mask, x.shape[-2])[:, 0])

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """A token has the gradients of its places beside all tokens around it."""
        places = g.unflatten(-1, (-1, self.width)).unbind(-1)
        return (sum((shifted(of, offset) for of, offset in zip(places, self.offsets, strict=True)), torch.zeros(())),)

    def code(self, site: Site) -> str:
        half = self.width // 2
        padded = f"F.pad({site.names[0]}, (0, 0, {half}, {half}))"
        return f"{site.variable} = {padded}.unfold(0, {self.width}, 1).flatten(1)"

    def arithmetic(self, cell: Cell) -> Working:
        (token, number), tokens = cell.index, len(cell.site.input())
        d, place = divmod(number, self.width)
        other = token + self.offsets[place]
        if not 0 <= other < tokens:
            return Working((), after=(Value("zero", 0.0, "there is no token in that place"),))
        source = cell.source(0, other, d)
        label = f"d{d} of {cell.token(other)}"
        return Working(((source, 2),), single(label, [(source.step.name, source.value)], (source,)), leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        places = to.g.unflatten(-1, (-1, self.width))  # (T, C, W)
        total, quantities = torch.zeros_like(places[0, :, 0]), []
        for place, offset in enumerate(self.offsets):
            if 0 <= (beside := to.row.place - offset) < len(places):
                quantities.append(Quantity(f"{to.symbol}[{beside}] of the token {offset:+d}", places[beside, :, place]))
                total = total + places[beside, :, place]
        return Summand(
            f"Σ {to.symbol}", total, ("the gradients of its places beside the tokens around it",), tuple(quantities)
        )
