"""``tinytf ablate``: what a prediction becomes without some parts of the model."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import UsageError
from tinytf_cli.options import model_options, output_options, recording_options, text_options
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.loading import Model


@click.command("ablate")
@text_options
@model_options
@recording_options
@click.option(
    "--at",
    "addresses",
    multiple=True,
    metavar="ADDRESS",
    help="What is ablated: L3H5, L2.attn, L2.ffn, L2 (both). Repeatable: all of them together.",
)
@click.option("--sweep", type=click.Choice(["heads", "ffn", "layers"]), help="Each of them alone, as a map.")
@click.option(
    "--how",
    type=click.Choice(["zero", "mean", "resample"]),
    default="zero",
    show_default=True,
    help="What is put in its place: nothing, its mean over texts, its values in another text.",
)
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Texts for mean and resample, an empty line between them; without it the model's own.",
)
@click.option(
    "--target", metavar="TOKEN", help="Whose probability is followed: a word, or #ID; else the predicted one."
)
@click.option("--top", type=click.IntRange(1), help="Tokens shown, 5 unless given; of a sweep the strongest, 8.")
@output_options
def command(
    texts: list[str],
    lines: bool,
    truncate: bool,
    force: bool,
    open_model: Callable[[], "Model"],
    addresses: tuple[str, ...],
    sweep: str | None,
    how: str,
    reference: Path | None,
    target: str | None,
    top: int | None,
    output: Output,
) -> int:
    """Show what the prediction after TEXT becomes without a head, a feed-forward or a layer.

    One of --at and --sweep says of what. In an encoder the prediction is that of the first [MASK].
    """
    from tinytf_cli.counted import counted
    from tinytf_cli.several import show_views
    from tinytf_cli.views.ablate import AblationSweepView, AblationView

    if bool(addresses) == (sweep is not None):
        said = "--at and --sweep ask for two things at once" if addresses else "nothing is named to ablate"
        raise UsageError(said, "name a head as --at L0H1, or ask for the map of all by --sweep heads")
    if reference is not None and how == "zero":
        raise UsageError("--reference is for means and other texts, and zeros take none", "add --how mean")
    model = open_model()
    seed = click.get_current_context().params["seed"]
    settings: dict[str, Any] = {"how": how, "seed": seed}
    if how != "zero":
        settings["reference"] = model.reference(reference)
    number = None if target is None else model.find_token(target, "--target")

    def view_of(text: str) -> AblationView | AblationSweepView:
        trace = model.trace(text, truncate=truncate, force=force)
        with counted(output.stderr, "texts and ablations:" if sweep else "texts of the mean:") as on_progress:
            if sweep is None:
                found = model.ablate(trace, addresses, target=number, top=top or 5, on_progress=on_progress, **settings)
                return AblationView(model, trace, found)
            over = model.ablation_sweep(trace, sweep, target=number, on_progress=on_progress, **settings)
            return AblationSweepView(model, trace, over, top or 8)

    return show_views(output, map(view_of, texts), "ablations", lines)
