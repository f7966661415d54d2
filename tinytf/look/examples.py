"""Where in a corpus a unit is most active. The corpus is a stream; what is kept does not grow with it.

Shapes: B windows, T tokens of a window, U units, K examples kept of each.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from tinytf.errors import TokenizerError, UsageError
from tinytf.look.neurons import ActiveExample, TopExamples, Unit, parse_unit, require_units
from tinytf.model.transformer import Transformer
from tinytf.report import Progress, unheard
from tinytf.steps.table import table_of
from tinytf.text.corpus import Corpus
from tinytf.text.stream import between_words
from tinytf.text.tokenizer import Tokenizer
from tinytf.text_model import TextModel
from tinytf.trace.hooks import module_of

BEFORE, AFTER = 12, 6
"""Tokens of an example that are kept on either side."""

BATCH = 8
"""Windows in one pass."""


@dataclass(frozen=True)
class Window:
    """Consecutive tokens of a document that go through the model together.

    ``own`` are the places of the text's own tokens, without the added ones; the first is token ``start`` of document
    ``document``.
    """

    ids: list[int]
    own: range
    document: int
    start: int


def windows_of(
    tokenizer: Tokenizer, pieces: Iterable[tuple[str, bool]], length: int, vocab_size: int
) -> Iterator[Window]:
    """Windows of at most ``length`` tokens of documents that come in pieces, each with whether its document ends.

    The tokens that the tokenizer adds to a text are added to each window. Raises UsageError where they leave no room,
    TokenizerError for a token that a model of ``vocab_size`` does not know.
    """
    document = place = 0
    for text, ends in pieces:
        tokens = tokenizer.encode(text).tokens
        ids = [token.id for token in tokens]
        if max(ids, default=0) >= vocab_size:
            raise TokenizerError(f"the text has a token of id {max(ids)}, and the model knows {vocab_size:,} tokens")
        added = [token.special and token.start == token.end for token in tokens]
        first = next((i for i, one in enumerate(added) if not one), len(ids))
        last = max((i + 1 for i, one in enumerate(added) if not one), default=first)
        before, own, after = ids[:first], ids[first:last], ids[last:]
        room = length - len(before) - len(after)
        if room < 1:
            raise UsageError(f"a window of {length} tokens has no room for a token of the text", "choose a longer one")
        for start in range(0, len(own), room):
            part = own[start : start + room]
            yield Window([*before, *part, *after], range(first, first + len(part)), document, place + start)
        place = 0 if ends else place + len(own)
        document += ends


class Strongest:
    """The K strongest places of each of U units so far: tensors of a size that is known from the beginning."""

    def __init__(self, units: int, top: int) -> None:
        self.top = top
        self.strength = torch.full((units, top), -1.0)
        self.activation = torch.zeros(units, top)
        self.place = torch.zeros(units, top, 2, dtype=torch.int64)  # document, position
        self.context = torch.full((units, top, BEFORE + 1 + AFTER), -1)  # −1 where there is no token

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (self.strength, self.activation, self.place, self.context))

    def add(self, values: Tensor, windows: Sequence[Window], ids: Tensor) -> None:
        """Activations (B, T, U) of some windows with their padded ids (B, T), −1 where there is none."""
        n, length = ids.shape
        own = torch.zeros(n, length, dtype=torch.bool)
        origin = torch.zeros(n, 2, dtype=torch.int64)
        for at, window in enumerate(windows):
            own[at, window.own.start : window.own.stop] = True
            origin[at] = torch.tensor([window.document, window.start - window.own.start])
        strength = values.abs().nan_to_num(nan=math.inf).masked_fill(~own[:, :, None], -1.0)
        flat = strength.flatten(0, 1).T  # (U, B·T)
        best = flat.sort(dim=-1, descending=True, stable=True).indices[:, : self.top]  # (U, K), the earliest of equals
        row, token = best // length, best % length
        around = token[..., None] + torch.arange(-BEFORE, AFTER + 1)  # (U, K, W)
        there = (around >= 0) & (around < length)
        new = {
            "strength": flat.gather(1, best),
            "activation": values.flatten(0, 1).T.gather(1, best),
            "place": origin[row] + torch.stack((torch.zeros_like(token), token), dim=-1),
            "context": ids[row[..., None], around.clamp(0, length - 1)].masked_fill(~there, -1),
        }
        both = {name: torch.cat((getattr(self, name), tensor), dim=1) for name, tensor in new.items()}
        order = both["strength"].sort(dim=-1, descending=True, stable=True).indices[:, : self.top]
        for name, tensor in both.items():
            setattr(self, name, tensor.take_along_dim(order if tensor.dim() == 2 else order[..., None], dim=1))

    def examples(self, unit: int) -> tuple[ActiveExample, ...]:
        """The places of one unit, the strongest first."""
        found = []
        for k in range(self.top):
            if float(self.strength[unit, k]) < 0:
                break
            around = self.context[unit, k].tolist()
            before = [i for i in around[:BEFORE] if i >= 0]
            after = [i for i in around[BEFORE + 1 :] if i >= 0]
            document, position = self.place[unit, k].tolist()
            ids = (*before, around[BEFORE], *after)
            found.append(ActiveExample(float(self.activation[unit, k]), document, position, ids, len(before)))
        return tuple(found)


def top_examples(
    model: TextModel,
    corpus: Corpus,
    units: Sequence[str],
    *,
    top: int = 5,
    window: int | None = None,
    on_progress: Progress = unheard,
) -> TopExamples:
    """Where in a corpus, of ``tinytf.text.corpus.find_files``, each of ``units`` is most active.

    The corpus is read as a stream, in windows of ``window`` tokens (the context, or 128 if that is longer);
    ``on_progress`` is told how many of its characters were read. Raises UsageError for a window that is longer than the
    context or has no room for a token, AddressError for a unit that is not there.
    """
    config = model.config
    require_units(config)
    length = min(config.context, 128) if window is None else window
    if length > config.context:
        raise UsageError(f"a window of {length:,} tokens is more than the model's context of {config.context:,}")
    chosen = [parse_unit(unit, config) for unit in units]
    total = sum(file.paragraph_characters for file in corpus.files)

    def pieces() -> Iterator[tuple[str, bool]]:
        read = 0
        for text, ends in corpus.documents().pieces(between_words):
            yield text, ends
            read += len(text)
            on_progress(min(read, total), total)

    windows = windows_of(model.tokenizer, pieces(), length, config.vocab_size)
    return strongest_places(model.transformer, windows, chosen, top)


@torch.no_grad()
def strongest_places(model: Transformer, windows: Iterable[Window], units: Sequence[Unit], top: int = 5) -> TopExamples:
    """Run windows through a model and keep the ``top`` places of each unit where its activation is largest in size.

    A few windows are in memory at a time; of the others only the examples are kept.
    """
    units = tuple(dict.fromkeys(units))
    kept = Strongest(len(units), top)
    by_layer: dict[int, list[int]] = {}
    for unit in units:
        by_layer.setdefault(unit.layer, []).append(unit.index)
    columns = [Unit(layer, index) for layer, indices in by_layer.items() for index in indices]
    order = [columns.index(unit) for unit in units]
    activated = table_of(model.config).by_name[table_of(model.config).activated]
    caught: dict[int, Tensor] = {}
    tokens = documents = 0
    training = model.training
    with ExitStack() as stack:
        stack.callback(model.train, training)
        model.eval()
        for layer, indices in by_layer.items():
            made = module_of(model, activated, layer)
            stack.callback(made.register_forward_hook(_catching(caught, layer, indices)).remove)
        left = iter(windows)
        while batch := list(islice(left, BATCH)):
            ids = padded(batch)
            run_windows(model, ids, max(by_layer, default=-1))
            values = torch.cat([caught[layer] for layer in by_layer], dim=-1)[..., order].float().cpu()
            kept.add(values, batch, ids)
            tokens += sum(len(window.own) for window in batch)
            documents = max(documents, batch[-1].document + 1)
    return TopExamples({unit: kept.examples(place) for place, unit in enumerate(units)}, tokens, documents)


def _catching(caught: dict[int, Tensor], layer: int, indices: list[int]) -> Any:
    def hook(module: torch.nn.Module, args: Any, made: Tensor) -> None:
        caught[layer] = made[..., indices]  # (B, T, F) -> (B, T, units of the layer)

    return hook


def padded(batch: Sequence[Window]) -> Tensor:
    """The ids of windows (B, T), −1 after the end of a shorter one."""
    length = max(len(window.ids) for window in batch)
    return torch.tensor([window.ids + [-1] * (length - len(window.ids)) for window in batch])


def run_windows(model: Transformer, ids: Tensor, last: int) -> None:
    """One pass as far as layer ``last``; what comes after the end of a text is masked."""
    real = ids >= 0
    device = model.embed.tokens.weight.device
    mask = None if not model.config.looks_ahead or bool(real.all()) else real.to(device)
    x = model.embed(ids.clamp(min=0).to(device))  # (B, T, C)
    for block in model.blocks[: last + 1]:
        x = block(x, 0, mask)
