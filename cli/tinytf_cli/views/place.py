"""Where a session stands among the steps of a trace: one step, the steps around it, and how it came there."""

from collections.abc import Iterator, Sequence
from typing import Any

from tinytf.analysis.prediction import predictions
from tinytf.text.printable import printable
from tinytf.trace.summary import Row, row_of
from tinytf.trace.trace import Trace
from tinytf_cli.views.blocks import Block, Cell, Column, Line, Pieces, Span, Table
from tinytf_cli.views.pipeline import pipeline_blocks, shape_words

_LONGEST = 60


def row_at(trace: Trace, place: int) -> Row:
    """The row of the pipeline at an index."""
    step, layer = trace.steps.rows[place]
    return row_of(trace, place + 1, step, layer)


def place_blocks(trace: Trace, place: int) -> Iterator[Block]:
    """The step at an index, as the pipeline shows it."""
    yield from pipeline_blocks(trace, [row_at(trace, place)], short=False)


def around(trace: Trace, place: int, count: int) -> list[Row]:
    """The rows of ``count`` steps around an index, fewer at neither end."""
    total = len(trace.steps.rows)
    first = max(0, min(place - count // 2, total - count))
    return [row_at(trace, at) for at in range(first, min(total, first + count))]


def list_blocks(trace: Trace, rows: Sequence[Row], place: int, stops: Sequence[str]) -> Iterator[Block]:
    """Some steps, with a mark at the present one and the numbers of the stops at each."""
    names: list[Cell] = [Span(row.name, row.step.role) for row in rows]
    marks: list[Cell] = [Span("→" if row.number == place + 1 else "", "strong") for row in rows]
    columns = [
        Column("", marks, said="here"),
        Column("#", [str(row.number) for row in rows], "right", said="step"),
        Column("step", names, said=""),
        Column("what", [row.step.title for row in rows], shrink=12, drop=2),
        Column("formula", [row.step.formula for row in rows], shrink=12, drop=1),
        Column("shape", [shape_words(row) for row in rows], shrink=8),
    ]
    if any(stops):
        columns.append(Column("stop", list(stops)))
    yield Table(columns, rule_after=frozenset(i for i in range(len(rows) - 1) if rows[i].layer != rows[i + 1].layer))


def text_words(trace: Trace) -> str:
    """The text in quotes, its end where it is long."""
    text = trace.encoding.text
    shown = printable(text[-_LONGEST:], spaces=False)
    return f'"{"…" if len(text) > _LONGEST else ""}{shown}"'


def run_blocks(trace: Trace, tokenizer: Any) -> Iterator[Block]:
    """What a new run is of: its tokens, and what the model makes of them."""
    yield Pieces([token.shown for token in trace.tokens], [token.special for token in trace.tokens])
    yield Line(
        [Span(f"  {counted(len(trace.tokens), 'token')}, {len(trace.steps.rows)} steps"), *_expected(trace, tokenizer)]
    )


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _expected(trace: Trace, tokenizer: Any) -> Iterator[Span]:
    found = predictions(trace, tokenizer, 1)
    for one in found[:3]:
        best = one.top[0]
        where = "next" if trace.config.causal else f"[MASK] at {one.position}"
        yield Span(f" · {where} ", "dim")
        yield Span(best.token, "output")
        share = best.probability * 100
        yield Span(f" {share:.0f} %" if share >= 0.5 else " < 1 %")
    if len(found) > 3:
        yield Span(f" · and {len(found) - 3} more", "dim")
