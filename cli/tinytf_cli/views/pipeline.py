"""The pipeline: one line a step."""

from collections.abc import Sequence

from tinytf.config import ModelConfig
from tinytf.trace.summary import Row, Statistics
from tinytf.trace.trace import Trace
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Histogram, Line, Span, Table

_LETTERS = {
    "token": "T", "d_model": "C", "head": "H", "kv head": "G", "d_head": "D", "query": "Q", "key": "K",
    "n_heads·d_head": "HD", "d_ff": "F", "vocab": "V",
}  # fmt: skip


_WHAT_WIDTH = 32


def shape_words(row: Row) -> str:
    """``head 4 × query 3 × key 3``."""
    return " × ".join(f"{axis} {size:,}" for axis, size in row.shape)


def _short_shape(row: Row) -> str:
    return "×".join(f"{_LETTERS[axis]}{size}" for axis, size in row.shape)


def shape_legend(config: ModelConfig) -> str:
    """What the letters of the short shapes mean."""
    letters = dict(_LETTERS)
    if config.n_kv_heads == config.n_heads:
        letters.pop("kv head")
    return "shapes: " + ", ".join(f"{letter} {axis}" for axis, letter in letters.items())


def _figures(rows: Sequence[Row], name: str) -> list[Cell]:
    return ["" if r.statistics is None else _figure(getattr(r.statistics, name), r.statistics) for r in rows]


def _figure(value: float, among: Statistics) -> Figure:
    """A figure with the digits that its row's range needs; one too small for them in powers of ten."""
    largest = max(abs(among.min), abs(among.max))
    return Figure(value, "%.3f" if largest < 10 else "%.2f" if largest < 100 else "%.1f" if largest < 1e4 else "%.1e")


def pipeline_blocks(trace: Trace, rows: Sequence[Row], *, short: bool) -> list[Block]:
    """The table of all steps; ``short`` says that the shapes will be abbreviated, and explains the letters."""
    names: list[Cell] = [Span(row.name, row.step.role) for row in rows]
    formulas: list[Cell] = []
    shapes: list[Cell] = []
    for row in rows:
        formulas.append(_what(trace, row) if not row.step.is_tensor else row.step.formula)
        note = f" ({row.note})" if row.note else ""
        shapes.append("" if row.step.name == "next" else shape_words(row) + note)
    layers = [row.layer for row in rows]
    gaps = frozenset(i for i in range(len(rows) - 1) if layers[i] != layers[i + 1])
    table = Table(
        [
            Column("#", [str(row.number) for row in rows], "right", drop=2, said="step"),
            Column("step", names, said=""),
            Column("formula", formulas, shrink=12, drop=1, said="formula"),
            Column("shape", shapes, narrow=[_short_shape(row) for row in rows]),
            Column("mean", _figures(rows, "mean"), "right"),
            Column("std", _figures(rows, "std"), "right"),
            Column("min", _figures(rows, "min"), "right"),
            Column("", [Histogram(r.statistics.histogram) if r.statistics else "" for r in rows]),
            Column("max", _figures(rows, "max"), "left"),
        ],
        rule_after=gaps,
    )
    return [table, Line(Span("  " + shape_legend(trace.config), "dim"))] if short else [table]


def _what(trace: Trace, row: Row) -> str:
    """The formula column of a step that is no tensor: the tokens or ids themselves."""
    if row.step.name == "next":
        return row.step.formula
    texts = [token.shown if row.step.name == "tokens" else str(token.id) for token in trace.tokens]
    gap = "│" if row.step.name == "tokens" else " "
    text = ""
    for place, one in enumerate(texts):
        longer = text + (gap if place else "") + one
        if len(longer) > _WHAT_WIDTH:
            return f"{text}{gap}…"
        text = longer
    return text
