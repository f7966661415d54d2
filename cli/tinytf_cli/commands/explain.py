"""``tinytf explain``: the arithmetic behind one number."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tinytf_cli.options import model_options, output_options, recording_options, text_options
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.loading import Model


@click.command("explain")
@click.argument("address")
@text_options
@model_options
@recording_options
@click.option(
    "--depth",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Steps explained: this one, then those of its largest term, and so on.",
)
@click.option("--top", type=click.IntRange(1), default=8, show_default=True, help="Terms shown; the rest is summed.")
@click.option(
    "--temperature",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="What the logits are divided by, for a cell of probs.",
)
@output_options
def command(
    address: str,
    texts: list[str],
    lines: bool,
    truncate: bool,
    force: bool,
    open_model: Callable[[], "Model"],
    depth: int,
    top: int,
    temperature: float,
    output: Output,
) -> int:
    """Show the arithmetic behind the number at ADDRESS in TEXT, and prove it.

    An ADDRESS is one cell of one step: 'L0H0.scores[The,cat]', 'L1.ffn[sat,17]', 'logits[sat,·on]'.
    """
    from tinytf_cli.several import show_views
    from tinytf_cli.views.explain import ExplainView

    model = open_model()

    def view_of(text: str) -> ExplainView:
        trace = model.trace(text, truncate=truncate, force=force)
        found = model.explain(trace, address, depth=depth, top=top, temperature=temperature)
        return ExplainView(model, found)

    return show_views(output, map(view_of, texts), "explanations", lines)
