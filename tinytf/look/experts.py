"""The routing of tokens to experts: which experts, with which weights, and how evenly a text or corpus loads them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.bulk.windows import corpus_windows, own_mask, run_all
from tinytf.config import ModelConfig
from tinytf.errors import AddressError, UsageError
from tinytf.model.transformer import Transformer, evaluating
from tinytf.parts.row import Step
from tinytf.report import About, Data, Progress, Report, ignore_progress, plain
from tinytf.sentences import percent
from tinytf.steps.operations.operation import ALONE
from tinytf.steps.table import StepTable, table_of
from tinytf.tables import Array
from tinytf.text.corpus import Corpus
from tinytf.text_model import TextModel
from tinytf.trace.hooks import module_of
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class Load(Data):
    """The load of a layer's experts: ``counts`` are how many of ``tokens`` tokens were routed to each.

    ``shares`` of all routes sum to 1, and their ``entropy`` is in nats. ``effective`` is e^entropy, the number of
    equally busy experts with the same entropy.
    """

    ALSO: ClassVar = ("shares", "entropy", "effective", "unused")

    layer: int
    tokens: int
    counts: tuple[int, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        total = max(1, sum(self.counts))
        return tuple(count / total for count in self.counts)

    @property
    def entropy(self) -> float:
        return -math.fsum(share * math.log(share) for share in self.shares if share)

    @property
    def effective(self) -> float:
        return math.exp(self.entropy)

    @property
    def unused(self) -> int:
        """The number of experts that no token was routed to."""
        return self.counts.count(0)


@dataclass(frozen=True)
class Sent(Data):
    """The routing of one token in one layer: ``experts`` by falling weight."""

    layer: int
    position: int
    experts: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Check(Data):
    """The check that every token is routed to ``count`` experts, as the configuration says."""

    holds: bool
    tokens: int
    count: int


@dataclass(frozen=True)
class Experts(Report):
    """The weights ``routes`` of each layer with experts, (T, E), 0 where a token is not routed, and the text's load.

    ``corpus`` is the load over the files of ``corpus_name``, if any were requested.
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
        """The routing of every token in every layer."""
        for layer, routes in zip(self.layers, self.routes, strict=True):
            top = routes.topk(self.per_token)
            pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            for position, (experts, weights) in enumerate(pairs):
                yield Sent(layer, position, tuple(experts), tuple(weights))

    def in_a_sentence(self) -> str:
        """The expert with the largest share of a layer's routes, and the share of each if all were equally busy."""
        busiest = max(self.corpus or self.load, key=lambda load: max(load.shares))
        share, even = max(busiest.shares), percent(1 / len(busiest.shares))
        expert = f"Expert {busiest.shares.index(share)} of layer {busiest.layer}"
        return f"{expert} is the busiest: {percent(share)} of its layer's choices, where {even} would be even."

    def stored(self) -> list[Array]:
        """The weights of each layer, (T, E)."""
        by_layer = zip(self.layers, self.routes, strict=True)
        return [Array.of(f"L{layer}.routes", ["token", "expert"], routes) for layer, routes in by_layer]

    def fields(self) -> dict[str, Any]:
        return {
            **self.members("layers", "per_token"),
            "routes": [plain(sent) for sent in self.sent],
            **self.members("load", "corpus", "corpus_name", "check"),
        }


def expert_layers(config: ModelConfig) -> tuple[int, ...]:
    """The layers with experts."""
    return tuple(layer for layer in range(config.n_layers) if config.at(layer).experts)


def _expert_layers(model: TextModel) -> tuple[int, ...]:
    layers = expert_layers(model.config)
    if not layers:
        raise UsageError(
            f"{model.name} has no experts: every token goes through the same feed-forwards",
            "name a mixture of experts, such as preset:mixtral-tiny",
        )
    return layers


def experts(model: TextModel, text: Text, *, layer: int | None = None) -> Experts:
    """The experts of each token of a text, or of its trace, in ``layer`` or in all layers with experts.

    Raises UsageError for a model without experts, AddressError for a layer without experts.
    """
    every = _expert_layers(model)
    if layer is not None and layer not in every:
        span = f"{every[0]} to {every[-1]}" if len(every) == every[-1] - every[0] + 1 else ", ".join(map(str, every))
        raise AddressError(f"there is no layer {layer} with experts", f"layers with experts: {span}")
    layers = every if layer is None else (layer,)
    trace: Trace = model.trace(text, layers=layers)
    table = trace.steps
    chosen = [trace.step(table.choice, n) != 0 for n in layers]
    count = model.config.experts_per_token
    per_token = torch.stack([mask.sum(dim=-1) for mask in chosen])
    return Experts(
        layers=layers,
        per_token=count,
        routes=tuple(trace.step(table.routes, n).detach().float().cpu() for n in layers),
        load=tuple(_load(n, len(mask), mask.sum(dim=0)) for n, mask in zip(layers, chosen, strict=True)),
        check=Check(bool((per_token == count).all()), len(trace.tokens), count),
        about=About(model, trace.encoding),
    )


def _choice_steps(table: StepTable, layer: int) -> list[Step]:
    """The steps that choose experts; each reads the one before, the first reads the router."""
    return [step for step in table.in_layer(layer) if step.is_choice and step.role == "ffn"]


def _load(layer: int, tokens: int, counts: Tensor) -> Load:
    return Load(layer, tokens, tuple(int(count) for count in counts))


@torch.no_grad()
def expert_load(
    model: TextModel,
    corpus: Corpus,
    *,
    layer: int | None = None,
    window: int | None = None,
    on_progress: Progress = ignore_progress,
) -> tuple[Load, ...]:
    """The load of the experts of ``layer``, or of all layers with experts, over a corpus of ``find_files``.

    The corpus is read as a stream, in windows of ``window`` tokens (by default the context, at most 128). Raises
    UsageError for a model without experts and for a window longer than the context.
    """
    layers = [n for n in _expert_layers(model) if layer in (None, n)]
    config, transformer = model.config, model.transformer
    windows = corpus_windows(model, corpus.documents(), window, on_progress)
    counts = {n: torch.zeros(config.experts, dtype=torch.int64) for n in layers}
    tokens = 0
    with evaluating(transformer), routers(transformer, layers) as routed:
        for batch, ids in run_all(transformer, windows, max(layers)):
            is_own = own_mask(batch, ids)
            for n in layers:
                counts[n] += chosen_experts(transformer, n, routed[n]).cpu()[is_own].sum(dim=0)
            tokens += int(is_own.sum())
    return tuple(_load(n, tokens, counts[n]) for n in layers)


@contextmanager
def routers(model: Transformer, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """What the router of each layer says in the latest forward pass in this context, (B, T, E)."""
    table, routed = table_of(model.config), dict[int, Tensor]()
    with ExitStack() as stack:
        for layer in layers:
            router = module_of(model, table.at(_choice_steps(table, layer)[0].inputs[0], layer), layer)

            def hook(module: Any, args: Any, result: Tensor, layer: int = layer) -> None:
                routed[layer] = result

            stack.callback(router.register_forward_hook(hook).remove)
        yield routed


@torch.no_grad()
def chosen_experts(model: Transformer, layer: int, routed: Tensor) -> Tensor:
    """Whether each token goes to each expert (…, E), by what the router says."""
    table, choice = table_of(model.config), routed
    for step in _choice_steps(table, layer):
        choice = step.operation.run(module_of(model, step, layer), ALONE, choice)
    return choice != 0
