"""``tinytf score``: how well a model foresaw each token of a text."""

import click

from tinytf_cli.options import Opening, Texts, model_options, output_options, text_options
from tinytf_cli.output import Output


@click.command("score")
@text_options
@model_options
@click.option("--quantize", type=click.Choice(["int8"]), help="Score again with 8-bit weights, and say the difference.")
@output_options
def command(texts: Texts, opening: Opening, quantize: str | None, output: Output) -> None:
    """Show the probability, rank and entropy of every token of TEXT, and the perplexity of the whole."""
    from tinytf_cli.joining import show_views
    from tinytf_cli.views.score import ScoreView

    model = opening.open()
    found = (model.score(text, truncate=texts.truncate, int8=quantize is not None) for text in texts)
    show_views(output, (ScoreView(model, one) for one in found), "scores", texts.lines)
