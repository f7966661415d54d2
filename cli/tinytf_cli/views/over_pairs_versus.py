"""Two files of pairs compared: the rows that differ most with their intervals, and the map of differences."""

from collections.abc import Iterator

from tinytf.cause.over_pairs import OverPairsVersus
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.ablate import check_line
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Piece, Span, Table
from tinytf_cli.views.draw import draws, model_of
from tinytf_cli.views.over_pairs import TABLE_ROWS, OverPairsDisplay, in_words, number_form
from tinytf_cli.views.parts import folded, head_map, interval, map_digits, note, signed_bars, stopped, uneven
from tinytf_cli.views.steps import as_array, largest


@draws(OverPairsVersus, OverPairsDisplay)
def over_pairs_versus(report: OverPairsVersus, terminal: Terminal, display: OverPairsDisplay) -> Iterator[Block]:
    """Both files, the rows that differ most with their means and intervals, and the map of differences."""
    both, first = (report.first, report.second), report.first.quantities[0]
    yield from banner(model_of(report))
    yield Heading(in_words(report.first.asked), " against ".join(report.names))
    yield note(report.first.words)
    for name, each in zip(report.names, both, strict=True):
        yield from stopped(each.interrupted, len(each.examples), each.n_pairs, f"pairs of {name}")
        yield from uneven(each.uneven, f" of {name}")
    yield Table(
        [
            Column("", list(report.names), shrink=20, said=""),
            Column("pairs", [f"{len(each.examples):,}" for each in both], "right"),
            Column("clean − corrupt", [Figure(each.effect.value, "%+.3f") for each in both], "right"),
            Column("95 % interval", [interval(each.effect, "%+.3f") for each in both], "right", drop=1),
        ]
    )
    in_order = report.first.in_order
    rows = list(range(len(report.differences))) if in_order else report.ranked
    rows = rows if display.all or in_order else rows[: display.top]
    yield Heading(
        "differences" if in_order else f"largest of {len(report.differences):,} differences",
        "first − second, with 95 % bootstrap intervals",
    )
    yield note(f"{first.name}: {first.meaning}")
    chosen = [report.differences[row] for row in rows]
    ends = [end for each in chosen for end in (each.difference.low, each.difference.high) if end is not None]
    form = number_form([*(each.difference.value for each in chosen), *ends], True)
    plain = form if first.signed else form.replace("+", "")
    table = Table(
        [
            Column("", [Span(each.row.name, "strong") for each in chosen], said=""),
            signed_bars("difference", [each.difference.value for each in chosen], form),
            Column("95 % interval", [interval(each.difference, form) for each in chosen], "right"),
            *(
                Column(name, [Figure(getattr(each, name).value, plain) for each in chosen], "right", drop=1)
                for name in ("first", "second")
            ),
        ]
    )
    yield from folded(table, [each.row.name for each in chosen], None if display.all else TABLE_ROWS, "rows")
    if len(report.differences) > 1 and report.confirmed.low is not None:
        picked: list[Piece] = [f"{report.differences[report.by].row.name}, picked by half of the pairs: "]
        picked += [Figure(report.confirmed.value, form), " over the others"]
        yield note(picked)
    if report.first.map_axes == ("layer", "head"):
        values = as_array(report.map_of())
        most = largest(values)
        yield Heading("all", "the difference of each head", "attention")
        yield from head_map(values, "signed", most or 1.0, map_digits(most), whole=display.all)
    yield from check_line(*report.checks)
