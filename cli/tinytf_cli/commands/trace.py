"""``tinytf trace``: every step between a text and the next token."""

from dataclasses import dataclass
from typing import Any

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


def _complete_step(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from tinytf.steps.table import STEPS

    return sorted({step.name for step in STEPS if step.name.startswith(incomplete)})


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    steps: tuple[str, ...] = option(
        "--step", multiple=True, metavar="NAME", shell_complete=_complete_step,
        help="Show just this step (in --layer and --head), such as weights. Repeatable.",
    )  # fmt: skip
    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS",
        help="Show just this address, such as L0H1.weights, L0-1H*.q or 'L0H1.weights[sat,cat]'. Repeatable.",
    )  # fmt: skip
    top: int = option(type=click.IntRange(1), shown=10, help="Predictions shown.")


@click.command("trace")
@traced_texts
@block_options
@fault_options
@asks(Asked)
@output_options
def command(
    texts: Texts, opening: Opening, force: bool, detail: Detail, fail_on: tuple[str, ...], asked: Asked, output: Output
) -> int:
    """Show every step between TEXT and the prediction.

    TEXT comes from the argument, from a pipe, or from - for standard input.
    """
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import parse_address
    from tinytf_cli.joining import show_views
    from tinytf_cli.views.trace import TraceView

    model = opening.open()
    table = StepTable(model.config)
    layers = detail.layers(model)
    chosen = [parse_address(text, table) for text in asked.addresses]
    chosen += [where for name in asked.steps for where in _step_addresses(name, layers, detail.head, table)]
    some = chosen and not fail_on
    recorded = {layer for where in chosen for layer in where.layers or ()} if some else None

    def view_of(text: str) -> TraceView:
        trace = model.trace(text, truncate=texts.truncate, layers=recorded, force=force)
        found = model.traced(
            trace, layers=() if detail.no_detail else layers, head=detail.head, at=chosen, top=asked.top,
            fail_on=fail_on,
        )  # fmt: skip
        return TraceView(model, found, detail.dims, detail.rows)

    return show_views(output, map(view_of, texts), "traces", texts.lines)


def _step_addresses(name: str, layers: tuple[int, ...], head: int, table: Any) -> list[Any]:
    """A step by its short name, in the chosen layers and head where it has them."""
    from tinytf.trace.address import parse_address

    step = table.by_name.get(table.synonym(name) or name)
    if step is None or not step.in_layer:
        return [parse_address(name, table)]
    return [parse_address(f"L{layer}{f'H{head}' if step.has_heads else ''}.{name}", table) for layer in layers]
