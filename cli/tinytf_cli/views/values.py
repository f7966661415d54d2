"""The tensors at an address: their numbers, statistics, shape or map."""

from collections.abc import Iterable
from dataclasses import dataclass

from tinytf.look.values import AddressValues
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.at_address import heat_blocks, shape_blocks, statistics_blocks, value_blocks
from tinytf_cli.views.blocks import Block
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import Extent


@dataclass(frozen=True)
class ValuesDisplay(Display):
    """``form`` is shape, stats, heat or values (every number); empty, a table or map of ``dims`` × ``rows``.

    ``head`` is the head to show if the address names none.
    """

    form: str = ""
    head: int = 0
    dims: int | None = None
    rows: int | None = None


@draws(AddressValues, ValuesDisplay)
def values(report: AddressValues, terminal: Terminal, display: ValuesDisplay) -> Iterable[Block]:
    """The tensors in the requested form."""
    trace, address = report.trace, report.address
    match display.form:
        case "shape":
            return shape_blocks(trace, address)
        case "stats":
            return statistics_blocks(trace, address)
        case "heat":
            return heat_blocks(trace, address, terminal, report.word)
    extent = Extent(0, 0) if display.form == "values" else Extent(display.dims, display.rows, terminal.cuts)
    return value_blocks(trace, address, display.head, extent, report.word)
