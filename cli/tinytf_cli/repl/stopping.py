"""Verbs that set and delete stops, and the stops that hold at a step."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from tinytf.errors import UsageError
from tinytf.steps.table import Step
from tinytf.trace.address import parse_address
from tinytf_cli.numbers import plural
from tinytf_cli.output import Result
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Stop
from tinytf_cli.repl.verbs import answer, verb
from tinytf_cli.views.blocks import Block, Column, Line, Span, Table

_ADDRESS = re.compile(r"L[0-9*]|[a-z]+\.|\w+\[")
_IF = re.compile(r"(?:^|(?<=\s))if(?=\s|$)")
_verb = partial(verb, topic="stopping")


@_verb(
    "break", "b", usage="[ADDRESS [if CONDITION]]", takes=("step", "condition"), raw=True,
    examples=("break L3.weights", "break L*.weights if max > 0.99", "break L1H2.weights if entropy < 0.5"),
)  # fmt: skip
def break_at(session: Session) -> Result:
    """Stop at a step, always or on a condition; or list the stops.

    A condition compares measures and numbers: mean, max, min, std, norm, entropy (of weights and probs), nan, inf;
    joined by and, or and round brackets. It measures the finite and unmasked numbers of all the heads in the address
    together.
    """
    rest = session.typed.rest
    if not rest:
        return _listed(session)
    address, condition = _split(rest)
    if not address:
        raise UsageError("break takes an address", "such as break L0.weights if max > 0.9; watch needs none")
    return _added(session, address, condition)


@_verb(
    "watch", usage="[ADDRESS if] CONDITION", takes=("condition",), raw=True,
    examples=("watch nan", "watch max > 100", "watch L*.ffn if norm > 50"),
    claims=lambda words: not (words and (Path(words[0]).is_dir() or words[0].startswith("--"))),
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
    if _ADDRESS.match(rest):
        raise UsageError("watch takes a condition", f"such as watch {address} if max > 0.9; break {address} needs none")
    return _added(session, "", 0)


@_verb("delete", takes=("stop",), examples=("delete 1", "delete"))
@click.argument("numbers", nargs=-1, type=click.IntRange(1, 10**9), metavar="[NUMBER]…")
def delete(session: Session, numbers: tuple[int, ...]) -> Result:
    """Delete stops by their numbers, or all of them."""
    stops = session.state.stops
    known = [stop.number for stop in stops]
    for number in numbers:
        if number not in known:
            raise UsageError(f"there is no stop {number}", f"there are: {', '.join(map(str, known)) or 'none'}")
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

    typed, condition, where = session.typed, None, None
    if address:
        where = parse_address("".join(address.split()), session.table)
        if where.cell:
            raise UsageError(f"a stop is at a step, and {where} is a cell of one", f"such as {replace(where, cell=())}")
    if condition_at is not None:
        condition = parse_condition(typed.rest[condition_at:], typed.line, typed.rest_at + condition_at)
        if where is not None and where.step is not None:
            condition.require_entropy(where.step)
    stop = Stop(session.state.n_stops + 1, where, condition)
    session.change(stops=(*session.state.stops, stop), n_stops=stop.number)
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


def stops_at(session: Session, place: int) -> list[Stop]:
    """The stops at a step of the present model, whether their condition holds or not."""
    return [stop for stop in session.state.stops if stop.where is not None and _names(stop, session.table.rows, place)]


def holding_at(session: Session, place: int) -> list[Stop]:
    """The stops that hold at a step."""
    rows = session.table.rows
    step, layer = rows[place]

    def holds(stop: Stop) -> bool:
        heads = stop.where.heads if stop.where is not None and step.has_heads else None
        return stop.condition is None or stop.condition.holds(session.trace, step, layer, heads)

    return [stop for stop in session.state.stops if _names(stop, rows, place) and holds(stop)]


def _names(stop: Stop, rows: Sequence[tuple[Step, int | None]], place: int) -> bool:
    """Whether a stop is at a step. One at a whole layer is at its first step, and with a condition at each."""
    (step, layer), where = rows[place], stop.where
    if where is None:
        return True
    if where.layers is not None and layer not in where.layers:
        return False
    if where.step is None:
        return stop.condition is not None or place == 0 or rows[place - 1][1] != layer
    return where.step.name == step.name and (where.layers is not None or layer is None)


STOPPING = (break_at, watch, delete)
