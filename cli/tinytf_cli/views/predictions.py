"""The last lines of a view: what the model predicts, and whether the checks hold."""

from collections.abc import Iterator, Sequence

from tinytf.look.prediction import Likely, Prediction
from tinytf.sentences import first_of
from tinytf.text.printable import printable
from tinytf.trace.check import Check
from tinytf.trace.faults import Fault
from tinytf.trace.trace import Trace
from tinytf_cli.numbers import probability
from tinytf_cli.views.blocks import Bar, Bars, Block, Figure, Heading, Line, Span
from tinytf_cli.views.parts import not_finite, verdict

_NAMED = 6


def prediction_blocks(trace: Trace, predictions: Sequence[Prediction]) -> Iterator[Block]:
    """Bars of the most probable tokens or classes."""
    if not predictions and trace.model.head is not None:
        yield Heading("prediction", "the text has no [MASK] to fill")
    for prediction in predictions:
        if prediction.what == "next":
            start = trace.tokens[-12].start if len(trace.tokens) > 12 else 0
            shown = printable(trace.encoding.text[start : trace.tokens[-1].end], spaces=False)
            yield Heading("next", f'after "{"…" if start else ""}{shown}"', "output")
        elif prediction.what == "fills":
            yield Heading("fill", prediction.title, "output")
        else:
            yield Heading(
                prediction.title,
                _READ.get(prediction.what, "").format(f"{prediction.position} {prediction.shown}"),
                "output",
            )
        yield from likely_blocks([(c.shown, c) for c in prediction.top], digits=True)


def likely_blocks(named: Sequence[tuple[str, Likely]], *, digits: bool) -> Iterator[Block]:
    """Bars of probabilities, or a line for a head that gives a number. ``digits`` uses the terminal's digits."""
    bars = []
    for name, likely in named:
        if likely.probability is None:
            yield Line([Span(name, "output"), "  ", Figure(likely.logit, "%.4f", "strong")], indent=2)
        else:
            bars.append(Bar(name, likely.probability, "" if digits else probability(likely.probability), "output"))
    if bars:
        yield Bars(bars)


_READ = {
    "class": "of the text, read at {}",
    "number": "of the text, read at {}",
    "token": "at {}",
    "place": "most probable: {}",
}


def check_blocks(outcome: Check) -> Iterator[Block]:
    """An empty line, then the self-check of a trace."""
    yield Line("")
    yield check_line(outcome)


def check_line(outcome: Check) -> Line:
    """The self-check of a trace in one line; it names the replaced steps, which cannot be compared."""
    worst = outcome.telling
    of = f" (of values up to {worst.scale:.3g})" if worst.scale > 10 else ""
    replaced = f"; not compared, because replaced: {first_of(outcome.exchanged, _NAMED)}" if outcome.exchanged else ""
    off = Figure(worst.difference, "%.1e")
    if outcome.holds:
        return verdict(
            True, [f"{len(outcome.items)} steps add up, largest difference ", off, f"{of} at {worst.step}{replaced}"]
        )
    if not worst.is_finite:
        return not_finite(worst.step, f": {outcome.overflow}{replaced}" if outcome.overflow else replaced)
    allowed = Figure(worst.allowed, "%.1e")
    return verdict(
        False,
        [f"first at {worst.step}, off by ", off, f"{of} where ", allowed, f" is allowed ({worst.what}){replaced}"],
    )


def fault_blocks(kinds: Sequence[str], fault: Fault | None) -> Iterator[Block]:
    """The first fault in one line, or a line that none of these ``kinds`` was found; nothing without kinds."""
    if kinds and fault is None:
        yield verdict(True, f"looked for {', '.join(kinds)} at every step", good="no fault")
    elif fault is not None:
        yield verdict(False, f"{fault.direction}, first at {fault.step}: {fault.evidence}", bad=fault.kind)
