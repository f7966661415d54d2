"""``tinytf trace``: every step between a text and the next token."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tinytf_cli.command import command, option
from tinytf_cli.commands.instead import Instead
from tinytf_cli.options import Detail, Faults, Traced

if TYPE_CHECKING:
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import Address
    from tinytf.trace.trace import Trace
    from tinytf_cli.views.trace import TraceView


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


@command("trace")
def trace(asked: Asked, instead: Instead, detail: Detail, faults: Faults, on: Traced) -> int:
    """TEXT comes from the argument, from a pipe, or from - for standard input."""
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import parse_address
    from tinytf_cli.views.trace import TraceView

    fail_on, model = faults.kinds, on.model
    table = StepTable(model.config)
    layers = detail.layers(model)
    chosen = [parse_address(text, table) for text in asked.addresses]
    chosen += [where for name in asked.steps for where in _addresses_of(name, layers, detail.head, table)]
    if (other := instead.view_of(model, detail, chosen, asked.top)) is not None:
        return on.show(other, "traces")
    recorded = {layer for where in chosen for layer in where.layers or ()} if chosen and not fail_on else None

    def view_of(trace: "Trace") -> "TraceView":
        shown = () if detail.no_detail else layers
        found = model.traced(trace, layers=shown, head=detail.head, at=chosen, top=asked.top, fail_on=fail_on)
        return TraceView(model, found, detail.dims, detail.rows)

    return on.show(view_of, "traces", recorded)


def _addresses_of(name: str, layers: tuple[int, ...], head: int, table: "StepTable") -> "Iterator[Address]":
    """A step by its short name, in the chosen layers and head where it has them."""
    from tinytf.trace.address import parse_address

    step = table.by_name.get(table.synonym(name) or name)
    if step is None or not step.in_layer:
        return iter([parse_address(name, table)])
    return (parse_address(f"L{layer}{f'H{head}' if step.has_heads else ''}.{name}", table) for layer in layers)
