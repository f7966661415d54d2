"""Addresses that a beginning can become, in the model and the text of a session."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tinytf.errors import AddressError
from tinytf.steps.table import StepTable
from tinytf.trace.address import parse_address
from tinytf_cli.repl.session import Session

_PLACE = r"L(?:[0-9]+(?:-[0-9]+)?|\*)"
_LAYER = re.compile(r"L([0-9]*)")
_HEAD = re.compile(rf"({_PLACE}H)([0-9]*)")
_STEP = re.compile(rf"({_PLACE}(?:H(?:[0-9]+(?:-[0-9]+)?|\*))?\.)([A-Za-z0-9_.]*)")
_PLAIN = re.compile(r"[A-Za-z_.0-9]+")  # a token that can be typed as it is


@dataclass(frozen=True)
class Offer:
    """What a word can become, and a few words about it; ``whole`` where nothing more of it can follow."""

    word: str
    about: str = ""
    whole: bool = False


def beginning(begun: str, words: Iterable[tuple[str, str]]) -> Iterator[Offer]:
    """The words that begin so, each with a few words about it."""
    return (Offer(word, about, True) for word, about in words if word.startswith(begun))


def addresses(session: Session, begun: str, *, bare: bool = False) -> Iterator[Offer]:
    """The addresses that begin so; none while no model is open.

    With ``bare``, also steps of a layer without a layer, for a verb that takes it from the settings.
    """
    if not session.is_open:
        return
    table = session.table
    if "[" in begun:
        yield from _cells(session, table, begun)
    elif match := _STEP.fullmatch(begun):
        yield from _steps(table, match[1], match[2])
    elif match := _HEAD.fullmatch(begun):
        yield from _heads(table, match[1], match[2])
    elif match := _LAYER.fullmatch(begun):
        yield from _layers(table, match[1])
    for step in table.by_name.values():
        if not step.name.startswith(begun):
            continue
        if not step.in_layer:
            yield Offer(step.name, step.title)
        elif bare and begun:
            yield Offer(step.name, f"{step.title}, of layer {session.settings.layer}")
    if not begun:
        yield from _layers(table, "")


def parameters(session: Session, begun: str) -> Iterator[Offer]:
    """The parameters that begin so, and of the vocabulary's tables the tokens of the text; none while no model is open.

    Those of a layer come after its ``L0.``, those that heads share out also after ``L0H1.``.
    """
    if not session.is_open:
        return
    match = _STEP.fullmatch(begun)
    place, name = (match[1], match[2]) if match else ("", begun)
    for known, (step, one) in session.table.parameters.items():
        split = any(axis.endswith("·d_head") for axis in one.axes)
        here = bool(place) == step.in_layer and (split or "H" not in place)
        if here and not one.absent and known.startswith(name) and (begun or not step.in_layer):
            yield Offer(f"{place}{known}", f"parameter of {step.title}")
        if begun.startswith(f"{known}[") and one.axes[0] == "vocab" and "," not in begun:
            for token in tokens(session, begun.partition("[")[2]):
                yield Offer(f"{known}[{token.word}]", token.about, True)


def layers(session: Session, begun: str) -> Iterator[Offer]:
    """The layers that begin so."""
    if session.is_open and (match := _LAYER.fullmatch(begun or "L")):
        yield from _layers(session.table, match[1], deeper=False)


def _layers(table: StepTable, digits: str, *, deeper: bool = True) -> Iterator[Offer]:
    """Layers such as ``L3``; with ``deeper``, what can follow a number that is typed."""
    for number in range(table.config.n_layers):
        if str(number).startswith(digits):
            yield Offer(f"L{number}", f"layer {number}")
    if deeper and digits and int(digits) < table.config.n_layers:
        yield from _heads(table, f"L{int(digits)}H", "")
        yield from _steps(table, f"L{int(digits)}.", "")


def _heads(table: StepTable, place: str, digits: str) -> Iterator[Offer]:
    """Heads such as ``L3H5``; the steps of one whose number is typed."""
    for number in range(table.config.n_heads):
        if str(number).startswith(digits):
            yield Offer(f"{place}{number}", f"head {number}")
    if digits and int(digits) < table.config.n_heads:
        yield from _steps(table, f"{place}{int(digits)}.", "")


def _steps(table: StepTable, place: str, begun: str) -> Iterator[Offer]:
    for step in table.layer_steps:
        if step.name.startswith(begun) and (step.has_heads or "H" not in place):
            yield Offer(f"{place}{step.name}", step.title)


def _cells(session: Session, table: StepTable, begun: str) -> Iterator[Offer]:
    """Cells, by the tokens of the text."""
    name, _, cell = begun.partition("[")
    try:
        axes = parse_address(name, table).axes[-2:]
    except AddressError:
        return
    *before, now = cell.split(",")
    if len(axes) <= len(before) or axes[len(before)] not in ("token", "query", "key") or now.endswith("]"):
        return
    last = len(before) == len(axes) - 1
    start = f"{name}[{''.join(f'{word},' for word in before)}"
    for one in tokens(session, now.strip(), axes[len(before)]):
        yield Offer(f"{start}{one.word}{']' if last else ','}", one.about, last)


def tokens(session: Session, begun: str, axis: str = "token") -> Iterator[Offer]:
    """The tokens of the text that begin so, in any case."""
    for number, (word, shown) in enumerate(zip(cell_words(session.tokens), session.tokens, strict=True)):
        if word.casefold().startswith(begun.casefold()):
            yield Offer(word, f"{axis} {number}, {shown}", True)


def cell_words(tokens: tuple[str, ...]) -> list[str]:
    """How a cell names each token: by its text, or by its number if it occurs twice or cannot be typed."""
    bare = [token.strip("·") for token in tokens]
    folded = [word.casefold() for word in bare]
    return [
        word if _PLAIN.fullmatch(word) and not word.isdecimal() and folded.count(folded[number]) == 1 else str(number)
        for number, word in enumerate(bare)
    ]
