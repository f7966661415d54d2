"""``tinytf activations``: the activation of a feed-forward, with the numbers of a text on its curve."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tinytf_cli.command import command, option
from tinytf_cli.options import TraceOptions

if TYPE_CHECKING:
    from tinytf.look.activations import Activations
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    layer: str = option(metavar="N", shown="0", help="Layer of the feed-forward; -1 is the last.")
    rows: int | None = option(type=click.IntRange(0), help="Tokens in the table; 0 for all.  [default: 8 on a screen]")


@command("activations")
def activations(options: Options, on: TraceOptions) -> int:
    """ReLU, GELU, SiLU and others are drawn beside the function that the model has."""
    from tinytf.trace.address import one_number
    from tinytf_cli.views.activations import ActivationsDisplay

    layer = one_number(options.layer, on.model.config.n_layers, "layer")

    def question(trace: "Trace") -> "Activations":
        return on.model.activations(trace, layer)

    return on.show(question, "activations", ActivationsDisplay(options.rows))
