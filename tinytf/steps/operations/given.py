"""What enters from outside: the last hidden states of the stack that this one reads."""

from torch import Tensor

from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.same import Same
from tinytf.steps.operations.working import Value, Working


class Given(Same):
    """The states as another stack gives them; this one takes them as they are."""

    words = "what is given"

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        assert site.trace.model.reads is not None
        return site.trace.model.reads.states[0]

    def code(self, site: Site) -> str:
        return f"{site.variable} = {site.variable}  # the last hidden states of the encoder"

    def arithmetic(self, cell: Cell) -> Working:
        reads = cell.site.trace.model.reads
        assert reads is not None
        value = Value("source", float(reads.states[0][cell.index]), "as the encoder ends, see --stack encoder")
        return Working((), after=(value,), leads=())
