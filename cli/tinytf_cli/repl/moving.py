"""Verbs that run a text and move through its steps, and the stops on the way."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from tinytf.errors import AddressError, UsageError
from tinytf.trace.address import parse_address
from tinytf_cli.inputs import read_conversations
from tinytf_cli.numbers import plural
from tinytf_cli.output import Result
from tinytf_cli.repl.looking import address_result, find_address
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Rows, Run, Stop
from tinytf_cli.repl.verbs import answer, made_of, verb
from tinytf_cli.views.blocks import Block, Column, Line, Span, Table

_AROUND = 11
_NO_STOP = "no stop held on the way; this is the last step"
_COUNT = click.IntRange(1)
_ADDRESS = re.compile(r"L[0-9*]|[a-z]+\.|\w+\[")
_COMPARES = re.compile("[<>=]")
_IF = re.compile(r"(?:^|(?<=\s))if(?=\s|$)")
_verb = partial(verb, topic="moving")


@_verb("run", "r", takes=("text",), examples=('run "The cat sat on the"', "run The cat"))
@click.argument("words", nargs=-1, metavar="TEXT")
@click.option("--truncate", is_flag=True, help="Truncate a text that is longer than the model's context.")
@click.option("--force", is_flag=True, help="Record even what is larger than the free memory.")
@click.option("--quiet", is_flag=True, help="Show nothing.")
@click.option("--chat", is_flag=True, help="Put TEXT, or the messages of a .json file, into the chat template.")
def run(
    session: Session, words: tuple[str, ...], truncate: bool, force: bool, quiet: bool, chat: bool
) -> Result | None:
    """Record a text, and go to its first step, or to the first stop.

    Without TEXT the present one is run again from its first step.
    """
    text = next(read_conversations(words, lines=False)) if chat and words else " ".join(words)
    wanted = Run(session.state.spec, text, truncate, force) if words else session.require_run()
    session.models.trace(wanted)
    if words:
        session.change(runs=(*session.state.runs[-1:], wanted))
    session.change(place=0)
    said = (_forward(session, 0, len(session.table.rows) - 1) or _NO_STOP) if session.state.stops else ""
    return None if quiet else _standing(session, said, begun=True)


@_verb("step", "s", examples=("step", "step 5"), moves=True)
@click.argument("count", type=_COUNT, default=1, metavar="[N]")
def step(session: Session, count: int) -> Result:
    """Go to the next step, or N steps further, or to a stop on the way."""
    return _advance(session, lambda rows, place: place + count)


@_verb("back", examples=("back", "back 5"), moves=True)
@click.argument("count", type=_COUNT, default=1, metavar="[N]")
def back(session: Session, count: int) -> Result:
    """Go back one step, or N steps."""
    place = session.require_place()
    if place == 0:
        raise UsageError("this is the first step", "step goes on, run begins another text")
    session.change(place=max(0, place - count))
    return _standing(session)


@_verb("next", "n", examples=("next",), moves=True)
def next_layer(session: Session) -> Result:
    """Go to the first step of the next layer.

    After the last layer it goes to the step that follows.
    """
    return _advance(session, lambda rows, place: _end_of_part(rows, place) + 1)


@_verb("finish", examples=("finish",), moves=True)
def finish(session: Session) -> Result:
    """Go to the last step of this layer.

    Outside of layers it goes to the last step of this part; from the end of one, to the end of the next.
    """
    return _advance(session, lambda rows, place: _end_of_part(rows, place + 1))


@_verb("continue", "c", examples=("continue",), moves=True)
def go_on(session: Session) -> Result:
    """Go on to the next stop that holds, or to the last step."""
    return _advance(session, lambda rows, place: len(rows) - 1, _NO_STOP)


@_verb("goto", "g", takes=("step",), examples=("goto L3H1.weights", "goto L2", "goto 17"))
@click.argument("words", nargs=-1, required=True, metavar="ADDRESS|NUMBER")
def goto(session: Session, words: tuple[str, ...]) -> Result:
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
    return _standing(session)


@_verb("where", "w", names_models=True, examples=("where",))
def where(session: Session) -> Result:
    """Show the present model, text and step."""
    from tinytf_cli.views.banner import model_words, notes
    from tinytf_cli.views.pipeline import place_blocks, text_words

    place, trace = session.require_place(), session.trace

    def blocks(terminal: Any) -> Iterator[Any]:
        yield Line(model_words(session.model))
        yield from notes(session.model)
        yield Line([Span(text_words(trace)), Span(f" · {plural(len(trace.tokens), 'token')}", "dim")])
        yield from place_blocks(trace, place)

    return made_of("place", blocks, lambda: _place_data(session))


@_verb("list", "l", examples=("list", "list 30"))
@click.argument("count", type=click.IntRange(1, 10_000), default=_AROUND, metavar="[N]")
def list_steps(session: Session, count: int) -> Result:
    """Show the steps around this one, and where the stops are."""
    from tinytf_cli.views.pipeline import around, list_blocks

    place, trace = session.require_place(), session.trace
    rows = around(trace, place, count)
    named = [stop for stop in session.state.stops if stop.where is not None]

    def stops_at(row: int) -> str:
        return " ".join(str(stop.number) for stop in named if stop.is_at(trace.steps.rows, row))

    def data() -> dict[str, Any]:
        return {**_place_data(session), "steps": [row.to_dict() for row in rows]}

    stops = [stops_at(row.number - 1) for row in rows]
    return made_of("steps", lambda terminal: list_blocks(rows, place, stops), data)


def _advance(session: Session, end: Callable[[Rows, int], int], otherwise: str = "") -> Result:
    """Go to the first stop that holds, or to the index that ``end`` gives of the present one, or to the last step.

    ``otherwise`` is said where no stop held. Raises UsageError at the last step.
    """
    place, rows = session.require_place(), session.table.rows
    if place >= len(rows) - 1:
        raise UsageError("this is the last step", "back goes back, goto anywhere, run begins again")
    return _standing(session, _forward(session, place + 1, end(rows, place)) or otherwise)


def _end_of_part(rows: Rows, place: int) -> int:
    """The index of the last step of the layer, or of the part outside of layers, that the step at ``place`` is in."""
    return next((at - 1 for at in range(place, len(rows)) if rows[at][1] != rows[place][1]), len(rows) - 1)


def _forward(session: Session, place: int, end: int) -> str:
    """Go to the first stop that holds from ``place`` to ``end``, and return what it is; else to ``end``, silently."""
    trace, rows = session.trace, session.trace.steps.rows
    end, find = min(end, len(rows) - 1), partial(session.model.find_outcome, option="the token")
    looks_back = any(term.last for stop in session.state.stops if stop.condition for term in stop.condition.terms)
    before = session.models.trace(session.state.runs[0]) if looks_back and len(session.state.runs) > 1 else None
    for at in range(place, end + 1):
        here = [stop for stop in session.state.stops if stop.is_at(rows, at)]
        held = [said for stop in here if (said := stop.held(trace, *rows[at], before, find)) is not None]
        if held:
            session.change(place=at)
            return "\n".join(held)
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


def _standing(session: Session, said: str = "", *, begun: bool = False) -> Result:
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

    return made_of("place", blocks, lambda: {**_place_data(session), "stopped": said, "displays": list(displays)})


# Stops


@verb(
    "break", "b", topic="stopping", usage="[ADDRESS [if CONDITION]]", takes=("step", "condition"), raw=True,
    examples=("break L3.weights", "break L*.weights[1:] if max > 0.99", "break L*.out if rank(mat) == 1"),
)  # fmt: skip
def break_at(session: Session) -> Result:
    """Stop at a step, always or on a condition; or list the stops.

    A condition compares measures and numbers: mean, max, min, std, norm, entropy (of weights and probs), nan, inf, of
    the finite and unmasked numbers of the step; of the rows that the address leaves, as in L*.weights[1:]; of each head
    that it names, as in L1H*. help conditions lists what else it can say. A stop says where it held.
    """
    rest = session.typed.rest
    if not rest:
        return _listed(session)
    address, condition = _split(rest)
    if not address:
        raise UsageError("break takes an address", "such as break L0.weights if max > 0.9; watch needs none")
    return _added(session, address, condition)


@verb(
    "watch", topic="stopping", usage="[ADDRESS if] CONDITION", takes=("condition",), raw=True,
    examples=("watch nan", "watch max > 100", "watch L*.ffn if norm > 50"),
    leaves=lambda words: bool(words) and (words[0].startswith("--") or Path(words[0]).is_dir()),
)  # fmt: skip
def watch(session: Session) -> Result:
    """Stop at any step where a condition holds.

    With an address it stops at those steps only. Conditions are those of break. With the folder of a training run it is
    the command of the same name.
    """
    rest = session.typed.rest
    if not rest:
        return _listed(session)
    address, condition = _split(rest)
    if condition is not None:
        return _added(session, address, condition)
    if _ADDRESS.match(rest) and not _COMPARES.search(rest):
        raise UsageError("watch takes a condition", f"such as watch {address} if max > 0.9; break {address} needs none")
    return _added(session, "", 0)


@verb("delete", topic="stopping", takes=("stop",), examples=("delete 1", "delete"))
@click.argument("numbers", nargs=-1, type=_COUNT, metavar="[NUMBER]…")
def delete(session: Session, numbers: tuple[int, ...]) -> Result:
    """Delete stops by their numbers, or all of them."""
    stops = session.state.stops
    known = [stop.number for stop in stops]
    for number in numbers:
        if number not in known:
            hint = f"there are: {', '.join(map(str, known))}" if known else "there are none"
            raise UsageError(f"there is no stop {number}", hint)
    left = tuple(stop for stop in stops if numbers and stop.number not in numbers)
    session.change(stops=left)
    return _answer(session, Line(f"{plural(len(stops) - len(left), 'stop')} deleted, {len(left)} left"))


def _split(rest: str) -> tuple[str, int | None]:
    """The words before ``if``, and where the condition after it begins (None without one)."""
    match = _IF.search(rest)
    return (rest.strip(), None) if match is None else (rest[: match.start()].strip(), match.end())


def _added(session: Session, address: str, condition_at: int | None) -> Result:
    """Add a stop at an address (none: every step), with the condition that begins there in what was typed."""
    from tinytf.trace.conditions import parse_condition
    from tinytf.trace.measures import numbers

    typed, condition, where = session.typed, None, None
    if address:
        where = parse_address("".join(address.split()), session.table)
        if where.cell and condition_at is None:
            raise UsageError(f"a stop is at a step, and {where} is a cell of one", f"such as {replace(where, cell=())}")
    if condition_at is not None:
        condition = parse_condition(typed.rest[condition_at:], typed.line, typed.rest_at + condition_at)
        if where is None and all(term.measure == "value" for term in condition.terms):
            where = replace(parse_address(condition.terms[0].of, session.table), cell=())  # the step of the cell
        if where is not None and where.step is not None:
            if not where.step.is_tensor:
                raise UsageError(f"{where.step.name} has no numbers", f"break {where.step.name} stops there always")
            if where.cell and session.run:
                layer = where.layers[0] if where.layers else None
                numbers(session.trace, where.step, layer, where.heads, where.cell)  # raises for one that is not there
        trace = session.trace if session.run else None
        condition.require(
            session.table,
            where.step if where else None,
            lambda word: session.model.find_outcome(word, "the token"),
            trace,
        )
    stops = session.state.stops
    stop = Stop(stops[-1].number + 1 if stops else 1, where, condition)
    session.change(stops=(*stops, stop))
    return _answer(session, Line([Span(f"stop {stop.number}", "strong"), Span(f": {stop.words}")]))


def _listed(session: Session) -> Result:
    """All stops."""
    stops = session.state.stops
    if not stops:
        return _answer(session, Line("there are no stops"))
    numbers = Column("stop", [str(stop.number) for stop in stops], "right")
    return _answer(session, Table([numbers, Column("at", [stop.words for stop in stops])]))


def _answer(session: Session, block: Block) -> Result:
    return answer("stops", {"stops": [stop.to_dict() for stop in session.state.stops]}, block)


MOVING = (run, step, back, next_layer, finish, go_on, goto, where, list_steps)
STOPPING = (break_at, watch, delete)
