"""``tinytf grad``: the backward pass of a text."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import click

from tinytf_cli.command import command, option
from tinytf_cli.host import given
from tinytf_cli.options import BlockOptions, FaultOptions, ResumeOptions, SectionOptions, TraceOptions

if TYPE_CHECKING:
    from tinytf.gradients.report import Backward
    from tinytf.text.chat import Written

MOST_CHECKED = 10_000
"""Entries that finite differences may check; each takes two runs of the model or more."""


def _require_finite(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a learning rate")
    return value


@dataclass(frozen=True)
class Loss:
    """What the loss is of."""

    GROUP: ClassVar = "Loss"

    target: str | None = option(metavar="TOKEN", help="Token to predict after the text, or at [MASK]: a word or #ID.")
    positions: str | None = option(metavar="LIST", help="Predict from these positions only, such as 2 or 0-3,7.")


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS",
        help="Show just the gradient at this address, such as L0H1.weights. Repeatable.",
    )  # fmt: skip
    derived: tuple[str, ...] = option(
        "--derive", multiple=True, metavar="ADDRESS",
        help="Derive one row of a gradient, such as L3.norm1 or 'L0H1.scores[sat]'. Repeatable.",
    )  # fmt: skip
    by: str = option(
        type=click.Choice(["parameter", "layer", "kind", "head"]), shown="kind",
        help="How the weights are grouped in their table.",
    )  # fmt: skip
    lr: float = option(
        type=click.FloatRange(0, min_open=True),
        shown=1e-3,
        callback=_require_finite,
        help="Learning rate.",
    )
    integrated: bool = option(is_flag=True, help="Attribute to tokens by integrated gradients too.")
    check: int = option(
        type=click.IntRange(0, MOST_CHECKED), default=0, metavar="N", help="Check N entries by finite differences."
    )


@command("grad")
def grad(
    options: Options,
    loss: Loss,
    keeping: ResumeOptions,
    sections: SectionOptions,
    detail: BlockOptions,
    faults: FaultOptions,
    on: TraceOptions,
) -> int:
    """The loss is the cross-entropy of each next token, or of --target. TEXT comes from the argument or from a pipe."""
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import parse_address, parse_block
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.grad import GradDisplay

    resume = keeping.place("" if options.integrated else "--integrated")
    fail_on, model = faults.kinds, on.model
    table = StepTable(model.config)
    layers = detail.layers(model)
    if sections.pipeline and not given("layer", "head", "full"):
        layers = ()
    at, derived = ([parse_address(text, table) for text in named] for named in (options.addresses, options.derived))
    at += [parse_block(text, table) for text in sections.blocks]
    shown = sections.shown() or (frozenset() if at or derived else frozenset({"summary"}))
    if sections.every or given("by", "lr"):
        shown |= {"weights"}
    rows = 0 if sections.every and detail.rows is None else detail.rows

    def question(text: "Written") -> "Backward":
        trace = model.grad(
            text, target=loss.target, positions=loss.positions, truncate=on.texts.truncate, force=on.force
        )
        points = progress_line(on.output.stderr, "integrated gradients: point", at_most=True)
        entries = progress_line(on.output.stderr, "finite differences: entry")
        with points as on_point, entries as on_entry:
            return model.backward(
                trace, layers=layers, head=detail.head_of(model), at=at, derived=derived,
                by=options.by, lr=options.lr, integrated=options.integrated, check=options.check, seed=on.opening.seed,
                fail_on=fail_on, resume=resume, on_point=on_point, on_entry=on_entry, force=on.force,
            )  # fmt: skip

    display = GradDisplay(detail.dims, rows, shown, on.again())
    return on.output.draw_all(map(question, on.texts), "grads", on.texts.lines, display)
