"""What enters from outside: the last hidden states of the stack that this one reads."""

from torch import Tensor

from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.same import Same
from tinytf.steps.operations.working import Working


class Given(Same):
    """The states as another stack gives them; this one takes them as they are."""

    words = "what is given"

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        assert site.trace.model.reads is not None
        return site.trace.model.reads.states[0]

    def code(self, site: Site) -> str:
        return f"{site.variable} = states  # of the other stack"

    def arithmetic(self, cell: Cell) -> Working:
        return Working(())
