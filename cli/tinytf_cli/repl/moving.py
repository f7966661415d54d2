"""Verbs that move through the steps of the present run."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import click

from tinytf.errors import AddressError, UsageError
from tinytf_cli.numbers import plural
from tinytf_cli.repl.looking import address_result, find_address
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Rows
from tinytf_cli.repl.verbs import Answer, verb
from tinytf_cli.views.blocks import Line, Span
from tinytf_cli.views.draw import Shown

_AROUND = 11
NO_STOP = "no stop held on the way; this is the last step"
_COUNT = click.IntRange(1)
_verb = partial(verb, topic="moving")


@_verb("step", "s", examples=("step", "step 5"), moves=True)
@click.argument("count", type=_COUNT, default=1, metavar="[N]")
def step(session: Session, count: int) -> Shown:
    """Go to the next step, or N steps further, or to a stop on the way."""
    return _advance(session, lambda rows, place: place + count)


@_verb("back", examples=("back", "back 5"), moves=True)
@click.argument("count", type=_COUNT, default=1, metavar="[N]")
def back(session: Session, count: int) -> Shown:
    """Go back one step, or N steps."""
    place = session.require_place()
    if place == 0:
        raise UsageError("this is the first step", "step goes on, run begins another text")
    session.change(place=max(0, place - count))
    return standing(session)


@_verb("next", "n", examples=("next",), moves=True)
def next_layer(session: Session) -> Shown:
    """Go to the first step of the next layer.

    After the last layer it goes to the step that follows.
    """
    return _advance(session, lambda rows, place: _end_of_part(rows, place) + 1)


@_verb("finish", examples=("finish",), moves=True)
def finish(session: Session) -> Shown:
    """Go to the last step of this layer.

    Outside of layers it goes to the last step of this part; from the end of one, to the end of the next.
    """
    return _advance(session, lambda rows, place: _end_of_part(rows, place + 1))


@_verb("continue", "c", examples=("continue",), moves=True)
def go_on(session: Session) -> Shown:
    """Go on to the next stop that holds, or to the last step."""
    return _advance(session, lambda rows, place: len(rows) - 1, NO_STOP)


@_verb("goto", "g", takes=("step",), examples=("goto L3H1.weights", "goto L2", "goto 17"))
@click.argument("words", nargs=-1, required=True, metavar="ADDRESS|NUMBER")
def goto(session: Session, words: tuple[str, ...]) -> Shown:
    """Go to a step by address or number, or to the first of a layer.

    A head that is named stays the one that print and heat show, until the next goto.
    """
    word, rows, head = "".join(words), session.trace.steps.rows, None
    if word.isdecimal() and word.isascii():
        if len(word) > 9 or not 1 <= int(word) <= len(rows):
            raise AddressError(f"there is no step {word[:20]}", f"they count from 1 to {len(rows)}")
        place = int(word) - 1
    else:
        where = session.trace.address(word)
        layer = where.layers[0] if where.layers else None
        name = where.step.name if where.step else None
        head = where.heads[0] if where.heads and where.letter == "H" else None
        place = next(at for at, (step, of) in enumerate(rows) if of == layer and name in (None, step.name))
    session.change(place=place, head=head)
    return standing(session)


@_verb("where", "w", names_models=True, examples=("where",))
def where(session: Session) -> Shown:
    """Show the present model, text and step."""
    from tinytf_cli.views.banner import model_words, notes
    from tinytf_cli.views.pipeline import place_blocks, text_words

    place, trace = session.require_place(), session.trace

    def blocks(terminal: Any) -> Iterator[Any]:
        yield Line(model_words(session.model))
        yield from notes(session.model)
        yield Line([Span(text_words(trace)), Span(f" · {plural(len(trace.tokens), 'token')}", "dim")])
        yield from place_blocks(trace, place)

    return Shown(Answer(kind="place", data=_place_data(session), draw=blocks))


@_verb("list", "l", examples=("list", "list 30"))
@click.argument("count", type=click.IntRange(1, 10_000), default=_AROUND, metavar="[N]")
def list_steps(session: Session, count: int) -> Shown:
    """Show the steps around this one, and where the stops are."""
    from tinytf_cli.views.pipeline import around, list_blocks

    place, trace = session.require_place(), session.trace
    rows = around(trace, place, count)
    named = [stop for stop in session.state.stops if stop.where is not None]

    def stops_at(row: int) -> str:
        return " ".join(str(stop.number) for stop in named if stop.is_at(trace.steps.rows, row))

    stops = [stops_at(row.number - 1) for row in rows]
    data = {**_place_data(session), "steps": [row.to_dict() for row in rows]}
    return Shown(Answer(kind="steps", data=data, draw=lambda terminal: list_blocks(rows, place, stops)))


def _advance(session: Session, end: Callable[[Rows, int], int], otherwise: str = "") -> Shown:
    """Go to the first stop that holds, or to the index that ``end`` gives of the present one, or to the last step.

    ``otherwise`` is said where no stop held. Raises UsageError at the last step.
    """
    place, rows = session.require_place(), session.table.rows
    if place >= len(rows) - 1:
        raise UsageError("this is the last step", "back goes back, goto anywhere, run begins again")
    return standing(session, forward(session, place + 1, end(rows, place)) or otherwise)


def _end_of_part(rows: Rows, place: int) -> int:
    """The index of the last step of the layer, or of the part outside of layers, that the step at ``place`` is in."""
    return next((at - 1 for at in range(place, len(rows)) if rows[at][1] != rows[place][1]), len(rows) - 1)


def forward(session: Session, place: int, end: int) -> str:
    """Go to the first stop that holds from ``place`` to ``end``, and return what it is; else to ``end``, silently."""
    trace, rows = session.trace, session.trace.steps.rows
    end, model = min(end, len(rows) - 1), session.model
    looks_back = any(term.last for stop in session.state.stops if stop.condition for term in stop.condition.terms)
    before = session.models.trace(session.state.runs[0]) if looks_back and len(session.state.runs) > 1 else None
    for at in range(place, end + 1):
        here = [stop for stop in session.state.stops if stop.is_at(rows, at)]
        held = {stop.number: said for stop in here if (said := stop.held(trace, *rows[at], before, model)) is not None}
        stops = [replace(one, hits=one.hits + (one.number in held)) for one in session.state.stops]
        stopping = [one.number for one in stops if one.number in held and one.hits > one.passed]
        session.change(stops=tuple(one for one in stops if not (one.once and one.number in stopping)))
        if stopping:
            session.change(place=at)
            return "\n".join(held[number] for number in stopping)
    session.change(place=end)
    return ""


def _place_data(session: Session) -> dict[str, Any]:
    """The text and the present step, as data."""
    from tinytf_cli.views.pipeline import row_at

    place = session.require_place()
    return {
        "text": session.trace.encoding.text,
        "steps": len(session.table.rows),
        "place": row_at(session.trace, place).to_dict(),
    }


def standing(session: Session, said: str = "", *, begun: bool = False) -> Shown:
    """What is shown after every movement: the step, what stopped it, and the displays."""
    from tinytf_cli.views.pipeline import place_blocks, run_blocks

    place, trace, model = session.require_place(), session.trace, session.model
    displays = session.state.displays

    def blocks(terminal: Any) -> Iterator[Any]:
        if begun:
            yield from run_blocks(trace, model)
        for line in said.splitlines():
            yield Line(Span(line, "strong"))
        yield from place_blocks(trace, place)
        for address in displays:
            try:
                found = address_result(session, find_address(session, address))
            except AddressError as error:  # another model may not have it
                yield Line([Span(f"{address}: ", "dim"), Span(error.message, "dim")])
            else:
                yield from found.blocks(terminal)

    data = {**_place_data(session), "stopped": said, "displays": list(displays)}
    return Shown(Answer(kind="place", data=data, draw=blocks))


MOVING = (step, back, next_layer, finish, go_on, goto, where, list_steps)
