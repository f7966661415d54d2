"""``tinytf attention --rollout``: how much of each token attention carries to a position, over all layers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tinytf_cli.command import command, option
from tinytf_cli.options import FoldOptions
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import TraceOptions

if TYPE_CHECKING:
    from tinytf.look.rollout import Rollout
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    query: str | None = option(
        metavar="TOKEN", help="Position to show in full, by text or number.  [default: the last, or [MASK]]"
    )
    heads: str = option(
        type=click.Choice(["mean", "max", "min"]), shown="mean", help="How to combine the heads of a layer."
    )
    layer: str | None = option(metavar="N", help="Last layer to include.  [default: all layers]")
    rows: int | None = option(type=Whole(0), help="Tokens in the table; 0 for all.  [default: 12]")


@command("attention --rollout")
def attention_rollout(options: Options, fold: FoldOptions, tracing: TraceOptions) -> int:
    """Attention rollout multiplies the attention maps of all layers (Abnar and Zuidema 2020). It ignores the
    feed-forwards, and lets the residual connection count for half of every layer.
    """
    from tinytf.trace.address import parse_single_number
    from tinytf_cli.views.rollout import RolloutDisplay

    def question(trace: "Trace") -> "Rollout":
        layer = None if options.layer is None else parse_single_number(options.layer, trace.config.n_layers, "layer")
        return tracing.model.rollout(trace, heads=options.heads, layer=layer, query=options.query, force=tracing.force)

    return tracing.show(question, "rollouts", RolloutDisplay(fold.rows(options.rows)))
