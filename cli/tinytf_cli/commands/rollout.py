"""``tinytf rollout``: how much of each token attention brings to a position, over all layers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tinytf_cli.command import command, option
from tinytf_cli.options import Extent, Traced

if TYPE_CHECKING:
    from tinytf.trace.trace import Trace
    from tinytf_cli.views.rollout import RolloutView


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    query: str | None = option(
        metavar="TOKEN", help="Position shown in full, by text or number.  [default: the last, or [MASK]]"
    )
    heads: str = option(
        type=click.Choice(["mean", "max", "min"]), shown="mean", help="How the heads of a layer become one map."
    )
    layer: str | None = option(metavar="N", help="Last layer that counts.  [default: all layers]")
    rows: int | None = option(type=click.IntRange(0), help="Tokens in the table; 0 for all.  [default: 12]")


@command("rollout")
def rollout(asked: Asked, extent: Extent, on: Traced) -> int:
    """Attention rollout multiplies the maps of all layers (Abnar and Zuidema 2020). Only attention counts, and half of
    every layer comes from the residual connection.
    """
    from tinytf.trace.address import one_number
    from tinytf_cli.views.rollout import RolloutView

    def view_of(trace: "Trace") -> "RolloutView":
        layer = None if asked.layer is None else one_number(asked.layer, trace.config.n_layers, "layer")
        found = on.model.rollout(trace, heads=asked.heads, layer=layer, query=asked.query, force=on.force)
        return RolloutView(on.model, found, extent.rows(asked.rows))

    return on.show(view_of, "rollouts")
