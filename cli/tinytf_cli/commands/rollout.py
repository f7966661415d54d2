"""``tinytf rollout``: how much of each token attention brings to a position, over all layers."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tinytf_cli.options import model_options, output_options, recording_options, text_options
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.loading import Model

_QUICK = 400_000
"""Pipes times tokens from which on a flow is only searched when it is asked for: some seconds."""


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
    from tinytf.analysis.attention_flow import attention_flow, count_pipes
    from tinytf.analysis.rollout import default_query
    from tinytf_cli.counted import counted
    from tinytf_cli.several import show_views
    from tinytf_cli.views.rollout import RolloutView

    model = open_model()

    def view_of(text: str) -> RolloutView:
        trace = model.trace(text, truncate=truncate, force=force)
        size = len(trace.tokens)
        place = default_query(trace, model.tokenizer.mask_id) if query is None else trace.index(query, "query", size)
        found = model.rollout(trace, heads=heads, layer=layer, force=force)
        pipes = count_pipes(found.maps)
        skipped = pipes if flow == "auto" and pipes * size > _QUICK else 0
        if flow != "none" and not skipped:
            wanted = range(size) if flow == "all" else (place,)
            with counted(output.stderr, "flows") as progress:
                found = replace(found, flow=attention_flow(found.maps, wanted, progress))
        return RolloutView(model, trace, found, place, rows=rows, skipped=skipped)

    return show_views(output, map(view_of, texts), "rollouts", lines)
