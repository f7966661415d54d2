"""``tinytf ablate``: the prediction without some parts of the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.host import given
from tinytf_cli.options import FoldOptions, ResumeOptions, TraceOptions

if TYPE_CHECKING:
    from tinytf.cause.compare_without import LeftOut
    from tinytf.cause.interventions import Ablation, AblationSweep
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS",
        help="Ablate this: L3H5, L3E5, L2.attn, L2.ffn, or L2 for both. Repeatable: all of them together.",
    )  # fmt: skip
    sweep: str | None = option(
        type=click.Choice(["heads", "experts", "ffn", "layers"]), help="Ablate each alone; draws a map."
    )
    without: tuple[str, ...] = option(
        multiple=True, type=click.Choice(list(LEFT_OUT)),
        help="Leave this part of attention out of every layer, and compare the runs. Repeatable.",
    )  # fmt: skip
    head: str | None = option(
        metavar="L3H5", help="With --without: the head whose maps are shown.  [default: the one that moves most]"
    )
    how: str = option(
        type=click.Choice(["zero", "mean", "resample"]), shown="zero",
        help="What replaces it: zeros, its mean over texts, or its values in another text.",
    )  # fmt: skip
    reference: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="Texts for mean and resample, separated by blank lines.  [default: the model's own]",
    )  # fmt: skip
    target: str | None = option(
        metavar="TOKEN", help="Token whose probability is followed: a word or #ID.  [default: the predicted token]"
    )
    top: int | None = option(type=click.IntRange(1), help="Tokens shown, or rows of a sweep.  [default: 5, or 8]")


@command("ablate")
def ablate(options: Options, keeping: ResumeOptions, extent: FoldOptions, on: TraceOptions) -> int:
    """Name what to ablate with --at, --sweep or --without. The prediction is the one after TEXT; in an encoder, that
    of the first [MASK]. Ctrl-C shows what a sweep has measured so far.
    """
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.ablate import AblationSweepDisplay

    kinds = {"--at": options.addresses, "--sweep": options.sweep, "--without": options.without}
    named = [name for name, value in kinds.items() if value]
    if len(named) != 1:
        message = f"{named[0]} and {named[1]} ask for two things at once" if named else "nothing is named to ablate"
        raise UsageError(message, "name a head as --at L0H1, or ask for the map of all by --sweep heads")
    if options.head is not None and not options.without:
        raise UsageError("--head shows a head beside --without", "name what to ablate as --at L0H1")
    if options.reference is not None and options.how == "zero":
        raise UsageError("--reference goes with --how mean or resample; zeros need no texts", "add --how mean")
    resume = keeping.place("--sweep" if options.sweep is None else "")
    model = on.model
    if options.without:
        if given("how", "target"):
            raise UsageError("--without compares two whole predictions", "leave out --how and --target")

        def compared(trace: "Trace") -> "LeftOut":
            return model.compare_without(trace, options.without, head=options.head, top=options.top or 4)

        return on.show(compared, "ablations")
    target = model.optional_outcome(options.target, "--target")
    settings: dict[str, Any] = {"target": target, "how": options.how, "seed": on.opening.seed}
    if options.how != "zero":
        settings["reference"] = model.reference(options.reference)

    def question(trace: "Trace") -> "Ablation | AblationSweep":
        what = "texts and ablations:" if options.sweep else "texts of the mean:"
        with progress_line(on.output.stderr, what) as on_progress:
            if options.sweep is not None:
                return model.ablation_sweep(trace, options.sweep, resume=resume, on_progress=on_progress, **settings)
            return model.ablate(trace, options.addresses, top=options.top or 5, on_progress=on_progress, **settings)

    return on.show(question, "ablations", AblationSweepDisplay(options.top or 8, extent.all) if options.sweep else None)
