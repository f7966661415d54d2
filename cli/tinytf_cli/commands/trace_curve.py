"""``tinytf trace --curve``: the activation function of a feed-forward, with the values of a text on its curve."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinytf_cli.command import command, option
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import TraceOptions

if TYPE_CHECKING:
    from tinytf.look.activations import Activations
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    layer: str = option(metavar="N", shown="0", help="Layer of the feed-forward; -1 is the last.")
    rows: int | None = option(type=Whole(0), help="Tokens in the table; 0 for all.  [default: 8 on a screen]")


@command("trace --curve")
def trace_curve(options: Options, tracing: TraceOptions) -> int:
    """Draws the model's function beside ReLU, GELU, SiLU and others."""
    from tinytf.trace.address import parse_single_number
    from tinytf_cli.views.activations import ActivationsDisplay

    layer = parse_single_number(options.layer, tracing.model.config.n_layers, "layer")

    def question(trace: "Trace") -> "Activations":
        return tracing.model.activations(trace, layer)

    return tracing.show(question, "activations", ActivationsDisplay(options.rows))
