"""``tinytf attribute``: what each part of the model adds to one logit."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tinytf_cli.command import command, option
from tinytf_cli.host import is_typed
from tinytf_cli.options import FoldOptions, require_only
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import VERSUS_PAIRS, TextOptions, TraceOrPairsOptions, metric_option

if TYPE_CHECKING:
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
    top: int = option(type=Whole(1), shown=15, help="Parts shown; the rest are summed. Of two stacks: 6 of each list.")


@command("attribute")
def attribute(options: Options, fold: FoldOptions, tracing: TraceOrPairsOptions) -> int:
    """By default, explains the logit of the token predicted after TEXT. With the scale of each norm held fixed, the
    parts sum to the logit, which is checked. What a decoder reads of an encoder is split over the source's tokens, and
    over the encoder's parts. Of another --metric they are its first order. With --pairs, explains the mean lead of each
    answer over versus.
    """
    from tinytf.look.attribute import require_logits
    from tinytf_cli.views.attribute import AttributionDisplay

    top = options.top if is_typed("top") else None
    if (over := tracing.texts.over).pairs is not None:
        from tinytf.cause.over_pairs import attribute_over

        require_only(("top", "versus", "metric", "token"), (Options, TextOptions), "--pairs")
        versus = None if options.versus is None else Path(options.versus)
        return over.draw(
            attribute_over,
            tracing.model_options,
            tracing.output,
            fold,
            top,
            versus,
            **over.followed(options.metric, options.token, "--token"),
        )
    model = tracing.model
    require_logits(model.transformer)

    def question(trace: "Trace") -> "Attribution":
        return model.attribute(
            trace, token=options.token, versus=options.versus, metric=options.metric, position=options.position
        )

    return tracing.show(question, "attributions", AttributionDisplay(top, fold.all))
