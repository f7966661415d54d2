"""A text with each token coloured by its surprise."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.generate.score import Score
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Line, Piece, Scale, Span, Table
from tinytf_cli.views.continuation import cost_in_words
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import coloured_text, folded
from tinytf_cli.views.records import record_table

_MOST_BITS = 16.0
"""The surprise at the end of the colour scale, in bits. It is fixed so that texts can be compared."""

_TOKENS, _TEXT = 20, 120
"""Tokens in the table and in the coloured text, unless all are shown."""


def _role(bits: float) -> str:
    return f"unit:{round(255 * min(bits, _MOST_BITS) / _MOST_BITS)}"


@dataclass(frozen=True)
class ScoreDisplay(Display):
    """``all`` shows every token of a long text, both in the coloured text and in the table."""

    all: bool = False


@draws(Score, ScoreDisplay)
def score(report: Score, terminal: Terminal, display: ScoreDisplay) -> Iterator[Block]:
    """The perplexity, the text in colours, and one line per token."""
    model, tokens, scored, worst = model_of(report), report.encoding.tokens, report.tokens, report.worst
    yield from banner(model, report.encoding)
    yield Line("")
    perplexity: list[Piece] = [Span("perplexity ", "output"), Figure(report.perplexity, "%.3f", "strong")]
    mean: list[Piece] = [": ", Figure(report.bits, "%.3f"), " bits per token"]
    worst_token = Span(f"{worst.position} {tokens[worst.position].shown}", "strong")
    yield Line([*perplexity, *mean, "; least expected ", worst_token, ", ", Figure(worst.surprise, "%.2f"), " bits"])
    if report.windows > 1:
        windows = f"read in {report.windows:,} windows of {model.config.context:,} tokens, "
        yield Line(Span(f"{windows}each token after {report.before:,} or more where there are", "dim"))
    if report.int8_cost is not None:
        yield Line([Span("int8", "strong"), Span(f" costs {cost_in_words(report.int8_cost)}")])
    yield Heading("surprise", f"−log₂ p of {plural(len(scored), 'token')}, in bits; the first is not predicted")
    roles = ["dim", *(_role(token.surprise) for token in scored)]
    yield coloured_text([token.shown for token in tokens], roles, None if display.all else _TEXT)
    yield Scale("unit", _MOST_BITS, "bits or more")
    yield Line("")
    names = [str(token.position) for token in scored]
    pieces = [Span(tokens[token.position].shown, _role(token.surprise)) for token in scored]
    table = Table(
        [
            Column("#", names, "right", said="token"),
            Column("piece", pieces, said=""),
            *record_table(scored).columns,
        ]
    )
    yield from folded(table, names, None if display.all else _TOKENS, "tokens")
