"""The view of a model with parts of attention left out, beside the whole one: what it says now, and what changed."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from tinytf.cause.left_out import LeftOut
from tinytf.cause.order import Order
from tinytf.cause.sharpness import Sharpness, peaks
from tinytf.loading import Model
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Beside, Block, Column, Figure, Heading, Heat, Line, Piece, Span, Table
from tinytf_cli.views.overview import short_banner, text_block
from tinytf_cli.views.parts import (
    bar_column,
    folded,
    note,
    numbered,
    share_column,
    shortened,
    size_column,
    titled,
    verdict,
)
from tinytf_cli.views.predictions import check_blocks
from tinytf_cli.views.steps import as_array, visible_array

_WHOLE, _WITHOUT = "q", "k"  # blue and orange
_LAYERS = 6
_QUERIES = 6
_WORDS = 24
_SMALL = 36
"""Columns of a map of small cells."""


class WithoutView:
    """Both runs side by side."""

    def __init__(self, model: Model, found: LeftOut) -> None:
        self.model, self.found = model, found
        self.names = [token.shown for token in found.encoding.tokens]
        self.said = "without " + " and ".join(found.parts)

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The predictions first, then what changed on the way, and whether both runs add up."""
        yield from short_banner(self.model, self.found.traces[0], terminal.width)
        yield text_block(self.found.traces[0], terminal.width)
        yield Line("")
        yield from self._answer()
        yield from self._predictions()
        yield from self._maps(terminal)
        yield from self._layers()
        if self.found.sharpness is not None:
            yield from self._sharpness(self.found.sharpness)
        if self.found.order is not None:
            yield from self._order(self.found.order)
        yield from self._checks()

    def _answer(self) -> Iterator[Block]:
        """What becomes of the prediction, in a sentence."""
        found, shown = self.found.difference, self.model.shown
        if found.predictions:
            one = found.predictions[0]
            first, second = (max(zip(p, one.ids, strict=True)) for p in (one.first, one.second))
            how = "is still" if first[1] == second[1] else f"becomes {shown(second[1])} where it was"
            yield titled(self.said, [f": the prediction {how} {shown(first[1])}, KL ", Figure(one.kl, "%.3g"), " nats"])
        else:
            off = Figure(self.found.layers[-1].stream, "%.2g")
            yield titled(self.said, [": the last layer's stream is off by ", off, " of its largest number"])
        yield note(f"left out of every layer: {', '.join(self.found.gone)}; the weights are the same")

    def _predictions(self) -> Iterator[Block]:
        for one in self.found.difference.predictions:
            where = "next" if self.model.config.causal else f"fill of [MASK] at {one.position}"
            yield Heading(where, "", "output")
            yield Table(
                [
                    Column("token", [self.model.shown(i) for i in one.ids], shrink=10, said=""),
                    share_column("whole", one.first, _WHOLE, like=one.second),
                    share_column(self.said, one.second, _WITHOUT, like=one.first),
                ]
            )

    def _maps(self, terminal: Terminal) -> Iterator[Block]:
        """The weights of the head that moved most, in both runs side by side."""
        found = self.found.difference.attention
        assert found is not None
        apart = found.apart[found.layer]
        assert apart is not None
        moved, most = apart[found.head], max(one.moved for one in self.found.layers)
        which = "of all heads the one that moves most: " if moved == most else ""
        yield Heading(f"L{found.layer}H{found.head}.weights", f"{which}{moved:.2f} of its weight moved", "attention")
        queries, keys = (
            [shortened(one, most) for one in self.names] if terminal.cuts else self.names for most in (7, 4)
        )
        drawn: list[list[Block]] = []
        for said, weights, trace in zip(
            ("whole", self.said), (found.first, found.second), self.found.traces, strict=True
        ):
            seen = visible_array(trace, trace.steps.by_name[trace.steps.weights], found.layer)
            title = Line(Span(said, _WHOLE if said == "whole" else _WITHOUT), indent=2)
            drawn.append([title, Heat(as_array(weights), queries, keys, "unit", seen, digits=2)])
        yield Beside(drawn, least=_map_width(queries, keys, terminal.width), even=True)

    def _layers(self) -> Iterator[Block]:
        rows = self.found.layers
        heads = [f"H{one.head} {one.moved:.2f}" for one in rows]
        columns = [
            Column("", [f"L{one.layer}" for one in rows]),
            bar_column("head", [one.moved for one in rows], heads, "attention", said="head that moves most"),
            size_column("stream", [one.stream for one in rows], "residual", "%.3f"),
            Column("cosine", [Figure(one.cosine, "%.3f") for one in rows], "right"),
        ]
        if ahead := [one.ahead for one in rows if one.ahead is not None]:
            columns.append(size_column("on later tokens", ahead, _WITHOUT, "%.2f", 1.0))
        yield Heading("layers", "the head that moves most; how far the stream is off after it")
        yield from folded(Table(columns), numbered("L", len(rows)), _LAYERS, "layers", "--json")

    def _sharpness(self, found: Sharpness) -> Iterator[Block]:
        """The softmax of the head's live scores, divided and not."""
        columns = [Column("query", self.names[-_QUERIES:], shrink=8)]
        for title, weights, role in (
            (f"/ {found.expression}", found.scaled, _WHOLE),
            ("undivided", found.unscaled, _WITHOUT),
        ):
            rows = peaks(weights)[-_QUERIES:]
            texts = [f"{one.share:.3f} {self.names[one.key]}" for one in rows]
            wide = max(map(cell_len, texts))
            columns += [
                bar_column(
                    f"largest {title}", [one.share for one in rows], [set_cell_size(text, wide) for text in texts], role
                ),
                Column("entropy", [Figure(one.entropy, "%.3f") for one in rows], "right", drop=2),
                Column("w(1−w)", [Figure(one.slope, "%.4f") for one in rows], "right", drop=1),
            ]
        said = f"the same live scores, divided by {found.expression} = {found.divisor:.4g} and not"
        yield Heading(f"softmax of L{found.layer}H{found.head}", said, "attention")
        yield Table(columns)
        yield note("entropy in nats; w(1−w) multiplies the gradient of the largest weight")

    def _order(self, found: Order) -> Iterator[Block]:
        """The text in another order: where the outputs are the same, the order is lost."""
        shown = self.model.shown

        def said(best: tuple[int, float] | None) -> str:
            return "" if best is None else f"{shown(best[0])} {best[1]:.3f}"

        places = found.permutation
        other = " ".join(self.names[place] for place in places[:_WORDS]) + (" …" if len(places) > _WORDS else "")
        yield Heading("order", "the same tokens in another order: are their outputs the same?")
        yield note(other)
        table = [
            Column("without", [" and ".join(one.lacks) or "nothing" for one in found.runs]),
            Column("outputs differ by", [Figure(one.difference, "%.3g") for one in found.runs], "right"),
            Column("order", [Span("lost", "bad") if one.lost else Span("known", "good") for one in found.runs]),
        ]
        if found.runs[0].first is not None:
            table += [
                Column("predicts", [said(one.first) for one in found.runs], drop=1),
                Column("in the other order", [said(one.second) for one in found.runs], drop=1),
            ]
        yield Table(table)
        if len(found.runs) > 2:
            yield note("a causal mask is an order too: the first token sees one token, the last one all of them")

    def _checks(self) -> Iterator[Block]:
        """Both traces, in one line; one that does not add up, alone."""
        wrong = next((one for one in self.found.checks if not one.holds), None)
        if wrong is not None:
            yield from check_blocks(wrong)
            return
        said: list[Piece] = ["both runs add up, largest differences "]
        for place, one in enumerate(self.found.checks):
            said += [" and " if place else "", Figure(one.telling.difference, "%.1e"), f" at {one.telling.step}"]
        yield Line("")
        yield verdict(True, said)


def _map_width(queries: Sequence[str], keys: Sequence[str], width: int) -> int:
    """Columns of a map with its numbers, or with small cells where those do not fit ``width`` either."""
    label, key = (max(map(len, names)) for names in (queries, keys))
    numbers = min(14, label) + 3 + (min(8, max(4, key)) + 1) * len(keys)
    return numbers if numbers <= width else _SMALL
