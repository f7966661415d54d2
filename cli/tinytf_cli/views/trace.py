"""The view of a trace: the first screen, the pipeline, blocks in full, or what addresses name."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.loading import Model
from tinytf.look.traced import Traced
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.attention import thumbnails
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bars, Block, Heading, Line, Span
from tinytf_cli.views.overview import Again, Screen, answer_blocks, short_banner, text_block
from tinytf_cli.views.parameters import parameter_blocks
from tinytf_cli.views.parts import row_limit
from tinytf_cli.views.pipeline import pipeline_blocks
from tinytf_cli.views.predictions import check_blocks, check_line, fault_blocks, prediction_blocks
from tinytf_cli.views.steps import address_blocks, block_blocks


@dataclass(frozen=True)
class Parts:
    """What is shown after the answer; without any part the first screen is."""

    pipeline: bool = False
    blocks: bool = False
    layers: bool = False


def _lines(block: Block, width: int) -> int:
    """About how many lines bars or a paragraph take."""
    if isinstance(block, Bars):
        return len(block.bars)
    if not isinstance(block, Line) or isinstance(block.words, str):
        return 1
    words = [block.words] if isinstance(block.words, Span) else block.words
    return 1 + sum(len(one.text) for one in words if isinstance(one, Span)) // width


class TraceView:
    """One trace, drawn: ``dims`` numbers of a row, ``rows`` tokens of a table, ``top`` predictions.

    ``again`` makes a command line about the same text.
    """

    def __init__(
        self,
        model: Model,
        found: Traced,
        dims: int,
        rows: int | None,
        *,
        parts: Parts | None = None,
        top: int | None = None,
        again: Again = lambda *command, options=(): " ".join(("tinytf", *command, "TEXT", *options)),
    ) -> None:
        self.model, self.found, self.dims, self.rows = model, found, dims, rows
        self.parts, self.top, self.again = parts or Parts(), top, again

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The answer first, then what it is made of, then whether it adds up."""
        found = self.found
        if found.addresses or found.parameters is not None:
            yield from banner(self.model, found.trace.encoding)
            yield from self._addresses(terminal)
            yield from check_blocks(found.check)
            yield from fault_blocks(found.fail_on, found.fault)
            return
        title = list(short_banner(self.model, found.trace, terminal.width))
        yield from title
        if not found.holds:
            yield from self._verdict()
        digits, every = terminal.digits is not None, self.parts.layers
        yield text_block(found.trace, terminal.width, every=every)
        answer = list(answer_blocks(found.trace, found.predictions, self.top, digits=digits, every=every))
        yield from answer
        screen = Screen(self.model, found, self.again)
        if self.parts == Parts():
            above = sum(_lines(one, terminal.width) for one in (*title, *answer))
            yield from screen.blocks(terminal, self.rows, above)
        else:
            yield from self._parts(screen, terminal)
        yield Line("")
        yield from self._verdict()
        if self.parts == Parts():
            yield from screen.next(terminal)

    def _verdict(self) -> Iterator[Block]:
        yield check_line(self.found.check)
        yield from fault_blocks(self.found.fail_on, self.found.fault)

    def _parts(self, screen: Screen, terminal: Terminal) -> Iterator[Block]:
        found, trace, rows = self.found, self.found.trace, row_limit(terminal, self.rows)
        if self.parts.layers:
            yield from screen.layers(None)
        if self.parts.pipeline:
            yield Heading("pipeline", f"{len(found.rows)} steps")
            yield from pipeline_blocks(trace, found.rows, short=terminal.width < 130 and not terminal.plain)
        for layer, head in found.blocks if self.parts.blocks else ():
            config = trace.config.at(layer)
            yield Heading(f"block L{layer}, head {head}", f"of {config.n_layers} layers and {config.n_heads} heads")
            yield from block_blocks(trace, layer, head, dims=self.dims, rows=rows, width=terminal.width)
        if self.parts.layers and trace.steps.attending:
            yield Heading("weights of every head", "query down, key across")
            yield thumbnails(trace)

    def _addresses(self, terminal: Terminal) -> Iterator[Block]:
        found, trace, rows = self.found, self.found.trace, row_limit(terminal, self.rows)
        for where in found.addresses:
            if where.step is not None and where.step.name == "next":
                yield from prediction_blocks(trace, found.predictions)
            else:
                yield from address_blocks(trace, where, found.head, dims=self.dims, rows=rows, word=found.word)
        if found.parameters is not None:
            yield from parameter_blocks(self.model, found.parameters, self.dims, rows)
