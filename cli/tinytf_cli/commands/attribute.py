"""``tinytf attribute``: what each part of the model adds to one logit."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.options import FoldOptions, complete_address, require_only
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import VERSUS_PAIRS, TextOptions, TraceOrPairsOptions, metric_option

if TYPE_CHECKING:
    from tinytf.features.attribute_score import AttributeScore
    from tinytf.look.attribute import Attribution
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    token: str | None = option(
        metavar="TOKEN", help="Explain the logit of this token: a word or #ID.  [default: the predicted token]"
    )
    versus: str | None = option(
        metavar="TOKEN", help=f"Explain its lead over this token instead. With --pairs: {VERSUS_PAIRS}."
    )
    metric: str | None = metric_option("logit, or with --versus logit_diff")
    position: str | None = option(
        metavar="WHERE", help="Position that predicts it: a number, -1, or a token.  [default: the last, or [MASK]]"
    )
    at: str | None = option(
        metavar="CELL",
        shell_complete=complete_address,
        help="Split this attention score, such as 'L1H0.scores[4,2]', into pairs of parts of query and key.",
    )
    features: Path | None = option(
        type=click.Path(path_type=Path), metavar="PATH",
        help="With --at: a sparse autoencoder or transcoders, whose features are parts.",
    )  # fmt: skip
    top: int | None = option(
        type=Whole(1),
        help="Parts shown; the rest are summed.  [default: 15, of two stacks 6 of each list, or 10 pairs]",
    )


@command("attribute")
def attribute(options: Options, fold: FoldOptions, tracing: TraceOrPairsOptions) -> int:
    """By default, explains the logit of the token predicted after TEXT. With the scale of each norm held fixed, the
    parts sum to the logit, which is checked. What a decoder reads of an encoder is split over the source's tokens, and
    over the encoder's parts. Of another --metric they are its first order. With --pairs, explains the mean lead of each
    answer over versus. With --at, splits an attention score instead.
    """
    from tinytf.look.attribute import require_logits
    from tinytf_cli.views.attribute import AttributionDisplay

    if (over := tracing.texts.over).pairs is not None:
        from tinytf.cause.over_pairs import attribute_over

        require_only(("top", "versus", "metric", "token"), (Options, TextOptions), "--pairs")
        versus = None if options.versus is None else Path(options.versus)
        return over.draw(
            attribute_over,
            tracing.model_options,
            tracing.output,
            fold,
            options.top,
            versus,
            **over.followed(options.metric, options.token, "--token"),
        )
    model = tracing.model
    if options.at is not None:
        return _score(options, options.at, fold, tracing)
    if options.features is not None:
        raise UsageError("--features goes with --at", "such as: --at 'L1H0.scores[4,2]'")
    require_logits(model.transformer)

    def question(trace: "Trace") -> "Attribution":
        return model.attribute(
            trace, token=options.token, versus=options.versus, metric=options.metric, position=options.position
        )

    return tracing.show(question, "attributions", AttributionDisplay(options.top, fold.all))


def _score(options: Options, at: str, fold: FoldOptions, tracing: TraceOrPairsOptions) -> int:
    from tinytf_cli.views.attribute_score import AttributeScoreDisplay

    require_only(("at", "features", "top"), (Options,), "--at")

    def question(trace: "Trace") -> "AttributeScore":
        return tracing.model.attribute_score(trace, at, features=options.features)

    return tracing.show(question, "attribute_scores", AttributeScoreDisplay(options.top or 10, fold.all))
