"""One logit taken apart: the sum of each kind, the parts as bars on either side of 0, a map of the heads."""

from collections.abc import Iterator

import numpy as np

from tinytf.loading import Model
from tinytf.look.attribution import Attribution, Part, total
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Figure, Heading, Line, Piece, Span
from tinytf_cli.views.parts import full_scale, head_map, note, side, verdict
from tinytf_cli.views.steps import as_array


class AttributionView:
    """The attribution of one logit, drawn; ``top`` parts are shown, the others as their sum."""

    def __init__(self, model: Model, found: Attribution, top: int, whole: bool = False) -> None:
        self.model, self.found, self.top, self.whole = model, found, None if whole else top, whole
        self.token = found.encoding.tokens[found.position].shown

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The kinds, the largest parts, the heads, and whether the parts sum to the logit."""
        found, shown = self.found, self.model.shown
        yield from banner(self.model, found.encoding)
        what = f"{found.of} of {shown(found.token)}"
        if found.versus is not None:
            what = f"lead of {shown(found.token)} over {shown(found.versus)}"
        yield Line("")
        yield self._answer(f"{what} at {found.position} {self.token}")
        yield note(f"held at its value: {found.frozen}")
        if found.versus is None:
            said = "a logit has no zero of its own: what all tokens get alike decides nothing; --versus TOKEN compares"
            yield note(said)
        yield Heading("parts", "what each adds, the largest first", "output")
        yield self._parts()
        yield Heading("heads", "what each adds", "attention")
        yield from self._heads(terminal)
        yield Line("")
        yield self._check()

    def _answer(self, what: str) -> Line:
        """The logit, and the sum of each kind of part."""
        words: list[Piece] = [Span(what, "output"), " is ", Figure(self.found.logit, "%.4f", "strong")]
        for place, (kind, value) in enumerate(self.found.by_kind().items()):
            count = plural(sum(part.kind == kind for part in self.found.parts), kind)
            words += [f"{', ' if place else ': '}{count} ", Figure(value, "%+.4f", side(value))]
        return Line(words)

    def _heads(self, terminal: Terminal) -> Iterator[Block]:
        """Layers down, heads across; with fewer digits where otherwise not all fit."""
        heads = as_array(self.found.heads())
        limit = float(np.nanmax(abs(heads))) or 1.0
        narrow = terminal.width < 8 * heads.shape[1] + 8 and 0.1 <= limit < 100
        yield from head_map(heads, "signed", limit, 2 if narrow else None, whole=self.whole)

    def _parts(self) -> Bars:
        """The largest parts with a bar each, then the sum of the others, and of all."""
        parts = sorted(self.found.parts, key=lambda part: -abs(part.value))
        kept, others = parts[: self.top], parts[self.top :] if self.top else []
        full = full_scale(part.value for part in parts)
        rows = [(part.name, self._beside(part), part.value, part.value) for part in kept]
        if others:
            rows.append((f"{len(others):,} more", "--all shows them", total(others), 0.0))
        rows.append(("sum", "", self.found.sum, 0.0))
        width = max(len(name) for name, *_ in rows)
        labels = [f"{name.ljust(width)}  {beside}".rstrip() for name, beside, *_ in rows]
        bars = [
            Bar(label, length, Figure(value, "%+.4f")) for label, (*_, value, length) in zip(labels, rows, strict=True)
        ]
        return Bars(bars, full, signed=True)

    def _beside(self, part: Part) -> str:
        return self.token if part.name == "embed.tokens" else part.kind

    def _check(self) -> Line:
        found = self.found
        what = "the logit" if found.of == "logit" else found.of
        if found.versus is not None:
            what = f"the two {found.of.removesuffix('s')}s' difference"
        total, logit, off = Figure(found.sum, "%.5f"), Figure(found.logit, "%.5f"), Figure(found.difference, "%.1e")
        said: list[Piece] = [f", {'' if found.holds else 'and '}{what} is ", logit, ", off by ", off]
        parts = f"{len(found.parts):,} parts sum to "
        return verdict(found.holds, [parts, total, *said, f" (allowed {found.allowed:.0e})"])
