"""``tinytf grad``: the backward pass of a text."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import click

from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.host import is_typed
from tinytf_cli.options import BlockOptions, FaultOptions, SectionOptions
from tinytf_cli.ranges import Real, Whole
from tinytf_cli.text_options import TraceOptions

if TYPE_CHECKING:
    from tinytf.gradients.grad import Backward
    from tinytf.text.chat import Written

MOST_CHECKED = 10_000
"""Most entries that finite differences may check; each takes two or more runs of the model."""


@dataclass(frozen=True)
class LossOptions:
    """Which predictions the loss covers."""

    GROUP: ClassVar = "Loss"

    target: str | None = option(metavar="TOKEN", help="Token to predict after the text, or at [MASK]: a word or #ID.")
    positions: str | None = option(metavar="LIST", help="Predict from these positions only, such as 2 or 0-3,7.")


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS",
        help="Show only the gradient at this address, such as L0H1.weights. Repeatable.",
    )  # fmt: skip
    derived: tuple[str, ...] = option(
        "--derive", multiple=True, metavar="ADDRESS",
        help="Derive one row of a gradient, such as L3.norm1 or 'L0H1.scores[sat]'. Repeatable.",
    )  # fmt: skip
    by: str = option(
        type=click.Choice(["parameter", "layer", "kind", "head"]), shown="kind",
        help="Group the table of weights by this.",
    )  # fmt: skip
    lr: float = option(
        type=Real(0, above=True),
        shown=1e-3,
        help="Learning rate.",
    )
    integrated: bool = option(is_flag=True, help="Also attribute the loss to tokens by integrated gradients.")
    check: int = option(
        type=Whole(0, MOST_CHECKED), default=0, metavar="N", help="Check N entries by finite differences."
    )


@command("grad")
def grad(
    options: Options,
    loss: LossOptions,
    sections: SectionOptions,
    block_options: BlockOptions,
    faults: FaultOptions,
    tracing: TraceOptions,
) -> int:
    """The loss is the cross-entropy of each next token, or of --target. TEXT is an argument or comes from a pipe."""
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import parse_address, parse_block
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.grad import GradDisplay

    resume = tracing.texts.measurements("" if options.integrated else "--integrated")
    if tracing.model_options.stack == "encoder":
        raise UsageError("the encoder has no loss of its own", "--at source shows the gradient that it gets")
    fail_on, model = faults.kinds, tracing.model
    table = StepTable(model.config)
    layers = block_options.layers(model)
    if sections.pipeline and not is_typed("layer", "head", "full"):
        layers = ()
    at, derived = ([parse_address(text, table) for text in named] for named in (options.addresses, options.derived))
    at += [parse_block(text, table) for text in sections.blocks]
    visible_sections = sections.chosen() or (frozenset() if at or derived else frozenset({"summary"}))
    if sections.every or is_typed("by", "lr"):
        visible_sections |= {"weights"}

    def question(text: "Written") -> "Backward":
        trace = model.grad(
            text, target=loss.target, positions=loss.positions, truncate=tracing.texts.truncate, force=tracing.force
        )
        points = progress_line(tracing.output.stderr, "integrated gradients: point", at_most=True)
        entries = progress_line(tracing.output.stderr, "finite differences: entry")
        with points as on_point, entries as on_entry:
            return model.backward(
                trace, layers=layers, head=block_options.head_of(model), at=at, derived=derived,
                by=options.by, lr=options.lr, integrated=options.integrated, check=options.check,
                seed=tracing.model_options.seed, fail_on=fail_on, resume=resume, on_point=on_point, on_entry=on_entry,
                force=tracing.force,
            )  # fmt: skip

    dims, rows = block_options.dims_and_rows(sections.every)
    display = GradDisplay(dims, rows, visible_sections, tracing.command_lines())
    return tracing.texts.answer(
        lambda texts: map(question, texts), tracing.output, "grads", display, of=model.transformer,
        measures=bool(options.integrated),
    )  # fmt: skip
