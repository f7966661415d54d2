"""The view of feed-forward units: the active ones of each token, what they promote, and where else they are active."""

import math
from collections.abc import Iterator

from tinytf.analysis.neurons import Active, Direction, Example, Examples, Neurons, TokenUnits, Unit
from tinytf.loading import Model
from tinytf.text.printable import printable
from tinytf.trace.trace import Trace
from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.backward import figure
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Cell, Column, Heading, Line, Meter, Span, Table
from tinytf_cli.views.steps import left_out, shown_rows

_ABOVE, _BELOW = "k", "q"  # orange and blue, as above and below 0 in every map
_FEW = 3  # tokens of a direction in a row of the table


class NeuronsView:
    """The units of one text, drawn: the strongest of each token, or those that were ``asked`` for one by one."""

    def __init__(self, model: Model, trace: Trace, found: Neurons, asked: bool, rows: int | None) -> None:
        self.model, self.trace, self.found, self.asked, self.rows = model, trace, found, asked, rows
        self.directions = {one.unit: one for one in found.directions}
        sizes = [abs(a.activation) for token in found.tokens for a in token.units if math.isfinite(a.activation)]
        self.full = max(sizes, default=0.0) or 1.0
        self.shown = model.tokenizer.shown

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The units token by token or one by one, then their examples."""
        limit = self.rows if self.rows is not None else (16 if terminal.cuts else None)
        yield from banner(self.model, self.trace.encoding)
        rows = limit or None
        if self.asked:
            for unit in self.found.units:
                yield from self._unit(unit, rows)
        else:
            yield from self._table(rows)
        yield from self._notes()
        if self.found.examples is not None:
            yield from self._examples(self.found.examples)

    def _table(self, rows: int | None) -> Iterator[Block]:
        tokens, layers = self.found.tokens, self.trace.recording.layers
        keep = shown_rows(len(tokens), rows)
        kept = [(tokens[i], active, place) for i in keep for place, active in enumerate(tokens[i].units)]
        where = "all layers" if len(layers) == self.trace.config.n_layers else f"layer {layers[0]}"
        yield Heading("units", f"the strongest of {where} at each token, by the size of their {self.found.by}", "ffn")
        first: list[Cell] = [self._token(token) if not place else "" for token, _, place in kept]
        width = max(len(figure(a.activation)) for _, a, _ in kept)
        activations = [figure(a.activation).rjust(width) for _, a, _ in kept]
        columns = [
            Column("token", first, shrink=8, said=""),
            Column("unit", [Span(str(a.unit), "ffn") for _, a, _ in kept]),
            Column("activation", [self._meter(a, text) for (_, a, _), text in zip(kept, activations, strict=True)],
                   narrow=activations),
        ]  # fmt: skip
        if any(a.contribution is not None for _, a, _ in kept):
            columns.append(Column("logit", [_signed(a.contribution) for _, a, _ in kept], "right", said="adds"))
            columns.append(Column("of", [self._predicted(token) for token, _, _ in kept], shrink=6, drop=2))
        if self.directions:
            columns.append(Column("promotes", [self._few(a, True) for _, a, _ in kept], shrink=12))
            columns.append(Column("suppresses", [self._few(a, False) for _, a, _ in kept], shrink=12, drop=1))
        ends = frozenset(
            i for i, (token, _, place) in enumerate(kept[:-1]) if place == len(token.units) - 1 and len(token.units) > 1
        )
        yield Table(columns, rule_after=ends)
        yield from left_out(len(tokens), keep)

    def _token(self, token: TokenUnits) -> Cell:
        return Span(f"{token.position} {self.trace.tokens[token.position].shown}", "strong")

    def _meter(self, active: Active, text: str) -> Meter:
        share = abs(active.activation) / self.full if math.isfinite(active.activation) else 1.0
        return Meter(share, text, _BELOW if active.activation < 0 else _ABOVE)

    def _predicted(self, token: TokenUnits) -> str:
        return "" if token.predicted is None else self.shown(token.predicted)

    def _few(self, active: Active, promoted: bool) -> str:
        """What a unit does here: a negative activation turns its direction around."""
        direction = self.directions[active.unit]
        ends = direction.promoted if promoted == (active.activation >= 0) else direction.suppressed
        return "  ".join(self.shown(i) for i, _ in ends[:_FEW])

    def _unit(self, unit: Unit, rows: int | None) -> Iterator[Block]:
        tokens = self.found.tokens
        keep = shown_rows(len(tokens), rows)
        active = {t.position: next(a for a in t.units if a.unit == unit) for t in tokens}
        kept = [tokens[i] for i in keep]
        sizes = [abs(a.activation) for a in active.values() if math.isfinite(a.activation)]
        full = max(sizes, default=0.0) or 1.0
        texts = [figure(active[t.position].activation) for t in kept]
        width = max(map(len, texts))
        meters: list[Cell] = []
        for token, text in zip(kept, texts, strict=True):
            value = active[token.position].activation
            share = abs(value) / full if math.isfinite(value) else 1.0
            meters.append(Meter(share, text.rjust(width), _BELOW if value < 0 else _ABOVE))
        yield Heading(str(unit), "its activation at each token", "ffn")
        columns = [
            Column("#", [str(t.position) for t in kept], "right", said="token"),
            Column("token", [self.trace.tokens[t.position].shown for t in kept], shrink=8, said=""),
            Column("activation", meters, narrow=texts),
        ]
        if any(one.contribution is not None for one in active.values()):
            columns.append(
                Column("logit", [_signed(active[t.position].contribution) for t in kept], "right", said="adds")
            )
            columns.append(
                Column("of", ["" if t.predicted is None else self.shown(t.predicted) for t in kept], shrink=6)
            )
        yield Table(columns)
        yield from left_out(len(tokens), keep)
        if unit in self.directions:
            yield from self._direction(self.directions[unit])

    def _direction(self, direction: Direction) -> Iterator[Block]:
        note = f"logits for an activation of 1, before the norm's scale; ‖row‖ {figure(direction.norm)}"
        yield Heading(f"{direction.unit} in the vocabulary", note, "output")
        ends = [*direction.promoted, *direction.suppressed]
        full = max((abs(value) for _, value in ends if math.isfinite(value)), default=0.0) or 1.0
        for word, part, role in (
            ("promotes", direction.promoted, _ABOVE),
            ("suppresses", direction.suppressed, _BELOW),
        ):
            yield Line(Span(word, "dim"), indent=2)
            yield Bars([Bar(self.shown(i), abs(value), _signed(value), role) for i, value in part], full)

    def _notes(self) -> Iterator[Block]:
        yield Line("")
        yield Line(Span(f"directions: {self.found.reading}" if self.directions else self.found.reading, "dim"))
        if self.model.transformer.head is not None:
            yield Line(Span(f"logit: {self.found.contributing}", "dim"))
        if self.directions and not self.asked:
            said = "promotes, suppresses: what the unit does here; a negative activation turns its direction around"
            yield Line(Span(said, "dim"))

    def _examples(self, found: Examples) -> Iterator[Block]:
        corpus = printable(found.corpus, spaces=False)
        plural = "" if found.documents == 1 else "s"
        counted = f"{found.tokens:,} tokens in {found.documents:,} document{plural} of {corpus}"
        for unit, examples in found.units.items():
            yield Heading(f"{unit} elsewhere", f"<<where it is most active>>, of {counted}", "ffn")
            if not examples:
                yield Line(Span("the corpus has no token", "dim"), indent=2)
            width = max((len(figure(one.activation)) for one in examples), default=0)
            for one in examples:
                spans = [Span(f"{figure(one.activation).rjust(width)}  ", "dim"), *self._context(one)]
                yield Line(spans, indent=2)

    def _context(self, one: Example) -> list[Span]:
        words = [self.shown(i) for i in one.ids]
        if self.model.tokenizer.kind == "WordPiece":  # its words have no space of their own
            words = [word.removeprefix("##") if word.startswith("##") else f"·{word}" for word in words]
        role = _BELOW if one.activation < 0 else _ABOVE
        marked = Span(f"<<{words[one.at]}>>", role)
        return [Span("".join(words[: one.at])), marked, Span("".join(words[one.at + 1 :]))]


def _signed(value: float | None) -> str:
    return "" if value is None else number(value, "%+.3f")
