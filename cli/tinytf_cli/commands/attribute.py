"""``tinytf attribute``: what each part of the model adds to one logit."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tinytf_cli.command import command, option
from tinytf_cli.options import FoldOptions, TraceOptions

if TYPE_CHECKING:
    from tinytf.look.attribution import Attribution
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    token: str | None = option(metavar="TOKEN", help="Whose logit: a word or #ID.  [default: the predicted token]")
    versus: str | None = option(metavar="TOKEN", help="Take apart the lead over this token instead.")
    position: str | None = option(
        metavar="WHERE", help="Where it is predicted: a number, -1, or a token.  [default: the last, or [MASK]]"
    )
    top: int = option(type=click.IntRange(1), shown=15, help="Parts shown; the rest is summed.")


@command("attribute")
def attribute(options: Options, extent: FoldOptions, on: TraceOptions) -> int:
    """The logit is that of the predicted token of TEXT. With the scale of the norms held at its value, the parts sum to
    it, which is checked.
    """
    from tinytf.look.attribution import require_logits
    from tinytf_cli.views.attribute import AttributionDisplay

    model = on.model
    require_logits(model.transformer)

    def question(trace: "Trace") -> "Attribution":
        return model.attribute(trace, token=options.token, versus=options.versus, position=options.position)

    return on.show(question, "attributions", AttributionDisplay(options.top, extent.all))
