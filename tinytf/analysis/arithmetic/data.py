"""What an explanation consists of: plain numbers and words, all of them JSON."""

from dataclasses import asdict, dataclass
from typing import Any

from tinytf.steps.operations.working import Rest, Term, Value


@dataclass(frozen=True)
class Input:
    """A row or cell of an earlier step that went in, by its address, with that step's title and formula."""

    address: str
    title: str
    formula: str


@dataclass(frozen=True)
class Explanation:
    """How the number at ``address`` comes about, computed in float64 from the recorded numbers before it.

    ``place`` says the cell in words, ``kind`` the operation. In reading order: the values ``before`` (a mean, an angle,
    the largest score), the ``terms`` (each a ``term_name``), largest first, with the ``rest``, what they ``sum`` to
    (None where nothing is summed), and the values that come ``after`` (a division, a tanh), the last of which is
    ``total``. ``recorded`` is the number of the trace, and ``allowed`` how far the two may differ. ``note`` says in
    words what the numbers alone do not: why a cell is masked. ``inputs`` are the rows that went in, and ``leads_to``
    the cells of the largest term, one step back.
    """

    address: str
    place: str
    depth: int
    title: str
    formula: str
    role: str
    kind: str
    note: str
    before: tuple[Value, ...]
    factor_names: tuple[str, ...]
    term_name: str
    terms: tuple[Term, ...]
    rest: Rest
    sum: float | None
    after: tuple[Value, ...]
    total: float
    recorded: float
    difference: float
    allowed: float
    inputs: tuple[Input, ...]
    leads_to: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the arithmetic gives the recorded number; false for a NaN."""
        return self.difference <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}
