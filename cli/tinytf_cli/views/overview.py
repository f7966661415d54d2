"""The first screen of a trace: the answer, a block as a drawing, a line per layer, the heads, what to ask next."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import cast

from rich.cells import cell_len

from tinytf.config import ENC
from tinytf.loading import Model
from tinytf.look.overview import Added, Layer, Overview
from tinytf.look.prediction import Likely, Prediction
from tinytf.look.trace import Traced
from tinytf.parts.row import Step
from tinytf.report import Report
from tinytf.text.printable import printable
from tinytf.trace.trace import Trace
from tinytf_cli.numbers import count, number, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import heads_in_words, notes, number_words
from tinytf_cli.views.blocks import (
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
from tinytf_cli.views.flow import Drawing
from tinytf_cli.views.parts import fold_note, next_lines, note, numbered, opening_of, shortened
from tinytf_cli.views.predictions import likely_blocks
from tinytf_cli.views.steps import as_array, labels, visible_array
from tinytf_cli.views.tokens import token_roles

_USUAL = "float32 on cpu"
_BARS, _ENOUGH = 5, 0.999
_TAGGED = 12  # tokens whose class is shown
_SCREEN = 45  # lines; of them those of the text, above the drawing, above the maps, and what is next
_AROUND = 1 + 2 + 1 + 5
_LONG = 10  # lines of title and answer, with which fewer layers are shown
_TITLE = 105  # columns of the longest title of the maps
_LAYERS = 4  # shown of a deep model; twice as many where they stand beside the drawing
_WIDE = 8  # columns that a small map takes, at least
_CLOSEUP, _TABLE = 22, 76  # columns of the map and of the layers beside the drawing, at least
_QUERIES = 8  # of the map; fewer where it is below the drawing
_QUOTED = 60
"""The most characters of a text that is repeated in a command line."""

Again = Callable[..., str]
"""Makes a command line about the same text, from a command with its own arguments and ``options``."""


def commands_about(report: Report) -> Callable[[str], Again]:
    """Return a maker of terminal command lines about a text and the model of a report."""
    more = opening_of(cast("Model", report.about.model)) if report.about else ()

    def about(text: str) -> Again:
        word = text if text.isprintable() and 0 < len(text) <= _QUOTED and not text.startswith("-") else "TEXT"
        return lambda *command, options=(): shlex.join(["tinytf", *command, word, *options, *more])

    return about


def short_banner(model: Model, trace: Trace, width: int) -> Iterator[Block]:
    """A line for the model; a line for the tokenizer and what it added to the text, with the notes if they fit."""
    config, name = model.config, printable(model.name, spaces=False)
    source = printable(model.source, spaces=False)
    parts = [f"{config.kind}, {heads_in_words(config)}", f"{count(model.n_parameters)} parameters"]
    computed = number_words(model)
    parts += [] if computed == _USUAL else [computed]
    parts += [] if name in source or source == "built in" else [source]
    yield Line([Span(name, "strong"), *(Span(f" · {part}") for part in parts)], lead=True)
    tokenizer = model.tokenizer
    borrowed = f" ({model.tokenizer_note.partition(':')[0]})" if model.tokenizer_note and not model.notes else ""
    summary = f"{trace.encoding.added} · {tokenizer.kind} of {tokenizer.vocab_size:,}{borrowed}"
    note_words = "".join(f" · note: {printable(note, spaces=False)}" for note in model.notes)
    if len(summary + note_words) <= width:
        yield Line([Span(summary, "dim"), Span(note_words)], lead=True)
    else:
        yield Line(Span(summary, "dim"), lead=True)
        yield from (replace(note, lead=True) for note in notes(model))


def text_blocks(trace: Trace, width: int, *, every: bool = False) -> Iterator[Block]:
    """The tokens of a text; of a target below those of its source."""
    for at, stack in trace.stacks.items():
        if len(trace.stacks) > 1:
            yield Line(Span(_TEXTS[at], "dim"))
        yield text_block(stack, width, every=every)


_TEXTS = {ENC: "source, which the encoder reads", "": "target, which the decoder writes"}


def text_block(trace: Trace, width: int, *, every: bool = False) -> Pieces:
    """The tokens in one line; a long text is folded in the middle, unless ``every`` is set."""
    names = labels(trace)
    roles = token_roles(trace.encoding)
    room = width - 4
    if every or sum(cell_len(name) + 1 for name in names) <= room:
        return Pieces(names, roles)
    half = (room - len(f" … {len(names):,} more … ")) // 2
    head, tail = _count_fitting(names, half), _count_fitting(names[::-1], half)
    fold = f" … {len(names) - head - tail:,} more … "
    last = len(names) - tail
    return Pieces([*names[:head], fold, *names[last:]], [*roles[:head], "dim", *roles[last:]])


def _count_fitting(names: Sequence[str], room: int) -> int:
    """How many names fit, at least one."""
    ends = accumulate(cell_len(name) + 1 for name in names)
    return max(1, sum(end <= room for end in ends))


def answer_blocks(
    trace: Trace, predictions: Sequence[Prediction], top: int | None, *, digits: bool, every: bool = False
) -> Iterator[Block]:
    """The most probable tokens or classes: ``top`` of them, or until 99.9 % or five; fewer for each of several.

    ``digits`` uses the terminal's digits; ``every`` shows more than five [MASK].
    """
    if not predictions and trace.model.head is not None:
        yield Line(Span("  the text has no [MASK] to fill", "dim"))
    named = []
    of_tokens = any(prediction.what == "token" for prediction in predictions)
    visible = predictions if every else predictions[: _TAGGED if of_tokens else _BARS]
    titles = [
        "[MASK]" if prediction.what == "fills" and len(predictions) == 1 else prediction.title for prediction in visible
    ]
    width = max(map(cell_len, titles), default=0)
    for heading, prediction in zip(titles, visible, strict=True):
        for index, likely in enumerate(_shown(prediction, top, max(1, _BARS // len(predictions)))):
            title = heading if index == 0 else ""
            named.append((f"{title}{' ' * (width - cell_len(title))}  {likely.shown}", likely))
    yield from likely_blocks(named, digits=digits)
    if len(predictions) > len(visible):
        noun = "tokens" if of_tokens else "[MASK]"
        yield note(f"and {len(predictions) - len(visible)} more {noun}", "--all shows them")


def _shown(prediction: Prediction, top: int | None, most: int) -> Sequence[Likely]:
    if top is not None:
        return prediction.top[:top]
    total = 0.0
    for n, likely in enumerate(prediction.top, start=1):
        total += likely.probability or 0.0
        if total >= _ENOUGH or n == most:
            return prediction.top[:n]
    return prediction.top


def head_maps(overview: Overview, width: int, lines: int, where: str) -> Iterator[Block]:
    """Small maps of the heads that add most, of those that have a map, as many as fit; ``where`` they are read."""
    trace = overview.trace
    steps = {layer.layer: trace.steps.map_of(layer.layer) for layer in overview.layers}
    mapped = [(layer, head, step) for layer, head, _ in overview.ranked if (step := steps[layer])]
    if not mapped:
        return
    most = max(1, width // _WIDE) * max(1, lines // (2 + min(len(trace.tokens), 5) // 2))
    maps = [
        Miniature(
            f"L{layer}H{head}",
            shortened(overview.most_seen(layer, head), 9),
            as_array(overview.weights(layer, head)),
            visible_array(trace, step, layer),
            labels(trace),
            overview.positions,
        )
        for layer, head, step in mapped[:most]
    ]
    target = "stream" if overview.predicted is None else "logit"
    target, marks = f"those that add most to the {target}", f"→ what each sees most {where}"
    yield Miniatures(maps, lines, "heads", len(mapped), target, "--all shows all", marks, grow=True)


def where_read(overview: Overview) -> str:
    """Where the numbers of an overview are read, in words."""
    positions, trace = overview.positions, overview.trace
    if len(positions) == 1:
        return f"at {trace.tokens[positions[0]].shown}"
    noun = "[MASK]" if trace.config.predicts_tokens else "token"
    reading = overview.reading
    return "over all tokens" if reading is None else f"at each {noun}; the lens at {reading}"


class Screen:
    """The first screen of one trace, below its answer."""

    def __init__(self, model: Model, report: Traced, again: Again) -> None:
        self.model, self.report, self.again = model, report, again
        self.trace, self.overview = report.trace, report.overview
        self.names = labels(report.trace)

    def blocks(self, terminal: Terminal, rows: int | None, above: int) -> Iterator[Block]:
        """A drawing of one block, a line per layer (``rows`` of them, 0 for all), and the strongest heads.

        ``above`` is how many lines the answer has; the heads get the remaining lines of a screen.
        """
        overview = self.overview
        layer, head, value = overview.ranked[0]
        drawing = Drawing(overview.flow, rails=not terminal.plain, ascii=terminal.ascii)
        least = _CLOSEUP + 6 * terminal.ascii
        room, narrow = (terminal.width - 2 - width for width in (drawing.width, drawing.narrow))
        wide = room >= _TABLE
        needed = self._width_of_keys(layer, len(self.names), 4, terminal)
        if room < least or room < needed <= narrow:  # the drawing makes room by leaving shapes out
            room, least = narrow, max(least, needed if needed <= narrow else 0)
        beside = room >= least
        queries = min(len(self.names), _QUERIES)
        if rows is None:
            rows = 2 * _LAYERS if wide and len(self.names) <= _LAYERS + 1 else _LAYERS - 2 * (above > _LONG)
        layers, several = list(self.layers(rows or None)), len(overview.layers)
        high = 3 + (several if several <= rows + 1 or not rows else rows + 1)
        closeup = list(
            self._closeup(layer, head, value, room, terminal) if beside else [self._looks_at(layer, head, value)]
        )
        yield self._heading(layer, terminal.width)
        yield Beside([list(drawing.blocks(cut=not beside)), [*closeup, *(layers if wide else ())]], least=least)
        yield from () if wide else layers
        taken = max(drawing.lines, queries + 4 + high * wide) if beside else drawing.lines + 2
        titles = 1 if terminal.width > _TITLE else 2
        screen = max(_SCREEN, terminal.height * (terminal.cuts and not terminal.picture))
        lines = screen - _AROUND - above - taken - high * (not wide) - titles
        yield from self.heads(terminal.width, lines)

    def _heading(self, layer: int, width: int) -> Heading:
        """The heading of the drawing: which block it is, and why."""
        overview, config = self.overview, self.trace.config
        predicted = overview.predicted
        target = "stream" if predicted is None else f"logit of {shortened(predicted, 12)}"
        subtitle = f"of {config.n_layers}, with the head that adds most to the {target}"
        more = f" · {plural(len(self.names), 'token')} × d_model {config.d_model}"
        return Heading(f"block L{layer}", subtitle + (more if width >= 100 else ""))

    def _named(self, layer: int, head: int, value: float, step: str = "") -> list[Span | Figure]:
        """A head, what it looks at most, and how much it adds."""
        most = " ".join(("", *shortened(self.overview.most_seen(layer, head), 9).split(), ""))
        adds = Figure(value, "%.2f" if self.overview.predicted is None else "%+.2f", "dim")
        return [Span(f"L{layer}H{head}{step}", "attention"), Span(most, "dim"), adds]

    def _looks_at(self, layer: int, head: int, value: float) -> Line:
        """What the head looks at from the last position that is read, in words."""
        step = self.trace.steps.map_of(layer)
        if step is None:
            return Line(self._named(layer, head, value), indent=2)
        seen = self.overview.closeup(layer, head, 3, 1)
        (query,), (row,) = seen.queries, seen.weights.tolist()
        verb = "looks at" if step.holds_shares else "reads"
        words: list[Span | Figure | str] = [Span(f"   {shortened(self.names[query], 9)} {verb}", "dim")]
        for key, weight in sorted(zip(seen.keys, row, strict=True), key=lambda pair: -pair[1]):
            words += [f" {shortened(self.names[key], 9)} ", Figure(weight, "%.2f")]
        return Line([*self._named(layer, head, value), *words], indent=2)

    def _width_of_keys(self, layer: int, count: int, longest: int, terminal: Terminal, widest: int = 4) -> int:
        """The columns of a map of ``count`` keys with names of at most ``longest``, and queries of ``widest``."""
        step = self.trace.steps.map_of(layer)
        numbers = 4 if step is None or step.holds_shares else 5

        def width(most: int) -> int:  # in 7 bits … is two letters
            names = {shortened(name, most) for name in self.names}
            return max(cell_len(name) + terminal.ascii * name.count("…") for name in names)

        return 3 + width(widest) + count * (max(numbers, width(longest)) + 1)

    def _closeup(self, layer: int, head: int, value: float, room: int, terminal: Terminal) -> Iterator[Block]:
        """What the head looks at, as a map of as many keys as fit."""
        step = self.trace.steps.map_of(layer)
        if step is None:
            yield self._looks_at(layer, head, value)
            return
        count = len(self.names)
        fitting = (most for most in (6, 4) if self._width_of_keys(layer, count, most, terminal) <= room)
        longest, widest = next(fitting, 4), 7 if room > 2 * _CLOSEUP else 4  # names of keys and queries
        while count > 1 and self._width_of_keys(layer, count, longest, terminal, widest) > room:
            count -= 1
        seen = self.overview.closeup(layer, head, count, _QUERIES)
        visible = visible_array(self.trace, step, layer)
        yield Line(self._named(layer, head, value, f".{step.name}" if room > 2 * _CLOSEUP else ""))
        seen_part = None if visible is None else visible[list(seen.queries)][:, list(seen.keys)]
        rows, columns = ([shortened(self.names[position], most) for position in positions] for positions, most in (
            (seen.queries, widest), (seen.keys, longest)
        ))  # fmt: skip
        kind = "unit" if step.holds_shares else "signed"
        yield Heat(as_array(seen.weights), rows, columns, kind, seen_part, digits=2)
        total = len(self.names)
        if len(columns) < total:
            query_range = f"queries {seen.queries[0]} to {seen.queries[-1]} of {total}, " if len(rows) < total else ""
            yield Line(Span(f"{query_range}the {len(columns)} keys seen most", "dim"), indent=2, hanging=0)

    def layers(self, rows: int | None) -> Iterator[Block]:
        """A line per layer; of a deep model, the ``rows`` that tell most."""
        layers = self.overview.layers
        names, keep = numbered("L", len(layers)), list(range(len(layers)))
        if rows is not None and len(layers) > rows + 1:
            keep = self.overview.telling(rows)
        heads = [list(self._head(layer)) if layer.heads and layer.layer in keep else "" for layer in layers]
        sizes = [{added.step: added for added in layer.added} for layer in layers]
        adding = [step for step in self.trace.steps.added if any(step.name in layer for layer in sizes)]
        columns = [
            Column("", [Span(name, "residual") for name in names], said=""),
            *(self._sizes(step, [layer.get(step.name) for layer in sizes]) for step in adding),
            Column("head that adds most", heads, said="most from"),
        ]
        if self.overview.reading is not None:
            reads = [layer.read for layer in layers if layer.read is not None]
            columns += [
                Column("would predict here", [Span(read.token, "output") for read in reads], shrink=8),
                Column("", [Meter(read.probability, Figure(read.probability, "%.3f"), "output") for read in reads]),
            ]
        yield Heading("layers", f"how far each half moves the vector {where_read(self.overview)} (1 = its own length)")
        yield Table(columns).only(keep)
        yield from fold_note(names, keep, "layers", "--all")

    def _sizes(self, step: Step, column: Sequence[Added | None]) -> Column:
        """The relative sizes of what a step adds; a whole bar is as much as the stream, or more."""
        return Column(
            f"{step.name} adds",
            [Meter(added.share, Figure(added.share, "%.2f"), step.role) if added else "" for added in column],
        )

    def _head(self, layer: Layer) -> Iterator[Span]:
        label = self.overview.most_seen(layer.layer, layer.strongest)
        yield Span(f"H{layer.strongest}", "attention")
        yield Span(f" {number(layer.heads[layer.strongest], '%.2f')} {label}".rstrip())

    def heads(self, width: int, lines: int) -> Iterator[Block]:
        """Small maps of the strongest heads that have a map, as many as fit the lines."""
        yield from head_maps(self.overview, width, lines, where_read(self.overview))

    def next(self, terminal: Terminal) -> Iterator[Block]:
        """Command lines to type next."""
        layer, head, _ = self.overview.ranked[0]
        lines = [(self.again("trace", options=("--block", f"L{layer}H{head}")), "that head in full")]
        if self.report.predictions:
            prediction = self.report.predictions[0]
            position = (
                ()
                if self.trace.config.head.kind in ("sequence", "lm", "mlm")
                else ("--position", str(prediction.position))
            )
            lines = [
                (self.again("explain", prediction.address), "its arithmetic"),
                *lines,
                (self.again("attribute", options=position), "what speaks for it"),
            ]
        else:
            lines += [
                (self.again("trace", options=("--pipeline",)), "one line a step"),
                (self.again("rollout"), "which tokens reach which"),
            ]
        yield from next_lines(terminal, *lines)
