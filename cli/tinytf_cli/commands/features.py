"""``tinytf features``: what a sparse autoencoder or transcoder finds in a text, and the prediction without it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.inputs import corpus_or_recorded
from tinytf_cli.options import FoldOptions, TraceOptions, complete_address

if TYPE_CHECKING:
    from tinytf.features.report import Features
    from tinytf.trace.trace import Trace


class Added(click.ParamType[tuple[int, float]]):
    """A feature and what is added to its activation, such as ``17*5``."""

    name = "feature"

    def convert(
        self, value: "str | tuple[int, float]", param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        number, _, amount = value.partition("*")
        try:
            added = int(number), float(amount)
        except ValueError:
            self.fail(f"{value!r} is not a feature and an activation, such as 17*5", param, ctx)
        if not abs(added[1]) < float("inf"):
            self.fail(f"{amount} is no activation", param, ctx)
        return added


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    sae: Path = option(
        type=click.Path(path_type=Path), metavar="DIR", required=True,
        help="The autoencoder or transcoder: a folder or file of SAELens, Gemma Scope, sparsify or tinytf train-sae.",
    )  # fmt: skip
    at: str | None = option(
        metavar="ADDRESS", shell_complete=complete_address,
        help="The step that it reads, such as L2.out.  [default: as its file says]",
    )  # fmt: skip
    into: str | None = option(
        metavar="ADDRESS", shell_complete=complete_address,
        help="The step that a transcoder writes, such as L2.ffn.  [default: as its file says]",
    )  # fmt: skip
    top: int = option(type=click.IntRange(1), shown=3, help="Features shown per token.")
    chosen: tuple[int, ...] = option(
        "--feature", multiple=True, type=click.IntRange(0), metavar="N", help="Show only this feature. Repeatable."
    )
    tokens: int = option(type=click.IntRange(1), shown=5, help="Tokens shown at either end of a direction.")
    ablate: tuple[int, ...] = option(
        multiple=True, type=click.IntRange(0), metavar="N", help="Predict with this feature at 0. Repeatable."
    )
    add: tuple[tuple[int, float], ...] = option(
        multiple=True,
        type=Added(),
        metavar="N*X",
        help="Predict with X added to the activation of feature N. Repeatable.",
    )
    target: str | None = option(
        metavar="TOKEN", help="Follow the probability of this token: a word or #ID.  [default: the predicted token]"
    )
    corpus: tuple[Path, ...] = option(
        "--top-examples", multiple=True, type=click.Path(path_type=Path), metavar="CORPUS",
        help="Find where the features are most active in these text files or folders, in - (a pipe), or in a folder of "
        "tinytf record. Repeatable.",
    )  # fmt: skip
    examples: int = option(type=click.IntRange(1, 1000), shown=5, help="Examples kept per feature.")
    window: int | None = option(type=click.IntRange(1), help="Corpus tokens in one pass.  [default: at most 128]")
    rows: int | None = option(
        type=click.IntRange(0), help="Tokens in a table; 0 for all.  [default: as many as suit a screen]"
    )


@command("features")
def features(options: Options, fold: FoldOptions, tracing: TraceOptions) -> int:
    """Shows the most active features at each token of TEXT, the tokens that they promote, and how much of the step and
    of the predictions the reconstruction keeps. --ablate and --add change the prediction by features alone: the part
    of the step that is not reconstructed stays as it is.
    """
    from tinytf.features.layouts import open_sae
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.features import FeaturesDisplay

    added = dict(options.add)
    if len(added) < len(options.add):
        raise UsageError("--add names a feature twice", "add up the activations")
    coder, model = open_sae(options.sae), tracing.model
    files = corpus_or_recorded(options.corpus, tracing.texts.words) if options.corpus else None

    def question(trace: "Trace") -> "Features":
        report = model.features(
            trace, coder, at=options.at, into=options.into, top=options.top, chosen=options.chosen,
            tokens=options.tokens, ablate=options.ablate, add=added, target=options.target,
        )  # fmt: skip
        if files is None:
            return report
        with progress_line(tracing.output.stderr, "reading the corpus:") as on_progress:
            examples = model.feature_examples(
                files, coder, report.shown_features, at=options.at, top=options.examples, window=options.window,
                on_progress=on_progress,
            )  # fmt: skip
        corpus = ", ".join("standard input" if path == Path("-") else str(path) for path in options.corpus)
        return replace(report, examples=replace(examples, corpus=corpus))

    return tracing.show(question, "features", FeaturesDisplay(fold.rows(options.rows)))
