"""``tinytf lens``: what the model would say after each layer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tinytf_cli.options import model_options, output_options, recording_options, text_options
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.loading import Model


@click.command("lens")
@text_options
@model_options
@recording_options
@click.option(
    "--position",
    metavar="LIST",
    help="Read these positions only: 2, 0-3,7, -1, a token of the text, or all. Default: all; of an encoder [MASK].",
)
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Tokens shown of each position.")
@click.option(
    "--track",
    multiple=True,
    metavar="TOKEN",
    help="Follow the rank and probability of this word, or of #ID. Repeatable.",
)
@click.option("--sublayers", is_flag=True, help="Read the stream behind each attention too.")
@output_options
def command(
    texts: list[str],
    lines: bool,
    truncate: bool,
    force: bool,
    open_model: Callable[[], "Model"],
    position: str | None,
    top: int,
    track: tuple[str, ...],
    sublayers: bool,
    output: Output,
) -> int:
    """Read the residual stream of TEXT after each layer, through the model's own final norm and head.

    The last row is the model's own output, to the last bit.
    """
    from tinytf.analysis.lens import require_readable
    from tinytf_cli.counted import counted
    from tinytf_cli.several import show_views
    from tinytf_cli.views.lens import LensView

    model = open_model()
    require_readable(model.transformer)

    def view_of(text: str) -> LensView:
        trace = model.trace(text, truncate=truncate, force=force)
        with counted(output.stderr, "lens: layer") as on_progress:
            found = model.lens(
                trace,
                position=position,
                top=top,
                track=track,
                sublayers=sublayers,
                on_progress=on_progress,
                force=force,
            )
        return LensView(model, trace, found, asked=position is not None)

    return show_views(output, map(view_of, texts), "lenses", lines)
