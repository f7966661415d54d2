"""Patching: how much of the clean run's logit difference each activation recovers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from tinytf.cause.interventions import Patched, PatchSweep
from tinytf.sentences import first_of
from tinytf.text.tokenizer import Encoding
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.ablate import SITES, check_line, choice_table, where_predicted
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Array, Block, Column, Figure, Heading, Heat, Line, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import LONG_STACK, head_map, map_digits, note, numbered, signed_bars, stopped
from tinytf_cli.views.steps import as_array, largest

_ACTIVATIONS = {
    "residual": ("the stream into each block, at each position", "in"),
    "attn": ("the output of attention, at each position", "attn"),
    "ffn": ("the output of the feed-forward, at each position", "ffn"),
    "heads": ("the output of each head, at all positions", ""),
}
_SHOWN_DIFFERENCES = 8
_ROWS = 12
"""The most tokens of a map, unless all are asked for."""


@draws(Patched)
def patched(report: Patched, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Both texts, the most probable tokens before and after the patch, and how much of the clean run it recovers."""
    yield from _comparison(report)
    where = "at all positions"
    if report.positions is not None:
        tokens = report.texts[1].tokens
        where = "at " + ", ".join(f"{position} {tokens[position].shown}" for position in report.positions[:8])
    yield Heading("patched", f"{first_of(report.sites, SITES)} {where}", "attention")
    shown, answer = model_of(report).shown, report.contrast.answer
    yield choice_table(report.choices, shown, answer, ("p corrupt", "p patched"))
    recovered, logits = Figure(report.recovered, "%.4f", "strong"), Figure(report.difference, "%+.4f")
    yield Line([recovered, " of the clean run recovered: the logit difference is ", logits], indent=2)
    yield from check_line(*report.checks)


@dataclass(frozen=True)
class PatchSweepDisplay(Display):
    """``top`` is how many of the strongest patches the table lists; ``all`` maps every token, and every head."""

    top: int = 8
    all: bool = False


@draws(PatchSweep, PatchSweepDisplay)
def patch_sweep(report: PatchSweep, terminal: Terminal, display: PatchSweepDisplay) -> Iterator[Block]:
    """Both texts, a table of the strongest patches, then the map of all."""
    names, values = [token.shown for token in report.texts[1].tokens], as_array(report.recovered)
    yield from _comparison(report)
    yield Heading("strongest", "share recovered: 1 is the clean run, 0 the corrupt one")
    yield from stopped(report.interrupted, report.measured, report.patches, "patches")
    yield _strongest(report, names, display.top)
    yield Heading(report.what, _ACTIVATIONS[report.what][0], "attention")
    if report.what == "heads":
        most = largest(values)
        yield from head_map(values, "signed", most, map_digits(most), whole=display.all)
    else:
        yield from _positions(report, names, values, display.all)
    yield from check_line(*report.checks)


def _comparison(report: Patched | PatchSweep) -> Iterator[Block]:
    """The two texts, their logit differences, and their different tokens."""
    model, contrast, (clean, corrupt) = model_of(report), report.contrast, report.texts
    yield from banner(model, clean)
    differences = [Figure(value, "%+.4f") for value in (contrast.clean, contrast.corrupt)]
    yield Heading("patching", "the corrupt text, run with activations of the clean one")
    yield Table(
        [
            Column("", ["clean", "corrupt"], said=""),
            Column("", [where_predicted(model, text, contrast.position) for text in report.texts], shrink=20, said=""),
            Column(f"logit {model.shown(contrast.answer)} − {model.shown(contrast.versus)}", differences, "right"),
        ]
    )
    different, spoken = (_different_tokens(clean, corrupt, sign) for sign in ("│", "against"))
    yield Line(Span(different, "dim"), indent=2, said=spoken)


def _positions(report: PatchSweep, names: Sequence[str], values: Array, every: bool) -> Iterator[Block]:
    """A map with layers across, and tokens down because their text is longer than a layer's name."""
    keep = [position for position in report.telling(len(names) if every else _ROWS) if position >= report.first]
    shown, layers, most = values[:, keep].T, numbered("L", len(values)), largest(values)
    asked = every or len(layers) <= LONG_STACK
    yield Heat(shown, [names[i] for i in keep], layers, "signed", None, most, asked, map_digits(most))
    axes = f"tokens down, layers 0 to {len(values) - 1} across"
    omitted = len(names) - report.first - len(keep)
    folded = f"{axes}; folded: {omitted} tokens that recover less"
    yield note(folded, "--all shows them") if omitted else note(axes)
    if report.first:
        same = "token 0 is" if report.first == 1 else f"tokens 0 to {report.first - 1} are"
        yield note(f"{same} the same in both texts, so patching there changes nothing")


def _strongest(report: PatchSweep, names: Sequence[str], top: int) -> Table:
    strongest, heads, step = report.strongest(top), report.what == "heads", _ACTIVATIONS[report.what][1]
    sites = [f"L{layer}H{column}" if heads else f"L{layer}.{step}" for layer, column, _ in strongest]
    position_column = (
        [] if heads else [Column("at", [f"{column} {names[column]}" for _, column, _ in strongest], shrink=10)]
    )
    logits = [float(report.differences[layer, column]) for layer, column, _ in strongest]
    return Table(
        [
            Column("", [Span(site, "strong") for site in sites], said=""),
            *position_column,
            signed_bars("recovered", [value for *_, value in strongest], "%+.4f"),
            Column("logit difference", [Figure(value, "%+.4f") for value in logits], "right", drop=1),
        ]
    )


def _different_tokens(clean: Encoding, corrupt: Encoding, sign: str) -> str:
    """The different tokens of the two texts, with ``sign`` between each pair."""
    pairs = list(zip(clean.tokens, corrupt.tokens, strict=True))
    different = [
        f"{position} {before.shown} {sign} {after.shown}"
        for position, (before, after) in enumerate(pairs)
        if before.id != after.id
    ]
    omitted, same = len(different) - _SHOWN_DIFFERENCES, len(pairs) - len(different)
    more = f" and {omitted} more" if omitted > 0 else ""
    rest = f"; the other {same} are the same" if same > 1 else ("; the other is the same" if same else "")
    return f"different tokens: {', '.join(different[:_SHOWN_DIFFERENCES])}{more}{rest}"


def aligned_lines(pairs: Sequence[tuple[str | None, str | None]], width: int, around: int = 3) -> list[str]:
    """The different tokens of two texts, token above token, and ``around`` tokens beside; ``–`` is no token."""
    different = [index for index, (before, after) in enumerate(pairs) if before != after]
    first, last = max(0, different[0] - around), different[-1] + around + 1
    shown = [
        ("–" if before is None else before, "–" if after is None else after) for before, after in pairs[first:last]
    ]
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
