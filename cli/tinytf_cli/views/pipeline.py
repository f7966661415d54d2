"""The steps of a trace, one line each: all of them, or those around the current step of a session."""

from collections.abc import Iterator, Sequence

from tinytf.config import ModelConfig
from tinytf.look.prediction import predictions
from tinytf.text.printable import printable
from tinytf.text_model import TextModel
from tinytf.trace.summary import Statistics, StepSummary
from tinytf.trace.trace import Trace, row_of
from tinytf_cli.numbers import plural
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Histogram, Line, Span, Table
from tinytf_cli.views.tokens import pieces

_LETTERS = {
    "token": "T", "d_model": "C", "d_embed": "E", "head": "H", "kv head": "G", "d_head": "D", "query": "Q", "key": "K",
    "source": "S", "d_source": "C",
    "n_heads·d_head": "HD", "d_ff": "F", "vocab": "V", "distance": "R", "d_unembed": "U",
    "expert": "E", "d_expert": "X", "d_shared": "S", "switch": "1",
}  # fmt: skip
_TOKENS_WIDTH = 32
_LONGEST = 60


def shape_words(shape: Sequence[tuple[str, int]]) -> str:
    """``head 4 × query 3 × key 3``."""
    return " × ".join(f"{axis} {size:,}" for axis, size in shape)


def layer_gaps(rows: Sequence[StepSummary]) -> frozenset[int]:
    """The rows after which another layer begins."""
    return frozenset(i for i in range(len(rows) - 1) if rows[i].layer != rows[i + 1].layer)


def _figures(rows: Sequence[StepSummary], name: str) -> list[Cell]:
    return ["" if r.statistics is None else _figure(getattr(r.statistics, name), r.statistics) for r in rows]


def _figure(value: float, statistics: Statistics) -> Figure:
    """A figure with the digits that its row's range needs; scientific where the range is too large for them."""
    largest = max(abs(statistics.min), abs(statistics.max))
    return Figure(value, "%.3f" if largest < 10 else "%.2f" if largest < 100 else "%.1f" if largest < 1e4 else "%.1e")


def pipeline_blocks(trace: Trace, rows: Sequence[StepSummary], *, short: bool, every: bool = False) -> Iterator[Block]:
    """The table of some steps, with ``every`` token; with ``short`` shapes, also the legend of their letters."""
    formulas = [row.step.formula if row.step.is_tensor else _tokens_or_ids(trace, row, every) for row in rows]
    shapes = [shape_words(row.shape) + (f" ({row.note})" if row.note else "") for row in rows]
    yield Table(
        [
            Column("#", [str(row.number) for row in rows], "right", drop=2, said="step"),
            Column("step", [Span(row.name, row.step.role) for row in rows], said=""),
            Column("formula", formulas, shrink=12, drop=1, said="formula"),
            Column(
                "shape",
                shapes,
                narrow=["×".join(f"{_LETTERS.get(axis, '')}{n}" for axis, n in row.shape) for row in rows],
            ),
            Column("mean", _figures(rows, "mean"), "right"),
            Column("std", _figures(rows, "std"), "right"),
            Column("min", _figures(rows, "min"), "right"),
            Column("", [Histogram(r.statistics.histogram) if r.statistics else "" for r in rows]),
            Column("max", _figures(rows, "max"), "left"),
        ],
        rule_after=layer_gaps(rows),
    )
    if short:
        yield Line(Span(f"  shapes: {_legend(trace.config)}", "dim"))


def _legend(config: ModelConfig) -> str:
    absent = {axis for axis, size in config.sizes.items() if not size} | {"switch"}
    absent |= {"kv head"} if config.n_kv_heads == config.n_heads else set()
    absent |= set() if config.experts else {"expert", "d_expert"}
    return ", ".join(f"{letter} {axis}" for axis, letter in _LETTERS.items() if axis not in absent)


def _tokens_or_ids(trace: Trace, row: StepSummary, every: bool) -> str:
    """The formula cell of a step that is not a tensor: the tokens or ids themselves, as far as they fit or all."""
    if row.step.name == "next":
        return row.step.formula
    texts = [token.shown if row.step.name == "tokens" else str(token.id) for token in trace.tokens]
    gap = "│" if row.step.name == "tokens" else " "
    text = ""
    for index, piece in enumerate(texts):
        longer = text + (gap if index else "") + piece
        if not every and len(longer) > _TOKENS_WIDTH:
            return f"{text}{gap}…"
        text = longer
    return text


def row_at(trace: Trace, index: int) -> StepSummary:
    """The row of the pipeline at an index."""
    step, layer = trace.steps.rows[index]
    return row_of(trace, index + 1, step, layer)


def current_step_blocks(trace: Trace, index: int) -> Iterator[Block]:
    """The step at an index, as the pipeline shows it."""
    yield from pipeline_blocks(trace, [row_at(trace, index)], short=False)


def around(trace: Trace, index: int, count: int) -> list[StepSummary]:
    """The rows of ``count`` steps around an index; near one end they reach further to the other."""
    total = len(trace.steps.rows)
    first = max(0, min(index - count // 2, total - count))
    return [row_at(trace, row) for row in range(first, min(total, first + count))]


def list_blocks(rows: Sequence[StepSummary], current: int, stops: Sequence[str]) -> Iterator[Block]:
    """Some steps, with a mark at the ``current`` index and the numbers of the stops at each."""
    columns = [
        Column("", [Span("→" if row.number == current + 1 else "", "strong") for row in rows], said="here"),
        Column("#", [str(row.number) for row in rows], "right", said="step"),
        Column("step", [Span(row.name, row.step.role) for row in rows], said=""),
        Column("what", [row.step.title for row in rows], shrink=12, drop=2),
        Column("formula", [row.step.formula for row in rows], shrink=12, drop=1),
        Column("shape", [shape_words(row.shape) for row in rows], shrink=8),
    ]
    if any(stops):
        columns.append(Column("stop", list(stops)))
    yield Table(columns, rule_after=layer_gaps(rows))


def text_words(trace: Trace) -> str:
    """The text in quotes; only the end of a long one."""
    text = trace.encoding.text
    shown = printable(text[-_LONGEST:], spaces=False)
    return f'"{"…" if len(text) > _LONGEST else ""}{shown}"'


def run_blocks(trace: Trace, model: TextModel) -> Iterator[Block]:
    """A new run: its tokens, and what the model predicts."""
    yield pieces(trace.encoding)
    counts = f"  {plural(len(trace.tokens), 'token')}, {len(trace.steps.rows)} steps"
    yield Line([Span(counts), *_predicted(trace, model)])


def _predicted(trace: Trace, model: TextModel) -> Iterator[Span]:
    answers = predictions(trace, model, 1)
    for answer in answers[:3]:
        best = answer.top[0]
        yield Span(f" · {answer.title} ", "dim")
        yield Span(best.shown, "output")
        if best.probability is None:
            yield Span(f" {best.logit:.3g}")
        else:
            share = best.probability * 100
            yield Span(f" {share:.0f} %" if share >= 0.5 else " < 1 %")
    if len(answers) > 3:
        yield Span(f" · and {len(answers) - 3} more", "dim")
