"""``tinytf attribute``: what each part of the model adds to one logit."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tinytf_cli.options import model_options, output_options, recording_options, text_options
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.loading import Model


@click.command("attribute")
@text_options
@model_options
@recording_options
@click.option("--token", metavar="TOKEN", help="Whose logit: a word, or #ID. Default: the predicted one.")
@click.option("--versus", metavar="TOKEN", help="Take the lead over this token apart instead.")
@click.option(
    "--position",
    metavar="WHERE",
    help="Where it is predicted: a number, -1, or a token of the text. Default: the last, or [MASK].",
)
@click.option("--top", type=click.IntRange(1), default=15, show_default=True, help="Parts shown; the rest is summed.")
@output_options
def command(
    texts: list[str],
    lines: bool,
    truncate: bool,
    force: bool,
    open_model: Callable[[], "Model"],
    token: str | None,
    versus: str | None,
    position: str | None,
    top: int,
    output: Output,
) -> int:
    """Show what every head, feed-forward and bias adds to the logit of the predicted token of TEXT, and prove it.

    The scale of the norms is held at what it was; then the parts sum to the logit.
    """
    from tinytf.analysis.attribution import require_logits
    from tinytf_cli.several import show_views
    from tinytf_cli.views.attribute import AttributionView

    model = open_model()
    require_logits(model.transformer)

    def view_of(text: str) -> AttributionView:
        trace = model.trace(text, truncate=truncate, force=force)
        found = model.attribute(trace, token=token, versus=versus, position=position)
        return AttributionView(model, trace, found, top)

    return show_views(output, map(view_of, texts), "attributions", lines)
