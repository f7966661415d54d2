"""The first lines of every view: the model, its tokenizer, and the tokens added to the text."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tinytf.config import ModelConfig
from tinytf.loading import Model
from tinytf.look.info import Info
from tinytf.sentences import first_of
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.through.model import ThroughModel
from tinytf_cli.numbers import count, plural
from tinytf_cli.views.blocks import Block, Line, Span
from tinytf_cli.views.parts import titled


def heads_in_words(config: ModelConfig) -> str:
    """``4 layers × 4 heads (2 key-value)``; if mixers differ, the number of layers with each."""

    def heads(own: ModelConfig) -> str:
        return f"{own.n_heads} heads" + f" ({own.n_kv_heads} key-value)" * (own.n_kv_heads != own.n_heads)

    layers = [config.at(layer) for layer in range(config.n_layers)]
    kinds = {own.mixer: own for own in layers}
    if len(kinds) == 1:
        reads = f" that read states {config.d_source} wide" if config.d_source else ""
        if config.encoder is not None:
            reads = f" that read an encoder of {heads_in_words(config.encoder)}"
        return f"{plural(config.n_layers, 'layer')} × {heads(config)}{reads}"
    counts = Counter(own.mixer for own in layers)
    by_kind = (f"{counts[kind]} of {kind.replace('_', ' ')} × {heads(own)}" for kind, own in kinds.items())
    return f"{plural(config.n_layers, 'layer')}: {', '.join(by_kind)}"


def number_words(model: Model | ThroughModel) -> str:
    """``float32 on cpu``."""
    parameter = next(model.transformer.parameters())
    return f"{str(parameter.dtype).removeprefix('torch.')} on {parameter.device.type}"


def model_words(model: Model | ThroughModel, computed: bool = True) -> list[Span]:
    """One line about a model; ``computed`` adds its number format and device."""
    config = model.config
    rest = [
        model.in_words
        if isinstance(model, ThroughModel)
        else f"{config.kind}, {heads_in_words(config)}, d_model {config.d_model}",
        f"{count(model.n_parameters)} parameters",
        *([number_words(model)] if computed else []),
        printable(model.source, spaces=False),
    ]
    return [Span(printable(model.name, spaces=False), "strong"), Span(" · " + " · ".join(rest))]


def tokenizer_words(tokenizer: Tokenizer, note: str, encoding: Encoding | None = None) -> list[Span]:
    """One line about a tokenizer and what it added to a text."""
    summary = f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens" + (f" ({note})" if note else "")
    return [Span(summary, "dim"), Span(f" · {encoding.added}" if encoding else "", "dim")]


def banner(model: Model | ThroughModel, encoding: Encoding | None = None) -> Iterator[Block]:
    """The model, its tokenizer, and the notes of its files, a line each."""
    yield Line(model_words(model, computed=False), lead=True)
    tokenizer = tokenizer_words(model.tokenizer, model.tokenizer_note, encoding)
    yield Line([*tokenizer, Span(f" · {number_words(model)}", "dim")], lead=True)
    yield from (replace(note, lead=True) for note in notes(model))


def notes(source: Model | ThroughModel | Info | Tokenizer) -> Iterator[Line]:
    """The notes of a model or a tokenizer, a line each."""
    for note in source.notes:
        yield titled("note", f": {printable(note, spaces=False)}")


def exchanged(model: Model) -> Iterator[str]:
    """Lines that name the parts left out or replaced and the numbers set, for a view without a banner."""
    edited = model.transformer.edited
    replaced = [name for name in model.transformer.exchanged if re.sub(r"H\d+\.", ".", name) not in edited]
    if names := (*model.lacks, *replaced):
        yield f"the model ran without {first_of(names, 6)}"
    if model.numbers:
        yield f"the model ran with {first_of(model.numbers, 6)}"
