"""The last lines of a trace: what comes next, and whether everything adds up."""

from collections.abc import Iterator, Sequence

from tinytf.analysis.prediction import Prediction
from tinytf.text.printable import printable
from tinytf.trace.check import Check
from tinytf.trace.trace import Trace
from tinytf_cli.views.blocks import Bar, Bars, Block, Heading, Line, Span

_NAMED = 6


def prediction_blocks(trace: Trace, found: Sequence[Prediction]) -> Iterator[Block]:
    """Bars of the most probable tokens."""
    if not found and trace.model.head is not None:
        yield Heading("prediction", "the text has no [MASK] to fill")
    for one in found:
        if trace.config.causal:
            start = trace.tokens[-12].start if len(trace.tokens) > 12 else 0
            shown = printable(trace.encoding.text[start : trace.tokens[-1].end], spaces=False)
            yield Heading("next", f'after "{"…" if start else ""}{shown}"', "output")
        else:
            yield Heading("fill", f"[MASK] at {one.position}", "output")
        yield Bars([Bar(c.token, c.probability, role="output") for c in one.top])


def check_blocks(outcome: Check) -> Iterator[Block]:
    """The self-check in one line."""
    worst = outcome.worst
    of = f" (of values up to {worst.scale:.3g})" if worst.scale > 10 else ""
    figure = f"largest difference {worst.difference:.1e}{of} at {worst.step}"
    yield Line("")
    if outcome.holds:
        yield Line([Span("checked", "good"), Span(f": {len(outcome.items)} steps add up, {figure}"), *_beside(outcome)])
    else:
        limit = f"allowed {outcome.tolerance:.0e} × {max(1.0, worst.scale):.3g}"
        yield Line([Span("check failed", "bad"), Span(f": {figure} ({worst.what}; {limit})"), *_beside(outcome)])


def _beside(outcome: Check) -> Iterator[Span]:
    """The steps that were not compared, since something else was put in their place."""
    if outcome.exchanged:
        names = ", ".join(outcome.exchanged[:_NAMED])
        more = len(outcome.exchanged) - _NAMED
        yield Span(f"; exchanged, and so not compared: {names}{f' and {more:,} more' if more > 0 else ''}", "dim")
