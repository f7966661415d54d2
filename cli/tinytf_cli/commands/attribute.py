"""``tinytf attribute``: what each part of the model adds to one logit."""

from dataclasses import dataclass

import click

from tinytf_cli.options import Opening, Texts, asks, option, output_options, traced_texts
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    token: str | None = option(metavar="TOKEN", help="Whose logit: a word, or #ID. Default: the predicted one.")
    versus: str | None = option(metavar="TOKEN", help="Take the lead over this token apart instead.")
    position: str | None = option(
        metavar="WHERE",
        help="Where it is predicted: a number, -1, or a token of the text. Default: the last, or [MASK].",
    )  # fmt: skip
    top: int = option(type=click.IntRange(1), shown=15, help="Parts shown; the rest is summed.")


@click.command("attribute")
@traced_texts
@asks(Asked)
@output_options
def command(texts: Texts, opening: Opening, force: bool, asked: Asked, output: Output) -> int:
    """Show what every head, feed-forward and bias adds to the logit of the predicted token of TEXT, and prove it.

    The scale of the norms is held at what it was; then the parts sum to the logit.
    """
    from tinytf.analysis.attribution import require_logits
    from tinytf_cli.joining import show_views
    from tinytf_cli.views.attribute import AttributionView

    model = opening.open()
    require_logits(model.transformer)

    def view_of(text: str) -> AttributionView:
        trace = model.trace(text, truncate=texts.truncate, force=force)
        found = model.attribute(trace, token=asked.token, versus=asked.versus, position=asked.position)
        return AttributionView(model, trace, found, asked.top)

    return show_views(output, map(view_of, texts), "attributions", texts.lines)
