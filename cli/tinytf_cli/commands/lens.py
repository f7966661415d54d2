"""``tinytf lens``: what the model would say after each layer."""

from dataclasses import dataclass

import click

from tinytf_cli.options import Opening, Texts, asks, option, output_options, traced_texts
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    position: str | None = option(
        metavar="LIST", help="Read these positions only: 2, 0-3,7, -1, a token of the text, or all. "
        "Default: all; of an encoder [MASK].",
    )  # fmt: skip
    top: int = option(type=click.IntRange(1), shown=5, help="Tokens shown of each position.")
    track: tuple[str, ...] = option(
        multiple=True, metavar="TOKEN", help="Follow the rank and probability of this word, or of #ID. Repeatable."
    )
    sublayers: bool = option(is_flag=True, help="Read the stream behind each attention too.")


@click.command("lens")
@traced_texts
@asks(Asked)
@output_options
def command(texts: Texts, opening: Opening, force: bool, asked: Asked, output: Output) -> int:
    """Read the residual stream of TEXT after each layer, through the model's own final norm and head.

    The last row is the model's own output, to the last bit.
    """
    from tinytf.analysis.lens import require_readable
    from tinytf_cli.joining import show_views
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.lens import LensView

    model = opening.open()
    require_readable(model.transformer)

    def view_of(text: str) -> LensView:
        trace = model.trace(text, truncate=texts.truncate, force=force)
        with progress_line(output.stderr, "lens: layer") as on_progress:
            found = model.lens(
                trace,
                position=asked.position,
                top=asked.top,
                track=asked.track,
                sublayers=asked.sublayers,
                on_progress=on_progress,
                force=force,
            )
        return LensView(model, trace, found, asked=asked.position is not None)

    return show_views(output, map(view_of, texts), "lenses", texts.lines)
