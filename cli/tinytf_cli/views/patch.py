"""The view of patching: how much of the clean run's logit difference each activation recovers."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from tinytf.cause.interventions import Contrast, Patched, PatchSweep
from tinytf.loading import Model
from tinytf.trace.trace import Trace
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.ablate import SITES, check_line, choice_table, where_predicted
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Heat, Line, Span, Table
from tinytf_cli.views.parts import LONG_STACK, first_of, head_map, map_digits, note, numbered, signed_bars, stopped
from tinytf_cli.views.steps import as_array, labels, largest

_WHAT = {
    "residual": ("the stream into each block, at each position", "in"),
    "attn": ("the output of attention, at each position", "attn"),
    "ffn": ("the output of the feed-forward, at each position", "ffn"),
    "heads": ("the output of each head, at all positions", ""),
}
_SHOWN_DIFFERENCES = 8
_ROWS = 12
"""How many tokens a map has, unless all are asked for."""


def _head(model: Model, clean: Trace, corrupt: Trace, contrast: Contrast) -> Iterator[Block]:
    """What is compared: two texts, and the logit difference that is followed."""
    yield from banner(model, clean.encoding)
    shown = model.shown
    difference = [Figure(value, "%+.4f") for value in (contrast.clean, contrast.corrupt)]
    yield Heading("patching", "the corrupt text, run with activations of the clean one")
    yield Table(
        [
            Column("", ["clean", "corrupt"], said=""),
            Column("", [where_predicted(trace, contrast.position) for trace in (clean, corrupt)], shrink=20, said=""),
            Column(f"logit {shown(contrast.answer)} − {shown(contrast.versus)}", difference, "right"),
        ]
    )
    different, said = (_different(clean, corrupt, sign) for sign in ("│", "against"))
    yield Line(Span(different, "dim"), indent=2, said=said)


class PatchedView:
    """One patch, drawn."""

    def __init__(self, model: Model, clean: Trace, corrupt: Trace, found: Patched) -> None:
        self.model, self.clean, self.corrupt, self.found = model, clean, corrupt, found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        found, names = self.found, labels(self.corrupt)
        yield from _head(self.model, self.clean, self.corrupt, found.contrast)
        where = "at all positions"
        if found.positions is not None:
            where = "at " + ", ".join(f"{place} {names[place]}" for place in found.positions[:8])
        yield Heading("patched", f"{first_of(found.sites, SITES)} {where}", "attention")
        yield choice_table(found.choices, self.model.shown, found.contrast.answer, ("p corrupt", "p patched"))
        recovered, logits = Figure(found.recovered, "%.4f", "strong"), Figure(found.difference, "%+.4f")
        yield Line([recovered, " of the clean run recovered: the logit difference is ", logits], indent=2)
        yield from check_line(*found.checks)


class PatchSweepView:
    """A sweep, drawn: its ``top`` strongest in a table, then the map."""

    def __init__(
        self, model: Model, clean: Trace, corrupt: Trace, found: PatchSweep, top: int, whole: bool = False
    ) -> None:
        self.model, self.clean, self.corrupt, self.found = model, clean, corrupt, found
        self.top, self.whole = top, whole

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        found, names = self.found, labels(self.corrupt)
        yield from _head(self.model, self.clean, self.corrupt, found.contrast)
        yield Heading("strongest", "share recovered: 1 is the clean run, 0 the corrupt one")
        yield from stopped(found.interrupted, found.measured, found.patches, "patches")
        yield self._strongest(names)
        yield Heading(found.what, _WHAT[found.what][0], "attention")
        values = as_array(found.recovered)
        if found.what == "heads":
            most = largest(values)
            yield from head_map(values, "signed", most, map_digits(most), whole=self.whole)
        else:
            yield from self._positions(names)
        yield from check_line(*found.checks)

    def _positions(self, names: Sequence[str]) -> Iterator[Block]:
        """Tokens down, since their text is longer than a layer's name, and layers across."""
        found, values = self.found, as_array(self.found.recovered)
        keep = found.telling(len(names) if self.whole else _ROWS)
        keep = [place for place in keep if place >= found.first]
        shown, layers, most = values[:, keep].T, numbered("L", len(values)), largest(values)
        asked = self.whole or len(layers) <= LONG_STACK
        yield Heat(shown, [names[i] for i in keep], layers, "signed", None, most, asked, map_digits(most))
        said = f"tokens down, layers 0 to {len(values) - 1} across"
        left = len(names) - found.first - len(keep)
        yield note(f"{said}; folded: {left} tokens that recover less; --all shows them" if left else said)
        if found.first:
            same = "token 0 is" if found.first == 1 else f"tokens 0 to {found.first - 1} are"
            yield note(f"{same} the same in both texts, so patching there changes nothing")

    def _strongest(self, names: Sequence[str]) -> Table:
        found = self.found.strongest(self.top)
        heads, step = self.found.what == "heads", _WHAT[self.found.what][1]
        places = [f"L{layer}H{column}" if heads else f"L{layer}.{step}" for layer, column, _ in found]
        at = [] if heads else [Column("at", [f"{column} {names[column]}" for _, column, _ in found], shrink=10)]
        logits = [float(self.found.differences[layer, column]) for layer, column, _ in found]
        return Table(
            [
                Column("", [Span(place, "strong") for place in places], said=""),
                *at,
                signed_bars("recovered", [value for *_, value in found], "%+.4f"),
                Column("logit difference", [Figure(value, "%+.4f") for value in logits], "right", drop=1),
            ]
        )


def _different(clean: Trace, corrupt: Trace, sign: str) -> str:
    """Which tokens of the two texts are different, ``sign`` between them."""
    both = list(zip(labels(clean), labels(corrupt), clean.encoding.ids, corrupt.encoding.ids, strict=True))
    places = [place for place, (_, _, one, other) in enumerate(both) if one != other]
    pairs = [f"{place} {both[place][0]} {sign} {both[place][1]}" for place in places[:_SHOWN_DIFFERENCES]]
    more = f" and {len(places) - len(pairs)} more" if len(places) > len(pairs) else ""
    same = len(both) - len(places)
    rest = f"; the other {same} are the same" if same > 1 else ("; the other is the same" if same else "")
    return f"different tokens: {', '.join(pairs)}{more}{rest}"


def aligned_lines(pairs: Sequence[tuple[str | None, str | None]], width: int, around: int = 3) -> list[str]:
    """Two texts token above token, ``–`` where one has none: what is different, and some tokens around it."""
    different = [place for place, (one, other) in enumerate(pairs) if one != other]
    first, last = max(0, different[0] - around), different[-1] + around + 1
    shown = [("–" if one is None else one, "–" if other is None else other) for one, other in pairs[first:last]]
    room = width - len("tinytf: corrupt  … ")
    cells: list[tuple[str, str]] = []
    for pair in shown:
        size = max(map(cell_len, pair))
        if room < size + 2 and cells:
            last = 0
            break
        room -= size + 2
        cells.append((set_cell_size(pair[0], size), set_cell_size(pair[1], size)))
    lines = []
    for name, row in zip(("clean  ", "corrupt"), zip(*cells, strict=True), strict=True):
        text = "  ".join(row).rstrip()
        lines.append(f"{name}  {'… ' if first else ''}{text}{' …' if last < len(pairs) else ''}")
    return lines
