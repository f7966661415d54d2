"""Verbs that show the numbers of the recorded trace and of the model's parameters."""

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from tinytf.errors import AddressError, UsageError
from tinytf.nearest import did_you_mean
from tinytf.trace.address import Address, in_stack, parse_address, parse_tensor
from tinytf_cli.ranges import Whole
from tinytf_cli.repl.line import complete_name
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Display
from tinytf_cli.repl.verbs import Answer, answer, verb
from tinytf_cli.views.blocks import Line
from tinytf_cli.views.draw import Shown

if TYPE_CHECKING:
    from tinytf.through.model import ThroughModel
    from tinytf.through.traced import ThroughTrace
    from tinytf.trace.trace import Trace

FLAGS = {"shape": "its axes", "stats": "mean, range and more", "values": "every number", "json": "as JSON"}
_MEASURES = ("entropy", "distance", "previous", "first", "self")
_verb = partial(verb, topic="looking")


@_verb(
    "print", "p", takes=("number", "flag"),
    examples=("print L0H0.weights", "print/stats L0.ffn", "print logits /shape", "print L0H0.scores[1,0]", "print E"),
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="[ADDRESS] [/shape|/stats|/values|/json]")
@click.option("--rows", type=Whole(0), help="Rows shown; 0 for all.")
def print_address(session: Session, words: tuple[str, ...], rows: int | None) -> Shown | None:
    """Show the numbers at an address, or at the present step.

    /shape shows the axes, /stats the mean, range and more, /values every number, /json the numbers as JSON.
    """
    parts = [word.partition("/") for word in words]
    flags = [_flag(flag) for _, slash, flag in parts if slash]
    if len(flags) > 1:
        raise UsageError(f"/{flags[0]} and /{flags[1]} cannot be combined")
    address, form = "".join(word for word, _, _ in parts), "".join(flags)
    result = (
        _parameter_result(session, address, form, rows)
        or address_result(session, find_address(session, address), form, rows)
        if session.through is None
        else _module_result(session, address, form, rows)
    )
    if form == "json":
        session.output(session.terminal(), "json", None).show(result)
        return None
    return result


def _flag(word: str) -> str:
    flag = complete_name(word, FLAGS)
    if not flag:
        raise UsageError(f"there is no /{word}", f"known: {', '.join('/' + flag for flag in FLAGS)}")
    return flag


@_verb("heat", takes=("number",), examples=("heat L0H0", "heat L3", "heat L3H1.scores", "heat L0.ffn"))
@click.argument("words", nargs=-1, metavar="[ADDRESS]")
def heat(session: Session, words: tuple[str, ...]) -> Shown:
    """Draw a step as a coloured map; a head means its weights."""
    if (result := _parameter_result(session, "".join(words), "heat")) is not None:
        return result
    address = find_address(session, "".join(words), step=session.table.weights)
    if address.step is not None and not address.step.is_tensor:
        raise UsageError(f"{address.step.name} is not a tensor", "such as heat L0H0")
    return address_result(session, address, "heat")


@_verb(
    "heads", usage="[LAYER] [--by MEASURE]", takes=("layer",),
    examples=("heads", "heads L3 --by entropy", "heads --by previous"),
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="[LAYER]", callback=lambda *args: _require_layers(args[-1]))
@click.option("--by", type=click.Choice(_MEASURES), default="entropy", show_default=True, help="What to measure.")
@click.option("--top", type=Whole(1), default=5, show_default=True, help="Heads listed.")
def heads(session: Session, words: tuple[str, ...], by: str, top: int) -> Shown:
    """Measure every head, or those of some layers, by one number.

    The verb measures the recorded trace. With a corpus, or any other option or measure, heads is the command of that
    name, which scores heads on many texts: heads --random, heads --by induction.
    """
    from tinytf.look.heads.measures import MeasuredHeads, measure_heads, require_attention
    from tinytf_cli.views.attention import measured_blocks

    trace = session.trace
    layers = require_attention(trace.steps)
    if words:
        address = trace.address("".join(words))
        if address.layers is None or address.step is not None or address.heads is not None:
            raise UsageError(f"{''.join(words)!r} is not a layer", "such as heads L0, heads L0-2")
        layers = tuple(layer for layer in layers if layer in address.layers)
        if not layers:
            raise UsageError(f"{''.join(words)} has no attention weights", "heads alone measures the layers that do")
    measured = MeasuredHeads(by, layers, measure_heads(trace, by, layers))
    return Shown(Answer(kind="heads", data=measured.to_dict(), draw=lambda terminal: measured_blocks(measured, top)))


def _require_layers(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words, if all are layers; otherwise they are a corpus for the command of the same name."""
    if not all(re.match(r"L[0-9*-]", word) for word in words):
        raise click.BadParameter("it is not a layer")
    return words


@_verb("top", "t", examples=("top", "top 20", "top --at 1"))
@click.argument("count", type=Whole(1, 10**6), default=10, metavar="[N]")
@click.option("--at", "position", metavar="TOKEN", help="Predict after this token instead of the last one.")
def top(session: Session, count: int, position: str | None) -> Shown:
    """Show the most probable next tokens, or fills of each mask."""
    from tinytf.look.prediction import predictions
    from tinytf_cli.views.predictions import prediction_blocks

    if session.through is not None:
        if position is not None:
            raise UsageError("--at predicts after a step, and this model runs through transformers", "leave it out")
        return _through_predictions(session.through, session.through_trace, count)
    trace, model = session.trace, session.model
    trace.model.require_head("it predicts no token")
    if position is not None:
        trace = _cut_after(trace, trace.index(position, "token", len(trace.tokens)))
    predicted = predictions(trace, model, count)
    return Shown(
        Answer(
            kind="predictions",
            data={"predictions": [prediction.to_dict() for prediction in predicted]},
            draw=lambda terminal: prediction_blocks(trace, predicted),
            table=("predictions", "top"),
        )
    )


def _through_predictions(model: "ThroughModel", trace: "ThroughTrace", count: int) -> Shown:
    """What a model through transformers predicts."""
    from tinytf.through.traced import predicted
    from tinytf_cli.views.through import ThroughDisplay, through_prediction

    report = replace(trace, prediction=predicted(model, trace.encoding, trace.recording.logits, count))
    data = {"predictions": [] if report.prediction is None else [report.prediction.to_dict()]}
    blocks = tuple(through_prediction(report, ThroughDisplay(top=count)))
    return Shown(Answer(kind="predictions", data=data, draw=lambda terminal: blocks, table=("predictions", "top")))


def _cut_after(trace: "Trace", row: int) -> "Trace":
    """The trace cut after the token at ``row``, with the logits of that token."""
    from tinytf.trace.trace import Recording, Trace

    if not trace.config.causal or trace.config.labels:
        task = "gives classes" if trace.config.labels else "fills masks"
        raise UsageError(f"this model {task} and predicts no next token", "leave out --at")
    tensors = {**trace.recording.tensors, "logits": trace.logits_at(row)[None]}
    encoding = replace(trace.encoding, tokens=trace.tokens[: row + 1])
    return Trace(trace.model, encoding, Recording(tensors, (row,), trace.recording.layers))


@_verb("display", takes=("address",), examples=("display L0H0.weights", "display"))
@click.argument("words", nargs=-1, metavar="[ADDRESS]")
def display(session: Session, words: tuple[str, ...]) -> Shown:
    """Show an address after each movement; alone, list the displays."""
    if not words:
        return _displays_result(session)
    address = "".join(words)
    if not address:
        raise AddressError("'' is not an address", "such as: display L0H0.weights")
    parsed = find_address(session, address) if session.run else parse_address(address, session.table)
    if address not in _displayed(session):
        session.change(displays=(*session.state.displays, Display(address)))
    return address_result(session, parsed) if session.run else _displays_result(session)


@_verb("undisplay", takes=("display",), examples=("undisplay 1", "undisplay"))
@click.argument("words", nargs=-1, metavar="[ADDRESS|NUMBER]")
def undisplay(session: Session, words: tuple[str, ...]) -> Shown:
    """Remove a display, or all of them."""
    displays, word = _displayed(session), "".join(words)
    word = {str(number): address for number, address in enumerate(displays, start=1)}.get(word, word)
    if word and word not in displays:
        raise UsageError(f"{word!r} is not displayed", did_you_mean(word, displays) if displays else "there are none")
    session.change(displays=tuple(one for one in session.state.displays if word and one.address != word))
    return _displays_result(session)


def _displayed(session: Session) -> list[str]:
    """The addresses of the displays."""
    return [display.address for display in session.state.displays]


def _displays_result(session: Session) -> Shown:
    displays = _displayed(session)
    lines = [Line(f"{number}  {address}") for number, address in enumerate(displays, start=1)]
    return answer("displays", {"displays": displays}, *(lines or [Line("nothing is displayed")]))


def address_result(session: Session, address: Address, form: str = "", rows: int | None = None) -> Shown:
    """The tensors at an address of the present trace; ``form`` is a flag of ``print``, or ``heat``."""
    from tinytf.look.values import AddressValues
    from tinytf.report import About
    from tinytf_cli.views.values import ValuesDisplay

    settings = session.settings
    report = AddressValues(session.trace, address, about=About(session.model, session.trace.encoding))
    return Shown(report, ValuesDisplay(form, settings.head, settings.dims, settings.rows if rows is None else rows))


def _module_result(session: Session, path: str, form: str, rows: int | None) -> Shown:
    """The outputs of the modules of a path or pattern, through transformers."""
    from tinytf_cli.views.through import ThroughDisplay, output_blocks

    if not path or form in ("shape", "stats"):
        message = f"/{form} is of a step, and this model runs through transformers" if path else "no module is named"
        raise UsageError(message, "print PATH shows the shape and numbers of a module; run lists them")
    settings, every = session.settings, form == "values"
    display = ThroughDisplay(every, dims=settings.dims, rows=settings.rows if rows is None else rows)
    report = session.through_trace.showing([path])
    values = {"values": report.fields()["values"]}
    return Shown(Answer(kind="values", data=values, draw=lambda terminal: output_blocks(report, terminal, display)))


def _parameter_result(session: Session, word: str, form: str = "", rows: int | None = None) -> Shown | None:
    """The parameters at an address of the present model, in a ``form``; None if ``word`` names none."""
    from tinytf.trace.parameters import parse_parameter
    from tinytf_cli.views.parameters import ParametersDisplay

    address = parse_parameter(word, session.table)
    if address is None:
        return None
    view = {"stats": "histogram", "values": "table", "heat": "map" if len(address.axes) == 2 else None}.get(form)
    dims, max_rows = session.settings.dims, session.settings.rows if rows is None else rows
    if form == "values":
        dims, max_rows = 0, 0
    return Shown(session.model.parameters(address, way=view), ParametersDisplay(dims, max_rows, banner=False))


def find_address(session: Session, word: str, step: str = "") -> Address:
    """The address that a word means in the present trace; an empty word means the present step.

    ``step`` completes an address that is only a layer or a head. A step name alone gets its layer and head from the
    settings; if that layer lacks the step, the first layer that has it.
    Raises AddressError.
    """
    trace, settings = session.trace, session.settings
    if in_stack(word, trace.stacks)[0]:
        raise AddressError(f"{word} is a step of the encoder", f"trace --at {word} shows it")
    if not word:
        present_step, layer = trace.steps.rows[session.require_row()]
        if step and not present_step.is_tensor:
            present_step, layer = trace.steps.by_name[step], settings.layer if layer is None else layer
        head_index = settings.head if session.state.head is None else session.state.head
        part = trace.shown_part(present_step, layer, min(head_index, trace.config.at(layer).n_heads - 1))
        address = Address(present_step, None if layer is None else (layer,), None if part is None else (part,))
    else:
        name, bracket, cell = word.partition("[")
        bare_step = trace.steps.by_name.get(name)
        if bare_step is not None and bare_step.in_layer:
            table, layer = trace.steps, settings.layer
            if not table.has(name, layer):  # fall back to the first layer that has it
                layer = next(n for n in range(trace.config.n_layers) if table.has(name, n))
            part = trace.shown_part(bare_step, layer, settings.head)
            head = "" if part is None else f"{bare_step.letter}{part}"
            word = f"L{layer}{head}.{name}{bracket}{cell}"
        address = parse_tensor(word, trace.steps)
    if address.step is None and step:
        address = replace(address, step=trace.steps.by_name[step])
    if address.cell:
        trace[address]  # raises for a missing cell before anything is shown
    return address


LOOKING = (print_address, heat, heads, top, display, undisplay)
