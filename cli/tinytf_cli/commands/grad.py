"""``tinytf grad``: the backward pass of a text."""

import math
from dataclasses import dataclass

import click

from tinytf_cli.options import (
    Detail,
    Opening,
    Texts,
    asks,
    block_options,
    fault_options,
    option,
    output_options,
    traced_texts,
)
from tinytf_cli.output import Output


def _require_finite(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no learning rate")
    return value


@dataclass(frozen=True)
class Loss:
    """What the loss is of."""

    target: str | None = option(metavar="TOKEN", help="What is to come after the text, or at [MASK]: a word, or #ID.")
    positions: str | None = option(metavar="LIST", help="Predict from these positions only, such as 2 or 0-3,7.")


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS",
        help="Show just the gradient at this address, such as L0H1.weights. Repeatable.",
    )  # fmt: skip
    derived: tuple[str, ...] = option(
        "--derive", multiple=True, metavar="ADDRESS",
        help="Write out how one row of a gradient comes about, such as L3.norm1 or 'L0H1.scores[sat]'. Repeatable.",
    )  # fmt: skip
    by: str = option(
        type=click.Choice(["parameter", "layer", "kind", "head"]), shown="kind",
        help="How the weights are grouped in their table.",
    )  # fmt: skip
    lr: float = option(
        type=click.FloatRange(0, min_open=True), shown=1e-3, callback=_require_finite, help="For the updates."
    )
    integrated: bool = option(is_flag=True, help="Attribute to tokens by integrated gradients too.")
    check: int = option(type=click.IntRange(0), default=0, metavar="N", help="Measure N entries by finite differences.")


@click.command("grad")
@traced_texts
@asks(Loss, "loss")
@block_options
@fault_options
@asks(Asked)
@output_options
def command(
    texts: Texts,
    opening: Opening,
    force: bool,
    loss: Loss,
    detail: Detail,
    fail_on: tuple[str, ...],
    asked: Asked,
    output: Output,
) -> int:
    """Show how the loss of TEXT flows back through every step, and prove it.

    The loss is the cross-entropy of each next token, or of --target. TEXT comes from the argument or from a pipe.
    """
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import parse_address
    from tinytf_cli.joining import show_views
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.grad import GradView

    model = opening.open()
    table = StepTable(model.config)
    layers = detail.layers(model)
    at, derived = ([parse_address(text, table) for text in named] for named in (asked.addresses, asked.derived))

    def view_of(text: str) -> GradView:
        trace = model.grad(text, target=loss.target, positions=loss.positions, truncate=texts.truncate, force=force)
        points = progress_line(output.stderr, "integrated gradients: point", at_most=True)
        entries = progress_line(output.stderr, "finite differences: entry")
        with points as on_point, entries as on_entry:
            found = model.backward(
                trace,
                layers=() if detail.no_detail else layers,
                head=detail.head,
                at=at,
                derived=derived,
                by=asked.by,
                lr=asked.lr,
                integrated=asked.integrated,
                check=asked.check,
                seed=opening.seed,
                fail_on=fail_on,
                on_point=on_point,
                on_entry=on_entry,
                force=force,
            )
        return GradView(model, found, detail.dims, detail.rows)

    return show_views(output, map(view_of, texts), "grads", texts.lines)
