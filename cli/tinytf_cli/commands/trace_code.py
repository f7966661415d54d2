"""``tinytf trace --code``: PyTorch code for the steps of a text, run and compared."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinytf_cli.command import command, option
from tinytf_cli.options import complete_address
from tinytf_cli.text_options import TraceOptions

if TYPE_CHECKING:
    from tinytf.look.code import Code
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    layer: str = option(metavar="N", shown="0", help="Layer to write; -1 is the last, 0,2 writes two.")
    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS", shell_complete=complete_address,
        help="Write only this step, such as L0.masked, or this layer, such as L0. Repeatable.",
    )  # fmt: skip


@command("trace --code")
def trace_code(options: Options, tracing: TraceOptions) -> int:
    """Each line computes one step from earlier ones. The code can be pasted into Python."""
    from tinytf.steps.table import table_of
    from tinytf.trace.address import parse_address, parse_numbers

    model = tracing.model
    table = table_of(model.config)
    layers = parse_numbers(options.layer, model.config.n_layers, "layer") or ()
    at = [parse_address(text, table) for text in options.addresses]

    def question(trace: "Trace") -> "Code":
        return model.code(trace, layers, at)

    return tracing.show(question, "codes")
