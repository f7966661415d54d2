"""The last lines of a view: what the model predicts, and whether the checks hold."""

from collections.abc import Iterator, Sequence

from tinytf.look.prediction import Likely, Prediction
from tinytf.text.printable import printable
from tinytf.trace.check import Check
from tinytf.trace.faults import Fault
from tinytf.trace.trace import Trace
from tinytf_cli.numbers import probability
from tinytf_cli.views.blocks import Bar, Bars, Block, Figure, Heading, Line, Span
from tinytf_cli.views.parts import first_of, not_finite, verdict

_NAMED = 6


def prediction_blocks(trace: Trace, found: Sequence[Prediction]) -> Iterator[Block]:
    """Bars of the most probable tokens or classes."""
    if not found and trace.model.head is not None:
        yield Heading("prediction", "the text has no [MASK] to fill")
    for one in found:
        if one.what == "next":
            start = trace.tokens[-12].start if len(trace.tokens) > 12 else 0
            shown = printable(trace.encoding.text[start : trace.tokens[-1].end], spaces=False)
            yield Heading("next", f'after "{"…" if start else ""}{shown}"', "output")
        elif one.what == "fills":
            yield Heading("fill", one.title, "output")
        else:
            yield Heading(one.title, _READ.get(one.what, "").format(f"{one.position} {one.shown}"), "output")
        yield from likely_blocks([(c.shown, c) for c in one.top], digits=True)


def likely_blocks(named: Sequence[tuple[str, Likely]], *, digits: bool) -> Iterator[Block]:
    """Bars of probabilities; a head that gives a number has it in words. With ``digits`` the terminal says how many."""
    bars = []
    for name, one in named:
        if one.probability is None:
            yield Line([Span(name, "output"), "  ", Figure(one.logit, "%.4f", "strong")], indent=2)
        else:
            bars.append(Bar(name, one.probability, "" if digits else probability(one.probability), "output"))
    if bars:
        yield Bars(bars)


_READ = {
    "class": "of the text, read at {}",
    "number": "of the text, read at {}",
    "token": "at {}",
    "place": "most probable: {}",
}


def check_blocks(outcome: Check) -> Iterator[Block]:
    """The self-check of a trace after an empty line."""
    yield Line("")
    yield check_line(outcome)


def check_line(outcome: Check) -> Line:
    """The self-check of a trace in one line; replaced steps, which it cannot compare, are named."""
    told = outcome.telling
    of = f" (of values up to {told.scale:.3g})" if told.scale > 10 else ""
    left = f"; not compared, because replaced: {first_of(outcome.exchanged, _NAMED)}" if outcome.exchanged else ""
    off = Figure(told.difference, "%.1e")
    if outcome.holds:
        return verdict(
            True, [f"{len(outcome.items)} steps add up, largest difference ", off, f"{of} at {told.step}{left}"]
        )
    if not told.is_finite:
        return not_finite(told.step, left)
    allowed = Figure(told.allowed, "%.1e")
    return verdict(
        False, [f"first at {told.step}, off by ", off, f"{of} where ", allowed, f" is allowed ({told.what}){left}"]
    )


def fault_blocks(kinds: Sequence[str], found: Fault | None) -> Iterator[Block]:
    """The first fault in one line, or that there is none of these ``kinds``; nothing where none were asked for."""
    if kinds and found is None:
        yield verdict(True, f"looked for {', '.join(kinds)} at every step", good="no fault")
    elif found is not None:
        yield verdict(False, f"{found.direction}, first at {found.step}: {found.evidence}", bad=found.kind)
