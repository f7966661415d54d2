"""Verbs that look at the numbers of the recorded trace."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import AddressError, UsageError
from tinytf.nearest import did_you_mean
from tinytf.trace.address import Address, parse_address
from tinytf_cli.output import Result
from tinytf_cli.repl.results import answer, made_of
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.verbs import positional, verb
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Line

if TYPE_CHECKING:
    from tinytf.analysis.values import AddressValues
    from tinytf.trace.trace import Trace

FLAGS = ("shape", "stats", "values", "json")
MEASURES = ("entropy", "distance", "previous", "first", "self")
_WIDEST = 256


@verb(
    "print", "p", topic="looking", usage="[ADDRESS] [/shape|/stats|/values|/json]", takes=("address", "flag"),
    examples=("print L0H0.weights", "print/stats L0.ffn", "print logits /shape", "print L0H0.scores[1,0]"),
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="[ADDRESS] [/FLAG]...")
def print_address(session: Session, words: tuple[str, ...]) -> Result | None:
    """Show the numbers at an address, or at the present step.

    /shape shows its axes, /stats its mean, range and the like, /values every number, /json the same as data.
    """
    parts = [word.partition("/") for word in words]
    flags = [_flag(flag) for _, slash, flag in parts if slash]
    if len(flags) > 1:
        raise UsageError(f"/{flags[0]} and /{flags[1]} ask for two things at once")
    found = address_view(session, "".join(address for address, _, _ in parts))
    flag = flags[0] if flags else ""
    if flag == "json":
        session.output(session.terminal(), "json", None).show(found.result())
        return None
    return replace(found, form=flag).result()


@verb(
    "heat", topic="looking", usage="[ADDRESS]", takes=("address",),
    examples=("heat L0H0", "heat L3", "heat L3H1.scores", "heat L0.ffn"),
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="[ADDRESS]")
def heat(session: Session, words: tuple[str, ...]) -> Result:
    """Draw a step as a map in colour; of a head, its attention weights."""
    found = address_view(session, "".join(words), step="weights")
    if found.where.step is not None and not found.where.step.is_tensor:
        raise UsageError(f"{found.where.step.name} is no tensor", "such as heat L0H0")
    return replace(found, form="heat").result()


@verb(
    "heads", topic="looking", usage="[LAYER] [--by MEASURE]", takes=("layer",),
    examples=("heads", "heads L3 --by entropy", "heads --by previous"),
    claims=lambda words: _claims_heads(words),
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="[LAYER]")
@click.option("--by", type=click.Choice(MEASURES), default="entropy", show_default=True, help="What to measure.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Heads listed.")
def heads(session: Session, words: tuple[str, ...], by: str, top: int) -> Result:
    """Measure every head, or those of some layers, in one number each.

    They are those of the recorded trace. With a corpus, or any other option or measure, it is the command of the same
    name, which scores heads on many texts: heads --random, heads --by induction.
    """
    from tinytf.analysis.heads import MeasuredHeads, measure_heads
    from tinytf_cli.views.attention import measured_blocks

    trace = session.trace
    layers: tuple[int, ...] = tuple(range(trace.config.n_layers))
    if words:
        where = trace.address("".join(words))
        if where.layers is None or where.step is not None or where.heads is not None:
            raise UsageError(f"{''.join(words)!r} is not a layer", "such as heads L0, heads L0-2")
        layers = where.layers
    found = MeasuredHeads(by, layers, measure_heads(trace, by, layers))
    return made_of("heads", lambda terminal: measured_blocks(found, top), found.to_dict)


def _claims_heads(words: tuple[str, ...]) -> bool:
    """Whether these words are for the verb: layers, and its own options."""
    found = positional(heads.command, words)
    by = re.search(r"(?:^|\s)--by[\s=](\S+)", " ".join(words))
    known = by is None or by[1] in MEASURES
    return found is not None and known and all(re.match(r"L[0-9*]", word) for word in found)


@verb("top", "t", topic="looking", usage="[N]", takes=("number",), examples=("top", "top 20", "top --at 1"))
@click.argument("count", type=click.IntRange(1, 10**6), default=10, metavar="[N]")
@click.option("--at", "position", metavar="TOKEN", help="Behind this token instead of the last one.")
def top(session: Session, count: int, position: str | None) -> Result:
    """Show the most probable next tokens, or fills of each mask."""
    from tinytf.analysis.prediction import predictions
    from tinytf_cli.views.predictions import prediction_blocks

    trace, tokenizer = session.trace, session.model.tokenizer
    if trace.model.head is None:
        raise UsageError("this model has no language-model head", "so it predicts no token")
    if position is not None:
        trace = _seen_from(trace, trace.index(position, "token", len(trace.tokens)))
    found = predictions(trace, tokenizer, count)
    return made_of(
        "predictions",
        lambda terminal: prediction_blocks(trace, found),
        lambda: {"predictions": [one.to_dict() for one in found]},
    )


def _seen_from(trace: "Trace", row: int) -> "Trace":
    """The trace with the predictions of another position recorded."""
    from tinytf.trace.trace import Recording, Trace

    if not trace.config.causal:
        raise UsageError("this model fills masks, and predicts behind no token", "leave out --at")
    tensors = {**trace.recording.tensors, "logits": trace.logits_at(row)[None]}
    encoding = replace(trace.encoding, tokens=trace.tokens[: row + 1])
    return Trace(trace.model, encoding, Recording(tensors, (row,), trace.recording.layers))


@verb("display", topic="looking", usage="[ADDRESS]", takes=("address",), examples=("display L0H0.weights", "display"))
@click.argument("words", nargs=-1, metavar="[ADDRESS]")
def display(session: Session, words: tuple[str, ...]) -> Result:
    """Show an address after each movement; without one, list those."""
    if not words:
        return _displayed(session)
    address = "".join(words)
    if not address:
        raise AddressError("'' is not an address", "such as: display L0H0.weights")
    found = address_view(session, address) if session.run else None
    if found is None:
        parse_address(address, session.table)
    if address not in session.state.displays:
        session.change(displays=(*session.state.displays, address))
    if found is not None:
        return found.result()
    return _displayed(session)


@verb("undisplay", topic="looking", usage="[ADDRESS|NUMBER]", takes=("address",),
      examples=("undisplay 1", "undisplay"))  # fmt: skip
@click.argument("words", nargs=-1, metavar="[ADDRESS|NUMBER]")
def undisplay(session: Session, words: tuple[str, ...]) -> Result:
    """Display an address no longer, or none of them."""
    shown, word = session.state.displays, "".join(words)
    if word and word.isdecimal() and word.isascii() and len(word) < 9 and 1 <= int(word) <= len(shown):
        word = shown[int(word) - 1]
    if word and word not in shown:
        raise UsageError(f"{word!r} is not displayed", did_you_mean(word, shown) if shown else "nothing is")
    session.change(displays=tuple(one for one in shown if word and one != word))
    return _displayed(session)


def _displayed(session: Session) -> Result:
    """What is shown after each movement."""
    displays = session.state.displays
    lines = [Line(f"{number}  {address}") for number, address in enumerate(displays, start=1)]
    return answer("displays", {"displays": list(displays)}, *(lines or [Line("nothing is displayed")]))


def _flag(word: str) -> str:
    found = [flag for flag in FLAGS if word and flag.startswith(word)]
    if len(found) != 1:
        raise UsageError(f"there is no /{word}", f"known: {', '.join('/' + flag for flag in FLAGS)}")
    return found[0]


def address_view(session: Session, word: str, step: str = "") -> "AddressView":
    """What an address names in the present trace; the present step, in the head of the settings, without a word.

    ``step`` is taken where the address is of a layer or head alone.
    """
    trace, chosen = session.trace, session.settings
    if not word:
        one, layer = trace.steps.rows[session.require_place()]
        if step and not one.is_tensor:
            one, layer = trace.steps.by_name[step], chosen.layer if layer is None else layer
        heads = None if not one.has_heads else (min(chosen.head, trace.config.n_heads - 1),)
        where = Address(one, None if layer is None else (layer,), heads)
    else:
        where = trace.address(_placed(session, word))
    if where.step is None and step:
        where = replace(where, step=trace.steps.by_name[step])
    if where.cell:
        trace[where]  # one that is not there is said before anything is shown
    return AddressView(trace, where, chosen.head, chosen.dims, chosen.rows)


def _placed(session: Session, word: str) -> str:
    """An address; of a step of every layer, the one in the layer and head of the settings."""
    table, chosen = session.table, session.settings
    name, bracket, cell = word.partition("[")
    step = table.by_name.get(name)
    if step is None or not step.in_layer:
        return word
    head = f"H{chosen.head}" if step.has_heads else ""
    return f"L{chosen.layer}{head}.{name}{bracket}{cell}"


@dataclass(frozen=True)
class AddressView:
    """What an address names, in the ``form`` that was asked for: a flag of ``print``, or ``heat``."""

    trace: "Trace"
    where: Address
    head: int
    dims: int
    rows: int | None
    form: str = ""

    def blocks(self, terminal: Terminal) -> Iterator[Any]:
        """Blocks of any form."""
        from tinytf_cli.views import at_address

        limit = self.rows if self.rows is not None else (16 if terminal.cuts else None)
        rows = None if limit == 0 else limit
        if self.form == "shape":
            yield from at_address.shape_blocks(self.trace, self.where)
        elif self.form == "stats":
            yield from at_address.statistics_blocks(self.trace, self.where)
        elif self.form == "heat":
            yield from at_address.heat_blocks(self.trace, self.where, terminal)
        elif self.form == "values":
            yield from at_address.value_blocks(self.trace, self.where, self.head, _WIDEST * 1000, None)
        else:
            yield from at_address.value_blocks(self.trace, self.where, self.head, self.dims, rows)

    @property
    def found(self) -> "AddressValues":
        from tinytf.analysis.values import AddressValues

        return AddressValues(self.trace, self.where)

    def result(self) -> Result:
        return Result.of(self)


LOOKING = (print_address, heat, heads, top, display, undisplay)
