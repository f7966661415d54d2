"""``tinytf trace``: every step between a text and the next token."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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


def _complete_step(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from tinytf.trace.steps import STEPS

    return sorted({step.name for step in STEPS if step.name.startswith(incomplete)})


@click.command("trace")
@text_options
@model_options
@recording_options
@block_options
@fault_options
@click.option(
    "--step",
    "steps",
    multiple=True,
    metavar="NAME",
    shell_complete=_complete_step,
    help="Show just this step (in --layer and --head), such as weights. Repeatable.",
)
@click.option(
    "--at",
    "addresses",
    multiple=True,
    metavar="ADDRESS",
    help="Show just this address, such as L0H1.weights, L0-1H*.q or 'L0H1.weights[sat,cat]'. Repeatable.",
)
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Predictions shown.")
@output_options
def command(
    texts: list[str],
    lines: bool,
    truncate: bool,
    force: bool,
    open_model: Callable[[], "Model"],
    layer: int,
    head: int,
    full: bool,
    steps: tuple[str, ...],
    addresses: tuple[str, ...],
    no_detail: bool,
    fail_on: tuple[str, ...],
    dims: int,
    rows: int | None,
    top: int,
    output: Output,
) -> int:
    """Show every step between TEXT and the prediction.

    TEXT comes from the argument, from a pipe, or from - for standard input.
    """
    from tinytf.trace.address import parse_address
    from tinytf.trace.steps import StepTable
    from tinytf_cli.several import show_views
    from tinytf_cli.views.trace import TraceView

    model = open_model()
    table = StepTable(model.config)
    parse_address(f"L{layer}H{head}", table)
    layers = tuple(range(model.config.n_layers)) if full else (layer,)
    chosen = [parse_address(text, table) for text in addresses]
    chosen += [where for name in steps for where in _step_addresses(name, layers, head, table)]
    some = chosen and not fail_on
    recorded = {layer for where in chosen for layer in where.layers or ()} if some else None

    def view_of(text: str) -> TraceView:
        trace = model.trace(text, truncate=truncate, layers=recorded, force=force)
        found = model.traced(trace, layers=() if no_detail else layers, head=head, at=chosen, top=top, fail_on=fail_on)
        return TraceView(model, found, dims, rows)

    return show_views(output, map(view_of, texts), "traces", lines)


def _step_addresses(name: str, layers: tuple[int, ...], head: int, table: Any) -> list[Any]:
    """A step by its short name, in the chosen layers and head where it has them."""
    from tinytf.trace.address import parse_address

    step = table.by_name.get(table.synonym(name) or name)
    if step is None or not step.in_layer:
        return [parse_address(name, table)]
    return [parse_address(f"L{layer}{f'H{head}' if step.has_heads else ''}.{name}", table) for layer in layers]
