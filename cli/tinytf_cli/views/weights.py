"""What a backward pass says of the weights, and how it compares with the loss measured on both sides."""

from collections.abc import Iterator, Sequence

from tinytf.gradients.differences import TOLERANCE, Differences
from tinytf.gradients.parameters import Weights
from tinytf_cli.numbers import number
from tinytf_cli.views.backward import figure
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Line, Span, Table
from tinytf_cli.views.steps import shown_rows

_WORST = 10


def weight_blocks(rows: Sequence[Weights], by: str, lr: float) -> Iterator[Block]:
    """A table of parameters, or of groups of them."""
    yield Heading("weights", f"by {by}; --by parameter, layer, kind or head")
    columns = [
        Column("" if by == "parameter" else by, [row.name for row in rows], shrink=14, said=""),
        Column("‖∂‖", [figure(row.gradient_norm) for row in rows], "right", said="gradient norm"),
        Column("‖W‖", [figure(row.weight_norm) for row in rows], "right", said="weight norm", drop=2),
        Column("÷ ‖W‖", [figure(row.ratio) for row in rows], "right", said="gradient norm over weight norm"),
        Column("update", [figure(row.update_ratio) for row in rows], "right"),
        Column("zeros", [_share(row.zero_share) for row in rows], "right"),
    ]
    if by != "head":
        columns.append(Column("dead rows", [_dead(row) for row in rows], "right", drop=1))
    yield Table(columns)
    yield Line(Span(f"update: lr · ‖∂‖ ÷ ‖W‖, for plain descent with lr {lr:g}", "dim"), indent=2)


def _share(share: float) -> str:
    return "" if not share else f"{share:.1%}" if share >= 0.001 else "< 0.1%"


def _dead(row: Weights) -> str:
    return f"{row.dead_rows:,} of {row.rows:,}" if row.dead_rows else ""


def difference_blocks(found: Differences) -> Iterator[Block]:
    """The entries that are furthest off, and the outcome in one line."""
    yield Heading("finite differences", f"the worst of {len(found.rows)} entries, in float64, by Ridders' method")
    rows = sorted(found.rows, key=lambda row: -row.relative)
    shown = [rows[i] for i in shown_rows(min(len(rows), _WORST), None)]
    errors: list[Cell] = [Span(f"{row.relative:.1e}", "" if row.relative <= TOLERANCE else "bad") for row in shown]
    yield Table(
        [
            Column("entry", [f"{row.name}[{','.join(map(str, row.index))}]" for row in shown], shrink=20),
            Column("analytic", [number(row.analytic, "%+.9e") for row in shown], "right"),
            Column("numeric", [number(row.numeric, "%+.9e") for row in shown], "right"),
            Column("relative error", errors, "right"),
        ]
    )
    said = f": {len(found.rows)} of {found.asked} entries measured, largest relative error {found.worst.relative:.1e}"
    said += f" (allowed {TOLERANCE:.0e})"
    if found.redrawn:
        said += f", {found.redrawn} drawn anew beside a kink"
    if found.unresolved:
        said += f", {found.unresolved} of gradients that are 0 but for rounding"
    word = Span("measured", "good") if found.holds else Span("measured otherwise", "bad")
    yield Line([word, Span(said)], indent=2)
