"""``tinytf score``: how well a model predicts each token of a text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf_cli.command import command, option
from tinytf_cli.options import FoldOptions, ModelOptions, require_only
from tinytf_cli.output import Output
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import TextOptions, TextOrPairsOptions, versus_pairs_option

if TYPE_CHECKING:
    from tinytf.generate.score import Score
    from tinytf.text.chat import Written


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    quantize: str | None = option(
        type=click.Choice(["int8"]), help="Score again with 8-bit weights, and report the difference."
    )
    limit: int = option(type=Whole(2), shown=32_768, help="Longest text, in tokens.")
    versus: Path | None = versus_pairs_option()


@command("score")
def score(
    options: Options, fold: FoldOptions, texts: TextOrPairsOptions, model_options: ModelOptions, output: Output
) -> int:
    """Begins with the perplexity of TEXT. With --pairs, scores the answer of each pair instead."""
    from tinytf_cli.views.score import ScoreDisplay

    texts.over.require_beside(options.versus)
    if texts.over.pairs is not None:
        from tinytf.cause.over_pairs import score_over

        require_only(("versus",), (Options, TextOptions), "--pairs")
        return texts.over.draw(score_over, model_options, output, fold, versus=options.versus)
    through = model_options.through_model(output)
    if through is not None:
        from tinytf.through.reading import score_through

        require_only(("limit",), (Options,))

        def score_each(some: "Sequence[Written]") -> "Iterator[Score]":
            return (score_through(through, text, truncate=texts.truncate, limit=options.limit) for text in some)

        return texts.answer(score_each, output, "scores", ScoreDisplay(fold.all), of=through.transformer)
    model = texts.facing(model_options.open(two_stacks=True), output)

    def score_together(some: "Sequence[Written]") -> "list[Score]":
        return model.score(
            list(some), truncate=texts.truncate, int8=options.quantize is not None, limit=options.limit
        )  # fmt: skip

    return texts.answer(score_together, output, "scores", ScoreDisplay(fold.all), of=model.transformer)
