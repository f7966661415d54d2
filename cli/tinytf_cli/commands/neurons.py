"""``tinytf neurons``: feed-forward units, what they promote, and where they are active."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf.errors import AddressError, UsageError
from tinytf_cli.options import model_options, output_options, recording_options, text_options
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.training.corpus import Corpus


@click.command("neurons")
@text_options
@model_options
@recording_options
@click.option("--layer", type=int, help="Units of this layer only.")
@click.option("--top", type=click.IntRange(1), default=3, show_default=True, help="Units shown of each token.")
@click.option(
    "--by",
    type=click.Choice(["activation", "contribution"]),
    default="activation",
    show_default=True,
    help="Their order: by activation, or by what they add to the logit of the predicted token.",
)
@click.option("--unit", "units", multiple=True, metavar="UNIT", help="Show this unit alone, such as L3.17. Repeatable.")
@click.option(
    "--tokens", type=click.IntRange(1), default=5, show_default=True, help="Tokens read at either end of a direction."
)
@click.option(
    "--top-examples",
    "corpus",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="CORPUS",
    help="Find where in these text files or folders, or in - (a pipe), the units are most active. Repeatable.",
)
@click.option(
    "--examples", type=click.IntRange(1, 1000), default=5, show_default=True, help="Places kept of each unit."
)
@click.option("--window", type=click.IntRange(1), help="Tokens of the corpus in one pass.  [default: 128 at most]")
@click.option("--rows", type=click.IntRange(0), help="Tokens shown in a table (0: all; on a screen 16).")
@output_options
def command(
    texts: list[str],
    lines: bool,
    truncate: bool,
    open_model: Callable[[], "Model"],
    force: bool,
    layer: int | None,
    top: int,
    by: str,
    units: tuple[str, ...],
    tokens: int,
    corpus: tuple[Path, ...],
    examples: int,
    window: int | None,
    rows: int | None,
    output: Output,
) -> None:
    """Show which feed-forward units are active at each token of TEXT, and which tokens they promote.

    A unit is a column of ffn.act: L3.17 is unit 17 of layer 3. Its row of W₂ is read through the unembedding.
    """
    from tinytf.analysis.neurons import parse_unit
    from tinytf_cli.counted import counted
    from tinytf_cli.several import show_views
    from tinytf_cli.views.neurons import NeuronChoice, NeuronsView

    if units and layer is not None:
        raise UsageError("--unit names its layer, and --layer another one", "leave one of them out")
    model = open_model()
    chosen = [parse_unit(unit, model.config) for unit in units]
    if layer is not None and not 0 <= layer < model.config.n_layers:
        raise AddressError(
            f"there is no layer {layer}: the model has {model.config.n_layers}, counted from 0",
            "tinytf info shows what a model has",
        )
    layers = sorted({unit.layer for unit in chosen}) if chosen else None if layer is None else [layer]
    files = _files(corpus) if corpus else None

    def view_of(text: str) -> NeuronsView:
        trace = model.trace(text, truncate=truncate, layers=layers, force=force)
        found = model.neurons(trace, top=top, by=by, units=units, tokens=tokens)
        if files is not None:
            names = [str(unit) for unit in found.units]
            with counted(output.stderr, "reading the corpus: character") as on_progress:
                places = model.top_examples(files, names, top=examples, window=window, on_progress=on_progress)
            found = replace(found, examples=replace(places, corpus=", ".join(_said(path) for path in corpus)))
        return NeuronsView(model, trace, found, NeuronChoice(bool(chosen), rows))

    show_views(output, map(view_of, texts), "neurons", lines)


def _said(path: Path) -> str:
    return "standard input" if path == Path("-") else str(path)


def _files(paths: tuple[Path, ...]) -> "Corpus":
    """The corpus that these name; ``-`` is what comes through a pipe, which holds one thing."""
    from tinytf.training.corpus import find_files
    from tinytf_cli.inputs import read_texts

    if Path("-") not in paths:
        return find_files(paths)
    if len(paths) > 1:
        raise UsageError("- is the whole corpus, and there is another one", "leave one of them out")
    if click.get_current_context().params["words"] in ((), ("-",)):
        raise UsageError("a pipe holds one text, and both TEXT and the corpus are -", "give TEXT in quotes")
    return find_files(read_texts(("-",), lines=False)[0])
