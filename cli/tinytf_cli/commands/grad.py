"""``tinytf grad``: the backward pass of a text."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tinytf_cli.options import (
    block_options,
    fault_options,
    model_options,
    output_options,
    recording_options,
    text_options,
)
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.loading import Model


def _require_finite(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no learning rate")
    return value


@click.command("grad")
@text_options
@model_options
@recording_options
@click.option("--target", metavar="TOKEN", help="What is to come after the text, or at [MASK]: a word, or #ID.")
@click.option("--positions", metavar="LIST", help="Predict from these positions only, such as 2 or 0-3,7.")
@block_options
@fault_options
@click.option(
    "--at",
    "addresses",
    multiple=True,
    metavar="ADDRESS",
    help="Show just the gradient at this address, such as L0H1.weights. Repeatable.",
)
@click.option(
    "--derive",
    "derived",
    multiple=True,
    metavar="ADDRESS",
    help="Write out how one row of a gradient comes about, such as L3.norm1 or 'L0H1.scores[sat]'. Repeatable.",
)
@click.option(
    "--by",
    type=click.Choice(["parameter", "layer", "kind", "head"]),
    default="kind",
    show_default=True,
    help="How the weights are grouped in their table.",
)
@click.option(
    "--lr",
    type=click.FloatRange(0, min_open=True),
    default=1e-3,
    show_default=True,
    callback=_require_finite,
    help="For the updates.",
)
@click.option("--integrated", is_flag=True, help="Attribute to tokens by integrated gradients too.")
@click.option(
    "--check", type=click.IntRange(0), default=0, metavar="N", help="Measure N entries by finite differences."
)
@output_options
def command(
    texts: list[str],
    lines: bool,
    truncate: bool,
    force: bool,
    open_model: Callable[[], "Model"],
    target: str | None,
    positions: str | None,
    layer: int,
    head: int,
    full: bool,
    no_detail: bool,
    fail_on: tuple[str, ...],
    dims: int,
    rows: int | None,
    addresses: tuple[str, ...],
    derived: tuple[str, ...],
    by: str,
    lr: float,
    integrated: bool,
    check: int,
    output: Output,
) -> int:
    """Show how the loss of TEXT flows back through every step, and prove it.

    The loss is the cross-entropy of each next token, or of --target. TEXT comes from the argument or from a pipe.
    """
    from tinytf.trace.address import parse_address
    from tinytf.trace.steps import StepTable
    from tinytf_cli.counted import counted
    from tinytf_cli.several import show_views
    from tinytf_cli.views.grad import GradView

    model = open_model()
    table = StepTable(model.config)
    parse_address(f"L{layer}H{head}", table)
    layers = range(model.config.n_layers) if full else (layer,)
    at, derive = ([parse_address(text, table) for text in texts] for texts in (addresses, derived))
    seed = click.get_current_context().params["seed"]

    def view_of(text: str) -> GradView:
        trace = model.grad(text, target=target, positions=positions, truncate=truncate, force=force)
        points = counted(output.stderr, "integrated gradients: point", at_most=True)
        entries = counted(output.stderr, "finite differences: entry")
        with points as on_point, entries as on_entry:
            found = model.backward(
                trace,
                layers=() if no_detail else layers,
                head=head,
                at=at,
                derived=derive,
                by=by,
                lr=lr,
                integrated=integrated,
                check=check,
                seed=seed,
                fail_on=fail_on,
                on_point=on_point,
                on_entry=on_entry,
                force=force,
            )
        return GradView(model, found, dims, rows)

    return show_views(output, map(view_of, texts), "grads", lines)
