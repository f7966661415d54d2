"""``tinytf experts``: which experts each token goes to, and how evenly they are loaded."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf_cli.command import command, option
from tinytf_cli.inputs import corpus_files, read_by
from tinytf_cli.options import FoldOptions
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import TraceOptions

if TYPE_CHECKING:
    from tinytf.look.experts import Experts
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    layer: str | None = option(metavar="N", help="Show only this layer, with the weight of every expert.")
    corpus: tuple[Path, ...] = option(
        "--corpus", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
        help="Also show the load over these text files or folders, or over - (a pipe). Repeatable.",
    )  # fmt: skip
    window: int | None = option(type=Whole(1), help="Corpus tokens in one pass.  [default: at most 128]")
    rows: int | None = option(type=Whole(0), help="Tokens in a table; 0 for all.  [default: as many as suit a screen]")


@command("experts")
def experts(options: Options, fold: FoldOptions, tracing: TraceOptions) -> int:
    """In a mixture of experts, a router sends each token to a few feed-forwards. Shows them for each token and layer,
    by falling weight, and how many tokens each expert gets. L3E5 is expert 5 of layer 3.
    """
    from tinytf.trace.address import parse_single_number
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.experts import ExpertsDisplay

    model = tracing.model
    layer = None if options.layer is None else parse_single_number(options.layer, model.config.n_layers, "layer")
    files = corpus_files(options.corpus, tracing.texts.words, read_by(tracing.model)) if options.corpus else None

    def question(trace: "Trace") -> "Experts":
        report = model.experts(trace, layer=layer)
        if files is None:
            return report
        with progress_line(tracing.output.stderr, "reading the corpus: character") as on_progress:
            loads = model.expert_load(files, layer=layer, window=options.window, on_progress=on_progress)
        name = ", ".join("standard input" if path == Path("-") else str(path) for path in options.corpus)
        return replace(report, corpus=loads, corpus_name=name)

    return tracing.show(question, "routes", ExpertsDisplay(fold.rows(options.rows), fold.all))
