"""``tinytf ablate``: the prediction without some parts of the model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.host import is_typed
from tinytf_cli.options import ControlOptions, FoldOptions, ResumeOptions, require_only
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import VERSUS_PAIRS, TextOptions, TraceOrPairsOptions, metric_option

if TYPE_CHECKING:
    from tinytf.cause.interventions import Ablation, AblationSweep
    from tinytf.cause.repair import Repair
    from tinytf.cause.without import LeftOut
    from tinytf.text.chat import Written
    from tinytf.through.changed import Changed
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS",
        help="Ablate this: L3H5, L3H5.q, L3E5, L3.17 (a unit), L2.attn, L2.ffn, or L2 for both; or block the last "
        "token's attention to a word, 'L5-12.weights[-1,Paris]'. Repeatable, to ablate several together.",
    )  # fmt: skip
    sweep: str | None = option(
        type=click.Choice(["heads", "experts", "ffn", "layers"]), help="Ablate each one alone, and draw a map."
    )
    without: tuple[str, ...] = option(
        multiple=True, type=click.Choice(list(LEFT_OUT)),
        help="Leave this part of attention out of every layer, and compare the runs. Repeatable.",
    )  # fmt: skip
    head: str | None = option(
        metavar="L3H5", help="With --without: the head whose maps to show.  [default: the one that changes most]"
    )
    how: str = option(
        type=click.Choice(["zero", "mean", "resample"]), shown="zero",
        help="Replace it with zeros, its mean over texts, or its values in another text.",
    )  # fmt: skip
    reference: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="Texts for mean and resample, separated by blank lines.  [default: the model's own]",
    )  # fmt: skip
    metric: str | None = metric_option("log_prob")
    target: str | None = option(
        metavar="TOKEN",
        help="The token to follow: a word or #ID; with log_prob a text, with prob a list such as cat,dog or @FILE.  "
        "[default: the predicted token]",
    )
    repair: bool = option(
        is_flag=True,
        help="With --at: split the change of the logit: the direct effect, and what later parts put back.",
    )
    versus: str | None = option(
        metavar="TOKEN", help=f"Follow the target's lead over this token, in logits. With --pairs: {VERSUS_PAIRS}."
    )
    top: int | None = option(type=Whole(1), help="Tokens shown, or rows of a sweep or of --repair.  [default: 5, or 8]")


@command("ablate")
def ablate(options: Options, controls: ControlOptions, fold: FoldOptions, tracing: TraceOrPairsOptions) -> int:
    """Choose what to ablate with --at, --sweep or --without. The prediction is for the token after TEXT; in an encoder,
    for the first [MASK]; --metric says by what it is measured. Ctrl-C ends a sweep early and shows what it has
    measured. With --pairs, the lead of each answer over versus is followed, and --how resample takes the values of the
    corrupt text.
    """
    from tinytf.metric import Asked
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.ablate import SweepDisplay
    from tinytf_cli.views.repair import RepairDisplay

    modes = {"--at": options.addresses, "--sweep": options.sweep, "--without": options.without}
    chosen = [name for name, value in modes.items() if value]
    if len(chosen) != 1:
        message = f"{chosen[0]} and {chosen[1]} ask for two things at once" if chosen else "nothing is named to ablate"
        raise UsageError(message, "name a head, such as --at L0H1, or map all of them with --sweep heads")
    controls.require("--at, without --repair", bool(options.addresses) and not options.repair)
    if options.repair and not options.addresses:
        raise UsageError("--repair goes with --at", "name what to ablate, such as --at L0H1")
    if options.repair and options.metric is not None:
        raise UsageError("--repair splits a logit, and takes no --metric", "leave it out")
    if options.head is not None and not options.without:
        raise UsageError("--head goes with --without", "to ablate a head, use --at L0H1")
    if options.reference is not None and options.how == "zero":
        raise UsageError("--reference goes with --how mean or resample; zeros need no texts", "add --how mean")
    if (over := tracing.texts.over).pairs is not None:
        from tinytf.cause.over_pairs import ablate_over

        beside = ("addresses", "sweep", "how", "reference", "top", "resume", "metric", "target", "versus")
        require_only(beside, (Options, TextOptions), "--pairs")
        resume = ResumeOptions(tracing.texts.resume).checked_file("")
        return over.draw(
            ablate_over, tracing.model_options, tracing.output, fold, options.top,
            at=options.addresses, sweep=options.sweep, how=options.how, reference=options.reference, resume=resume,
            versus=None if options.versus is None else Path(options.versus),
            **controls.of_pairs(tracing.model_options.seed, options.versus),
            **over.followed(options.metric, options.target, "--target"),
        )  # fmt: skip
    through = tracing.model_options.through_model(tracing.output)
    if through is not None:
        from tinytf.through.changed import ablate_through

        require_only(("addresses", "top"), (Options,))
        tracing.texts.items  # noqa: B018 - report a missing text first
        top, truncate = options.top or 5, tracing.texts.truncate

        def ablate_each(texts: "Sequence[Written]") -> "Iterator[Changed]":
            return (ablate_through(through, text, options.addresses, top=top, truncate=truncate) for text in texts)

        return tracing.texts.answer(ablate_each, tracing.output, "ablations", of=through.transformer)
    resume = tracing.texts.measurements("--sweep" if options.sweep is None else "")
    model = tracing.model
    if options.without:
        if is_typed("how", "target", "metric", "versus"):
            raise UsageError(
                "--without compares two whole predictions", "leave out --how, --target, --versus and --metric"
            )

        def compared(trace: "Trace") -> "LeftOut":
            return model.compare_without(trace, options.without, head=options.head, top=options.top or 4)

        return tracing.show(compared, "ablations")
    settings: dict[str, Any] = {"how": options.how, "seed": tracing.model_options.seed}
    if options.repair:
        settings["target"] = model.optional_outcome(options.target, "--target")
        settings["versus"] = model.optional_outcome(options.versus, "--versus")
    else:
        default = "log_prob" if options.versus is None else "logit_diff"
        Asked.of(model, options.metric, options.target, options.versus, default=default, names=("--target", "--versus"))
        settings |= {"target": options.target, "versus": options.versus, "metric": options.metric}
    if options.how != "zero":
        settings["reference"] = model.reference(options.reference)

    def question(trace: "Trace") -> "Ablation | AblationSweep | Repair":
        unit = "texts and ablations:" if options.sweep else "texts of the mean:"
        with progress_line(tracing.output.stderr, unit) as on_progress:
            if options.sweep is not None:
                return model.ablate_sweep(trace, options.sweep, resume=resume, on_progress=on_progress, **settings)
            if options.repair:
                return model.repair(trace, options.addresses, on_progress=on_progress, **settings)
            top, number = options.top or 5, controls.controls
            return model.ablate(trace, options.addresses, top=top, controls=number, on_progress=on_progress, **settings)

    sweep_display = SweepDisplay(options.top or 8, fold.all) if options.sweep else None
    display = RepairDisplay(options.top or 8) if options.repair else sweep_display
    return tracing.show(question, "ablations", display, measures=options.sweep is not None)
