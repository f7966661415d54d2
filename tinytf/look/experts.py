"""Which experts the tokens of a text go to, with which weights, and how evenly a text or a corpus loads them."""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import AddressError, UsageError
from tinytf.look.examples import BATCH, padded, run_windows, windows_of
from tinytf.parts.row import Step
from tinytf.report import About, Data, Progress, Report, plain, unheard
from tinytf.steps.operations.operation import ALONE
from tinytf.steps.table import StepTable, table_of
from tinytf.tables import Array
from tinytf.text.corpus import Corpus
from tinytf.text.stream import between_words
from tinytf.text_model import TextModel
from tinytf.trace.hooks import module_of
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class Load(Data):
    """How often tokens were sent to each expert of a layer: ``counts``, of ``tokens`` that go to some each.

    ``shares`` of all that was sent sum to 1, their ``entropy`` is in nats, and e^entropy is how many experts as busy as
    each other would have it: ``effective``.
    """

    ALSO: ClassVar = ("shares", "entropy", "effective", "unused")

    layer: int
    tokens: int
    counts: tuple[int, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        whole = max(1, sum(self.counts))
        return tuple(count / whole for count in self.counts)

    @property
    def entropy(self) -> float:
        return -math.fsum(share * math.log(share) for share in self.shares if share)

    @property
    def effective(self) -> float:
        return math.exp(self.entropy)

    @property
    def unused(self) -> int:
        """Experts that no token was sent to."""
        return self.counts.count(0)


@dataclass(frozen=True)
class Sent(Data):
    """Where one token goes in one layer: ``experts`` by falling weight."""

    layer: int
    position: int
    experts: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Check(Data):
    """Whether every token goes to as many experts as the configuration says: ``count``."""

    holds: bool
    tokens: int
    count: int


@dataclass(frozen=True)
class Experts(Report):
    """The weights ``routes`` of each layer with experts, (T, E), 0 where a token is not sent, and the load of the text.

    ``corpus`` is the load over the files that ``corpus_name`` says, where some were asked for.
    """

    KIND = "experts"
    EVENTS: ClassVar = {"tokens": "token", "routes": "route", "load": "load", "corpus": "corpus", "check": "check"}

    layers: tuple[int, ...]
    per_token: int
    routes: tuple[Tensor, ...]
    load: tuple[Load, ...]
    check: Check
    corpus: tuple[Load, ...] = ()
    corpus_name: str = ""

    @property
    def sent(self) -> Iterator[Sent]:
        """Every token in every layer."""
        for layer, routes in zip(self.layers, self.routes, strict=True):
            found = routes.topk(self.per_token)
            pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
            for position, (experts, weights) in enumerate(pairs):
                yield Sent(layer, position, tuple(experts), tuple(weights))

    def stored(self) -> list[Array]:
        """The weights of each layer, (T, E)."""
        each = zip(self.layers, self.routes, strict=True)
        return [Array.of(f"L{layer}.routes", ["token", "expert"], routes) for layer, routes in each]

    def fields(self) -> dict[str, Any]:
        return {
            **self.members("layers", "per_token"),
            "routes": [plain(one) for one in self.sent],
            **self.members("load", "corpus", "corpus_name", "check"),
        }


def _mixed(model: TextModel) -> tuple[int, ...]:
    config = model.config
    layers = tuple(layer for layer in range(config.n_layers) if config.at(layer).experts)
    if not layers:
        raise UsageError(
            f"{model.name} has no experts: every token goes through the same feed-forwards",
            "a mixture of experts is a Mixtral, say, or preset:mixtral-tiny",
        )
    return layers


def experts(model: TextModel, text: Text, *, layer: int | None = None) -> Experts:
    """Which experts each token of a text, or of its trace, goes to, in ``layer`` or in all layers that have some.

    Raises UsageError for a model without experts, AddressError for a layer without.
    """
    mixed = _mixed(model)
    if layer is not None and layer not in mixed:
        there = f"{mixed[0]} to {mixed[-1]}" if len(mixed) == mixed[-1] - mixed[0] + 1 else ", ".join(map(str, mixed))
        raise AddressError(f"there is no layer {layer} with experts", f"layers with experts: {there}")
    layers = mixed if layer is None else (layer,)
    trace: Trace = model.trace(text, layers=layers)
    table = trace.steps
    chosen = [trace.step(table.choice, one) != 0 for one in layers]
    count = model.config.experts_per_token
    each = torch.stack([one.sum(dim=-1) for one in chosen])
    return Experts(
        layers=layers,
        per_token=count,
        routes=tuple(trace.step(table.routes, one).detach().float().cpu() for one in layers),
        load=tuple(_load(n, len(one), one.sum(dim=0)) for n, one in zip(layers, chosen, strict=True)),
        check=Check(bool((each == count).all()), len(trace.tokens), count),
        about=About(model, trace.encoding),
    )


def _deciding(table: StepTable, layer: int) -> list[Step]:
    """The steps by which experts are chosen, each of the one before, the first of the router."""
    return [step for step in table.in_layer(layer) if step.is_choice]


def _load(layer: int, tokens: int, counts: Tensor) -> Load:
    return Load(layer, tokens, tuple(int(count) for count in counts))


@torch.no_grad()
def expert_load(
    model: TextModel,
    corpus: Corpus,
    *,
    layer: int | None = None,
    window: int | None = None,
    on_progress: Progress = unheard,
) -> tuple[Load, ...]:
    """How a corpus, of ``tinytf.text.corpus.find_files``, loads the experts of ``layer``, or of all that have some.

    It is read as a stream, in windows of ``window`` tokens (the context, or 128 if that is longer). Raises UsageError
    for a model without experts and for a window longer than the context.
    """
    layers = [one for one in _mixed(model) if layer in (None, one)]
    config, transformer, table = model.config, model.transformer, table_of(model.config)
    length = min(config.context, 128) if window is None else window
    if length > config.context:
        raise UsageError(f"a window of {length:,} tokens is more than the model's context of {config.context:,}")
    total = sum(file.paragraph_characters for file in corpus.files)

    def pieces() -> Iterator[tuple[str, bool]]:
        read = 0
        for text, ends in corpus.documents().pieces(between_words):
            yield text, ends
            read += len(text)
            on_progress(min(read, total), total)

    counts = {one: torch.zeros(config.experts, dtype=torch.int64) for one in layers}
    seen: dict[int, Tensor] = {}
    tokens = 0
    with ExitStack() as stack:
        stack.callback(transformer.train, transformer.training)
        transformer.eval()
        for one in layers:
            router = module_of(transformer, table.at(_deciding(table, one)[0].inputs[0], one), one)

            def hook(module: Any, args: Any, result: Tensor, number: int = one) -> None:
                seen[number] = result

            stack.callback(router.register_forward_hook(hook).remove)
        left = windows_of(model.tokenizer, pieces(), length, config.vocab_size)
        while batch := list(islice(left, BATCH)):
            ids = padded(batch)
            run_windows(transformer, ids, max(layers))
            own = torch.zeros(ids.shape, dtype=torch.bool)
            for row, one_window in enumerate(batch):
                own[row, one_window.own.start : one_window.own.stop] = True
            for one in layers:
                found = seen[one]
                for step in _deciding(table, one):
                    found = step.operation.run(module_of(transformer, step, one), ALONE, found)
                counts[one] += (found.cpu()[own] != 0).sum(dim=0)
            tokens += int(own.sum())
    return tuple(_load(one, tokens, counts[one]) for one in layers)
