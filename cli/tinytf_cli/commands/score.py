"""``tinytf score``: how well a model predicted each token of a text."""

from dataclasses import dataclass

import click

from tinytf_cli.command import command, option
from tinytf_cli.options import FoldOptions, ModelOptions, TextOptions
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    quantize: str | None = option(
        type=click.Choice(["int8"]), help="Score again with 8-bit weights, and report the difference."
    )
    limit: int = option(type=click.IntRange(2), shown=32_768, help="Most tokens of a text.")


@command("score")
def score(options: Options, extent: FoldOptions, texts: TextOptions, opening: ModelOptions, output: Output) -> int:
    """First the perplexity of all of TEXT."""
    from tinytf_cli.views.score import ScoreDisplay

    model = opening.open()
    reports = (
        model.score(text, truncate=texts.truncate, int8=options.quantize is not None, limit=options.limit)
        for text in texts
    )
    return output.draw_all(reports, "scores", texts.lines, ScoreDisplay(extent.all))
