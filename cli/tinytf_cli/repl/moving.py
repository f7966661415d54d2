"""Verbs that move through the steps of the present run."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import AddressError, UsageError
from tinytf.outputs import fenced
from tinytf_cli.numbers import plural
from tinytf_cli.ranges import Whole
from tinytf_cli.repl.looking import address_result, find_address
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Rows
from tinytf_cli.repl.verbs import Answer, verb
from tinytf_cli.views.blocks import Line, Span
from tinytf_cli.views.draw import Shown

if TYPE_CHECKING:
    from tinytf.trace.trace import Trace

_LISTED = 11
_COUNT = Whole(1)
_verb = partial(verb, topic="moving")


@_verb("step", "s", examples=("step", "step 5"), moves=True)
@click.argument("count", type=_COUNT, default=1, metavar="[N]")
def step(session: Session, count: int) -> Shown:
    """Go to the next step, or N steps further; a stop on the way ends it."""
    return _advance(session, lambda rows, row: row + count)


@_verb("back", examples=("back", "back 5"), moves=True)
@click.argument("count", type=_COUNT, default=1, metavar="[N]")
def back(session: Session, count: int) -> Shown:
    """Go back one step, or N steps."""
    row = session.require_row()
    if row == 0:
        raise UsageError("this is the first step", "step goes on, run TEXT starts another text")
    session.change(row=max(0, row - count))
    return step_result(session)


@_verb("next", "n", examples=("next",), moves=True)
def next_layer(session: Session) -> Shown:
    """Go to the first step of the next layer.

    After the last layer it goes to the step that follows.
    """
    return _advance(session, lambda rows, row: _end_of_part(rows, row) + 1)


@_verb("finish", examples=("finish",), moves=True)
def finish(session: Session) -> Shown:
    """Go to the last step of this layer.

    Outside the layers it goes to the last step of this part. From the last step of a part, it goes to the end of the
    next.
    """
    return _advance(session, lambda rows, row: _end_of_part(rows, row + 1))


@_verb("continue", "c", examples=("continue",), moves=True)
def go_on(session: Session) -> Shown:
    """Go on to the next stop whose condition holds, or to the last step."""
    return _advance(session, lambda rows, row: len(rows) - 1, no_stop_held)


@_verb("goto", "g", takes=("step",), examples=("goto L3H1.weights", "goto L2", "goto 17"))
@click.argument("words", nargs=-1, required=True, metavar="ADDRESS|NUMBER")
def goto(session: Session, words: tuple[str, ...]) -> Shown:
    """Go to a step by address or number, or to the first step of a layer.

    If the address names a head, print and heat show that head until the next goto.
    """
    word, rows, head = "".join(words), session.trace.steps.rows, None
    if word.isdecimal() and word.isascii():
        if len(word) > 9 or not 1 <= int(word) <= len(rows):
            raise AddressError(f"there is no step {word[:20]}", f"steps are numbered from 1 to {len(rows)}")
        row = int(word) - 1
    else:
        address = session.trace.address(word)
        layer = address.layers[0] if address.layers else None
        name = address.step.name if address.step else None
        head = address.heads[0] if address.heads and address.letter == "H" else None
        row = next(n for n, (step, of_layer) in enumerate(rows) if of_layer == layer and name in (None, step.name))
    session.change(row=row, head=head)
    return step_result(session)


@_verb("where", "w", names_models=True, examples=("where",))
def where(session: Session) -> Shown:
    """Show the present model, text and step."""
    from tinytf_cli.views.banner import model_words, notes
    from tinytf_cli.views.pipeline import current_step_blocks, text_words

    row, trace = session.require_row(), session.trace

    def blocks(terminal: Any) -> Iterator[Any]:
        yield Line(model_words(session.model))
        yield from notes(session.model)
        yield Line([Span(text_words(trace)), Span(f" · {plural(len(trace.tokens), 'token')}", "dim")])
        yield from current_step_blocks(trace, row)

    return Shown(Answer(kind="place", data=_step_data(session), draw=blocks))


@_verb("list", "l", examples=("list", "list 30"))
@click.argument("count", type=Whole(1, 10_000), default=_LISTED, metavar="[N]")
def list_steps(session: Session, count: int) -> Shown:
    """Show the steps around the present one, with their stops."""
    from tinytf_cli.views.pipeline import around, list_blocks

    present, trace = session.require_row(), session.trace
    rows = around(trace, present, count)
    stops = [session.state.stops_at(trace.steps.rows, row.number - 1) for row in rows]

    data = {**_step_data(session), "steps": [row.to_dict() for row in rows]}
    marks = [" ".join(str(stop.number) for stop in at_row) for at_row in stops]
    return Shown(Answer(kind="steps", data=data, draw=lambda terminal: list_blocks(rows, present, marks)))


def _advance(
    session: Session, target: Callable[[Rows, int], int], unstopped: Callable[[Session], str] = lambda _: ""
) -> Shown:
    """Go to the first stop that holds, else to the row that ``target`` computes from the present one, or to the last.

    ``unstopped`` gives the message if no stop held. Raises UsageError at the last step.
    """
    row, rows = session.require_row(), session.table.rows
    if row >= len(rows) - 1:
        raise UsageError("this is the last step", "back goes back, goto goes to any step, run starts again")
    return step_result(session, run_to_stop(session, row + 1, target(rows, row)) or unstopped(session))


def no_stop_held(session: Session) -> str:
    """The message that no stop held, with how close each came that has not held in this run."""
    trace, rows = session.trace, session.trace.steps.rows
    previous = _previous(session)
    close = {
        stop.words: stop.closest(trace, rows, previous, session.model) for stop in session.state.stops if not stop.hits
    }
    closest = [f"{words} has not held; closest: {place}" for words, place in close.items() if place]
    return "\n".join(["no stop held; this is the last step", *closest])


def _previous(session: Session) -> "Trace | None":
    """The trace of the run before, if a stop looks back at it."""
    looks_back = any(term.last for stop in session.state.stops if stop.condition for term in stop.condition.terms)
    return session.models.trace(session.state.runs[0]) if looks_back and len(session.state.runs) > 1 else None


def _end_of_part(rows: Rows, row: int) -> int:
    """The row of the last step of the layer that ``row`` is in, or of its part outside the layers."""
    return next((n - 1 for n in range(row, len(rows)) if rows[n][1] != rows[row][1]), len(rows) - 1)


def run_to_stop(session: Session, start: int, end: int) -> str:
    """Go to the first stop that holds from ``start`` to ``end``, else to ``end``; return its message, or ''."""
    trace, rows = session.trace, session.trace.steps.rows
    end, model = min(end, len(rows) - 1), session.model
    previous = _previous(session)
    for row in range(start, end + 1):
        present = [stop for stop in session.state.stops if stop.applies_at(rows, row)]
        messages = {
            stop.number: message
            for stop in present
            if (message := stop.hit_message(trace, *rows[row], previous, model)) is not None
        }
        stops = [replace(stop, hits=stop.hits + (stop.number in messages)) for stop in session.state.stops]
        stopping = [stop.number for stop in stops if stop.number in messages and stop.hits > stop.ignore_count]
        session.change(stops=tuple(stop for stop in stops if not (stop.once and stop.number in stopping)))
        if stopping:
            session.change(row=row)
            return "\n".join(messages[number] for number in stopping)
    session.change(row=end)
    return ""


def _step_data(session: Session) -> dict[str, Any]:
    """The text and the present step, as data."""
    from tinytf_cli.views.pipeline import row_at

    row = session.require_row()
    return {
        "text": session.trace.encoding.text,
        "steps": len(session.table.rows),
        "place": row_at(session.trace, row).to_dict(),
    }


def step_result(session: Session, message: str = "", *, new_run: bool = False) -> Shown:
    """The result of every movement: the present step, the stops that ended it, and the displays."""
    from tinytf_cli.views.pipeline import current_step_blocks, run_blocks
    from tinytf_cli.views.through import ThroughDisplay

    if session.through is not None:
        return Shown(session.through_trace, ThroughDisplay())
    row, trace, model = session.require_row(), session.trace, session.model
    displays = session.state.displays

    def blocks(terminal: Any) -> Iterator[Any]:
        if new_run:
            yield from run_blocks(trace, model)
        for line in message.splitlines():
            yield Line(Span(line, "strong"))
        yield from current_step_blocks(trace, row)
        for display in displays:
            try:
                with fenced(display.fence):
                    shown = list(address_result(session, find_address(session, display.address)).blocks(terminal))
            except AddressError as error:  # another model may not have it
                yield Line([Span(f"{display.address}: ", "dim"), Span(error.message, "dim")])
            else:
                yield from shown

    data = {**_step_data(session), "stopped": message, "displays": [display.address for display in displays]}
    return Shown(Answer(kind="place", data=data, draw=blocks))


MOVING = (step, back, next_layer, finish, go_on, goto, where, list_steps)
