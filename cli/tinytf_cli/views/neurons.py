"""The view of feed-forward units: the active ones of each token, what they promote, and where else they are active."""

from collections.abc import Iterator

from tinytf.loading import Model
from tinytf.look.neurons import Active, ActiveExample, Direction, Neurons, TokenUnits, TopExamples, Unit
from tinytf.text.printable import printable
from tinytf.trace.trace import Trace
from tinytf_cli.numbers import number, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Cell, Column, Figure, Heading, Line, Span, Table
from tinytf_cli.views.parts import (
    figures,
    fold_note,
    full_scale,
    middle_out,
    most_rows,
    note,
    one_form,
    side,
    signed_bars,
)

_ROWS = 28
"""How many rows the table has, unless more are asked for."""
_FEW = 3  # tokens of a direction in a row of the table

Row = tuple[TokenUnits, Active]


class NeuronsView:
    """The units of one text, drawn: the strongest of each token, or the units that were ``asked`` for."""

    def __init__(self, model: Model, trace: Trace, found: Neurons, asked: bool, rows: int | None) -> None:
        self.model, self.trace, self.found, self.asked, self.rows = model, trace, found, asked, rows
        self.directions = {one.unit: one for one in found.directions}
        self.shown = model.shown

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The units token by token or one by one, then their examples."""
        yield from banner(self.model, self.trace.encoding)
        each = 1 if self.asked else 1 + max((len(token.units) for token in self.found.tokens), default=0)
        keep = middle_out(len(self.found.tokens), most_rows(self.rows, max(2, _ROWS // each)))
        if self.asked:
            for unit in self.found.units:
                yield from self._unit(unit, keep)
        else:
            yield from self._table(keep)
        yield from self._notes()
        if self.found.examples is not None:
            yield from self._examples(self.found.examples)

    def _table(self, keep: list[int]) -> Iterator[Block]:
        tokens, layers = self.found.tokens, self.trace.recording.layers
        kept = [(tokens[i], active, place) for i in keep for place, active in enumerate(tokens[i].units)]
        rows = [(token, active) for token, active, _ in kept]
        where = "all layers" if len(layers) == self.trace.config.n_layers else f"layer {layers[0]}"
        yield Heading("units", f"the strongest of {where} at each token, by the size of their {self.found.by}", "ffn")
        names: list[Cell] = [Span(self._token(token), "strong") if not place else "" for token, _, place in kept]
        columns = [
            Column("token", names, shrink=8, said=""),
            Column("unit", [Span(str(active.unit), "ffn") for _, active in rows]),
            *self._figures(rows, full_scale(active.activation for token in tokens for active in token.units)),
        ]
        if self.directions:
            for title, promoted, drop in (("promotes", True, 0), ("suppresses", False, 1)):
                few, fewer = ([self._few(active, promoted, most) for _, active in rows] for most in (_FEW, _FEW - 1))
                columns.append(Column(title, few, narrow=fewer, shrink=12, drop=drop))
        ends = frozenset(
            i for i, (token, _, place) in enumerate(kept[:-1]) if place == len(token.units) - 1 and len(token.units) > 1
        )
        yield Table(columns, rule_after=ends)
        yield from fold_note(range(len(tokens)), keep, "tokens")

    def _figures(self, rows: list[Row], full: float) -> Iterator[Column]:
        """What each unit does at each token: its activation, and what it adds to the logit of the predicted token."""
        activations = [active.activation for _, active in rows]
        yield signed_bars("activation", activations, one_form(activations, sign=True), full)
        if any(active.contribution is not None for _, active in rows):
            added = figures([active.contribution for _, active in rows], sign=True)
            yield Column("Δ logit", added, "right", said="adds")
            predicted = ["" if token.predicted is None else self.shown(token.predicted) for token, _ in rows]
            yield Column("of", predicted, shrink=6, drop=2)

    def _token(self, token: TokenUnits) -> str:
        return f"{token.position} {self.trace.tokens[token.position].shown}"

    def _few(self, active: Active, promoted: bool, most: int) -> str:
        """What a unit does here: a negative activation turns its direction around."""
        direction = self.directions[active.unit]
        ends = direction.promoted if promoted == (active.activation >= 0) else direction.suppressed
        return "  ".join(self.shown(i) for i, _ in ends[:most])

    def _unit(self, unit: Unit, keep: list[int]) -> Iterator[Block]:
        tokens = self.found.tokens
        every = [(token, next(active for active in token.units if active.unit == unit)) for token in tokens]
        kept = [every[i] for i in keep]
        yield Heading(str(unit), "its activation at each token", "ffn")
        columns = [
            Column("#", [str(token.position) for token, _ in kept], "right", said="token"),
            Column("token", [self.trace.tokens[token.position].shown for token, _ in kept], shrink=8, said=""),
            *self._figures(kept, full_scale(active.activation for _, active in every)),
        ]
        yield Table(columns)
        yield from fold_note(range(len(tokens)), keep, "tokens")
        if unit in self.directions:
            yield from self._direction(self.directions[unit])

    def _direction(self, direction: Direction) -> Iterator[Block]:
        said = f"logits for an activation of 1, before the norm's scale; ‖row‖ {number(direction.norm, '%.3g')}"
        yield Heading(f"{direction.unit} in the vocabulary", said, "output")
        ends = (("promotes", direction.promoted), ("suppresses", direction.suppressed))
        values = [value for _, end in ends for _, value in end]
        full, form = full_scale(values), one_form(values, sign=True)
        bars = [Bar(f"{word} {self.shown(i)}", value, Figure(value, form)) for word, end in ends for i, value in end]
        yield Bars(bars, full, signed=True)

    def _notes(self) -> Iterator[Block]:
        yield Line("")
        yield Line(Span(f"directions: {self.found.reading}" if self.directions else self.found.reading, "dim"))
        if self.model.transformer.head is not None:
            yield Line(Span(f"Δ logit: {self.found.contributing}", "dim"))
        if self.directions and not self.asked:
            said = "promotes, suppresses: what the unit does here; a negative activation turns its direction around"
            yield Line(Span(said, "dim"))

    def _examples(self, found: TopExamples) -> Iterator[Block]:
        corpus = printable(found.corpus, spaces=False)
        counted = f"{plural(found.tokens, 'token')} in {plural(found.documents, 'document')} of {corpus}"
        for unit, examples in found.units.items():
            yield Heading(f"{unit} elsewhere", f"<<where it is most active>>, of {counted}", "ffn")
            if not examples:
                yield note("the corpus has no token")
            form = one_form((one.activation for one in examples), sign=True)
            for one in examples:
                yield Line([Figure(one.activation, form, "dim"), "  ", *self._context(one)], indent=2)

    def _context(self, one: ActiveExample) -> list[Span]:
        words = [self.model.tokenizer.shown(i) for i in one.ids]
        if self.model.tokenizer.kind == "WordPiece":  # its words have no space of their own
            words = [word.removeprefix("##") if word.startswith("##") else f"·{word}" for word in words]
        marked = Span(f"<<{words[one.at]}>>", side(one.activation))
        return [Span("".join(words[: one.at])), marked, Span("".join(words[one.at + 1 :]))]
