"""Verbs about stops: where a run, step or continue ends on its way."""

import re
from dataclasses import replace
from pathlib import Path

import click

from tinytf.errors import UsageError
from tinytf.trace.address import parse_address
from tinytf_cli.numbers import plural
from tinytf_cli.output import Result
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Stop
from tinytf_cli.repl.verbs import answer, verb
from tinytf_cli.views.blocks import Block, Column, Line, Span, Table

_COUNT = click.IntRange(1)
_ADDRESS = re.compile(r"L[0-9*]|[a-z]+\.|\w+\[")
_COMPARES = re.compile("[<>=]")
_IF = re.compile(r"(?:^|(?<=\s))if(?=\s|$)")


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
    return _broken(session, once=False)


@verb(
    "tbreak", "tb", topic="stopping", usage="[ADDRESS [if CONDITION]]", takes=("step", "condition"), raw=True,
    examples=("tbreak L3.weights", "tbreak L*.weights[1:] if max > 0.99"),
)  # fmt: skip
def break_once(session: Session) -> Result:
    """Stop at a step once, as break does, and then no more."""
    return _broken(session, once=True)


def _broken(session: Session, *, once: bool) -> Result:
    rest = session.typed.rest
    if not rest:
        return _listed(session)
    address, condition = _split(rest)
    if condition is None and _COMPARES.search(rest):
        return _added(session, "", 0, once)
    if not address:
        raise UsageError("break takes an address", "such as break L0.weights if max > 0.9; watch needs none")
    return _added(session, address, condition, once)


@verb(
    "watch", topic="stopping", usage="[ADDRESS if] CONDITION", takes=("condition",), raw=True,
    examples=("watch nan", "watch max > 100", "watch L*.ffn if norm > 50"),
    left_to_command=lambda words: bool(words) and (words[0].startswith("--") or Path(words[0]).is_dir()),
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
    for number in numbers:
        _require_stop(session, number)
    left = tuple(stop for stop in stops if numbers and stop.number not in numbers)
    session.change(stops=left)
    return _answer(session, Line(f"{plural(len(stops) - len(left), 'stop')} deleted, {len(left)} left"))


@verb("ignore", topic="stopping", takes=("stop",), examples=("ignore 1 3", "ignore 1 0"))
@click.argument("number", type=_COUNT, metavar="STOP")
@click.argument("count", type=click.IntRange(0, 10**6), metavar="COUNT")
def ignore(session: Session, number: int, count: int) -> Result:
    """Pass the next COUNT hits of a stop.

    break lists how often each stop held in the present run. The next run counts from 0, and passes as many again.
    """
    _require_stop(session, number)
    stops = session.state.stops
    ignored = (replace(one, ignore_count=count and one.hits + count) if one.number == number else one for one in stops)
    session.change(stops=tuple(ignored))
    return _listed(session)


def _require_stop(session: Session, number: int) -> None:
    """UsageError where there is no stop of this number."""
    known = [stop.number for stop in session.state.stops]
    if number not in known:
        hint = f"there are: {', '.join(map(str, known))}" if known else "there are none"
        raise UsageError(f"there is no stop {number}", hint)


def _split(rest: str) -> tuple[str, int | None]:
    """The words before ``if``, and where the condition after it begins (None without one)."""
    match = _IF.search(rest)
    return (rest.strip(), None) if match is None else (rest[: match.start()].strip(), match.end())


def _added(session: Session, address: str, condition_at: int | None, once: bool = False) -> Result:
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
        if where is None and condition.terms and all(term.measure == "value" for term in condition.terms):
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
    stop = Stop(stops[-1].number + 1 if stops else 1, where, condition, once)
    session.change(stops=(*stops, stop))
    return _answer(session, Line([Span(f"stop {stop.number}", "strong"), Span(f": {stop.words}")]))


def _listed(session: Session) -> Result:
    """All stops."""
    stops = session.state.stops
    if not stops:
        return _answer(session, Line("there are no stops"))
    numbers = Column("stop", [str(stop.number) for stop in stops], "right")
    hits = [Column("hits", [str(stop.hits) for stop in stops], "right")] if any(stop.hits for stop in stops) else []
    return _answer(session, Table([numbers, Column("at", [stop.words for stop in stops]), *hits]))


def _answer(session: Session, block: Block) -> Result:
    return answer("stops", {"stops": [stop.to_dict() for stop in session.state.stops]}, block)


STOPPING = (break_at, break_once, watch, ignore, delete)
