"""``tinytf ablate``: what a prediction becomes without some parts of the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tinytf.errors import UsageError
from tinytf_cli.options import Opening, Texts, asks, option, output_options, traced_texts
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS",
        help="What is ablated: L3H5, L2.attn, L2.ffn, L2 (both). Repeatable: all of them together.",
    )  # fmt: skip
    sweep: str | None = option(type=click.Choice(["heads", "ffn", "layers"]), help="Each of them alone, as a map.")
    how: str = option(
        type=click.Choice(["zero", "mean", "resample"]), shown="zero",
        help="What is put in its place: nothing, its mean over texts, its values in another text.",
    )  # fmt: skip
    reference: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="Texts for mean and resample, an empty line between them; without it the model's own.",
    )  # fmt: skip
    target: str | None = option(
        metavar="TOKEN", help="Whose probability is followed: a word, or #ID; else the predicted one."
    )
    top: int | None = option(type=click.IntRange(1), help="Tokens shown, 5 unless given; of a sweep the strongest, 8.")


@click.command("ablate")
@traced_texts
@asks(Asked)
@output_options
def command(texts: Texts, opening: Opening, force: bool, asked: Asked, output: Output) -> int:
    """Show what the prediction after TEXT becomes without a head, a feed-forward or a layer.

    One of --at and --sweep says of what. In an encoder the prediction is that of the first [MASK].
    """
    from tinytf_cli.joining import show_views
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.ablate import AblationSweepView, AblationView

    if bool(asked.addresses) == (asked.sweep is not None):
        said = "--at and --sweep ask for two things at once" if asked.addresses else "nothing is named to ablate"
        raise UsageError(said, "name a head as --at L0H1, or ask for the map of all by --sweep heads")
    if asked.reference is not None and asked.how == "zero":
        raise UsageError("--reference is for means and other texts, and zeros take none", "add --how mean")
    model = opening.open()
    settings: dict[str, Any] = {"how": asked.how, "seed": opening.seed}
    if asked.how != "zero":
        settings["reference"] = model.reference(asked.reference)
    number = None if asked.target is None else model.find_token(asked.target, "--target")

    def view_of(text: str) -> AblationView | AblationSweepView:
        trace = model.trace(text, truncate=texts.truncate, force=force)
        with progress_line(
            output.stderr, "texts and ablations:" if asked.sweep else "texts of the mean:"
        ) as on_progress:
            if asked.sweep is None:
                found = model.ablate(
                    trace, asked.addresses, target=number, top=asked.top or 5, on_progress=on_progress, **settings
                )
                return AblationView(model, trace, found)
            over = model.ablation_sweep(trace, asked.sweep, target=number, on_progress=on_progress, **settings)
            return AblationSweepView(model, trace, over, asked.top or 8)

    return show_views(output, map(view_of, texts), "ablations", texts.lines)
