"""Verbs that run a text and move through its steps."""

from collections.abc import Iterator
from typing import Any

import click

from tinytf.errors import AddressError, UsageError
from tinytf_cli.numbers import plural
from tinytf_cli.output import Result
from tinytf_cli.repl.looking import address_view
from tinytf_cli.repl.results import made_of
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Run
from tinytf_cli.repl.stopping import held_at, stops_at
from tinytf_cli.repl.verbs import verb
from tinytf_cli.views.blocks import Line, Span

_AROUND = 11
_NO_STOP = "no stop held on the way; this is the last step"
_COUNT = click.IntRange(1, 10**9)


@verb("run", "r", topic="moving", usage="TEXT", takes=("text",), examples=('run "The cat sat on the"', "run The cat"))
@click.argument("words", nargs=-1, metavar="TEXT")
@click.option("--truncate", is_flag=True, help="Cut a text that is longer than the model's context.")
@click.option("--force", is_flag=True, help="Record even what is larger than the free memory.")
@click.option("--quiet", is_flag=True, help="Show nothing.")
def run(session: Session, words: tuple[str, ...], truncate: bool, force: bool, quiet: bool) -> Result | None:
    """Record a text, and stand at its first step, or at the first stop.

    Without TEXT the present one is run again from its first step.
    """
    wanted = Run(session.state.spec, " ".join(words), truncate, force) if words else session.require_run()
    session.models.trace(wanted)
    if words:
        session.change(runs=(*session.state.runs[-1:], wanted))
    session.place = 0
    said = ""
    if session.state.stops:
        session.place, said = forward(session, 0, None)
        said = said or _NO_STOP
    return None if quiet else standing(session, said, begun=True)


@verb("step", "s", topic="moving", usage="[N]", takes=("number",), examples=("step", "step 5"), moves=True)
@click.argument("count", type=_COUNT, default=1, metavar="[N]")
def step(session: Session, count: int) -> Result:
    """Go to the next step, or N further; a stop on the way holds."""
    place = session.require_place()
    require_room(session, place)
    session.place, said = forward(session, place + 1, count - 1)
    return standing(session, said)


@verb("back", topic="moving", usage="[N]", takes=("number",), examples=("back", "back 5"), moves=True)
@click.argument("count", type=_COUNT, default=1, metavar="[N]")
def back(session: Session, count: int) -> Result:
    """Go back to the step before, or N back."""
    place = session.require_place()
    if place == 0:
        raise UsageError("this is the first step", "step goes on, run begins another text")
    session.place = max(0, place - count)
    return standing(session)


@verb("next", "n", topic="moving", examples=("next",), moves=True)
def next_layer(session: Session) -> Result:
    """Go to the first step of the next layer.

    Behind the last layer it goes to what follows.
    """
    place = session.require_place()
    require_room(session, place)
    rows = session.table.rows
    found = next((at for at in range(place + 1, len(rows)) if rows[at][1] != rows[place][1]), len(rows) - 1)
    session.place, said = forward(session, place + 1, found - place - 1)
    return standing(session, said)


@verb("finish", topic="moving", examples=("finish",), moves=True)
def finish(session: Session) -> Result:
    """Go to the last step of this layer.

    Outside of layers it goes to the last step of this part; from the end of one, to the end of the next.
    """
    place = session.require_place()
    require_room(session, place)
    rows = session.table.rows
    inside = rows[place + 1][1]  # at the end of a layer, the end of the next part
    last = place + 1
    while last + 1 < len(rows) and rows[last + 1][1] == inside:
        last += 1
    session.place, said = forward(session, place + 1, last - place - 1)
    return standing(session, said)


@verb("continue", "c", topic="moving", examples=("continue",), moves=True)
def go_on(session: Session) -> Result:
    """Go on to the next stop that holds, or to the last step."""
    place = session.require_place()
    require_room(session, place)
    session.place, said = forward(session, place + 1, None)
    return standing(session, said or _NO_STOP)


@verb(
    "goto", "g", topic="moving", usage="ADDRESS|NUMBER", takes=("step",),
    examples=("goto L3.weights", "goto L2", "goto 17"),
)  # fmt: skip
@click.argument("words", nargs=-1, required=True, metavar="ADDRESS")
def goto(session: Session, words: tuple[str, ...]) -> Result:
    """Go to a step by address or number, or to the first of a layer."""
    session.require_place()
    session.place = find_place(session, "".join(words))
    return standing(session)


@verb("where", "w", topic="moving", names_models=True, examples=("where",))
def where(session: Session) -> Result:
    """Say where the session stands: model, text and step."""
    from tinytf_cli.views.banner import model_words, notes
    from tinytf_cli.views.pipeline import place_blocks, text_words

    place, trace = session.require_place(), session.trace

    def blocks(terminal: Any) -> Iterator[Any]:
        yield Line(model_words(session.model))
        yield from notes(session.model)
        yield Line([Span(text_words(trace)), Span(f" · {plural(len(trace.tokens), 'token')}", "dim")])
        yield from place_blocks(trace, place)

    return made_of("place", blocks, lambda: place_data(session))


@verb("list", "l", topic="moving", usage="[N]", takes=("number",), examples=("list", "list 30"))
@click.argument("count", type=click.IntRange(1, 10_000), default=_AROUND, metavar="[N]")
def list_steps(session: Session, count: int) -> Result:
    """Show the steps around this one, and where the stops are."""
    from tinytf_cli.views.pipeline import around, list_blocks

    place, trace = session.require_place(), session.trace
    rows = around(trace, place, count)
    stops = [" ".join(str(stop.number) for stop in stops_at(session, row.number - 1)) for row in rows]

    def data() -> dict[str, Any]:
        return {**place_data(session), "steps": [row.to_dict() for row in rows]}

    return made_of("steps", lambda terminal: list_blocks(rows, place, stops), data)


def require_room(session: Session, place: int) -> None:
    """UsageError at the last step."""
    if place >= len(session.table.rows) - 1:
        raise UsageError("this is the last step", "back goes back, goto anywhere, run begins again")


def forward(session: Session, place: int, count: int | None) -> tuple[int, str]:
    """From ``place`` up to ``count`` steps further (None: to the end); the place of the first stop that holds.

    The place itself counts. The words say which stop it was, and are empty where none was met.
    """
    last = len(session.table.rows) - 1
    end = last if count is None else min(last, place + count)
    for at in range(place, end + 1):
        held = held_at(session, at)
        if held:
            return at, "; ".join(f"stop {stop.number}: {stop.words}" for stop in held)
    return end, ""


def find_place(session: Session, word: str) -> int:
    """The index of the step that an address or a number from 1 means."""
    rows = session.table.rows
    if word.isdecimal() and word.isascii():
        if len(word) > 9 or not 1 <= int(word) <= len(rows):
            raise AddressError(f"there is no step {word[:20]}", f"they count from 1 to {len(rows)}")
        return int(word) - 1
    where = session.trace.address(word)
    layer = where.layers[0] if where.layers else None
    name = where.step.name if where.step else None
    return next(at for at, (step, of) in enumerate(rows) if of == layer and (name is None or step.name == name))


def place_data(session: Session) -> dict[str, Any]:
    """Where the session stands, as data."""
    from tinytf_cli.views.pipeline import row_at

    place = session.require_place()
    return {
        "text": session.require_text(),
        "steps": len(session.table.rows),
        "place": row_at(session.trace, place).to_dict(),
    }


def standing(session: Session, said: str = "", *, begun: bool = False) -> Result:
    """What is shown behind every movement: the step, what stopped it, and what is displayed."""
    from tinytf_cli.views.pipeline import place_blocks, run_blocks

    place, trace, tokenizer = session.require_place(), session.trace, session.model.tokenizer
    displayed = list(session.state.displays)

    def blocks(terminal: Any) -> Iterator[Any]:
        if begun:
            yield from run_blocks(trace, tokenizer)
        if said:
            yield Line(Span(said, "strong"))
        yield from place_blocks(trace, place)
        for address in displayed:
            yield from _displayed(address, terminal)

    def _displayed(address: str, terminal: Any) -> Iterator[Any]:
        try:
            found = address_view(session, address)
        except AddressError as error:  # another model may lack it
            yield Line([Span(f"{address}: ", "dim"), Span(error.message, "dim")])
            return
        yield from found.blocks(terminal)

    return made_of("place", blocks, lambda: {**place_data(session), "stopped": said, "displays": displayed})


MOVING = (run, step, back, next_layer, finish, go_on, goto, where, list_steps)
