"""Verbs that say where to stop, and whether a stop holds at a step."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tinytf.errors import UsageError
from tinytf.steps.table import Step
from tinytf.trace.address import Address, parse_address
from tinytf_cli.numbers import plural
from tinytf_cli.output import Result
from tinytf_cli.repl.results import answer
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Stop
from tinytf_cli.repl.verbs import verb
from tinytf_cli.views.blocks import Column, Line, Span, Table

_ADDRESS = re.compile(r"L[0-9*]|[a-z]+\.|\w+\[")
_IF = re.compile(r"(?:^|(?<=\s))if(?=\s|$)")


@verb(
    "break", "b", topic="stopping", usage="[ADDRESS [if CONDITION]]", takes=("address", "condition"), raw=True,
    examples=("break L3.weights", "break L*.weights if max > 0.99", "break L1H2.weights if entropy < 0.5"),
)  # fmt: skip
def break_at(session: Session) -> Result:
    """Stop at a step, always or where its numbers are so; or list stops.

    A condition compares measures and numbers: mean, max, min, std, norm, entropy (of weights and probs), nan, inf;
    joined by and, or and round brackets. It is of the numbers that are finite and not masked, of all the heads that
    the address names together.
    """
    typed = session.typed
    if not typed.rest:
        return listed(session)
    address, condition, at = _split(typed.rest)
    if not address:
        raise UsageError("break takes an address", "such as break L0.weights if max > 0.9; watch needs none")
    where = _address(session, address)
    return _added(session, Stop(0, "break", where, _condition(session, condition, at, where)))


@verb(
    "watch", topic="stopping", usage="[ADDRESS if] CONDITION", takes=("condition",), raw=True,
    examples=("watch nan", "watch max > 100", "watch L*.ffn if norm > 50"),
    claims=lambda words: not (words and (Path(words[0]).is_dir() or words[0].startswith("--"))),
)  # fmt: skip
def watch(session: Session) -> Result:
    """Stop at any step whose numbers are so.

    With an address it stops at these steps alone. Conditions are those of break. The folder of a training run is for
    the command of the same name.
    """
    typed = session.typed
    if not typed.rest:
        return listed(session)
    address, condition, at = _split(typed.rest)
    if condition is None and _ADDRESS.match(typed.rest):
        raise UsageError("watch takes a condition", f"such as watch {address} if max > 0.9; break {address} needs none")
    if condition is None:
        return _added(session, Stop(0, "watch", None, _condition(session, typed.rest, 0, None)))
    where = _address(session, address) if address else None
    return _added(session, Stop(0, "watch", where, _condition(session, condition, at, where)))


@verb("delete", topic="stopping", usage="[NUMBER]…", takes=("number",), examples=("delete 1", "delete"))
@click.argument("numbers", nargs=-1, type=click.IntRange(1, 10**9), metavar="[NUMBER]...")
def delete(session: Session, numbers: tuple[int, ...]) -> Result:
    """Take away stops by their numbers, or all of them."""
    stops = session.state.stops
    known = [stop.number for stop in stops]
    for number in numbers:
        if number not in known:
            raise UsageError(f"there is no stop {number}", f"there are: {', '.join(map(str, known)) or 'none'}")
    left = tuple(stop for stop in stops if numbers and stop.number not in numbers)
    session.change(stops=left)

    gone = len(stops) - len(left)
    return answer("stops", stops_data(session), Line(f"{plural(gone, 'stop')} taken away, {len(left)} left"))


def _split(rest: str) -> tuple[str, str | None, int]:
    """What stands before ``if``, what behind it (None without one), and where that begins."""
    match = _IF.search(rest)
    if match is None:
        return rest.strip(), None, 0
    return rest[: match.start()].strip(), rest[match.end() :], match.end()


def _address(session: Session, words: str) -> Address:
    where = parse_address("".join(words.split()), session.table)
    if where.cell:
        raise UsageError(f"a stop is at a step, and {where} is a cell of one", f"such as {replace(where, cell=())}")
    return where


def _condition(session: Session, text: str | None, at: int, where: Address | None) -> Any:
    from tinytf.trace.conditions import parse_condition

    if text is None:
        return None
    typed = session.typed
    condition = parse_condition(text, typed.line, typed.rest_at + at)
    if where is not None and where.step is not None:
        condition.require_entropy(where.step)
    return condition


def _added(session: Session, stop: Stop) -> Result:

    number = session.state.number + 1
    stop = replace(stop, number=number)
    session.change(stops=(*session.state.stops, stop), number=number)
    return answer("stops", stops_data(session), Line([Span(f"stop {number}", "strong"), Span(f": {stop.words}")]))


def listed(session: Session) -> Result:
    """All stops."""
    stops = session.state.stops
    if not stops:
        return answer("stops", stops_data(session), Line("there are no stops"))
    table = Table([Column("stop", [str(stop.number) for stop in stops], "right"),
                   Column("at", [stop.words for stop in stops])])  # fmt: skip
    return answer("stops", stops_data(session), table)


def stops_data(session: Session) -> dict[str, Any]:
    return {
        "stops": [
            {
                "number": stop.number,
                "at": str(stop.where) if stop.where else None,
                "if": stop.condition.text if stop.condition else None,
            }
            for stop in session.state.stops
        ]
    }


def stops_at(session: Session, place: int) -> list[Stop]:
    """The stops that are about a step of the present model, whether their condition holds or not."""
    return [stop for stop in session.state.stops if _is_about(stop, session.table.rows, place)]


def _is_about(stop: Stop, rows: Sequence[tuple[Step, int | None]], place: int) -> bool:
    """Whether a stop names a step; one that names a layer alone is at its first, with a condition at each."""
    (step, layer), where = rows[place], stop.where
    if where is None or (where.layers is not None and layer not in where.layers):
        return False
    if where.step is None:
        return stop.condition is not None or place == 0 or rows[place - 1][1] != layer
    return where.step.name == step.name and (where.layers is not None or layer is None)


def held_at(session: Session, place: int) -> list[Stop]:
    """The stops that hold at a step."""
    rows = session.table.rows
    step, layer = rows[place]
    found = []
    for stop in session.state.stops:
        if stop.where is not None and not _is_about(stop, rows, place):
            continue
        heads = stop.where.heads if stop.where is not None and step.has_heads else None
        if stop.condition is None or stop.condition.holds(session.trace, step, layer, heads):
            found.append(stop)
    return found


STOPPING = (break_at, watch, delete)
