"""Addresses that a beginning can become, in the model and the text of a session."""

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tinytf.errors import AddressError, TinytfError
from tinytf.steps.table import StepTable
from tinytf.text.words import NUMBERS
from tinytf.trace.address import parse_address, parse_tensor
from tinytf.trace.lens_names import Lens, known_names
from tinytf.trace.parameters import is_split
from tinytf_cli.repl.session import Session

_PLACE = re.compile(rf"(L{NUMBERS})([HE]{NUMBERS})?")
_PLAIN = re.compile(r"[A-Za-z_.0-9]+")  # a token that can be typed as it is


MOST = 100
"""Tokens of the vocabulary that are offered."""


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
    """The addresses that begin so, up to the next layer, head or step; none of a model that is not known yet.

    With ``bare``, also steps of a layer without a layer, for a verb that takes it from the settings.
    """
    table = session.known_table
    if table is None:
        return
    if "[" in begun:
        yield from _cells(session, table, begun)
        return
    if begun.startswith("blocks.") or "hook" in begun or re.match(rf"L{NUMBERS}\.(?:attn|mlp|ln)[.\d]", begun):
        yield from (one for one in _lens_names(table, begun) if one.word.startswith(begun))
    found = [Offer(f"L{number}", f"layer {number}") for number in range(table.config.n_layers)]
    found += [Offer("L-1", "the last layer")] if begun.startswith("L-") else []
    if place := _PLACE.match(begun):
        found += _inside(table, *place.groups(default=""))
    found += [Offer(step.name, step.title) for step in table.by_name.values() if not step.in_layer]
    if bare and begun:
        layer = session.settings.layer
        found += [Offer(step.name, f"{step.title}, of layer {layer}") for step in table.in_layer(layer)]
    yield from (one for one in found if one.word.startswith(begun))


def parameters(session: Session, begun: str) -> Iterator[Offer]:
    """The parameters that begin so, and of the vocabulary's tables the tokens of the text.

    Those of a layer come after its ``L0.``, those that heads share out also after ``L0H1.``.
    """
    table, place = session.known_table, _PLACE.match(begun)
    if table is None:
        return
    layer, head = place.groups(default="") if place else ("", "")
    before = f"{layer}{head}." if layer else ""
    for known, (step, one) in table.parameters.items():
        split = any(is_split(axis) for axis in one.axes)
        here = bool(layer) == step.in_layer and (split or not head) and begun.startswith(before)
        if here and not one.absent and f"{before}{known}".startswith(begun):
            yield Offer(f"{before}{known}", f"parameter of {step.title}")
        if begun.startswith(f"{known}[") and one.axes[0] == "vocab" and "," not in begun:
            for token in vocabulary(session, begun.partition("[")[2]):
                yield Offer(f"{known}[{token.word}]", token.about, True)


def _inside(table: StepTable, layer: str, head: str) -> Iterator[Offer]:
    """The heads of a layer, and the steps of the layer, or of a head that is named."""
    try:
        layers = parse_address(f"{layer}{head}", table).layers or ()
    except AddressError:
        return
    for number in range(table.config.n_heads):
        yield Offer(f"{layer}H{number}", f"head {number}")
    for number in range(table.config.experts):
        yield Offer(f"{layer}E{number}", f"expert {number}")
    for step in (one for one in table.layer_steps if any(table.has(one.name, number) for number in layers)):
        if not head or (step.is_split and step.letter == head[0]):
            yield Offer(f"{layer}{head}.{step.name}", step.title)


def _lens_names(table: StepTable, begun: str) -> Iterator[Offer]:
    """The names of TransformerLens: outside the blocks, or in the one that is begun."""
    place = re.match(rf"(?:L|blocks\.){NUMBERS}\.", begun)
    blocks = [place[0]] if place else [f"blocks.{number}." for number in range(table.config.n_layers)]
    for before, layer in [*((one, 0) for one in blocks), *([] if place else [("", None)])]:
        for name, lens in known_names(table, layer).items():
            if isinstance(lens, Lens):
                yield Offer(f"{before}{name}", "of TransformerLens")


def _cells(session: Session, table: StepTable, begun: str) -> Iterator[Offer]:
    """Cells, by the tokens of the text."""
    name, _, cell = begun.partition("[")
    try:
        where = parse_tensor(name, table)
        axes = where.axes if where.lens else where.axes[-2:]
    except AddressError:
        return
    *before, now = cell.split(",")
    if len(before) < len(axes) and axes[len(before)] == "vocab":
        ids = session.model.tokenizer.beginning(now.strip()) if session.is_open else ()
        for token_id in itertools.islice(ids, MOST):  # an address takes the number
            cell = f"{name}[{''.join(f'{word},' for word in before)}{token_id}]"
            yield Offer(cell, session.model.tokenizer.shown(token_id), True)
        return
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


def vocabulary(session: Session, begun: str) -> Iterator[Offer]:
    """The tokens of the text that begin so, then those of the vocabulary, each as a word that means it."""
    words = {one.word: one for one in tokens(session, begun)}
    yield from words.values()
    if not session.is_open or not begun:
        return
    model, mark = session.model, "·" if begun.startswith("·") else ""
    for token_id in itertools.islice(model.tokenizer.beginning(begun), MOST):
        shown = model.tokenizer.shown(token_id)
        word = mark + shown.lstrip("·")
        with contextlib.suppress(TinytfError):
            if word not in words and model.find_token(word) == token_id:
                yield Offer(word, f"token {token_id}, {shown}", True)


def cell_words(tokens: tuple[str, ...]) -> list[str]:
    """How a cell names each token: by its text, ``cat#2`` the second time, or by its number if it cannot be typed."""
    bare = [token.strip("·") for token in tokens]
    return [
        str(number)
        if not _PLAIN.fullmatch(word) or word.isdecimal()
        else word
        if bare.count(word) == 1
        else f"{word}#{bare[: number + 1].count(word)}"
        for number, word in enumerate(bare)
    ]
