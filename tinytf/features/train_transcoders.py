"""Train transcoders of all layers together, each alone or across layers, with BatchTopK (Bussmann et al. 2024).

A feature of layer l reads the input of its feed-forward. It writes that one's output; across layers, also those of the
layers above (Ameisen et al. 2025, "Circuit Tracing"). Shapes: B tokens of a batch, L layers, C width of the steps,
F features of a layer, n layers that a feature writes to.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinytf.bulk.passes import Passes, targets_of
from tinytf.bulk.windows import BATCH, Window, corpus_windows
from tinytf.cause.interventions.hooks import hidden_with
from tinytf.compare.measures import loss
from tinytf.errors import AddressError, TrainingError, UsageError
from tinytf.features.coder import SparseCoder
from tinytf.features.layouts import hook_name
from tinytf.features.place import Place, lens_name, place_at
from tinytf.features.train_sae import ADAM_EPS, AUXILIARY, HELD_OUT, MEASURED, shuffled
from tinytf.features.transcoders import TranscoderSet
from tinytf.model.transformer import Transformer
from tinytf.report import About, Data, Progress, Report, ignore_progress
from tinytf.sentences import percent, plural
from tinytf.steps.table import StepTable, table_of
from tinytf.tables import ColumnStyle
from tinytf.text.corpus import Corpus
from tinytf.text_model import TextModel
from tinytf.trace.address import parse_tensor
from tinytf.trace.hooks import module_of


@dataclass(frozen=True)
class TrainedLayer(Data):
    """The transcoder of a layer on held-out text: what it keeps of the variance of the step that it writes.

    ``l0`` is the mean number of active features of a token, and ``dead`` counts the features that were not active in
    the last tenth of the training.
    """

    COLUMNS: ClassVar = {
        "reads": ColumnStyle("reads"),
        "writes": ColumnStyle("writes"),
        "l0": ColumnStyle("active a token", "%.1f"),
        "explained_variance": ColumnStyle("explained variance", "%.3f", bar="ffn"),
        "dead": ColumnStyle("dead", "%.0f"),
    }

    reads: str
    writes: str
    l0: float
    explained_variance: float
    dead: int


@dataclass(frozen=True)
class TranscoderTraining(Report):
    """Trained transcoders, and how faithful they are on ``held_out`` tokens of text.

    ``loss`` is that of the model in nats a token, ``loss_replaced`` with every feed-forward replaced by its transcoder
    at once, and ``loss_zeroed`` with 0 there. Training took ``tokens`` in ``passes`` over the corpus.
    """

    KIND = "train_transcoders"
    EVENTS: ClassVar = {"layers": "layer"}
    ROWS: ClassVar = "layers"

    transcoders: TranscoderSet
    layers: tuple[TrainedLayer, ...]
    tokens: int
    passes: int
    batch: int
    lr: float
    seed: int
    held_out: int
    loss: float
    loss_replaced: float
    loss_zeroed: float
    stopped: bool = False
    folder: str = ""

    @property
    def loss_recovered(self) -> float | None:
        """(zeroed − replaced) ÷ (zeroed − plain): 1 if no loss is added; None where zeros add nothing."""
        added = self.loss_zeroed - self.loss
        return (self.loss_zeroed - self.loss_replaced) / added if added > 0 else None

    def in_a_sentence(self) -> str:
        """What the transcoders keep of the feed-forwards and of the loss on held-out text."""
        shares = [layer.explained_variance for layer in self.layers]
        kind = "cross-layer transcoders" if self.transcoders.crosses_layers else "transcoders"
        words = f"On held-out text, {plural(len(shares), kind.removesuffix('s'))} keep"
        words += f" {percent(max(0.0, min(shares)))} to {percent(max(0.0, *shares))} of the variance of what they write"
        recovered = self.loss_recovered
        share = None if recovered is None else min(1.0, max(0.0, recovered))
        return (
            f"{words}{'' if share is None else f'; with all of them the model recovers {percent(share)} of its loss'}."
        )

    def fields(self) -> dict[str, Any]:
        return {
            "transcoders": self.transcoders.to_dict(),
            **self.members("layers", "tokens", "passes", "batch", "lr", "seed", "held_out", "loss", "loss_replaced",
                           "loss_zeroed", "loss_recovered", "interrupted", "folder"),
        }  # fmt: skip


def read_by(table: StepTable, layer: int) -> str:
    """The address of the step that the feed-forward of a layer reads: its norm, or the stream where it has none."""
    name = table.feed_forward.name
    waiting, seen = [table.at(name, layer)], {name}
    while waiting:
        step = waiting.pop()
        for source, at in table.sources(step, layer):
            if at != layer or table.at(source, layer).role != table.feed_forward.role:
                return table.at(source, at).full_name(at)
            if source not in seen:
                seen.add(source)
                waiting.append(table.at(source, layer))
    raise AssertionError(name)


@dataclass
class Layer:
    """The parameters of a layer in training, for values times a scale; ``floor`` is the mean least active value."""

    encoder: nn.Parameter  # (C, F)
    bias: nn.Parameter  # (F,)
    decoder: nn.Parameter  # (F, n, C), each feature of length 1
    output_bias: nn.Parameter  # (C,)
    idle: Tensor  # (F,) tokens since each feature was last active
    floor: Tensor = field(default_factory=lambda: torch.zeros(()))

    @classmethod
    def of(cls, written: Tensor, features: int, n: int, generator: torch.Generator) -> "Layer":
        """A random layer; its output bias is the mean of ``written`` (B, C)."""
        width = written.shape[1]
        encoder = functional.normalize(torch.randn(features, width, generator=generator), dim=1).T
        decoder = functional.normalize(torch.randn(features, n * width, generator=generator), dim=1)
        tensors = (encoder, torch.zeros(features), decoder.unflatten(1, (n, width)), written.mean(0))
        parameters = [nn.Parameter(tensor.to(written).clone()) for tensor in tensors]
        return cls(parameters[0], parameters[1], parameters[2], parameters[3], written.new_zeros(features))

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [self.encoder, self.bias, self.decoder, self.output_bias]

    def activations(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Before and after keeping the B·k largest of a batch, if positive: both (B, F)."""
        pre = x @ self.encoder + self.bias
        least = pre.detach().flatten().topk(min(k * len(x), pre.numel()), sorted=False).values.min().clamp(min=0)
        self.floor = least if not self.floor else 0.99 * self.floor + 0.01 * least
        active = pre * (pre > least)
        self.idle += len(x)
        self.idle[(active > 0).any(0)] = 0
        return pre, active

    def revival(self, pre: Tensor, error: Tensor, dead_after: int) -> Tensor:
        """The share of the error (B, C) that the best of the dead features do not explain (Gao et al. 2024)."""
        dead = self.idle > dead_after
        if not bool(dead.any()):
            return error.new_zeros(())
        best = pre.masked_fill(~dead, -torch.inf).topk(max(1, min(error.shape[1] // 2, int(dead.sum()))), sorted=False)
        rebuilt = functional.embedding_bag(
            best.indices, self.decoder[:, 0], per_sample_weights=best.values.relu(), mode="sum"
        )
        return (error - rebuilt).square().sum() / error.square().sum().clamp_min(1e-30)

    @torch.no_grad()
    def normalise(self) -> None:
        self.decoder.copy_(functional.normalize(self.decoder.flatten(1), dim=1).view_as(self.decoder))


def rebuilt(layers: Sequence[Layer], active: Sequence[Tensor]) -> list[Tensor]:
    """What all layers write: (B, C) each."""
    outputs = [layer.output_bias.expand(len(active[0]), -1) for layer in layers]
    for number, (layer, values) in enumerate(zip(layers, active, strict=True)):
        for above in range(layer.decoder.shape[1]):
            outputs[number + above] = outputs[number + above] + values @ layer.decoder[:, above]
    return outputs


def train_transcoders(
    model: TextModel,
    corpus: Corpus,
    into: str,
    *,
    at: str | None = None,
    across: bool = False,
    features: int = 1024,
    k: int = 16,
    tokens: int = 1_000_000,
    batch: int = 512,
    lr: float | None = None,
    window: int | None = None,
    seed: int = 0,
    on_progress: Progress = ignore_progress,
) -> TranscoderTraining:
    """Train a transcoder of ``features`` for each layer that ``into`` names, such as ``L*.ffn``, all in one go.

    They write these steps, and read those of ``at`` in the same layers, by default what the feed-forward reads. With
    ``across`` a feature also writes to the layers above its own. ``k`` features a token are active on average: the k·B
    largest of a batch of B tokens. Afterwards a feature is active above the mean least of these, a threshold, so that a
    token does not depend on others. The other parameters, the split of the corpus and Ctrl-C are as in ``train_sae``.

    Raises UsageError for sizes that do not fit, for steps of different widths, and for a corpus too short for one batch
    or without a document to hold out; AddressError for steps that have no vector a token; TrainingError for a loss that
    is not finite.
    """
    table = table_of(model.config)
    places = list(_places(table, into, at))
    if not 0 < k <= features:
        raise UsageError(f"{k:,} active features of {features:,} do not fit", "k is at least 1, and at most all")
    if min(tokens, batch) < 1 or tokens < batch:
        raise UsageError(f"{tokens:,} tokens are not one batch of {batch:,}", "raise --tokens or lower --batch")
    if across and [write.layer for _, write in places] != list(range(model.config.n_layers)):
        raise UsageError("transcoders across layers need all layers", "such as --into 'L*.ffn'")
    train, held_out = corpus.split(HELD_OUT)
    if not len(held_out):
        raise UsageError(
            "the corpus is one document, and nothing of it can be held out", "separate two by a blank line"
        )
    lr = 1e-3 * math.sqrt(2**14 / features) if lr is None else lr
    generator, n_steps, passes = torch.Generator().manual_seed(seed), tokens // batch, 0

    def batches() -> Iterator[Tensor]:
        nonlocal passes
        while True:
            seen = 0
            windows = corpus_windows(model, train, window)
            values = _values(model.transformer, windows, [place for pair in places for place in pair])
            for seen, rows in enumerate(shuffled(values, batch, generator), 1):  # noqa: B007 - counts
                yield rows
            passes += 1
            if not seen:
                raise UsageError(f"the corpus has fewer tokens than one batch of {batch:,}", "lower --batch")

    fitting = _Fitting(features, k, n_steps, lr, tokens // 10, across, generator)
    fitting.fit(batches(), lambda done: on_progress(done * batch, n_steps * batch))
    transcoders = fitting.transcoders(f"{model.name} {into}", model.name, places, table)
    return _measured(
        model, corpus_windows(model, held_out, window), transcoders, places, fitting,
        tokens=fitting.done * batch, passes=passes + 1, batch=batch, lr=lr, seed=seed, stopped=fitting.done < n_steps,
    )  # fmt: skip


def _places(table: StepTable, into: str, at: str | None) -> Iterator[tuple[Place, Place]]:
    """Where the transcoder of each layer reads and writes."""
    address = parse_tensor(into, table)
    if address.step is None or address.layers is None or address.cell:
        raise AddressError(f"{into!r} is not a step of layers", "such as --into 'L*.ffn'")
    for layer in address.layers:
        if not table.has(address.step.name, layer):
            continue
        write = place_at(f"L{layer}.{address.step.name}", table, written=True)
        if at is None and write.name not in _ends(table, layer):
            raise UsageError(f"{write} is not what a feed-forward adds", "name what is read too, with --at")
        read = read_by(table, layer) if at is None else f"L{layer}.{_step_name(at, table)}"
        pair = place_at(read, table), write
        if pair[0].width(table.config) != write.width(table.config):
            raise UsageError(f"{pair[0]} and {write} have different widths", "transcoders are trained on equal ones")
        yield pair


def _ends(table: StepTable, layer: int) -> set[str]:
    """The steps from the output of the feed-forward up to the sum."""
    step = table.at(table.feed_forward.name, layer)
    return {step.name, *(later.name for later in table.to_stream(step, layer)[:-1])}


def _step_name(text: str, table: StepTable) -> str:
    address = parse_tensor(text, table)
    if address.step is None:
        raise AddressError(f"{text!r} names no step", "such as 'L*.norm2'")
    return address.step.name


def _values(model: Transformer, windows: Iterable[Window], places: Sequence[Place]) -> Iterator[Tensor]:
    """The values (N, 2·L, C) of the texts' own tokens at some places, some windows at a time."""
    remaining, device = iter(windows), next(model.parameters()).device
    names = [str(place) for place in places]
    passes = Passes(model, targets_of(names, model.config), torch.float32, every_token=True)
    while some := list(islice(remaining, BATCH)):
        with passes:
            rows = passes(some)
        yield torch.stack([rows[name] for name in names], dim=1).to(device)


class _Fitting:
    """Training on batches (B, 2·L, C), of what each layer reads and writes in turn."""

    def __init__(
        self, features: int, k: int, n_steps: int, lr: float, dead_after: int, across: bool, generator: torch.Generator
    ) -> None:
        self.features, self.k, self.n_steps, self.lr = features, k, n_steps, lr
        self.dead_after, self.across, self.generator = dead_after, across, generator
        self.layers: list[Layer] = []
        self.scales = torch.empty(0)  # (2·L,) by which what is read and written is multiplied
        self.done = 0

    def fit(self, batches: Iterable[Tensor], on_step: Callable[[int], None]) -> None:
        """Train for ``n_steps`` of Adam, or until an interrupt."""
        with suppress(KeyboardInterrupt):
            for number, values in enumerate(islice(batches, self.n_steps), 1):
                if not self.layers:
                    self._start(values)
                adam = self.adam
                adam.param_groups[0]["lr"] = self.lr * min(1.0, 5 * (self.n_steps - number + 1) / self.n_steps)
                value = self._loss(values * self.scales[:, None])
                if not bool(value.isfinite()):
                    raise TrainingError("the loss is not finite", "lower --lr")
                adam.zero_grad()
                value.backward()
                for layer in self.layers:
                    nn.utils.clip_grad_norm_(layer.parameters, 1.0)
                adam.step()
                for layer in self.layers:
                    layer.normalise()
                self.done = number
                on_step(number)
        if not self.done:
            raise KeyboardInterrupt

    def _start(self, values: Tensor) -> None:
        """Scales give each step a mean norm of √C; but what is written by one layer alone may differ from another's."""
        sizes = values.norm(dim=-1).mean(0)
        if not bool(sizes.all()):
            raise TrainingError("a step is 0 at every token", "take others with --into and --at")
        self.scales = values.shape[-1] ** 0.5 / sizes
        count = values.shape[1] // 2
        scaled = values * self.scales[:, None]
        self.layers = [
            Layer.of(scaled[:, 2 * n + 1], self.features, count - n if self.across else 1, self.generator)
            for n in range(count)
        ]
        parameters = [parameter for layer in self.layers for parameter in layer.parameters]
        self.adam = torch.optim.Adam(parameters, lr=self.lr, eps=ADAM_EPS)

    def _loss(self, values: Tensor) -> Tensor:
        """The share of the variance that is not explained, and of the errors by dead features, summed over layers."""
        pairs = [layer.activations(values[:, 2 * n], self.k) for n, layer in enumerate(self.layers)]
        total = values.new_zeros(())
        outputs = rebuilt(self.layers, [active for _, active in pairs])
        for n, (layer, (pre, _), output) in enumerate(zip(self.layers, pairs, outputs, strict=True)):
            written = values[:, 2 * n + 1]
            error = written - output
            total = total + error.square().sum() / (written - written.mean(0)).square().sum().clamp_min(1e-30)
            total = total + AUXILIARY * layer.revival(pre, error.detach(), self.dead_after)
        return total

    @torch.no_grad()
    def transcoders(
        self, name: str, model: str, places: Sequence[tuple[Place, Place]], table: StepTable
    ) -> TranscoderSet:
        """The transcoders of unscaled values: activations are such that each feature adds a vector of length 1.

        Across layers it is the vector of its own layer and those above, joined, before they are scaled.
        """
        coders, above = [], []
        for n, (layer, (read, write)) in enumerate(zip(self.layers, places, strict=True)):
            scales = self.scales[2 * n + 1 :: 2][: layer.decoder.shape[1]]
            directions = layer.decoder.detach() / scales[None, :, None]  # (F, n, C)
            size = 1 / scales[0] if not self.across else directions.flatten(1).norm(dim=1).mean()
            directions = directions / size
            reads, writes = (_name_of(place, table) for place in (read, write))
            coders.append(
                SparseCoder(
                    f"{name} {write.layer}", "circuit-tracer", "jumprelu",
                    layer.encoder.detach() * (self.scales[2 * n] * size), layer.bias.detach() * size,
                    directions[:, 0].contiguous(), layer.output_bias.detach() / scales[0],
                    reads, writes, threshold=(layer.floor * size).expand(self.features).clone(),
                    subtracts_bias=False, is_transcoder=True, trained_on=model,
                )
            )  # fmt: skip
            above.append(directions[:, 1:].contiguous())
        return TranscoderSet(name, "circuit-tracer", tuple(coders), tuple(above) if self.across else ())


def _name_of(place: Place, table: StepTable) -> str:
    """The address of a step that circuit-tracer's files name by its module; else TransformerLens' name."""
    return str(place) if hook_name(str(place)) != place.name else lens_name(place, table)


@contextmanager
def replacing(
    model: Transformer, transcoders: TranscoderSet, places: Sequence[tuple[Place, Place]], own: Sequence[int],
    *, zeros: bool = False,
) -> Iterator[None]:  # fmt: skip
    """Inside, what the transcoders write is replaced by their reconstruction of the same pass at the ``own`` tokens.

    Each reads the pass as it is with the layers below replaced. With ``zeros``, 0 is written instead.
    """
    table = table_of(model.config)
    read: dict[int, Tensor] = {}
    active: list[Tensor] = []

    def keep(number: int, module: nn.Module, args: Any, result: Tensor) -> None:
        read[number] = places[number][0].of_source(result, model.config)

    def write(number: int, module: nn.Module, args: Any, result: Tensor) -> Tensor:
        coder, changed = transcoders.coders[number], result.clone()
        active[number:] = [coder.encode(read[number])]
        output = coder.decode(active[number], read[number])
        if transcoders.crosses_layers:
            for below in range(number):
                output = output + active[below] @ transcoders.directions(below)[:, number - below]
        changed[:, own] = 0 if zeros else output[:, own].to(changed)
        return changed

    with ExitStack() as stack:
        for number, (reading, writing) in enumerate(places):
            source = parse_tensor(reading.source(model.config), table)
            assert source.step is not None
            module = module_of(
                model, table.at(source.step.name, (source.layers or (None,))[0]), (source.layers or (None,))[0]
            )
            stack.callback(module.register_forward_hook(partial(keep, number)).remove)
            module = module_of(model, table.at(writing.name, writing.layer), writing.layer)
            stack.callback(module.register_forward_hook(partial(write, number)).remove)
        yield


@torch.no_grad()
def _measured(
    model: TextModel, windows: Iterable[Window], transcoders: TranscoderSet, places: Sequence[tuple[Place, Place]],
    fitting: _Fitting, **more: Any,
) -> TranscoderTraining:  # fmt: skip
    """Measure on held-out windows, up to 8,192 tokens, or until an interrupt."""
    errors, actives, written = [], [], []
    losses, predicted, tokens = torch.zeros(3, dtype=torch.float64), 0, 0
    try:
        for window in windows:
            trace = model.trace_of(model.encode_ids(window.ids))
            own = list(window.own)
            reads = [read.value(trace)[own] for read, _ in places]
            active = [coder.encode(x) for coder, x in zip(transcoders.coders, reads, strict=True)]
            outputs = [coder.decode(a, x) for coder, a, x in zip(transcoders.coders, active, reads, strict=True)]
            for below, above in ((b, a) for a in range(len(places)) for b in range(a) if transcoders.crosses_layers):
                outputs[above] = outputs[above] + active[below] @ transcoders.directions(below)[:, above - below]
            values = torch.stack([write.value(trace)[own] for _, write in places]).double()
            written.append(values)
            errors.append(values - torch.stack(outputs).double())
            actives.append(torch.stack([(a > 0).sum(1) for a in active]))
            now = [loss(trace.model, trace.encoding, trace.last_hidden)]
            for zeros in (False, True):
                with replacing(model.transformer, transcoders, places, own, zeros=zeros):
                    now.append(loss(trace.model, trace.encoding, hidden_with(trace, [])))
            if (known := [value for value in now if value is not None]) == now:  # a window of one token predicts none
                losses += torch.tensor(known, dtype=torch.float64) * (len(window.ids) - 1)
                predicted += len(window.ids) - 1
            tokens += len(own)
            if tokens >= MEASURED:
                break
    except KeyboardInterrupt:
        if not tokens:
            raise
    y, error, counts = torch.cat(written, 1), torch.cat(errors, 1), torch.cat(actives, 1).double()
    variance = (y - y.mean(1, keepdim=True)).square().sum((1, 2))
    shares = (1 - error.square().sum((1, 2)) / variance).tolist()
    layers = tuple(
        TrainedLayer(str(read), str(write), float(count), share, int((layer.idle > fitting.dead_after).sum()))
        for (read, write), count, share, layer in zip(places, counts.mean(1), shares, fitting.layers, strict=True)
    )
    plain, replaced, zeroed = (losses / max(1, predicted)).tolist()
    return TranscoderTraining(
        transcoders=transcoders, layers=layers, held_out=tokens, loss=plain, loss_replaced=replaced,
        loss_zeroed=zeroed, about=About(model), **more,
    )  # fmt: skip
