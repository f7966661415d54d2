"""Setting a number of the model in a session: before and after, the change of the prediction, and of every step."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tinytf_cli.numbers import plural
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.verbs import Answer, answer, change_lines
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Figure, Line, Piece, Span, led
from tinytf_cli.views.draw import Shown
from tinytf_cli.views.parts import note

if TYPE_CHECKING:
    from tinytf.compare.diff import Difference


def set_number(session: Session, text: str) -> Shown:
    """Set a number of the present model, run the present text again, and compare both runs."""
    from tinytf.cause.interventions import assignment, number_at, number_before
    from tinytf.trace.address import Address

    at, number = assignment(text)
    model, trace = session.model, None if session.run is None else session.trace
    target = number_at(at, session.table, None if trace is None else trace.encoding)
    if isinstance(target, Address):
        session.require_run()
    before, address = number_before(model, target, trace).flatten(), str(target)
    numbers = (*(pair for pair in session.state.spec.numbers if pair[0] != address), (address, number))
    spec = replace(session.state.spec, numbers=numbers)
    changed_model = session.models.model(spec)
    session.set_spec(spec)
    report = None if trace is None else model.diff(trace, (changed_model, session.trace))
    least, most = float(before.min()), float(before.max())
    was: list[Piece] = [Figure(least, "%.4g")]
    if least != most:
        was = [f"{plural(len(before), 'number')}, ", *was, " to ", Figure(most, "%.4g")]
    first = Line([Span(address, "strong"), " ", *was, f" → {number:g}"])

    def draw(terminal: Terminal) -> Iterator[Block]:
        yield first
        if report is not None:
            yield from _consequence(report, model.shown, terminal)
        if len(numbers) > 1:
            yield from change_lines(spec)

    data = {
        "at": address, "numbers": len(before), "before": {"least": least, "most": most}, "after": number,
        "set": dict(numbers), "difference": None if report is None else report.to_dict(),
    }  # fmt: skip
    return Shown(Answer(kind="set", data=data, draw=draw, table=("difference", "steps")))


def set_no_number(session: Session) -> Shown:
    """Take back every number that is set."""
    session.set_spec(replace(session.state.spec, numbers=()))
    return answer("set", {"set": {}}, Line("every number is the model's own"))


def _consequence(report: "Difference", shown: Callable[[int], str], terminal: Terminal) -> Iterator[Block]:
    """The change of the prediction in a sentence, then the steps that differ."""
    from tinytf_cli.views.diff import DifferenceDisplay

    if report.predictions:
        yield Line(f"{report.predictions[0].in_words(shown)}.")
        yield note("A is the run before, and B this one")
    _, _, steps = led(Shown(report, DifferenceDisplay(top=3, brief=True)).blocks(terminal))
    yield from steps
    if not report.equal:
        yield note("diff shows more, with --full or --all everything; undo takes the number back")
