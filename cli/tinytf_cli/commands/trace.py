"""``tinytf trace``: every step between a text and the next token."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.options import Detail, Faults, Traced

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import Address
    from tinytf.trace.trace import Trace
    from tinytf_cli.views.activations import ActivationsView
    from tinytf_cli.views.code import CodeView
    from tinytf_cli.views.trace import TraceView
    from tinytf_cli.views.without import WithoutView


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
    code: bool = option(is_flag=True, help="Show the PyTorch of each step in --layer, run it, and compare.")
    activations: bool = option(
        is_flag=True, help="Show the feed-forward's activation in --layer, with the text's numbers on its curve.",
    )  # fmt: skip
    without: tuple[str, ...] = option(
        "--without", multiple=True, type=click.Choice(list(LEFT_OUT)),
        help="Run without this part of attention too, and compare. Repeatable.",
    )  # fmt: skip


@command("trace")
def trace(asked: Asked, detail: Detail, faults: Faults, on: Traced) -> int:
    """TEXT comes from the argument, from a pipe, or from - for standard input."""
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import parse_address
    from tinytf_cli.views.trace import TraceView

    fail_on, model = faults.kinds, on.model
    table = StepTable(model.config)
    layers = detail.layers(model)
    chosen = [parse_address(text, table) for text in asked.addresses]
    chosen += [where for name in asked.steps for where in _addresses_of(name, layers, detail.head, table)]
    if asked.without:
        if chosen:
            raise UsageError(
                "--without compares whole runs, and --at and --step show one run", "in a session: without mask"
            )
        return on.show(lambda trace: _without(model, trace, asked), "comparisons")
    if asked.activations:
        return on.show(lambda trace: _activations(model, trace, detail), "activations", {detail.layer})
    if asked.code:
        return on.show(lambda trace: _code(model, trace, layers, chosen), "code")
    recorded = {layer for where in chosen for layer in where.layers or ()} if chosen and not fail_on else None

    def view_of(trace: "Trace") -> "TraceView":
        shown = () if detail.no_detail else layers
        found = model.traced(trace, layers=shown, head=detail.head, at=chosen, top=asked.top, fail_on=fail_on)
        return TraceView(model, found, detail.dims, detail.rows)

    return on.show(view_of, "traces", recorded)


def _without(model: "Model", trace: "Trace", asked: Asked) -> "WithoutView":
    from tinytf_cli.views.without import WithoutView

    return WithoutView(model, model.compare_without(trace, asked.without, top=asked.top))


def _code(model: "Model", trace: "Trace", layers: tuple[int, ...], at: "list[Address]") -> "CodeView":
    from tinytf_cli.views.code import CodeView

    return CodeView(model, model.code(trace, layers, at))


def _activations(model: "Model", trace: "Trace", detail: Detail) -> "ActivationsView":
    from tinytf_cli.views.activations import ActivationsView

    return ActivationsView(model, model.activations(trace, detail.layer), detail.rows)


def _addresses_of(name: str, layers: tuple[int, ...], head: int, table: "StepTable") -> "Iterator[Address]":
    """A step by its short name, in the chosen layers and head where it has them."""
    from tinytf.trace.address import parse_address

    step = table.by_name.get(table.synonym(name) or name)
    if step is None or not step.in_layer:
        return iter([parse_address(name, table)])
    return (parse_address(f"L{layer}{f'H{head}' if step.has_heads else ''}.{name}", table) for layer in layers)
