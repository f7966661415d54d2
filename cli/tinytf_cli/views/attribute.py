"""One logit taken apart: its parts as bars, the sum of each kind, a map of the heads."""

from collections.abc import Iterator

from tinytf.analysis.attribution import Attribution, Part, total
from tinytf.loading import Model
from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Column, Heading, Heat, Line, Table
from tinytf_cli.views.parts import full_scale, head_map, note, side, signed, signed_bars, verdict
from tinytf_cli.views.steps import as_array


class AttributionView:
    """The attribution of one logit, drawn; ``top`` parts are shown, the others as their sum."""

    def __init__(self, model: Model, found: Attribution, top: int) -> None:
        self.model, self.found, self.top = model, found, top
        self.token = found.encoding.tokens[found.position].shown

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The largest parts, the kinds, the heads, and whether they sum to the logit."""
        found, shown = self.found, self.model.tokenizer.shown
        yield from banner(self.model, found.encoding)
        what = f"{found.of} of {shown(found.token)}"
        if found.versus is not None:
            what = f"lead of {shown(found.token)} over {shown(found.versus)}"
        at = f"at {found.position} {self.token}"
        yield Heading(f"{what} {at}", f"{number(found.logit, '%.4f')}, part by part", "output")
        yield note(f"held at its value: {found.frozen}")
        if found.versus is None:
            said = "a logit has no zero of its own: what all tokens get alike decides nothing; --versus TOKEN compares"
            yield note(said)
        yield self._parts()
        yield Heading("by kind", "the sum of each")
        kinds = found.by_kind()
        counts = [sum(part.kind == kind for part in found.parts) for kind in kinds]
        sums = list(kinds.values())
        yield Table(
            [
                Column("", [f"{count:,}" for count in counts], "right"),
                Column("", list(kinds)),
                signed_bars("", sums, [signed(value, "%+.4f") for value in sums]),
            ],
            header=False,
        )
        yield Heading("heads", "what each adds, orange above 0 and blue below", "attention")
        yield self._heads(terminal)
        yield Line("")
        yield self._check()

    def _heads(self, terminal: Terminal) -> Heat:
        """Layers down, heads across; with fewer digits where otherwise not all fit."""
        heads = as_array(self.found.heads())
        limit = float(abs(heads).max()) or 1.0
        narrow = terminal.width < 8 * heads.shape[1] + 8 and 0.1 <= limit < 100
        return head_map(heads, "signed", limit, 2 if narrow else None)

    def _parts(self) -> Bars:
        """The largest parts with a bar each, then the sum of the others, and of all."""
        parts = sorted(self.found.parts, key=lambda part: -abs(part.value))
        kept, others = parts[: self.top], parts[self.top :]
        rows = [(part.name, self._beside(part), part.value) for part in kept]
        if others:
            rows.append((f"{len(others):,} more", "together", total(others)))
        rows.append(("sum", "", self.found.sum))
        width = max(len(name) for name, _, _ in rows)
        labels = [f"{name.ljust(width)}  {beside}".rstrip() for name, beside, _ in rows]
        lengths = [abs(part.value) for part in kept] + [0.0] * (len(rows) - len(kept))
        values = [value for *_, value in rows]
        return Bars(
            [
                Bar(label, length, signed(value, "%+.4f"), side(value))
                for label, length, value in zip(labels, lengths, values, strict=True)
            ],
            full_scale(part.value for part in parts),
        )

    def _beside(self, part: Part) -> str:
        return self.token if part.name == "embed.tokens" else part.kind

    def _check(self) -> Line:
        found = self.found
        what = "the logit" if found.of == "logit" else found.of
        if found.versus is not None:
            what = f"the two {found.of.removesuffix('s')}s' difference"
        parts, logit = f"{len(found.parts):,} parts sum to {number(found.sum, '%.5f')}", number(found.logit, "%.5f")
        off = f"off by {number(found.difference, '%.1e')} (allowed {found.allowed:.0e})"
        return verdict(found.holds, f"{parts}, {'' if found.holds else 'and '}{what} is {logit}, {off}")
