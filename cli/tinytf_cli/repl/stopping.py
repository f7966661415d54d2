"""Verbs about stops: breakpoints that end a run, step or continue early."""

import re
from dataclasses import replace

import click

from tinytf.errors import UsageError
from tinytf.trace.address import parse_address
from tinytf_cli.numbers import plural
from tinytf_cli.ranges import Whole
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Stop
from tinytf_cli.repl.verbs import answer, verb
from tinytf_cli.views.blocks import Block, Column, Line, Span, Table
from tinytf_cli.views.draw import Shown

_COUNT = Whole(1)
_ADDRESS = re.compile(r"L[0-9*]|[a-z]+\.|\w+\[")
_COMPARISON = re.compile("[<>=]")
_IF = re.compile(r"(?:^|(?<=\s))if(?=\s|$)")


@verb(
    "break", "b", topic="stopping", usage="[ADDRESS [if CONDITION]]", takes=("step", "condition"), raw=True,
    examples=("break L3.weights", "break L*.weights[1:] if max > 0.99", "break L*.out if rank(mat) == 1"),
)  # fmt: skip
def break_at(session: Session) -> Shown:
    """Stop at a step, always or on a condition; or list the stops.

    A condition compares measures of the step with numbers: mean, max, min, std, norm, nan, inf, and for weights and
    probs entropy. A measure covers the finite, unmasked numbers of the step, restricted to the rows that the address
    selects, as in L*.weights[1:], and taken for each head that it names, as in L1H*. When it stops, it says where the
    condition held. help conditions lists the rest.
    """
    return _add_or_list(session, once=False)


@verb(
    "tbreak", "tb", topic="stopping", usage="[ADDRESS [if CONDITION]]", takes=("step", "condition"), raw=True,
    examples=("tbreak L3.weights", "tbreak L*.weights[1:] if max > 0.99"),
)  # fmt: skip
def break_once(session: Session) -> Shown:
    """Stop at a step once, as break does, then delete the stop."""
    return _add_or_list(session, once=True)


def _add_or_list(session: Session, *, once: bool) -> Shown:
    rest = session.typed.rest
    if not rest:
        return _stops_result(session)
    address, condition_at = _split_condition(rest)
    if condition_at is None and _COMPARISON.search(rest):
        return _add_stop(session, "", 0, once)
    if not address:
        raise UsageError("break takes an address", "such as break L0.weights if max > 0.9; watch needs none")
    return _add_stop(session, address, condition_at, once)


@verb(
    "watch", topic="stopping", usage="[ADDRESS if] CONDITION", takes=("condition",), raw=True,
    examples=("watch nan", "watch max > 100", "watch L*.ffn if norm > 50"),
)  # fmt: skip
def watch(session: Session) -> Shown:
    """Stop at any step where a condition holds.

    With an address, stop only at its steps. Conditions are those of break.
    """
    rest = session.typed.rest
    if not rest:
        return _stops_result(session)
    address, condition_at = _split_condition(rest)
    if condition_at is not None:
        return _add_stop(session, address, condition_at)
    if _ADDRESS.match(rest) and not _COMPARISON.search(rest):
        raise UsageError("watch takes a condition", f"such as watch {address} if max > 0.9; break {address} needs none")
    return _add_stop(session, "", 0)


@verb("delete", topic="stopping", takes=("stop",), examples=("delete 1", "delete"))
@click.argument("numbers", nargs=-1, type=_COUNT, metavar="[NUMBER]…")
def delete(session: Session, numbers: tuple[int, ...]) -> Shown:
    """Delete stops by their numbers, or all of them."""
    stops = session.state.stops
    for number in numbers:
        _require_stop(session, number)
    remaining = tuple(stop for stop in stops if numbers and stop.number not in numbers)
    session.change(stops=remaining)
    return _stops_answer(session, Line(f"{plural(len(stops) - len(remaining), 'stop')} deleted, {len(remaining)} left"))


@verb("ignore", topic="stopping", takes=("stop",), examples=("ignore 1 3", "ignore 1 0"))
@click.argument("number", type=_COUNT, metavar="STOP")
@click.argument("count", type=Whole(0, 10**6), metavar="COUNT")
def ignore(session: Session, number: int, count: int) -> Shown:
    """Ignore the next COUNT hits of a stop.

    break lists how often each stop held in the present run. The next run counts from 0 again: it ignores the hits so
    far and COUNT more.
    """
    _require_stop(session, number)
    stops = session.state.stops
    updated = (replace(s, ignore_count=count and s.hits + count) if s.number == number else s for s in stops)
    session.change(stops=tuple(updated))
    return _stops_result(session)


def _require_stop(session: Session, number: int) -> None:
    """Raise UsageError if there is no stop with this number."""
    numbers = [stop.number for stop in session.state.stops]
    if number not in numbers:
        hint = f"the stops are {', '.join(map(str, numbers))}" if numbers else "there are no stops"
        raise UsageError(f"there is no stop {number}", hint)


def _split_condition(rest: str) -> tuple[str, int | None]:
    """The text before ``if``, and the index at which the condition after it starts (None without one)."""
    match = _IF.search(rest)
    return (rest.strip(), None) if match is None else (rest[: match.start()].strip(), match.end())


def _add_stop(session: Session, address: str, condition_at: int | None, once: bool = False) -> Shown:
    """Add a stop at an address (empty: every step), with the condition at ``condition_at`` in the rest of the line."""
    from tinytf.trace.conditions import parse_condition
    from tinytf.trace.measures import numbers

    typed, condition, target = session.typed, None, None
    if address:
        target = parse_address("".join(address.split()), session.table)
        if target.cell and condition_at is None:
            raise UsageError(f"a stop is at a step, and {target} is one cell", f"such as {replace(target, cell=())}")
    if condition_at is not None:
        condition = parse_condition(typed.rest[condition_at:], typed.line, typed.rest_at + condition_at)
        if target is None and condition.terms and all(term.measure == "value" for term in condition.terms):
            target = replace(parse_address(condition.terms[0].of, session.table), cell=())  # the step of that cell
        if target is not None and target.step is not None:
            if not target.step.is_tensor:
                raise UsageError(f"{target.step.name} has no numbers", f"break {target.step.name} stops there always")
            if target.cell and session.run:
                layer = target.layers[0] if target.layers else None
                numbers(session.trace, target.step, layer, target.heads, target.cell)  # raises for a missing cell
        trace = session.trace if session.run else None
        condition.require(
            session.table,
            target.step if target else None,
            lambda word: session.model.find_outcome(word, "the token"),
            trace,
        )
    stops = session.state.stops
    stop = Stop(stops[-1].number + 1 if stops else 1, target, condition, once)
    session.change(stops=(*stops, stop))
    return _stops_answer(session, Line([Span(f"stop {stop.number}", "strong"), Span(f": {stop.words}")]))


def _stops_result(session: Session) -> Shown:
    """The list of all stops."""
    stops = session.state.stops
    if not stops:
        return _stops_answer(session, Line("there are no stops"))
    numbers = Column("stop", [str(stop.number) for stop in stops], "right")
    hits = [Column("hits", [str(stop.hits) for stop in stops], "right")] if any(stop.hits for stop in stops) else []
    return _stops_answer(session, Table([numbers, Column("at", [stop.words for stop in stops]), *hits]))


def _stops_answer(session: Session, block: Block) -> Shown:
    return answer("stops", {"stops": [stop.to_dict() for stop in session.state.stops]}, block)


STOPPING = (break_at, break_once, watch, ignore, delete)
