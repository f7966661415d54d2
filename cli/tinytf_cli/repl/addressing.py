"""Completion of addresses, parameters and tokens, from the model and the text of a session."""

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinytf.errors import AddressError, TinytfError
from tinytf.steps.table import StepTable
from tinytf.text.words import NUMBERS
from tinytf.trace.address import parse_address, parse_tensor
from tinytf.trace.lens_names import Lens, known_names
from tinytf.trace.parameters import is_split
from tinytf_cli.repl.session import Session

if TYPE_CHECKING:
    from tinytf.through.model import ThroughModel
    from tinytf.through.traced import ThroughTrace

_LAYER_OR_HEAD = re.compile(rf"(L{NUMBERS})([HE]{NUMBERS})?")
_TYPEABLE = re.compile(r"[A-Za-z_.0-9]+")  # a token that can be typed as it is

VOCABULARY_LIMIT = 100
"""The most tokens of the vocabulary that are offered."""


@dataclass(frozen=True)
class Offer:
    """One completion of a word, with a short description; ``complete`` if nothing can follow within the word."""

    word: str
    about: str = ""
    complete: bool = False


def with_prefix(prefix: str, words: Iterable[tuple[str, str]]) -> Iterator[Offer]:
    """Offers for the words with a prefix; ``words`` are pairs of word and description."""
    return (Offer(word, about, True) for word, about in words if word.startswith(prefix))


def addresses(session: Session, prefix: str, *, bare: bool = False) -> Iterator[Offer]:
    """The addresses with a prefix, up to the next layer, head or step; none while the model is not known.

    Those of a model through transformers are the paths of its modules, up to the next dot. ``bare`` adds the steps of a
    layer by name alone, for a verb that takes the layer from the settings.
    """
    table = session.known_table
    if table is None:
        if session.is_open and session.through is not None:
            yield from _module_paths(session.through, session.cached_through, prefix)
        return
    if "[" in prefix:
        yield from _cells(session, table, prefix)
        return
    if prefix.startswith("blocks.") or "hook" in prefix or re.match(rf"L{NUMBERS}\.(?:attn|mlp|ln)[.\d]", prefix):
        yield from (offer for offer in _transformer_lens_names(table, prefix) if offer.word.startswith(prefix))
    offers = [Offer(f"L{number}", f"layer {number}") for number in range(table.config.n_layers)]
    offers += [Offer("L-1", "the last layer")] if prefix.startswith("L-") else []
    if match := _LAYER_OR_HEAD.match(prefix):
        offers += _steps_of(table, *match.groups(default=""))
    offers += [Offer(step.name, step.title) for step in table.by_name.values() if not step.in_layer]
    if bare and prefix:
        layer = session.settings.layer
        offers += [Offer(step.name, f"{step.title}, of layer {layer}") for step in table.in_layer(layer)]
    yield from (offer for offer in offers if offer.word.startswith(prefix))


def _module_paths(model: "ThroughModel", trace: "ThroughTrace | None", prefix: str) -> Iterator[Offer]:
    """The paths of modules with a prefix, up to the next dot; after a run, only those that ran."""
    modules = dict(model.transformer.named_modules())
    paths = list(modules if trace is None else trace.outputs)
    starts = (path for path in paths if path and path.startswith(prefix))
    for word in dict.fromkeys(path[: (path + ".").index(".", len(prefix))] for path in starts):
        about = type(modules[word]).__name__ if word in modules else "attention weights"
        yield Offer(word, about, not any(path.startswith(f"{word}.") for path in paths))


def modules(trace: "ThroughTrace") -> Iterator[Offer]:
    """The modules that ran, by their paths, and the attention weights that they returned."""
    calls = {call.path: call for call in trace.recording.calls}
    for path in filter(None, trace.outputs):
        call = calls.get(path)
        about = "attention weights" if call is None else f"{type(call.module).__name__} {trace.role(call)}".rstrip()
        yield Offer(path, about, True)


def parameters(session: Session, prefix: str) -> Iterator[Offer]:
    """The parameters with a prefix, and the tokens that index a table of the vocabulary.

    A parameter of a layer follows ``L0.``; one that is split between heads also follows ``L0H1.``.
    """
    table, match = session.known_table, _LAYER_OR_HEAD.match(prefix)
    if table is None:
        return
    layer, head = match.groups(default="") if match else ("", "")
    start = f"{layer}{head}." if layer else ""
    for name, (step, parameter) in table.parameters.items():
        is_per_head = any(is_split(axis) for axis in parameter.axes)
        belongs = bool(layer) == step.in_layer and (is_per_head or not head) and prefix.startswith(start)
        if belongs and not parameter.absent and f"{start}{name}".startswith(prefix):
            yield Offer(f"{start}{name}", f"parameter of {step.title}")
        if prefix.startswith(f"{name}[") and parameter.axes[0] == "vocab" and "," not in prefix:
            for token in vocabulary(session, prefix.partition("[")[2]):
                yield Offer(f"{name}[{token.word}]", token.about, True)


def _steps_of(table: StepTable, layer: str, head: str) -> Iterator[Offer]:
    """The heads and experts of a layer, and its steps; if a head is named, the steps of that head."""
    try:
        layers = parse_address(f"{layer}{head}", table).layers or ()
    except AddressError:
        return
    for index in range(min((table.config.at(layer).n_heads for layer in layers), default=0)):
        yield Offer(f"{layer}H{index}", f"head {index}")
    for index in range(table.config.experts):
        yield Offer(f"{layer}E{index}", f"expert {index}")
    for step in (step for step in table.layer_steps if any(table.has(step.name, index) for index in layers)):
        if not head or (step.is_split and step.letter == head[0]):
            yield Offer(f"{layer}{head}.{step.name}", step.title)


def _transformer_lens_names(table: StepTable, prefix: str) -> Iterator[Offer]:
    """The names of TransformerLens: those of the block that the prefix names, or of all blocks and the rest."""
    match = re.match(rf"(?:L|blocks\.){NUMBERS}\.", prefix)
    blocks = [match[0]] if match else [f"blocks.{index}." for index in range(table.config.n_layers)]
    for start, layer in [*((block, 0) for block in blocks), *([] if match else [("", None)])]:
        for name, lens in known_names(table, layer).items():
            if isinstance(lens, Lens):
                yield Offer(f"{start}{name}", "of TransformerLens")


def _cells(session: Session, table: StepTable, prefix: str) -> Iterator[Offer]:
    """The cells of a tensor, by token of the text or by index in the vocabulary."""
    tensor, _, cell = prefix.partition("[")
    try:
        address = parse_tensor(tensor, table)
        axes = address.axes if address.lens else address.axes[-2:]
    except AddressError:
        return
    *done, typed = cell.split(",")
    if len(done) < len(axes) and axes[len(done)] == "vocab":
        ids = session.model.tokenizer.ids_starting_with(typed.strip()) if session.is_open else ()
        for token_id in itertools.islice(ids, VOCABULARY_LIMIT):  # an address takes the token id
            cell = f"{tensor}[{''.join(f'{index},' for index in done)}{token_id}]"
            yield Offer(cell, session.model.tokenizer.shown(token_id), True)
        return
    if len(axes) <= len(done) or axes[len(done)] not in ("token", "query", "key") or typed.endswith("]"):
        return
    last = len(done) == len(axes) - 1
    start = f"{tensor}[{''.join(f'{index},' for index in done)}"
    for offer in tokens(session, typed.strip(), axes[len(done)]):
        yield Offer(f"{start}{offer.word}{']' if last else ','}", offer.about, last)


def tokens(session: Session, prefix: str, axis: str = "token") -> Iterator[Offer]:
    """The tokens of the text with a prefix, ignoring case."""
    for position, (word, shown) in enumerate(zip(cell_words(session.tokens), session.tokens, strict=True)):
        if word.casefold().startswith(prefix.casefold()):
            yield Offer(word, f"{axis} {position}, {shown}", True)


def vocabulary(session: Session, prefix: str) -> Iterator[Offer]:
    """The tokens of the text with a prefix, then those of the vocabulary, each spelled so that it is found again."""
    words = {offer.word: offer for offer in tokens(session, prefix)}
    yield from words.values()
    if not session.is_open or not prefix:
        return
    model, space = session.opened, "·" if prefix.startswith("·") else ""
    for token_id in itertools.islice(model.tokenizer.ids_starting_with(prefix), VOCABULARY_LIMIT):
        shown = model.tokenizer.shown(token_id)
        word = space + shown.lstrip("·")
        with contextlib.suppress(TinytfError):
            if word not in words and model.find_token(word) == token_id:
                yield Offer(word, f"token {token_id}, {shown}", True)


def cell_words(tokens: tuple[str, ...]) -> list[str]:
    """The index of each token in a cell: its text, ``cat#2`` if repeated, its position if it cannot be typed."""
    bare = [token.strip("·") for token in tokens]
    return [
        str(position)
        if not _TYPEABLE.fullmatch(word) or word.isdecimal()
        else word
        if bare.count(word) == 1
        else f"{word}#{bare[: position + 1].count(word)}"
        for position, word in enumerate(bare)
    ]
