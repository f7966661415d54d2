"""The first screen of a trace: the answer, a block as a drawing, a line a layer, the heads, what to ask next."""

from collections.abc import Callable, Iterator, Sequence

from tinytf.analysis.overview import Added, Layer
from tinytf.analysis.prediction import LikelyToken, Prediction
from tinytf.analysis.traced import Traced
from tinytf.loading import Model
from tinytf.text.printable import printable
from tinytf.trace.trace import Trace
from tinytf_cli.numbers import count, number, plural, probability
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import heads_in_words, notes, number_words
from tinytf_cli.views.blocks import (
    Bar,
    Bars,
    Beside,
    Block,
    Column,
    Figure,
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
from tinytf_cli.views.parts import folded, middle_out, next_lines, numbered, shortened
from tinytf_cli.views.steps import as_array, labels, visible_array

_USUAL = "float32 on cpu"
_BARS, _ENOUGH = 5, 0.999
_LAYERS, _LINES = 4, 12  # of the layers, and of the maps with them
_SMALL, _WIDE = 4, 8  # tokens of maps that come in two rows; columns that each takes, at least
_DRAWING, _CLOSEUP = 70, 24  # columns of the drawing, and of the map beside it, at least

Again = Callable[..., str]
"""Makes a command line about the same text, of a command and what it takes before it, and ``options``."""


def short_banner(model: Model, trace: Trace, width: int) -> Iterator[Block]:
    """The model in one line; the tokenizer, and what it added to the text, in another, with a note that fits it."""
    config, name = model.config, printable(model.name, spaces=False)
    source = printable(model.source, spaces=False)
    parts = [f"{config.kind}, {heads_in_words(config)}", f"{count(model.n_parameters)} parameters"]
    computed = number_words(model)
    parts += [] if computed == _USUAL else [computed]
    parts += [] if name in source or source == "built in" else [source]
    yield Line([Span(name, "strong"), *(Span(f" · {part}") for part in parts)])
    tokenizer = model.tokenizer
    borrowed = f" ({model.tokenizer_note.partition(':')[0]})" if model.tokenizer_note and not model.notes else ""
    said = f"{trace.encoding.added} · {tokenizer.kind} of {tokenizer.vocab_size:,}{borrowed}"
    noted = "".join(f" · note: {printable(note, spaces=False)}" for note in model.notes)
    if len(said + noted) <= width:
        yield Line([Span(said, "dim"), Span(noted)])
    else:
        yield Line(Span(said, "dim"))
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


def answer_blocks(trace: Trace, found: Sequence[Prediction], top: int | None, *, digits: bool) -> Iterator[Block]:
    """The most probable tokens: ``top``, or until they have 99.9 % or are five; fewer each where there are several.

    With ``digits`` the terminal says how many.
    """
    if not found and trace.model.head is not None:
        yield Line(Span("  the text has no [MASK] to fill", "dim"))
    bars = []
    for one in found[:_BARS]:
        where = "next" if not one.fills else "[MASK]" if len(found) == 1 else f"[MASK] at {one.position}"
        for place, likely in enumerate(_shown(one, top, max(1, _BARS // len(found)))):
            title = where if place == 0 else " " * len(where)
            shown = "" if digits else probability(likely.probability)
            bars.append(Bar(f"{title}  {likely.token}", likely.probability, shown, "output"))
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
        yield from self.heads(terminal.width)

    @property
    def _where(self) -> str:
        positions = self.overview.positions
        if len(positions) == 1:
            return f"at {self.names[positions[0]]}"
        return "over all tokens" if self.overview.reading is None else "at each [MASK]"

    def block(self, terminal: Terminal) -> Iterator[Block]:
        """The block of the strongest head, drawn, with what that head looks at."""
        overview, config = self.overview, self.trace.config
        layer, head = overview.ranked[0]
        stream = f"x = {shape_text(overview.flow.steps[0].shape)}: {plural(len(self.names), 'token')}"
        drawing = [
            Heading(f"block L{layer}", f"of {config.n_layers} · {stream} × d_model {config.d_model}"),
            *flow_blocks(overview.flow, rails=not terminal.plain),
        ]
        yield Beside([drawing, list(self._closeup(layer, head, terminal.width))], least=_CLOSEUP)

    def _closeup(self, layer: int, head: int, width: int) -> Iterator[Block]:
        """What the head looks at: as many keys as fit beside the drawing, or below it on a narrow screen."""
        room = width - (_DRAWING if width > _DRAWING + _CLOSEUP else 0)
        longest = 6 if room > 2 * _CLOSEUP else 4  # of a key's name
        few = 5 if len(self.names) <= 5 else 4
        seen = self.overview.closeup(layer, head, max(few, (room - 12) // (longest + 2)))
        step = self.trace.steps.at(self.trace.steps.weights, layer)
        visible = visible_array(self.trace, step, layer)
        yield Heading(f"L{layer}H{head}.{step.name}", self.overview.label(layer, head), "attention")
        part = None if visible is None else visible[list(seen.queries)][:, list(seen.keys)]
        rows, columns = ([shortened(self.names[place], most) for place in places] for places, most in (
            (seen.queries, 7), (seen.keys, longest)
        ))  # fmt: skip
        yield Heat(as_array(seen.weights), rows, columns, "unit", part, digits=2)
        total = len(self.names)
        if len(columns) < total:
            whole = f"queries {seen.queries[0]} to {seen.queries[-1]} of {total}, " if len(rows) < total else ""
            yield Line(Span(f"{whole}the {len(columns)} keys they see most", "dim"), indent=2, hanging=0)

    def layers(self, rows: int | None) -> Iterator[Block]:
        """A line a layer, with at most ``rows`` lines the middle folded."""
        every = self.overview.layers
        names, keep = numbered("L", len(every)), middle_out(len(every), rows)
        heads = [list(self._head(one)) if one.layer in keep else "" for one in every]
        added = [[one.added[place] for one in every] for place in range(len(every[0].added))]
        columns = [
            Column("", [Span(name, "residual") for name in names], said=""),
            *(self._sizes(column) for column in added),
            Column("head that adds most", heads, said="most from"),
        ]
        if self.overview.reading is not None:
            reads = [one.read for one in every if one.read is not None]
            columns += [
                Column("lens reads", [Span(read.token, "output") for read in reads], shrink=8),
                Column("", [Meter(read.probability, Figure(read.probability, "%.3f"), "output") for read in reads]),
            ]
        yield Heading("layers", f"norm of what is added over that of the stream, {self._where}")
        yield from folded(Table(columns), names, rows, "layers")

    def _sizes(self, column: Sequence[Added]) -> Column:
        """A whole bar is as much as the stream, or more."""
        role = self.trace.steps.by_name[column[0].step].role
        return Column(f"{column[0].step} adds", [Meter(one.share, Figure(one.share, "%.2f"), role) for one in column])

    def _head(self, one: Layer) -> Iterator[Span]:
        label = self.overview.label(one.layer, one.strongest)
        yield Span(f"H{one.strongest}", "attention")
        yield Span(f" {number(one.heads[one.strongest], '%.2f')} {label}")

    def heads(self, width: int) -> Iterator[Block]:
        """The strongest heads, small, no fewer than fit."""
        table, places = self.trace.steps, self.overview.ranked
        most = width // _WIDE * (2 if len(self.names) <= _SMALL else 1)
        maps = [
            Miniature(
                f"L{layer}H{head}",
                self.overview.label(layer, head),
                as_array(self.overview.weights(layer, head)),
                visible_array(self.trace, table.at(table.weights, layer), layer),
            )
            for layer, head in places[:most]
        ]
        yield Miniatures(
            maps,
            _LINES - min(_LAYERS + 1, len(self.overview.layers)),
            "heads",
            len(places),
            "those that add most",
            "--all shows them all",
        )

    def next(self, terminal: Terminal) -> Iterator[Block]:
        """What to type next."""
        layer, head = self.overview.ranked[0]
        asked = [(self.again("trace", options=("--block", f"L{layer}H{head}")), "that head in full")]
        if self.found.predictions:
            one = self.found.predictions[0]
            best = one.top[0]
            word = best.token if best.token.lstrip("·").isalpha() else f"#{best.id}"
            asked = [
                (self.again("explain", f"logits[{one.position},{word}]"), "its arithmetic"),
                *asked,
                (self.again("attribute"), "what speaks for it"),
            ]
        else:
            asked += [
                (self.again("trace", options=("--pipeline",)), "one line a step"),
                (self.again("rollout"), "which tokens reach which"),
            ]
        yield from next_lines(terminal, *asked)
