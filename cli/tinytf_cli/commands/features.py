"""``tinytf features``: what a sparse autoencoder or transcoder finds in a text, and the prediction without it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.options import FoldOptions, complete_address
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import TraceOptions, UnitOptions

if TYPE_CHECKING:
    from tinytf.features.coder import SparseCoder
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
    versus: str | None = option(
        metavar="MODEL", help="With a crosscoder of train-sae --versus: the model that it was trained beside."
    )
    top: int = option(type=Whole(1), shown=3, help="Features shown per token.")
    chosen: tuple[int, ...] = option(
        "--feature", multiple=True, type=Whole(0), metavar="N", help="Show only this feature. Repeatable."
    )
    ablate: tuple[int, ...] = option(
        multiple=True, type=Whole(0), metavar="N", help="Predict with this feature at 0. Repeatable."
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


@command("features")
def features(options: Options, unit_options: UnitOptions, fold: FoldOptions, tracing: TraceOptions) -> int:
    """Shows the most active features at each token of TEXT, the tokens that they promote, and how much of the step and
    of the predictions the reconstruction keeps. --ablate and --add change the prediction by features alone: the part
    of the step that is not reconstructed stays as it is. With --versus, DIR is the file of a crosscoder.
    """
    from tinytf.features.layouts import open_sae
    from tinytf_cli.views.features import FeaturesDisplay

    added = dict(options.add)
    if len(added) < len(options.add):
        raise UsageError("--add names a feature twice", "add up the activations")
    coder_of = _beside(options, tracing) if options.versus is not None else None
    opened, model = None if coder_of else open_sae(options.sae), tracing.model
    if coder_of and unit_options.corpus:
        raise UsageError("--top-examples goes with one model, and a crosscoder is of two", "leave it out")
    corpus = unit_options.opened(tracing.texts, tracing.model)

    def question(trace: "Trace") -> "Features":
        coder = coder_of(trace) if coder_of else opened
        assert coder is not None
        report = model.features(
            trace, coder, at=options.at, into=options.into, top=options.top, chosen=options.chosen,
            tokens=unit_options.tokens, ablate=options.ablate, add=added, target=options.target,
        )  # fmt: skip
        find = partial(model.feature_examples, sae=coder, features=report.shown_features, at=options.at)
        return unit_options.with_examples(report, corpus, find, tracing.output)

    return tracing.show(question, "features", FeaturesDisplay(fold.rows(unit_options.rows)))


def _beside(options: Options, tracing: TraceOptions) -> "Callable[[Trace], SparseCoder]":
    """The crosscoder as a coder of each traced text, beside the model of --versus."""
    from tinytf.compare.alignment import same_vocabulary
    from tinytf.features.crosscoder import open_crosscoder
    from tinytf.loading import load

    assert options.versus is not None
    if options.into is not None:
        raise UsageError("a crosscoder writes the step that it reads, so it takes no --into", "leave it out")
    crosscoder, opening = open_crosscoder(options.sae), tracing.model_options
    other = load(options.versus, device=opening.device, dtype=opening.dtype, seed=opening.seed)
    if not same_vocabulary(tracing.model.tokenizer, other.tokenizer):
        raise UsageError(
            f"{tracing.model.name} and {other.name} cut texts into other tokens", "take the models of its training"
        )
    return lambda trace: crosscoder.beside(other, trace, at=options.at)
