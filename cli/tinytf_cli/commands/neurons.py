"""``tinytf neurons``: feed-forward units, what they promote, and where they are active."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf.errors import AddressError, UsageError
from tinytf_cli.inputs import read_texts
from tinytf_cli.options import Opening, Texts, asks, option, output_options, traced_texts
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.training.corpus import Corpus


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    layer: int | None = option(type=int, help="Units of this layer only.")
    top: int = option(type=click.IntRange(1), shown=3, help="Units shown of each token.")
    by: str = option(
        type=click.Choice(["activation", "contribution"]), shown="activation",
        help="Their order: by activation, or by what they add to the logit of the predicted token.",
    )  # fmt: skip
    units: tuple[str, ...] = option(
        "--unit", multiple=True, metavar="UNIT", help="Show this unit alone, such as L3.17. Repeatable."
    )
    tokens: int = option(type=click.IntRange(1), shown=5, help="Tokens read at either end of a direction.")
    corpus: tuple[Path, ...] = option(
        "--top-examples", multiple=True, type=click.Path(path_type=Path), metavar="CORPUS",
        help="Find where in these text files or folders, or in - (a pipe), the units are most active. Repeatable.",
    )  # fmt: skip
    examples: int = option(type=click.IntRange(1, 1000), shown=5, help="Places kept of each unit.")
    window: int | None = option(
        type=click.IntRange(1), help="Tokens of the corpus in one pass.  [default: 128 at most]"
    )
    rows: int | None = option(type=click.IntRange(0), help="Tokens shown in a table (0: all; on a screen 16).")


@click.command("neurons")
@traced_texts
@asks(Asked)
@output_options
def command(texts: Texts, opening: Opening, force: bool, asked: Asked, output: Output) -> None:
    """Show which feed-forward units are active at each token of TEXT, and which tokens they promote.

    A unit is a column of ffn.act: L3.17 is unit 17 of layer 3. Its row of W₂ is read through the unembedding.
    """
    from tinytf.analysis.neurons import parse_unit
    from tinytf_cli.joining import show_views
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.neurons import NeuronChoice, NeuronsView

    if asked.units and asked.layer is not None:
        raise UsageError("--unit names its layer, and --layer another one", "leave one of them out")
    model = opening.open()
    chosen = [parse_unit(unit, model.config) for unit in asked.units]
    if asked.layer is not None and not 0 <= asked.layer < model.config.n_layers:
        raise AddressError(
            f"there is no layer {asked.layer}: the model has {model.config.n_layers}, counted from 0",
            "tinytf info shows what a model has",
        )
    layers = sorted({unit.layer for unit in chosen}) if chosen else None if asked.layer is None else [asked.layer]
    files = _files(asked.corpus) if asked.corpus else None

    def view_of(text: str) -> NeuronsView:
        trace = model.trace(text, truncate=texts.truncate, layers=layers, force=force)
        found = model.neurons(trace, top=asked.top, by=asked.by, units=asked.units, tokens=asked.tokens)
        if files is not None:
            names = [str(unit) for unit in found.units]
            with progress_line(output.stderr, "reading the corpus: character") as on_progress:
                places = model.top_examples(
                    files, names, top=asked.examples, window=asked.window, on_progress=on_progress
                )
            said = ", ".join(_said(path) for path in asked.corpus)
            found = replace(found, examples=replace(places, corpus=said))
        return NeuronsView(model, trace, found, NeuronChoice(bool(chosen), asked.rows))

    show_views(output, map(view_of, texts), "neurons", texts.lines)


def _said(path: Path) -> str:
    return "standard input" if path == Path("-") else str(path)


def _files(paths: tuple[Path, ...]) -> "Corpus":
    """The corpus that these name; ``-`` is what comes through a pipe, which holds one thing."""
    from tinytf.training.corpus import find_files

    if Path("-") not in paths:
        return find_files(paths)
    if len(paths) > 1:
        raise UsageError("- is the whole corpus, and there is another one", "leave one of them out")
    if click.get_current_context().params["words"] in ((), ("-",)):
        raise UsageError("a pipe holds one text, and both TEXT and the corpus are -", "give TEXT in quotes")
    return find_files(read_texts(("-",), lines=False)[0])
