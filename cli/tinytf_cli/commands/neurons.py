"""``tinytf neurons``: feed-forward units, the tokens they promote, and where they are active."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.options import FoldOptions
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import TraceOptions, UnitOptions

if TYPE_CHECKING:
    from tinytf.look.neurons import Neurons
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    layer: str | None = option(metavar="N", help="Show units of this layer only; -1 is the last.")
    top: int = option(type=Whole(1), shown=3, help="Units shown per token.")
    by: str = option(
        type=click.Choice(["activation", "contribution"]), shown="activation",
        help="Sort by activation, or by what they add to the logit of the predicted token.",
    )  # fmt: skip
    units: tuple[str, ...] = option(
        "--unit", multiple=True, metavar="UNIT", help="Show only this unit, such as L3.17. Repeatable."
    )


@command("neurons")
def neurons(options: Options, unit_options: UnitOptions, fold: FoldOptions, tracing: TraceOptions) -> int:
    """Shows the most active units at each token of TEXT. A unit is a column of ffn.act: L3.17 is unit 17 of layer 3.
    The tokens it promotes come from its row of W₂, read through the unembedding.
    """
    from tinytf.look.neurons import parse_unit
    from tinytf.trace.address import parse_single_number
    from tinytf_cli.views.neurons import NeuronsDisplay

    if options.units and options.layer is not None:
        raise UsageError("--unit already names its layer, so it goes with no --layer", "leave one of them out")
    model = tracing.model
    layers = sorted({parse_unit(unit, model.config).layer for unit in options.units}) or None
    if options.layer is not None:
        layers = [parse_single_number(options.layer, model.config.n_layers, "layer")]
    corpus = unit_options.opened(tracing.texts, tracing.model)

    def question(trace: "Trace") -> "Neurons":
        report = model.neurons(trace, top=options.top, by=options.by, units=options.units, tokens=unit_options.tokens)
        find = partial(model.top_examples, units=[str(unit) for unit in report.units])
        return unit_options.with_examples(report, corpus, find, tracing.output)

    return tracing.show(question, "neurons", NeuronsDisplay(fold.rows(unit_options.rows)), layers)
