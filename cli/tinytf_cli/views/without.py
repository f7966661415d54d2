"""The view of a model with parts of attention left out, beside the whole one: what it says now, and what changed."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from tinytf.analysis.left_out import LeftOut
from tinytf.analysis.order import Order
from tinytf.analysis.sharpness import Sharpness, entropies, slopes
from tinytf.loading import Model
from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Beside, Block, Column, Figure, Heading, Heat, Line, Span, Table
from tinytf_cli.views.overview import short_banner, text_block
from tinytf_cli.views.parts import bar_column, full_scale, note, share_column, shortened, titled, verdict
from tinytf_cli.views.steps import as_array, shown_rows, visible_array

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
        """What comes of it, in a sentence."""
        found, shown = self.found.difference, self.model.tokenizer.shown
        if found.predictions:
            one = found.predictions[0]
            first, second = (max(zip(p, one.ids, strict=True)) for p in (one.first, one.second))
            how = "is still" if first[1] == second[1] else f"becomes {shown(second[1])} where it was"
            said = f"the prediction {how} {shown(first[1])}, KL {number(one.kl, '%.3g')} nats"
        else:
            said = f"the last layer's stream is off by {self.found.layers[-1].stream:.2g} of its largest number"
        yield titled(self.said, f": {said}")
        yield note(f"left out of every layer: {', '.join(self.found.gone)}; the weights are the same")

    def _predictions(self) -> Iterator[Block]:
        for one in self.found.difference.predictions:
            where = "next" if self.model.config.causal else f"fill of [MASK] at {one.position}"
            yield Heading(where, "", "output")
            yield Table(
                [
                    Column("token", [self.model.tokenizer.shown(i) for i in one.ids], shrink=10, said=""),
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
        changes = self.found.layers
        keep = shown_rows(len(changes), _LAYERS)
        rows = [changes[place] for place in keep]
        full = full_scale(one.stream for one in rows)
        streams = [number(one.stream, "%.3f") for one in rows]
        heads = [f"H{one.head} {one.moved:.2f}" for one in rows]
        ahead = [one.ahead for one in rows if one.ahead is not None]
        yield Heading("layers", "the head that moves most; how far the stream is off after it")
        yield Table(
            [
                Column("", [f"L{one.layer}" for one in rows]),
                bar_column("head", [one.moved for one in rows], heads, "attention", said="head that moves most"),
                bar_column("stream", [one.stream / full for one in rows], streams, "residual"),
                Column("cosine", [Figure(one.cosine, "%.3f") for one in rows], "right"),
                *([bar_column("on later tokens", ahead, [f"{one:.2f}" for one in ahead], _WITHOUT)] if ahead else []),
            ],
            rule_after=frozenset(i for i in range(len(keep) - 1) if keep[i + 1] != keep[i] + 1),
        )
        if len(keep) < len(changes):
            yield note(f"{len(changes) - len(keep)} layers in the middle are folded; --json has all")

    def _sharpness(self, found: Sharpness) -> Iterator[Block]:
        """The live scores of the head above through the softmax twice."""
        queries = range(len(self.names))[-_QUERIES:]
        both = found.scaled[queries], found.unscaled[queries]
        columns = [Column("query", [self.names[place] for place in queries], shrink=8)]
        for title, weights, role in zip((f"/ {found.expression}", "undivided"), both, (_WHOLE, _WITHOUT), strict=True):
            most, keys = weights.max(dim=-1)
            texts = [f"{share:.3f} {self.names[key]}" for share, key in zip(most.tolist(), keys.tolist(), strict=True)]
            wide = max(map(cell_len, texts))
            texts = [set_cell_size(text, wide) for text in texts]
            columns += [
                bar_column(f"largest {title}", most.tolist(), texts, role),
                Column("entropy", [f"{one:.3f}" for one in entropies(weights).tolist()], "right", drop=2),
                Column("w(1−w)", [f"{one:.4f}" for one in slopes(weights).tolist()], "right", drop=1),
            ]
        said = f"the same live scores, divided by {found.expression} = {found.divisor:.4g} and not"
        yield Heading(f"softmax of L{found.layer}H{found.head}", said, "attention")
        yield Table(columns)
        yield note("entropy in nats; w(1−w) multiplies the gradient of the largest weight")

    def _order(self, found: Order) -> Iterator[Block]:
        """The text in another order: where the outputs are the same, the order is lost."""
        shown = self.model.tokenizer.shown

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
        """Both traces, in one line."""
        checks = self.found.checks
        worst = " and ".join(f"{one.worst.difference:.1e} at {one.worst.step}" for one in checks)
        yield Line("")
        yield verdict(all(one.holds for one in checks), f"both runs add up, largest differences {worst}")


def _map_width(queries: Sequence[str], keys: Sequence[str], width: int) -> int:
    """Columns of a map with its numbers, or with small cells where those do not fit ``width`` either."""
    label, key = (max(map(len, names)) for names in (queries, keys))
    numbers = min(14, label) + 3 + (min(8, max(4, key)) + 1) * len(keys)
    return numbers if numbers <= width else _SMALL
