"""``tinytf lens``: what the model would predict after each layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tinytf_cli.command import command, option
from tinytf_cli.host import is_typed
from tinytf_cli.options import FoldOptions, TraceOptions, require_only

if TYPE_CHECKING:
    from tinytf.look.lens import Lens
    from tinytf.text.chat import Written
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
    sublayers: bool = option(is_flag=True, help="Also read the stream after each attention.")


@command("lens")
def lens(options: Options, fold: FoldOptions, tracing: TraceOptions) -> int:
    """Passes the residual stream after each layer through the model's own final norm and head. The last row therefore
    equals the model's output, to the last bit.
    """
    from tinytf.look.lens import require_readable
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.lens import LensDisplay

    display = LensDisplay(options.position is not None, is_typed("top"), fold.all)
    through = tracing.model_options.through_model(tracing.output)
    if through is not None:
        from tinytf.through.reading import lens_through

        require_only(("position", "top", "track"), (Options,))
        chosen: dict[str, Any] = {"position": options.position, "top": options.top, "track": options.track}
        truncate = tracing.texts.truncate

        def read_each(texts: "Sequence[Written]") -> "Iterator[Lens]":
            return (lens_through(through, text, truncate=truncate, **chosen) for text in texts)

        return tracing.texts.answer(read_each, tracing.output, "lenses", display, of=through.transformer)
    require_readable(tracing.model.transformer)

    def question(trace: "Trace") -> "Lens":
        with progress_line(tracing.output.stderr, "lens: layer") as on_progress:
            return tracing.model.lens(
                trace, position=options.position, top=options.top, track=options.track, sublayers=options.sublayers,
                on_progress=on_progress, force=tracing.force,
            )  # fmt: skip

    return tracing.show(question, "lenses", display)
