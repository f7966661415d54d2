"""One logit taken apart: its parts as bars, what each kind comes to, a map of the heads."""

import math
from collections.abc import Iterator, Sequence

from tinytf.analysis.attribution import Attribution, Part, total
from tinytf.loading import Model
from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Cell, Column, Heading, Heat, Line, Meter, Span, Table
from tinytf_cli.views.steps import as_array

_ABOVE, _BELOW = "k", "q"  # orange and blue, as above and below 0 in every map


class AttributionView:
    """The attribution of one logit, drawn; ``top`` parts are shown, the others as their sum."""

    def __init__(self, model: Model, found: Attribution, top: int) -> None:
        self.model, self.found, self.top = model, found, top
        self.tokens = found.encoding.tokens

    def _token(self, token_id: int) -> str:
        return self.model.tokenizer.shown(token_id)

    @property
    def _what(self) -> str:
        """The quantity in words: a logit, or the lead of one over another."""
        found = self.found
        if found.versus is None:
            return f"{found.of} of {self._token(found.token)}"
        return f"lead of {self._token(found.token)} over {self._token(found.versus)}"

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The largest parts, the kinds, the heads, and whether they sum to the logit."""
        found = self.found
        yield from banner(self.model, self.found.encoding)
        at = f"at {found.position} {self.tokens[found.position].shown}"
        yield Heading(f"{self._what} {at}", f"{number(found.logit, '%.4f')}, part by part", "output")
        yield Line(Span(f"held at its value: {found.frozen}", "dim"), indent=2)
        if found.versus is None:
            said = "a logit has no zero of its own: what all tokens get alike decides nothing; --versus TOKEN compares"
            yield Line(Span(said, "dim"), indent=2)
        yield self._parts()
        yield Heading("by kind", "the sum of each")
        kinds = found.by_kind()
        counts = [sum(part.kind == kind for part in found.parts) for kind in kinds]
        yield Table(
            [
                Column("", [f"{count:,}" for count in counts], "right"),
                Column("", list(kinds)),
                Column("", _meters(list(kinds.values())), narrow=_texts(list(kinds.values()))),
            ],
            header=False,
        )
        yield Heading("heads", "what each adds, orange above 0 and blue below", "attention")
        yield self._heads(terminal)
        yield Line("")
        yield self._check()

    def _heads(self, terminal: Terminal) -> Heat:
        """Layers down, heads across; with fewer digits where only so all of them fit."""
        heads = as_array(self.found.heads())
        n_layers, n_heads = heads.shape
        limit = float(abs(heads).max()) or 1.0
        narrow = terminal.width < 8 * n_heads + 8 and 0.1 <= limit < 100
        return Heat(
            heads,
            [f"L{layer}" for layer in range(n_layers)],
            [f"H{head}" for head in range(n_heads)],
            "signed",
            limit=limit,
            asked=True,
            digits=2 if narrow else None,
        )

    def _sorted(self) -> list[Part]:
        return sorted(self.found.parts, key=lambda part: -abs(part.value))

    def _parts(self) -> Bars:
        """The largest parts with a bar each, what the others come to, and the sum of all."""
        parts = self._sorted()
        kept, others = parts[: self.top], parts[self.top :]
        rows = [(part.name, self._note(part), part.value) for part in kept]
        if others:
            rows.append((f"{len(others):,} more", "together", total(others)))
        rows.append(("sum", "", self.found.sum))
        width = max(len(name) for name, _, _ in rows)
        return Bars(
            [
                Bar(
                    f"{name.ljust(width)}  {note}".rstrip(),
                    abs(value) if place < len(kept) else 0.0,
                    number(value, "%+.4f"),
                    _ABOVE if value > 0 else _BELOW,
                )
                for place, (name, note, value) in enumerate(rows)
            ],
            max((abs(part.value) for part in parts if math.isfinite(part.value)), default=0.0) or 1.0,
        )

    def _note(self, part: Part) -> str:
        return self.tokens[self.found.position].shown if part.name == "embed.tokens" else part.kind

    def _check(self) -> Line:
        found = self.found
        count, total = f"{len(found.parts):,} parts sum to", number(found.sum, "%.5f")
        what = "the logit" if found.of == "logit" else found.of
        if found.versus is not None:
            what = f"the two {found.of.removesuffix('s')}s' difference"
        off = f"off by {number(found.difference, '%.1e')} (allowed {found.allowed:.0e})"
        if found.holds:
            said = f": {count} {total}, {what} is {number(found.logit, '%.5f')}, {off}"
            return Line([Span("checked", "good"), Span(said)])
        said = f": {count} {total}, and {what} is {number(found.logit, '%.5f')}, {off}"
        return Line([Span("check failed", "bad"), Span(said)])


def _texts(values: Sequence[float]) -> list[str]:
    found = [number(value, "%+.4f") for value in values]
    width = max(map(len, found))
    return [text.rjust(width) for text in found]


def _meters(values: Sequence[float]) -> list[Cell]:
    """Numbers with bars, orange above 0 and blue below."""
    full = max((abs(value) for value in values), default=0.0) or 1.0
    return [
        Meter(abs(value) / full, text, _ABOVE if value > 0 else _BELOW)
        for value, text in zip(values, _texts(values), strict=True)
    ]
