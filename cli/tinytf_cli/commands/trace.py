"""``tinytf trace``: every step between a text and the next token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.host import is_typed
from tinytf_cli.options import BlockOptions, FaultOptions, SectionOptions, complete_address, require_only
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import AddressOptions

if TYPE_CHECKING:
    from tinytf.look.trace import Traced
    from tinytf.steps.table import StepTable
    from tinytf.text.chat import Written
    from tinytf.through.model import ThroughModel
    from tinytf.through.traced import ThroughTrace
    from tinytf.trace.address import Address
    from tinytf.trace.trace import Trace


WAYS = ("table", "map", "histogram", "spectrum", "norms")
"""Those of ``tinytf.look.parameters``, repeated here because that imports torch."""


def _complete_step(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from tinytf.steps.table import STEPS

    return sorted({step.name for step in STEPS if step.name.startswith(incomplete)})


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    steps: tuple[str, ...] = option(
        "--step", multiple=True, metavar="NAME", shell_complete=_complete_step,
        help="Show only this step (in --layer and --head), such as weights or 'weights[sat,cat]'. Repeatable.",
    )  # fmt: skip
    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS", shell_complete=complete_address,
        help="Show only this address: a step, such as L0H1.weights or 'L0H1.weights[sat,cat]', or a parameter, such as "
        "L0.W_Q or 'E[cat]', which needs no TEXT. Repeatable.",
    )  # fmt: skip
    way: str | None = option(
        "--as", type=click.Choice(WAYS), help="How to show parameters.  [default: map, or table of tokens and vectors]"
    )
    top: int | None = option(type=Whole(1), help="Predictions shown.  [default: until 99.9 %, at most 5]")
    page: Path | None = option(
        "--html", type=click.Path(path_type=Path), metavar="FILE",
        help="Write a page whose numbers show their arithmetic, at --at or of the head that adds most.",
    )  # fmt: skip
    teach: bool = option(
        is_flag=True, help="Tell the pass step by step, through --layer and --head or those that add most."
    )


@command("trace")
def trace(
    options: Options,
    sections: SectionOptions,
    block_options: BlockOptions,
    faults: FaultOptions,
    tracing: AddressOptions,
) -> int:
    """TEXT is an argument, a pipe, or - for standard input."""
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import Address, parse_block
    from tinytf.trace.parameters import ParameterAddress, parse_any
    from tinytf_cli.views.parameters import ParametersDisplay
    from tinytf_cli.views.trace import TraceDisplay

    if not options.addresses:
        tracing.texts.items  # noqa: B018 - report a missing text before opening a model
    through = tracing.model_options.through_model(tracing.output)
    if through is not None:
        return _through(through, options, block_options, sections, tracing)
    fail_on, model = faults.kinds, tracing.model
    dims, rows = block_options.dims_and_rows(sections.every)
    table = StepTable(model.config)
    layers, head = block_options.layers(model), block_options.head_of(model)
    blocks = [parse_block(text, table) for text in sections.blocks]
    named = [parse_any(text, table) for text in options.addresses]
    weights = [address for address in named if isinstance(address, ParameterAddress)]
    chosen = [address for address in named if isinstance(address, Address)]
    chosen += [address for name in options.steps for address in _addresses_of(name, layers, head, table)]
    if options.way is not None and not weights:
        raise UsageError("--as is for parameters, and no address names one", "such as --at L0.W_Q")
    if (named or options.steps) and (sections.pipeline or blocks):
        raise UsageError(
            f"--{'block' if blocks else 'pipeline'} is a part of the whole trace, and --at and --step are not",
            "use one at a time",
        )
    if options.page is not None:
        if weights or sections.every or sections.pipeline or blocks or fail_on or options.teach:
            raise UsageError("--html writes one page of the steps at --at or --step", "leave the others out")
        return _page(options.page, [str(address) for address in chosen], tracing)
    if options.teach:
        if named or options.steps or sections.every or sections.pipeline or blocks or fail_on or block_options.full:
            raise UsageError("--teach tells one way through a pass", "the only other options are --layer and --head")
        from tinytf.learn.teach import teach

        place = (layers[0], head) if is_typed("layer", "head") else None
        return tracing.show(lambda trace: teach(model, trace, place), "taught")
    if weights and not chosen and not fail_on:
        tracing.note_unread_text()
        tracing.output.draw(model.parameters(weights, way=options.way), ParametersDisplay(dims, rows))
        return 0
    recorded = {layer for address in chosen for layer in address.layers or ()} if chosen and not fail_on else None

    requested = sections.chosen()
    in_full = bool(blocks) or "block" in requested or is_typed("dims")
    display = TraceDisplay(
        dims, rows, "pipeline" in requested, in_full, sections.every, options.top, tracing.command_lines()
    )  # fmt: skip

    def question(trace: "Trace") -> "Traced":
        visible_layers = () if display.pipeline and not display.blocks else layers
        one_block = is_typed("layer", "head", "full") and visible_layers
        shown_blocks = blocks or ([Address(None, layers, (head,))] if one_block else [])
        return model.traced(
            trace, layers=visible_layers, head=head, blocks=shown_blocks, at=[*chosen, *weights], way=options.way,
            top=options.top or 10, fail_on=fail_on,
        )  # fmt: skip

    return tracing.show(question, "traces", display, layers=recorded)


def _page(file: Path, addresses: list[str], tracing: AddressOptions) -> int:
    """Write the page of one text, and say so."""
    from tinytf_cli.output import require_place, write_file

    require_place(file)
    texts = list(tracing.texts)
    if len(texts) != 1:
        raise UsageError(f"--html writes a page of one text, not of {len(texts)}", "leave --lines out")
    report = tracing.model.page(tracing.model.trace(texts[0], truncate=tracing.texts.truncate), addresses)
    size = write_file(file, report.to_html().encode())
    tracing.output.note(f"wrote {file} ({size:,} bytes): {report.sentence}")
    return 0 if report.holds else 1


def _addresses_of(name: str, layers: tuple[int, ...], head: int, table: "StepTable") -> "Iterator[Address]":
    """The addresses of a step given by its short name, in the chosen layers and head if it has them."""
    from tinytf.trace.address import parse_tensor

    short = name.partition("[")[0]
    step = table.by_name.get(table.synonym(short) or short)
    if step is None or not step.in_layer:
        return iter([parse_tensor(name, table)])
    return (parse_tensor(f"L{layer}{f'H{head}' if step.has_heads else ''}.{name}", table) for layer in layers)


def _through(
    model: "ThroughModel",
    options: Options,
    block_options: BlockOptions,
    sections: SectionOptions,
    tracing: AddressOptions,
) -> int:
    """The trace of a model that runs through transformers."""
    from tinytf.through.traced import trace_through
    from tinytf_cli.views.through import ThroughDisplay

    require_only(("addresses", "top", "every", "dims", "rows"), (Options, SectionOptions, BlockOptions, FaultOptions))
    display = ThroughDisplay(sections.every, options.top or 5, *block_options.dims_and_rows(sections.every))
    top, truncate = options.top or 10, tracing.texts.truncate

    def trace_each(texts: "Sequence[Written]") -> "Iterator[ThroughTrace]":
        return (trace_through(model, text, at=options.addresses, top=top, truncate=truncate) for text in texts)

    return tracing.texts.answer(trace_each, tracing.output, "traces", display, of=model.transformer)
