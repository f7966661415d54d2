"""``tinytf rollout``: how much of each token attention brings to a position, over all layers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tinytf_cli.options import model_options, output_options, recording_options, text_options
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.loading import Model


@click.command("rollout")
@text_options
@model_options
@recording_options
@click.option(
    "--query", metavar="TOKEN", help="The position shown in full, by text or number (else the last, or mask)."
)
@click.option(
    "--heads",
    type=click.Choice(["mean", "max", "min"]),
    default="mean",
    show_default=True,
    help="How the heads of a layer become one map.",
)
@click.option("--layer", type=int, help="The last layer that counts (else all).")
@click.option(
    "--flow",
    type=click.Choice(["auto", "query", "all", "none"]),
    default="auto",
    show_default=True,
    help="Search the attention flow to the query, to all positions, or not; auto: to the query, where that is quick.",
)
@click.option("--rows", type=click.IntRange(0), help="Tokens shown in the table (0: all; on a screen 24).")
@output_options
def command(
    texts: list[str],
    lines: bool,
    truncate: bool,
    force: bool,
    open_model: Callable[[], "Model"],
    query: str | None,
    heads: str,
    layer: int | None,
    flow: str,
    rows: int | None,
    output: Output,
) -> int:
    """Show how much of each token of TEXT is in a position behind all layers, by attention alone.

    Attention rollout multiplies the maps of the layers, attention flow is the most that they can carry (Abnar and
    Zuidema 2020). Both take half of every layer to come from the residual connection.
    """
    from tinytf_cli.counted import counted
    from tinytf_cli.several import show_views
    from tinytf_cli.views.rollout import RolloutView

    model = open_model()

    def view_of(text: str) -> RolloutView:
        trace = model.trace(text, truncate=truncate, force=force)
        with counted(output.stderr, "flows") as progress:
            found = model.rollout(
                trace, heads=heads, layer=layer, query=query, flow=flow, force=force, progress=progress
            )
        return RolloutView(model, found, rows)

    return show_views(output, map(view_of, texts), "rollouts", lines)
