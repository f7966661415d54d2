"""``tinytf neurons``: feed-forward units, the tokens they promote, and where they are active."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.inputs import corpus_or_recorded
from tinytf_cli.options import FoldOptions, TraceOptions

if TYPE_CHECKING:
    from tinytf.look.neurons import Neurons
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    layer: str | None = option(metavar="N", help="Show units of this layer only; -1 is the last.")
    top: int = option(type=click.IntRange(1), shown=3, help="Units shown per token.")
    by: str = option(
        type=click.Choice(["activation", "contribution"]), shown="activation",
        help="Sort by activation, or by what they add to the logit of the predicted token.",
    )  # fmt: skip
    units: tuple[str, ...] = option(
        "--unit", multiple=True, metavar="UNIT", help="Show only this unit, such as L3.17. Repeatable."
    )
    tokens: int = option(type=click.IntRange(1), shown=5, help="Tokens shown at either end of a direction.")
    corpus: tuple[Path, ...] = option(
        "--top-examples", multiple=True, type=click.Path(path_type=Path), metavar="CORPUS",
        help="Find where the units are most active in these text files or folders, in - (a pipe), or in a folder of "
        "tinytf record. Repeatable.",
    )  # fmt: skip
    examples: int = option(type=click.IntRange(1, 1000), shown=5, help="Examples kept per unit.")
    window: int | None = option(type=click.IntRange(1), help="Corpus tokens in one pass.  [default: at most 128]")
    rows: int | None = option(
        type=click.IntRange(0), help="Tokens in a table; 0 for all.  [default: as many as suit a screen]"
    )


@command("neurons")
def neurons(options: Options, fold: FoldOptions, tracing: TraceOptions) -> int:
    """Shows the most active units at each token of TEXT. A unit is a column of ffn.act: L3.17 is unit 17 of layer 3.
    The tokens it promotes come from its row of W₂, read through the unembedding.
    """
    from tinytf.look.neurons import parse_unit
    from tinytf.trace.address import parse_single_number
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.neurons import NeuronsDisplay

    if options.units and options.layer is not None:
        raise UsageError("--unit already names its layer, so it goes with no --layer", "leave one of them out")
    model = tracing.model
    layers = sorted({parse_unit(unit, model.config).layer for unit in options.units}) or None
    if options.layer is not None:
        layers = [parse_single_number(options.layer, model.config.n_layers, "layer")]
    files = corpus_or_recorded(options.corpus, tracing.texts.words) if options.corpus else None

    def question(trace: "Trace") -> "Neurons":
        report = model.neurons(trace, top=options.top, by=options.by, units=options.units, tokens=options.tokens)
        if files is None:
            return report
        names = [str(unit) for unit in report.units]
        with progress_line(tracing.output.stderr, "reading the corpus:") as on_progress:
            examples = model.top_examples(
                files, names, top=options.examples, window=options.window, on_progress=on_progress
            )
        corpus = ", ".join("standard input" if path == Path("-") else str(path) for path in options.corpus)
        return replace(report, examples=replace(examples, corpus=corpus))

    return tracing.show(question, "neurons", NeuronsDisplay(fold.rows(options.rows)), layers)
