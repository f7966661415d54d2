"""The concatenation of heads."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tinytf.steps.one_token import Kernels
from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, into_heads, side_by_side
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, single


class Concat(Operation):
    """(H, T, D) -> (T, H·D)."""

    words = "a concatenation"

    def forward(self, *inputs: Tensor) -> Tensor:
        return side_by_side(inputs[0])

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        return lambda heads: heads.reshape(*heads.shape[:-2], -1)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (into_heads(g, site.config.value_width),)

    def code(self, site: Site) -> str:
        return f"{site.variable} = {site.names[0]}.transpose(0, 1).flatten(1)"

    def arithmetic(self, cell: Cell) -> Working:
        head, width = divmod(cell.index[1], cell.site.config.value_width)
        source = cell.source(0, cell.index[0], width, head=head)
        return Working(((source, 2),), single(f"head {head} d{width}", [(source.step.name, source.value)], (source,)))

    def summand(self, to: Consumer) -> Summand:
        width, head = to.site.config.value_width, to.row.head or 0
        first, last = head * width, (head + 1) * width
        g = Quantity(f"{to.symbol}[{first}…{last - 1}]", to.g[to.row.place, first:last])
        return Summand(g.name, g.values, (f"the columns of head {head}",), inputs=(g,))
