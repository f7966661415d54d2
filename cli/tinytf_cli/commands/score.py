"""``tinytf score``: how well a model foresaw each token of a text."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tinytf_cli.options import model_options, output_options, text_options
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.loading import Model


@click.command("score")
@text_options
@model_options
@click.option("--quantize", type=click.Choice(["int8"]), help="Score again with 8-bit weights, and say the difference.")
@output_options
def command(
    texts: list[str],
    lines: bool,
    truncate: bool,
    open_model: Callable[[], "Model"],
    quantize: str | None,
    output: Output,
) -> None:
    """Show the probability, rank and entropy of every token of TEXT, and the perplexity of the whole."""
    from tinytf_cli.several import show_views
    from tinytf_cli.views.score import ScoreView

    model = open_model()
    found = (model.score(text, truncate=truncate, int8=quantize is not None) for text in texts)
    show_views(output, (ScoreView(model, one) for one in found), "scores", lines)
