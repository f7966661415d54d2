"""Train a top-k sparse autoencoder on a step of a model, by "Scaling and evaluating sparse autoencoders", Gao 2024.

Shapes: B tokens of a batch, C width of the step, F features, K active ones of a token.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinytf.bulk.folder import BATCH as _READ
from tinytf.bulk.folder import RecordedCorpus
from tinytf.bulk.windows import Window, corpus_windows, recorded_windows
from tinytf.errors import TrainingError, UsageError
from tinytf.features.coder import SparseCoder
from tinytf.features.fidelity import Fidelity, Reconstructed, fidelity, reconstructed
from tinytf.features.place import Place, lens_name, own_values, place_at
from tinytf.report import About, Data, Progress, Report, ignore_progress
from tinytf.sentences import percent, plural, several
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text.corpus import Corpus
from tinytf.text_model import TextModel

AUXILIARY = 1 / 32  # the weight of the loss of dead features, and:
ADAM_EPS = 6.25e-10  # Gao et al., appendix A
_BUFFER = 32  # batches that are shuffled together
HELD_OUT = 0.05  # of the characters of the corpus
MEASURED = 8192  # tokens of it, at most
_POINTS = 200  # of the curve
ONE_DOCUMENT = "the corpus is one document, and nothing of it can be held out"


@dataclass(frozen=True)
class SaeStep(Data):
    """The training after ``tokens``: ``unexplained`` variance of the batch, and the share of dead features."""

    tokens: int
    unexplained: float
    dead: float


@dataclass(frozen=True)
class SaeTraining(Report):
    """A trained sparse autoencoder, and how faithful it is on ``held_out`` text.

    ``tokens`` is how many it was trained on, in ``passes`` over the corpus. ``dead`` counts the features that were not
    active in the last ``dead_after`` of them. ``steps`` is the curve.
    """

    KIND = "train_sae"
    EVENTS: ClassVar = {"steps": "step", "held_out": "held_out"}

    coder: SparseCoder
    at: str
    tokens: int
    passes: int
    batch: int
    lr: float
    seed: int
    dead: int
    dead_after: int
    held_out: Fidelity
    steps: tuple[SaeStep, ...]
    stopped: bool = False
    folder: str = ""

    def in_a_sentence(self) -> str:
        """What the features keep of the step on held-out text, and of the loss."""
        share, recovered = self.held_out.explained_variance, self.held_out.loss_recovered
        kept = "" if share is None else f" {percent(max(0.0, share))} of the variance of {self.at} on held-out text"
        share = None if recovered is None else min(1.0, max(0.0, recovered))
        loss = "" if share is None else f"; with them the model recovers {percent(share)} of its loss"
        of = f"{several(self.dead, 'are')} dead, of {plural(self.coder.n_features, 'feature')}"
        dead = f"; {of}" if self.tokens > self.dead_after else ""
        active = f"{self.held_out.l0:.3g}"
        words = "1 active feature a token keeps" if active == "1" else f"{active} active features a token keep"
        return f"{words}{kept}{loss}{dead}."

    def fields(self) -> dict[str, Any]:
        names = ("at", "tokens", "passes", "batch", "lr", "seed", "dead", "dead_after", "held_out", "steps",
                 "interrupted", "folder")  # fmt: skip
        return {"sae": self.coder.to_dict(), **self.members(*names)}

    def stored(self) -> list[Array]:
        """The weights under SAELens' names."""
        return self.coder.arrays()


@dataclass
class Weights:
    """The parameters in training, for activations times ``scale``, which have a mean norm of √C."""

    encoder: nn.Parameter  # (C, F)
    bias: nn.Parameter  # (F,)
    decoder: nn.Parameter  # (F, C), rows of length 1
    output_bias: nn.Parameter  # (C,)
    scale: float
    idle: Tensor  # (F,) tokens since each feature was last active
    done: int = 0
    steps: list[SaeStep] = field(default_factory=list)

    @classmethod
    def of(cls, sample: Tensor, n_features: int, generator: torch.Generator) -> "Weights":
        """The decoder starts as the transposed encoder with rows of length 1, the output bias as the sample's mean.

        Raises TrainingError for a sample of zeros.
        """
        size = float(sample.norm(dim=-1).mean())
        if not size:
            raise TrainingError("the step is 0 at every token", "take another one with --at")
        scale = sample.shape[1] ** 0.5 / size
        rows = torch.randn(n_features, sample.shape[1], generator=generator).to(sample)
        decoder = functional.normalize(rows, dim=-1)
        zeros = sample.new_zeros(n_features)
        encoder, output_bias = decoder.T.contiguous().clone(), sample.mean(0) * scale
        tensors = [nn.Parameter(tensor) for tensor in (encoder, zeros, decoder, output_bias)]
        return cls(tensors[0], tensors[1], tensors[2], tensors[3], scale, zeros.clone())

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [self.encoder, self.bias, self.decoder, self.output_bias]

    def loss(self, x: Tensor, k: int, dead_after: int) -> tuple[Tensor, Tensor]:
        """The loss of a batch (B, C), and the share of its variance that is not explained.

        It is that share, and for dead features the share of the error that the best of them do not explain.
        """
        pre = (x - self.output_bias) @ self.encoder + self.bias  # (B, F)
        values, indices = pre.topk(k, sorted=False)
        error = x - self.output_bias - self._sum(values, indices)
        unexplained = error.square().sum() / (x - x.mean(0)).square().sum().clamp_min(1e-30)
        self.idle += len(x)
        self.idle[indices[values > 0].unique()] = 0
        dead = self.idle > dead_after
        if not bool(dead.any()):
            return unexplained, unexplained
        auxiliary_k = min(x.shape[1] // 2, int(dead.sum()))
        best = pre.masked_fill(~dead, -torch.inf).topk(max(1, auxiliary_k), sorted=False)
        error = error.detach()
        rest = (error - self._sum(*best)).square().sum() / error.square().sum().clamp_min(1e-30)
        return unexplained + AUXILIARY * rest, unexplained

    def _sum(self, values: Tensor, indices: Tensor) -> Tensor:
        """Σ activation · direction of some features of each token, (B, K) → (B, C)."""
        return functional.embedding_bag(indices, self.decoder, per_sample_weights=values.relu(), mode="sum")

    @torch.no_grad()
    def forget_lengths(self) -> None:
        """Take out the part of the gradient along each direction, which would change its length alone."""
        assert self.decoder.grad is not None
        self.decoder.grad -= (self.decoder.grad * self.decoder).sum(-1, keepdim=True) * self.decoder

    @torch.no_grad()
    def normalise(self) -> None:
        self.decoder.copy_(functional.normalize(self.decoder, dim=-1))

    def coder(self, name: str, hook: str, k: int) -> SparseCoder:
        """The autoencoder of unscaled activations: top-k is linear in a scale, so both biases are divided by it."""
        self.normalise()  # an interrupt may have come before it
        encoder, bias, decoder, output_bias = (parameter.detach().clone() for parameter in self.parameters)
        biases = bias / self.scale, output_bias / self.scale
        return SparseCoder(name, "SAELens", "topk", encoder, biases[0], decoder, biases[1], hook, hook, k)


def shuffled(values: Iterable[Tensor], batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches (B, C) of a stream of activations, shuffled within a buffer; a last incomplete one is dropped."""
    waiting: list[Tensor] = []

    def drawn(share: float) -> Iterator[Tensor]:
        """Yield batches of that share of what waits, in random order; the rest goes on waiting."""
        pool = torch.cat(waiting)
        order = torch.randperm(len(pool), generator=generator).to(pool.device)
        count = int(len(pool) * share) // batch * batch
        waiting[:] = [pool[order[count:]]]
        for start in range(0, count, batch):
            yield pool[order[start : start + batch]]

    for part in values:
        waiting.append(part)
        if sum(map(len, waiting)) >= _BUFFER * batch:
            yield from drawn(0.5)
    if waiting:
        yield from drawn(1.0)


def fit(
    batches: Iterable[Tensor], n_steps: int, features: int, k: int, *, lr: float, dead_after: int,
    generator: torch.Generator, on_step: Callable[[int], None] = lambda done: None,
) -> "Weights":  # fmt: skip
    """Train on batches (B, C) of activations, from any source, for ``n_steps`` of Adam, or until an interrupt.

    Raises TrainingError if the loss is not finite.
    """
    weights: Weights | None = None
    with suppress(KeyboardInterrupt):
        for number, values in enumerate(islice(batches, n_steps), 1):
            if weights is None:
                weights = Weights.of(values.float(), features, generator)
                adam = torch.optim.Adam(weights.parameters, lr=lr, eps=ADAM_EPS)
            adam.param_groups[0]["lr"] = lr * min(1.0, 5 * (n_steps - number + 1) / n_steps)
            _step(weights, adam, values.float() * weights.scale, k, dead_after, n_steps)
            on_step(number)
    if weights is None or not weights.done:
        raise KeyboardInterrupt
    return weights


def _step(weights: Weights, adam: torch.optim.Adam, x: Tensor, k: int, dead_after: int, of: int) -> None:
    """One step of Adam on the decoder with rows of length 1, and now and then a point of the curve."""
    loss, unexplained = weights.loss(x, k, dead_after)
    if not bool(loss.isfinite()):
        raise TrainingError("the loss is not finite", "lower --lr")
    adam.zero_grad()
    loss.backward()
    weights.forget_lengths()
    nn.utils.clip_grad_norm_(weights.parameters, 1.0)
    adam.step()
    weights.normalise()
    weights.done += 1
    if weights.done in (1, of) or weights.done % max(1, of // _POINTS) == 0:
        dead = float((weights.idle > dead_after).float().mean())
        weights.steps.append(SaeStep(weights.done * len(x), unexplained.item(), dead))


def train_sae(
    model: TextModel,
    corpus: Corpus | RecordedCorpus,
    at: str,
    *,
    features: int = 1024,
    k: int = 16,
    tokens: int = 1_000_000,
    batch: int = 512,
    lr: float | None = None,
    dead_after: int | None = None,
    window: int | None = None,
    seed: int = 0,
    on_progress: Progress = ignore_progress,
) -> SaeTraining:
    """Train a sparse autoencoder of ``features``, of which ``k`` are active, on the step ``at`` of a model.

    The activations are those of the corpus, of ``tinytf.text.corpus.find_files``, read as a stream as often as
    ``tokens`` need; the last 5 % of its documents are held out and measured. Those of a recorded corpus are read, and
    the documents with its last 5 % of tokens held out. ``lr`` is by default 1e-3 · √(2¹⁴ ÷ features), five times that
    of Gao et al., whose batches are 200 times as large; it falls to 0 over the last fifth. A feature is dead after
    ``dead_after`` tokens without activity, by default a tenth of all. An interrupt ends the training and keeps what was
    learned.

    Raises UsageError for sizes that do not fit, for a corpus too short for one batch, and for one recorded with other
    weights, without the step, or of last tokens; AddressError for a step that has no vector a token; TrainingError if
    the loss is not finite.
    """
    place = place_at(at, table_of(model.config), written=True)
    if not 0 < k <= features:
        raise UsageError(f"{k:,} active features of {features:,} do not fit", "k is at least 1, and at most all")
    if min(tokens, batch) < 1 or tokens < batch:
        raise UsageError(f"{tokens:,} tokens are not one batch of {batch:,}", "raise --tokens or lower --batch")
    if isinstance(corpus, RecordedCorpus):
        own, held_out = _recorded(model, corpus, place, window)
    else:
        own, held_out = _run(model, corpus, place, window)
    lr = 1e-3 * math.sqrt(2**14 / features) if lr is None else lr
    dead_after = tokens // 10 if dead_after is None else dead_after
    generator, n_steps, passes = torch.Generator().manual_seed(seed), tokens // batch, 0

    def batches() -> Iterator[Tensor]:
        nonlocal passes
        while True:
            seen = 0
            for seen, values in enumerate(shuffled(own(), batch, generator), 1):  # noqa: B007 - counts
                yield values
            passes += 1
            if not seen:
                raise UsageError(f"the corpus has fewer tokens than one batch of {batch:,}", "lower --batch")

    fitted = fit(batches(), n_steps, features, k, lr=lr, dead_after=dead_after, generator=generator,
                 on_step=lambda done: on_progress(done * batch, n_steps * batch))  # fmt: skip
    coder = fitted.coder(f"{model.name} {place}", lens_name(place, table_of(model.config)), k)
    return SaeTraining(
        coder=coder,
        at=str(place),
        tokens=fitted.done * batch,
        passes=passes + 1,
        batch=batch,
        lr=lr,
        seed=seed,
        dead=int((fitted.idle > dead_after).sum()),
        dead_after=dead_after,
        held_out=measured(model, held_out, coder, place),
        steps=tuple(fitted.steps),
        stopped=fitted.done < n_steps,
        about=About(model),
    )


def _run(
    model: TextModel, corpus: Corpus, place: Place, window: int | None
) -> tuple[Callable[[], Iterator[Tensor]], Iterator[Window]]:
    """What a pass over the documents to train on yields, and the windows of those held out."""
    train, held_out = corpus.split(HELD_OUT)
    if not len(held_out):
        raise UsageError(ONE_DOCUMENT, "separate two by a blank line")
    return (
        lambda: own_values(model.transformer, corpus_windows(model, train, window), place),
        corpus_windows(model, held_out, window),
    )


def _recorded(
    model: TextModel, corpus: RecordedCorpus, place: Place, window: int | None
) -> tuple[Callable[[], Iterator[Tensor]], Iterator[Window]]:
    """Like ``_run``, from a recording; a document that is nearly all of it is cut between tokens."""
    corpus.require_model(model.transformer, model.name, window)
    if not corpus.every_token:
        raise UsageError(f"{corpus.folder} holds only the last token of each document", "record it without --last")
    step, device = corpus.at(str(place)), next(model.transformer.parameters()).device
    share = int(len(corpus) * (1 - HELD_OUT))
    border = bisect_left(corpus.documents, corpus.documents[share]) or share
    starts = range(0, border, _READ)
    return (
        lambda: (step[start : min(start + _READ, border)].to(device) for start in starts),
        recorded_windows(corpus, model.tokenizer, border, model.config.start_id),
    )


def measured(model: TextModel, windows: Iterable[Window], coder: SparseCoder, place: Place) -> Fidelity:
    """How faithful a coder is over windows of held-out text, up to 8,192 tokens, or until an interrupt.

    An interrupt in the first window waits for its end, so that what was learned is never lost.
    """
    texts, tokens = [], 0
    for window in windows:
        try:
            texts.append(_reconstructed(model, window, coder, place))
        except KeyboardInterrupt:
            if not texts:
                texts.append(_reconstructed(model, window, coder, place))
            break
        tokens += len(window.own)
        if tokens >= MEASURED:
            break
    return fidelity(texts)


def _reconstructed(model: TextModel, window: Window, coder: SparseCoder, place: Place) -> Reconstructed:
    bound = window.read_by(model)
    trace = bound.trace_of(model.encode_ids(window.ids), layers=[place.layer])
    return reconstructed(bound, trace, coder, place, place, window.own)
