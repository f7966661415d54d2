"""Verbs that look at the numbers of the recorded trace, and of the last two."""

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from tinytf.errors import AddressError, UsageError
from tinytf.nearest import did_you_mean
from tinytf.trace.address import Address, parse_address, parse_tensor
from tinytf_cli.output import Result
from tinytf_cli.repl.line import complete_name
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.verbs import answer, made_of, verb
from tinytf_cli.views.blocks import Line

if TYPE_CHECKING:
    from tinytf.trace.trace import Trace

FLAGS = {"shape": "its axes", "stats": "mean, range and the like", "values": "every number", "json": "as data"}
_MEASURES = ("entropy", "distance", "previous", "first", "self")
_verb = partial(verb, topic="looking")


@_verb(
    "print", "p", takes=("number", "flag"),
    examples=("print L0H0.weights", "print/stats L0.ffn", "print logits /shape", "print L0H0.scores[1,0]", "print E"),
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="[ADDRESS] [/shape|/stats|/values|/json]")
@click.option("--rows", type=click.IntRange(0), help="Rows shown; 0 for all.")
def print_address(session: Session, words: tuple[str, ...], rows: int | None) -> Result | None:
    """Show the numbers at an address, or at the present step.

    /shape shows its axes, /stats its mean, range and the like, /values every number, /json the same as data.
    """
    parts = [word.partition("/") for word in words]
    flags = [_flag(flag) for _, slash, flag in parts if slash]
    if len(flags) > 1:
        raise UsageError(f"/{flags[0]} and /{flags[1]} ask for two things at once")
    address, form = "".join(word for word, _, _ in parts), "".join(flags)
    found = _parameter(session, address, form, rows)
    found = found or address_result(session, find_address(session, address), form, rows)
    if form == "json":
        session.output(session.terminal(), "json", None).show(found)
        return None
    return found


def _flag(word: str) -> str:
    flag = complete_name(word, FLAGS)
    if not flag:
        raise UsageError(f"there is no /{word}", f"known: {', '.join('/' + flag for flag in FLAGS)}")
    return flag


@_verb("heat", takes=("number",), examples=("heat L0H0", "heat L3", "heat L3H1.scores", "heat L0.ffn"))
@click.argument("words", nargs=-1, metavar="[ADDRESS]")
def heat(session: Session, words: tuple[str, ...]) -> Result:
    """Draw a step as a map in colour; of a head, its attention weights."""
    if (found := _parameter(session, "".join(words), "heat")) is not None:
        return found
    where = find_address(session, "".join(words), step=session.table.weights)
    if where.step is not None and not where.step.is_tensor:
        raise UsageError(f"{where.step.name} is no tensor", "such as heat L0H0")
    return address_result(session, where, "heat")


@_verb(
    "heads", usage="[LAYER] [--by MEASURE]", takes=("layer",),
    examples=("heads", "heads L3 --by entropy", "heads --by previous"),
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="[LAYER]", callback=lambda *given: _layers(given[-1]))
@click.option("--by", type=click.Choice(_MEASURES), default="entropy", show_default=True, help="What to measure.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Heads listed.")
def heads(session: Session, words: tuple[str, ...], by: str, top: int) -> Result:
    """Measure every head, or those of some layers, in one number each.

    It measures the recorded trace. With a corpus, or any other option or measure, it is the command of the same name,
    which scores heads on many texts: heads --random, heads --by induction.
    """
    from tinytf.look.heads import MeasuredHeads, measure_heads, require_attention
    from tinytf_cli.views.attention import measured_blocks

    trace = session.trace
    layers = require_attention(trace.steps)
    if words:
        where = trace.address("".join(words))
        if where.layers is None or where.step is not None or where.heads is not None:
            raise UsageError(f"{''.join(words)!r} is not a layer", "such as heads L0, heads L0-2")
        layers = tuple(layer for layer in layers if layer in where.layers)
        if not layers:
            raise UsageError(f"{''.join(words)} has no attention weights", "heads alone measures the layers that have")
    found = MeasuredHeads(by, layers, measure_heads(trace, by, layers))
    return made_of("heads", lambda terminal: measured_blocks(found, top), found.to_dict)


def _layers(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words, if they are layers; others are a corpus, for the command."""
    if not all(re.match(r"L[0-9*-]", word) for word in words):
        raise click.BadParameter("it is not a layer")
    return words


@_verb("top", "t", examples=("top", "top 20", "top --at 1"))
@click.argument("count", type=click.IntRange(1, 10**6), default=10, metavar="[N]")
@click.option("--at", "position", metavar="TOKEN", help="After this token instead of the last one.")
def top(session: Session, count: int, position: str | None) -> Result:
    """Show the most probable next tokens, or fills of each mask."""
    from tinytf.look.prediction import predictions
    from tinytf_cli.views.predictions import prediction_blocks

    trace, model = session.trace, session.model
    trace.model.require_head("it predicts no token")
    if position is not None:
        trace = _ending_at(trace, trace.index(position, "token", len(trace.tokens)))
    found = predictions(trace, model, count)
    return made_of(
        "predictions",
        lambda terminal: prediction_blocks(trace, found),
        lambda: {"predictions": [one.to_dict() for one in found]},
        ("predictions", "top"),
    )


def _ending_at(trace: "Trace", row: int) -> "Trace":
    """The trace up to the token at ``row``, with the logits after that token."""
    from tinytf.trace.trace import Recording, Trace

    if not trace.config.causal or trace.config.labels:
        what = "gives classes" if trace.config.labels else "fills masks"
        raise UsageError(f"this model {what}, and predicts no token after another", "leave out --at")
    tensors = {**trace.recording.tensors, "logits": trace.logits_at(row)[None]}
    encoding = replace(trace.encoding, tokens=trace.tokens[: row + 1])
    return Trace(trace.model, encoding, Recording(tensors, (row,), trace.recording.layers))


@_verb("display", takes=("address",), examples=("display L0H0.weights", "display"))
@click.argument("words", nargs=-1, metavar="[ADDRESS]")
def display(session: Session, words: tuple[str, ...]) -> Result:
    """Show an address after each movement; without one, list those."""
    if not words:
        return _displayed(session)
    address = "".join(words)
    if not address:
        raise AddressError("'' is not an address", "such as: display L0H0.weights")
    where = find_address(session, address) if session.run else parse_address(address, session.table)
    if address not in session.state.displays:
        session.change(displays=(*session.state.displays, address))
    return address_result(session, where) if session.run else _displayed(session)


@_verb("undisplay", takes=("display",), examples=("undisplay 1", "undisplay"))
@click.argument("words", nargs=-1, metavar="[ADDRESS|NUMBER]")
def undisplay(session: Session, words: tuple[str, ...]) -> Result:
    """Stop displaying an address, or all of them."""
    shown, word = session.state.displays, "".join(words)
    word = {str(number): address for number, address in enumerate(shown, start=1)}.get(word, word)
    if word and word not in shown:
        raise UsageError(f"{word!r} is not displayed", did_you_mean(word, shown) if shown else "nothing is")
    session.change(displays=tuple(one for one in shown if word and one != word))
    return _displayed(session)


def _displayed(session: Session) -> Result:
    displays = session.state.displays
    lines = [Line(f"{number}  {address}") for number, address in enumerate(displays, start=1)]
    return answer("displays", {"displays": list(displays)}, *(lines or [Line("nothing is displayed")]))


def address_result(session: Session, where: Address, form: str = "", rows: int | None = None) -> Result:
    """The tensors at an address of the present trace, in a ``form``: a flag of ``print``, or ``heat``."""
    from tinytf.look.values import AddressValues
    from tinytf.report import About
    from tinytf_cli.views.values import ValuesDisplay

    chosen = session.settings
    report = AddressValues(session.trace, where, about=About(session.model, session.trace.encoding))
    return Result.of(report, ValuesDisplay(form, chosen.head, chosen.dims, chosen.rows if rows is None else rows))


def _parameter(session: Session, word: str, form: str = "", rows: int | None = None) -> Result | None:
    """The parameters at an address of the present model, in a ``form``; None where it names none."""
    from tinytf.trace.parameters import parse_parameter
    from tinytf_cli.views.parameters import ParametersDisplay
    from tinytf_cli.views.values import EVERY_DIMENSION

    where = parse_parameter(word, session.table)
    if where is None:
        return None
    way = {"stats": "histogram", "values": "table", "heat": "map" if len(where.axes) == 2 else None}.get(form)
    dims, shown = session.settings.dims, session.settings.rows if rows is None else rows
    if form == "values":
        dims, shown = EVERY_DIMENSION, 0
    return Result.of(session.model.parameters(where, way=way), ParametersDisplay(dims, shown, banner=False))


def find_address(session: Session, word: str, step: str = "") -> Address:
    """The address that a word means in the present trace; the present step, if it is empty.

    ``step`` completes an address that is only a layer or a head. The settings' layer and head complete one
    without: the first layer that has the step, where theirs lacks it.
    Raises AddressError.
    """
    trace, chosen = session.trace, session.settings
    if not word:
        one, layer = trace.steps.rows[session.require_row()]
        if step and not one.is_tensor:
            one, layer = trace.steps.by_name[step], chosen.layer if layer is None else layer
        present = chosen.head if session.state.head is None else session.state.head
        part = trace.shown_part(one, layer, min(present, trace.config.n_heads - 1))
        where = Address(one, None if layer is None else (layer,), None if part is None else (part,))
    else:
        name, bracket, cell = word.partition("[")
        named = trace.steps.by_name.get(name)
        if named is not None and named.in_layer:
            table, layer = trace.steps, chosen.layer
            if not table.has(name, layer):  # of the first layer that has it
                layer = next(one for one in range(trace.config.n_layers) if table.has(name, one))
            part = trace.shown_part(named, layer, chosen.head)
            head = "" if part is None else f"{named.letter}{part}"
            word = f"L{layer}{head}.{name}{bracket}{cell}"
        where = parse_tensor(word, trace.steps)
    if where.step is None and step:
        where = replace(where, step=trace.steps.by_name[step])
    if where.cell:
        trace[where]  # raises for a cell that does not exist, before anything is shown
    return where


LOOKING = (print_address, heat, heads, top, display, undisplay)
