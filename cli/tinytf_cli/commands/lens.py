"""``tinytf lens``: what the model would predict after each layer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tinytf_cli.command import command, option
from tinytf_cli.host import given
from tinytf_cli.options import FoldOptions, TraceOptions

if TYPE_CHECKING:
    from tinytf.look.lens import Lens
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    position: str | None = option(
        metavar="LIST", help="Read these positions only: 2, 0-3,7, -1, a token of the text, or all.  "
        "[default: all; in an encoder [MASK]]",
    )  # fmt: skip
    top: int = option(type=click.IntRange(1), shown=5, help="Tokens shown per position.")
    track: tuple[str, ...] = option(
        multiple=True, metavar="TOKEN", help="Track the rank and probability of this word or #ID. Repeatable."
    )
    sublayers: bool = option(is_flag=True, help="Read the stream after each attention too.")


@command("lens")
def lens(options: Options, extent: FoldOptions, on: TraceOptions) -> int:
    """The residual stream of TEXT goes through the model's own final norm and head, so the last row is the model's own
    output, to the last bit.
    """
    from tinytf.look.lens import require_readable
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.lens import LensDisplay

    require_readable(on.model.transformer)

    def question(trace: "Trace") -> "Lens":
        with progress_line(on.output.stderr, "lens: layer") as on_progress:
            return on.model.lens(
                trace, position=options.position, top=options.top, track=options.track, sublayers=options.sublayers,
                on_progress=on_progress, force=on.force,
            )  # fmt: skip

    return on.show(question, "lenses", LensDisplay(options.position is not None, given("top"), extent.all))
