"""``tinytf score``: how well a model foresaw each token of a text."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tinytf_cli.options import model_options, output_options, text_options
from tinytf_cli.output import Output, Result

if TYPE_CHECKING:
    from tinytf.loading import Model


@click.command("score")
@text_options
@model_options
@output_options
def command(texts: list[str], lines: bool, truncate: bool, open_model: Callable[[], "Model"], output: Output) -> None:
    """Show the probability, rank and entropy of every token of TEXT, and the perplexity of the whole."""
    from tinytf_cli.several import show_all
    from tinytf_cli.views.score import ScoreView

    model = open_model()

    def result(text: str) -> Result:
        encoding = model.encode(text, truncate=truncate)
        view = ScoreView(model, encoding, model.score(text, truncate=truncate))
        return Result(view.blocks, view.data, view.events)

    show_all(output, (result(text) for text in texts), "scores", lines)
