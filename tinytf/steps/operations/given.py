"""What enters from outside: the last hidden states of the stack that this one reads."""

from torch import Tensor

from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.same import Same
from tinytf.steps.operations.working import Value, Working


def _states(site: Site) -> Tensor:
    """What the model reads, (S, d_source): of a pass with gradients, what the encoder gave in that pass."""
    source, reads = site.trace.source, site.trace.model.reads
    assert reads is not None
    return reads.states[0] if source is None or source is reads.trace else source.last_hidden


class Given(Same):
    """The states as another stack gives them; this one takes them as they are."""

    words = "what is given"

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return _states(site)

    def code(self, site: Site) -> str:
        return f"{site.variable} = states  # the last hidden states of the encoder"

    def operands(self, site: Site) -> dict[str, Tensor]:
        return {"states": _states(site)}

    def arithmetic(self, cell: Cell) -> Working:
        read = cell.read()
        leads = () if read is None else (read,)
        value = Value("source", float(_states(cell.site)[cell.index]), "as the encoder ends")
        return Working(tuple((lead, 2) for lead in leads), after=(value,), leads=leads)
