"""``tinytf rollout``: how much of each token attention brings to a position, over all layers."""

from dataclasses import dataclass

import click

from tinytf_cli.options import Opening, Texts, asks, option, output_options, traced_texts
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    query: str | None = option(
        metavar="TOKEN", help="The position shown in full, by text or number (else the last, or mask)."
    )
    heads: str = option(
        type=click.Choice(["mean", "max", "min"]), shown="mean", help="How the heads of a layer become one map."
    )
    layer: int | None = option(type=int, help="The last layer that counts (else all).")
    flow: str = option(
        type=click.Choice(["auto", "query", "all", "none"]), shown="auto",
        help="Search the attention flow to the query, to all positions, or not; "
        "auto: to the query, where that is quick.",
    )  # fmt: skip
    rows: int | None = option(type=click.IntRange(0), help="Tokens shown in the table (0: all; on a screen 24).")


@click.command("rollout")
@traced_texts
@asks(Asked)
@output_options
def command(texts: Texts, opening: Opening, force: bool, asked: Asked, output: Output) -> int:
    """Show how much of each token of TEXT is in a position behind all layers, by attention alone.

    Attention rollout multiplies the maps of the layers, attention flow is the most that they can carry (Abnar and
    Zuidema 2020). Both take half of every layer to come from the residual connection.
    """
    from tinytf_cli.joining import show_views
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.rollout import RolloutView

    model = opening.open()

    def view_of(text: str) -> RolloutView:
        trace = model.trace(text, truncate=texts.truncate, force=force)
        with progress_line(output.stderr, "flows") as progress:
            found = model.rollout(
                trace, heads=asked.heads, layer=asked.layer, query=asked.query, flow=asked.flow,
                force=force, progress=progress,
            )  # fmt: skip
        return RolloutView(model, found, asked.rows)

    return show_views(output, map(view_of, texts), "rollouts", texts.lines)
