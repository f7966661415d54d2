"""The places of a corpus where a unit is most active. The corpus is a stream; the memory used does not grow with it.

Shapes: B windows, T tokens of a window, U units, K examples kept for each.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tinytf.bulk.folder import RecordedCorpus
from tinytf.bulk.windows import Window, corpus_windows, own_mask, run_all
from tinytf.config import ModelConfig
from tinytf.look.neurons import ActiveExample, TopExamples, Unit, parse_unit, require_units
from tinytf.model.transformer import Transformer, evaluating
from tinytf.report import Progress, ignore_progress
from tinytf.steps.table import table_of
from tinytf.text.corpus import Corpus
from tinytf.text_model import TextModel
from tinytf.trace.address import parse_tensor
from tinytf.trace.hooks import module_of

BEFORE, AFTER = 12, 6
"""Tokens of context that an example keeps before and after."""
Strengths = Callable[[Tensor], Tensor]
Columns = Mapping[str, tuple[Sequence[Unit | str], Strengths]]
"""For an address, its units and how strong they are at some values of it, (…, C) -> (…, U)."""


class Strongest:
    """The K strongest places of each of U units so far, in tensors of fixed size."""

    def __init__(self, units: int, top: int) -> None:
        self.top = top
        self.activation = torch.zeros(units, top)  # 0 for no place
        self.place = torch.zeros(units, top, 2, dtype=torch.int64)  # document, position
        self.context = torch.full((units, top, BEFORE + 1 + AFTER), -1)  # −1 for no token

    def add(self, values: Tensor, windows: Sequence[Window], ids: Tensor) -> None:
        """Add the activations (B, T, U) of some windows, with their ids (B, T), padded with −1."""
        n, length = ids.shape
        origin = torch.zeros(n, 2, dtype=torch.int64)
        for row_index, window in enumerate(windows):
            origin[row_index] = torch.tensor([window.document, window.start - window.own.start])
        flat = values.masked_fill(~own_mask(windows, ids)[:, :, None], 0.0).flatten(0, 1).T  # (U, B·T)
        best = _by_size(flat, self.top)  # (U, K)
        row, token = best // length, best % length
        context_at = token[..., None] + torch.arange(-BEFORE, AFTER + 1)  # (U, K, W)
        exists = (context_at >= 0) & (context_at < length)
        new = {
            "activation": flat.gather(1, best),
            "place": origin[row] + torch.stack((torch.zeros_like(token), token), dim=-1),
            "context": ids[row[..., None], context_at.clamp(0, length - 1)].masked_fill(~exists, -1),
        }
        joined = {name: torch.cat((getattr(self, name), tensor), dim=1) for name, tensor in new.items()}
        order = _by_size(joined["activation"], self.top)
        for name, tensor in joined.items():
            setattr(self, name, tensor.take_along_dim(order if tensor.dim() == 2 else order[..., None], dim=1))

    def examples(self, unit: int) -> tuple[ActiveExample, ...]:
        """The examples of one unit, the strongest first; none where it is not active."""
        examples = []
        for k in range(self.top):
            if not float(self.activation[unit, k]):
                break
            context = self.context[unit, k].tolist()
            before = [i for i in context[:BEFORE] if i >= 0]
            after = [i for i in context[BEFORE + 1 :] if i >= 0]
            document, position = self.place[unit, k].tolist()
            ids = (*before, context[BEFORE], *after)
            examples.append(ActiveExample(float(self.activation[unit, k]), document, position, ids, len(before)))
        return tuple(examples)


def _by_size(values: Tensor, top: int) -> Tensor:
    """The columns of the ``top`` numbers of each row that are furthest from 0, NaN first, of equals the earliest."""
    sizes = values.abs().nan_to_num(nan=math.inf)
    return sizes.sort(dim=-1, descending=True, stable=True).indices[:, :top]


def top_examples(
    model: TextModel,
    corpus: Corpus | RecordedCorpus,
    units: Sequence[str],
    *,
    top: int = 5,
    window: int | None = None,
    on_progress: Progress = ignore_progress,
) -> TopExamples:
    """Find the places of a corpus, of ``tinytf.text.corpus.find_files``, where each of ``units`` is most active.

    The corpus is read as a stream, in windows of ``window`` tokens (by default the context, at most 128);
    ``on_progress`` receives the number of characters read. A recorded corpus is read instead of run, by the number of
    tokens. Raises UsageError for a window that is longer than the context or has no room for a token, and for a corpus
    recorded with other weights or without the activations; AddressError for a unit that does not exist.
    """
    require_units(model.config)
    chosen = [parse_unit(unit, model.config) for unit in units]
    places = places_in(model, corpus, columns_of(chosen, model.config), top, window, on_progress)
    return replace(places, units={unit: places.units[unit] for unit in chosen})


def columns_of(units: Sequence[Unit], config: ModelConfig) -> Columns:
    """The activations of some units, by the address of their layer."""
    by_layer: dict[int, list[Unit]] = {}
    for unit in dict.fromkeys(units):
        by_layer.setdefault(unit.layer, []).append(unit)

    def picked(indices: list[int], rows: Tensor) -> Tensor:
        return rows[..., indices]

    at = table_of(config).ffn_activation
    return {f"L{layer}.{at}": (own, partial(picked, [unit.index for unit in own])) for layer, own in by_layer.items()}


def places_in(
    model: TextModel, corpus: Corpus | RecordedCorpus, columns: Columns, top: int, window: int | None,
    on_progress: Progress,
) -> TopExamples:  # fmt: skip
    """The ``top`` places of each unit of ``columns`` in a corpus, which is run, or read if it was recorded."""
    if isinstance(corpus, RecordedCorpus):
        corpus.require_model(model.transformer, model.name, window)
        return recorded_places(corpus, columns, top, on_progress)
    windows = corpus_windows(model, corpus.documents(), window, on_progress)
    return strongest_places(model.transformer, windows, columns, top)


@torch.no_grad()
def strongest_places(model: Transformer, windows: Iterable[Window], columns: Columns, top: int = 5) -> TopExamples:
    """Run windows through a model, and keep the ``top`` places of each unit with the largest absolute activation.

    A few windows are in memory at a time; only the examples of the others are kept.
    """
    names = [name for own, _ in columns.values() for name in own]
    strongest, table = Strongest(len(names), top), table_of(model.config)
    caught: dict[str, Tensor] = {}

    def catch(address: str, strengths: Strengths, module: Any, args: Any, result: Tensor) -> None:
        caught[address] = strengths(result)  # (B, T, C) -> (B, T, units of the step)

    tokens = documents = last = 0
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        for address, (_, strengths) in columns.items():
            place = parse_tensor(address, table)
            assert place.step is not None
            (layer,) = place.layers or ()
            last = max(last, layer)
            hook = partial(catch, address, strengths)
            stack.callback(module_of(model, place.step, layer).register_forward_hook(hook).remove)
        for batch, ids in run_all(model, windows, last):
            strongest.add(torch.cat([caught[address] for address in columns], dim=-1).float().cpu(), batch, ids)
            tokens += sum(len(window.own) for window in batch)
            documents = max(documents, batch[-1].document + 1)
    return TopExamples({name: strongest.examples(index) for index, name in enumerate(names)}, tokens, documents)


def recorded_places(corpus: RecordedCorpus, columns: Columns, top: int, on_progress: Progress) -> TopExamples:
    """The ``top`` places of each unit in what was recorded, of equals the earliest."""
    examples: dict[Unit | str, tuple[ActiveExample, ...]] = {}
    done, total = 0, len(columns) * len(corpus)
    for address, (chosen, strengths) in columns.items():
        best = torch.empty(len(chosen), 0)  # (U, K)
        places = torch.empty(len(chosen), 0, dtype=torch.int64)
        first = 0
        for batch in corpus.batches(address):
            best = torch.cat((best, strengths(batch).T), dim=1)
            places = torch.cat((places, torch.arange(first, first + len(batch)).expand(len(chosen), -1)), dim=1)
            order = _by_size(best, top)
            best, places = best.gather(1, order), places.gather(1, order)
            first, done = first + len(batch), done + len(batch)
            on_progress(done, total)
        for unit, activations, rows in zip(chosen, best.tolist(), places.tolist(), strict=True):
            active = [(value, row) for value, row in zip(activations, rows, strict=True) if value]
            examples[unit] = tuple(_recorded_example(corpus, row, value) for value, row in active)
    return TopExamples(examples, len(corpus), corpus.index["documents"])


def _recorded_example(corpus: RecordedCorpus, row: int, activation: float) -> ActiveExample:
    """The place of a recorded token, with the tokens around it in its document."""
    around = slice(max(0, row - BEFORE), row + AFTER + 1)
    documents, ids = corpus.documents[around], corpus.tokens[around]
    at = row - around.start
    is_own = documents == documents[at]
    ids_own = tuple(ids[is_own].tolist())
    return ActiveExample(activation, int(documents[at]), int(corpus.positions[row]), ids_own, int(is_own[:at].sum()))
