"""The first screen of a trace: the answer, one block as a drawing, a line a layer, every head small, what to ask next."""

from collections.abc import Callable, Iterator, Sequence

from tinytf.analysis.overview import Added, Layer
from tinytf.analysis.prediction import LikelyToken, Prediction
from tinytf.analysis.traced import Traced
from tinytf.loading import Model
from tinytf.text.printable import printable
from tinytf.trace.trace import Trace
from tinytf_cli.numbers import count, number, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import heads_in_words, notes, tokenizer_words
from tinytf_cli.views.blocks import (
    Bar,
    Bars,
    Beside,
    Block,
    Column,
    Heading,
    Heat,
    Line,
    Meter,
    Miniature,
    Miniatures,
    Pieces,
    Span,
    Table,
)
from tinytf_cli.views.flow import flow_blocks, shape_text
from tinytf_cli.views.parts import full_scale
from tinytf_cli.views.steps import as_array, labels, visible_array

_BARS, _ENOUGH = 5, 0.999
_LAYERS, _MAPS, _LINES = 5, 24, 8
_CLOSEUP = 24  # least columns of the map beside the drawing

Again = Callable[..., str]
"""Makes a command line about the same text, of a command and the words after the text."""


def short_banner(model: Model, trace: Trace) -> Iterator[Block]:
    """The model in one line, its tokenizer in another, and the notes of its files."""
    config, name = model.config, printable(model.name, spaces=False)
    source = printable(model.source, spaces=False)
    parts = [
        f"{config.kind}, {heads_in_words(config)}, d_model {config.d_model}",
        f"{count(model.n_parameters)} parameters",
        *([] if name in source or source == "built in" else [source]),
    ]
    yield Line([Span(name, "strong"), *(Span(f" · {part}") for part in parts)])
    length = Span(f" · {plural(len(trace.tokens), 'token')} of text", "dim")
    yield Line([*tokenizer_words(model.tokenizer, model.tokenizer_note, trace.encoding), length])
    yield from notes(model)


def text_block(trace: Trace, width: int) -> Pieces:
    """The tokens in one line; a long text is folded in the middle."""
    names = labels(trace)
    special = [token.special for token in trace.tokens]
    room = width - 4
    if sum(len(name) + 1 for name in names) <= room:
        return Pieces(names, special)
    half = (room - len(f" … {len(names):,} more … ")) // 2
    head, tail = _fitting(names, half), _fitting(names[::-1], half)
    fold = f" … {len(names) - head - tail:,} more … "
    last = len(names) - tail
    return Pieces([*names[:head], fold, *names[last:]], [*special[:head], True, *special[last:]])


def _fitting(names: Sequence[str], room: int) -> int:
    """How many names fit, at least one."""
    used = 0
    for place, name in enumerate(names):
        used += len(name) + 1
        if used > room:
            return max(1, place)
    return len(names)


def answer_blocks(trace: Trace, found: Sequence[Prediction], top: int | None) -> Iterator[Block]:
    """The most probable tokens: ``top``, or until they have 99.9 % or are five; fewer each where there are several."""
    if not found and trace.model.head is not None:
        yield Line(Span("  the text has no [MASK] to fill", "dim"))
    bars = []
    for one in found[:_BARS]:
        where = "next" if not one.fills else "[MASK]" if len(found) == 1 else f"[MASK] at {one.position}"
        for place, likely in enumerate(_shown(one, top, max(1, _BARS // len(found)))):
            title = where if place == 0 else " " * len(where)
            bars.append(Bar(f"{title}  {likely.token}", likely.probability, role="output"))
    if bars:
        yield Bars(bars)
    if len(found) > _BARS:
        yield Line(Span(f"  and {len(found) - _BARS} more [MASK]; --all shows them", "dim"))


def _shown(one: Prediction, top: int | None, most: int) -> Sequence[LikelyToken]:
    if top is not None:
        return one.top[:top]
    total = 0.0
    for place, likely in enumerate(one.top, start=1):
        total += likely.probability
        if total >= _ENOUGH or place == most:
            return one.top[:place]
    return one.top


class Screen:
    """The first screen of one trace, below its answer."""

    def __init__(self, model: Model, found: Traced, again: Again) -> None:
        self.model, self.found, self.again = model, found, again
        self.trace, self.overview = found.trace, found.overview
        self.names = labels(found.trace)

    def blocks(self, terminal: Terminal, rows: int | None) -> Iterator[Block]:
        """One block drawn, a line a layer (as many as ``rows`` says, 0 for all), the strongest heads."""
        yield from self.block(terminal)
        yield from self.layers(_LAYERS if rows is None else rows or None)
        yield from self.heads()

    @property
    def _where(self) -> str:
        positions = self.overview.positions
        if len(positions) == len(self.names) > 1:
            return "all tokens"
        return "each [MASK]" if len(positions) > 1 else self.names[positions[0]]

    def block(self, terminal: Terminal) -> Iterator[Block]:
        """The block of the strongest head, drawn, with what that head looks at."""
        overview, config = self.overview, self.trace.config
        layer, head = overview.ranked[0]
        stream = f"x = {shape_text(overview.flow.steps[0].shape)}: {plural(len(self.names), 'token')}"
        drawing = [
            Heading(f"block L{layer}", f"of {config.n_layers} · {stream} × d_model {config.d_model}", "residual"),
            *flow_blocks(overview.flow, rails=not terminal.plain),
        ]
        yield Beside([drawing, list(self._closeup(layer, head))], least=_CLOSEUP)

    def _closeup(self, layer: int, head: int) -> Iterator[Block]:
        seen = self.overview.closeup(layer, head)
        step = self.trace.steps.at(self.trace.steps.weights, layer)
        visible = visible_array(self.trace, step, layer)
        yield Heading(f"L{layer}H{head}.{step.name}", self.overview.label(layer, head), "attention")
        part = None if visible is None else visible[list(seen.queries)][:, list(seen.keys)]
        rows, columns = ([self.names[place] for place in places] for places in (seen.queries, seen.keys))
        yield Heat(as_array(seen.weights), rows, [name[:6] for name in columns], "unit", part, digits=2)
        total = len(self.names)
        if len(columns) < total:
            queries = f"last {len(rows)} of {total} queries, " if len(rows) < total else ""
            yield Line(Span(f"{queries}the {len(columns)} keys they see most", "dim"), indent=2, hanging=0)

    def layers(self, rows: int | None) -> Iterator[Block]:
        """A line a layer, with at most ``rows`` lines the middle folded."""
        every = self.overview.layers
        fold = rows is not None and len(every) > rows
        head = (rows - 1) // 2 if fold else len(every)
        tail = rows - 1 - head if fold else 0
        kept = [*every[:head], *every[len(every) - tail :]]
        added = [[one.added[place] for one in kept] for place in range(len(kept[0].added))]
        full = full_scale(one.share for column in added for one in column)
        columns = [
            Column("", [Span(f"L{one.layer}", "residual") for one in kept], said=""),
            *(self._sizes(column, full) for column in added),
            Column("head that adds most", [list(self._head(one)) for one in kept], said="most from"),
        ]
        if self.overview.reading is not None:
            reads = [one.read for one in kept if one.read is not None]
            columns += [
                Column("the lens reads", [Span(read.token, "output") for read in reads], shrink=8),
                Column("", [Meter(read.probability, number(read.probability, "%.3f"), "output") for read in reads]),
            ]
        yield Heading("layers", f"norm of what each adds at {self._where}, over that of the stream it is added to")
        folded = f"… {len(every) - len(kept)} more layers; --all shows them"
        yield Table(columns, notes={head - 1: folded} if fold else {})

    def _sizes(self, column: Sequence[Added], full: float) -> Column:
        role = self.trace.steps.by_name[column[0].step].role
        cells = [Meter(one.share / full, number(one.share, "%.2f"), role) for one in column]
        return Column(f"{column[0].step} adds", cells)

    def _head(self, one: Layer) -> Iterator[Span]:
        label = self.overview.label(one.layer, one.strongest)
        yield Span(f"H{one.strongest}", "attention")
        yield Span(f" {number(one.heads[one.strongest], '%.2f')} {label}")

    def heads(self) -> Iterator[Block]:
        """The strongest heads, small."""
        table = self.trace.steps
        places = self.overview.ranked
        maps = [
            Miniature(
                f"L{layer}H{head}",
                self.overview.label(layer, head),
                as_array(self.overview.weights(layer, head)),
                visible_array(self.trace, table.at(table.weights, layer), layer),
            )
            for layer, head in places[:_MAPS]
        ]
        yield Miniatures(maps, _LINES, "heads", len(places), "that add most", self.again("attention"))

    def next(self) -> Iterator[Block]:
        """What to type next."""
        layer, head = self.overview.ranked[0]
        asked = [(self.again("trace", "--block", f"L{layer}H{head}"), "every number of that head")]
        if self.found.predictions:
            one = self.found.predictions[0]
            best = one.top[0]
            word = best.token if best.token.lstrip("·").isalpha() else f"#{best.id}"
            asked = [
                (self.again("explain", f"logits[{one.position},{word}]"), f"why {best.token} has that logit"),
                *asked,
                (self.again("attribute"), f"which heads and layers speak for {best.token}"),
            ]
        else:
            asked += [
                (self.again("trace", "--pipeline"), "one line a step"),
                (self.again("rollout"), "which tokens reach which"),
            ]
        width = max(len(line) for line, _ in asked)
        for line, what in asked:
            yield Line([Span(f"  {line.ljust(width)}"), Span(f"   {what}", "dim")], hanging=4)
