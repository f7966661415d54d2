"""The view of a trace: the first screen, the pipeline, blocks in full, or what addresses name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tinytf.look.trace import Traced
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.attention import thumbnails
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bars, Block, Heading, Line, Span
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.overview import Again, Screen, answer_blocks, commands_about, short_banner, text_blocks
from tinytf_cli.views.parameters import parameter_blocks
from tinytf_cli.views.parts import Extent
from tinytf_cli.views.pipeline import pipeline_blocks
from tinytf_cli.views.predictions import check_blocks, check_line, fault_blocks, prediction_blocks
from tinytf_cli.views.steps import address_blocks, block_blocks


@dataclass(frozen=True)
class TraceDisplay(Display):
    """``dims`` numbers of a row, ``rows`` tokens of a table, ``top`` predictions.

    After the answer come the ``pipeline``, the ``blocks`` in full, or all ``layers`` and heads; if none of these is
    asked for, the first screen. ``again`` makes command lines about a text.
    """

    dims: int | None = None
    rows: int | None = None
    pipeline: bool = False
    blocks: bool = False
    layers: bool = False
    top: int | None = None
    again: Callable[[str], Again] | None = None

    def extent(self, terminal: Terminal) -> Extent:
        """How much of a tensor is shown."""
        return Extent(self.dims, self.rows, terminal.cuts)

    @property
    def is_first_screen(self) -> bool:
        return not (self.pipeline or self.blocks or self.layers)


def _lines(block: Block, width: int) -> int:
    """About how many lines a block of bars or a paragraph takes."""
    if isinstance(block, Bars):
        return len(block.bars)
    if not isinstance(block, Line) or isinstance(block.words, str):
        return 1
    words = [block.words] if isinstance(block.words, Span) else block.words
    return 1 + sum(len(span.text) for span in words if isinstance(span, Span)) // width


@draws(Traced, TraceDisplay)
def trace(report: Traced, terminal: Terminal, display: TraceDisplay) -> Iterator[Block]:
    """The answer, then the parts that were asked for, then the self-check."""
    model = model_of(report)
    if report.addresses or report.parameters is not None:
        yield from banner(model, report.trace.encoding)
        yield from _addresses(report, terminal, display)
        yield from check_blocks(report.check)
        yield from fault_blocks(report.fail_on, report.fault)
        return
    title = list(short_banner(model, report.trace, terminal.width))
    yield from title
    if not report.holds:
        yield from _verdict(report)
    digits, every = terminal.digits is not None, display.layers
    yield from text_blocks(report.trace, terminal.width, every=every or terminal.whole)
    answer = list(answer_blocks(report.trace, report.predictions, display.top, digits=digits, every=every))
    yield from answer
    screen = Screen(model, report, (display.again or commands_about(report))(report.trace.encoding.text))
    if display.is_first_screen:
        above = sum(_lines(block, terminal.width) for block in (*title, *answer, Line(Span(report.sentence))))
        yield from screen.blocks(terminal, display.rows, above)
    else:
        yield from _parts(report, screen, terminal, display)
    yield Line("")
    yield from _verdict(report)
    if display.is_first_screen:
        yield from screen.next(terminal)


def _verdict(report: Traced) -> Iterator[Block]:
    yield check_line(report.check)
    yield from fault_blocks(report.fail_on, report.fault)


def _parts(report: Traced, screen: Screen, terminal: Terminal, display: TraceDisplay) -> Iterator[Block]:
    recorded, extent = report.trace, display.extent(terminal)
    if display.layers:
        yield from screen.layers(None)
    if display.pipeline:
        yield Heading("pipeline", f"{len(report.rows)} steps")
        short = terminal.width < 130 and not terminal.plain
        yield from pipeline_blocks(recorded, report.rows, short=short, every=terminal.whole)
    for layer, head in report.blocks if display.blocks else ():
        config = recorded.config.at(layer)
        yield Heading(f"block L{layer}, head {head}", f"of {config.n_layers} layers and {config.n_heads} heads")
        yield from block_blocks(recorded, layer, head, extent, terminal.width)
    if display.layers and recorded.steps.attention_layers:
        yield Heading("weights of every head", "query down, key across")
        yield thumbnails(recorded)


def _addresses(report: Traced, terminal: Terminal, display: TraceDisplay) -> Iterator[Block]:
    extent = display.extent(terminal)
    for address in report.addresses:
        if address.step is not None and address.step.name == "next":
            yield from prediction_blocks(report.trace, report.predictions)
        else:
            yield from address_blocks(report.trace, address, report.head, extent, report.word)
    if report.parameters is not None:
        yield from parameter_blocks(model_of(report), report.parameters, extent)
