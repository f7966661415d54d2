"""Two steps multiplied, number by number: a gate without an activation."""

from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, single


class Product(Operation):
    """x ⊙ y, both (…, T, C)."""

    words = "a product"
    pointwise = True

    def forward(self, *inputs: Tensor) -> Tensor:
        x, y = inputs
        return x * y

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        x, y = site.inputs()
        return g * y, g * x

    def code(self, site: Site) -> str:
        x, y = site.names
        return f"{site.variable} = {x} * {y}"

    def arithmetic(self, cell: Cell) -> Working:
        x, y = (cell.source(number, *cell.index) for number in (0, 1))
        factors = [(x.step.name, x.value), (y.step.name, y.value)]
        return Working(((x, 2), (y, 2)), single(f"{x.step.name} · {y.step.name}", factors, (x, y)))

    def summand(self, to: Consumer) -> Summand:
        g, other = to.incoming, to.input_at_row(1 - to.number)
        return Summand(f"{g.name} ⊙ {other.name}", g.values * other.values, inputs=(g, other))
