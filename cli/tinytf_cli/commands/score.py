"""``tinytf score``: how well a model foresaw each token of a text."""

import click

from tinytf_cli.options import Opening, Texts, model_options, output_options, text_options
from tinytf_cli.output import Output, Result


@click.command("score")
@text_options
@model_options
@click.option("--quantize", type=click.Choice(["int8"]), help="Score again with 8-bit weights, and say the difference.")
@output_options
def command(texts: Texts, opening: Opening, quantize: str | None, output: Output) -> None:
    """Show the probability, rank and entropy of every token of TEXT, and the perplexity of the whole."""
    from tinytf.generate.compared import quantization_cost
    from tinytf_cli.several import show_all
    from tinytf_cli.views.score import ScoreView

    model = opening.open()

    def result(text: str) -> Result:
        encoding = model.encode(text, truncate=texts.truncate)
        found = model.score(text, truncate=texts.truncate)
        cost = quantization_cost(model.transformer, encoding.ids) if quantize else None
        view = ScoreView(model, encoding, found, cost)
        return Result(view.blocks, view.data, view.events)

    show_all(output, (result(text) for text in texts), "scores", texts.lines)
