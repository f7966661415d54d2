"""Train a crosscoder between two models, such as two checkpoints of a run: what did training change?

Lindsey et al. 2024, "Sparse Crosscoders for Cross-Layer Features and Model Diffing": f = ReLU(Σ_m W_enc^m a^m + b) is
shared, each model is rebuilt as W_dec^m f + b^m, and the loss is Σ_m ‖a^m − â^m‖² + λ Σ_i f_i Σ_m ‖W_dec,i^m‖.

Shapes: B tokens of a batch, N held-out tokens, 2 models, C width of the step, F features.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinytf.bulk.passes import Passes, targets_of
from tinytf.bulk.windows import BATCH, Window, corpus_windows
from tinytf.compare.alignment import same_vocabulary
from tinytf.errors import TrainingError, UsageError
from tinytf.features.place import Place, place_at
from tinytf.features.train_sae import HELD_OUT, MEASURED, ONE_DOCUMENT, shuffled
from tinytf.files import to_json
from tinytf.outputs import write_output
from tinytf.report import About, Data, Progress, Report, ignore_progress, plain
from tinytf.sentences import percent, plural
from tinytf.steps.table import table_of
from tinytf.tables import Array, ColumnStyle
from tinytf.tensor_file import safetensors
from tinytf.text.corpus import Corpus
from tinytf.text_model import TextModel

EXCLUSIVE = 0.1
"""A feature is one model's alone where the other's decoder has less than this share of both norms."""
SAME_DIRECTION = 0.9
"""A feature of both models has turned where the cosine of its two directions is below this.

What one model adds at the tokens of a feature that both have, such as a vector at one token, takes no feature of its
own: ‖d + v‖ ≤ ‖d‖ + ‖v‖, so a turned direction costs less.
"""
SPARSITY = 2.0
"""The default λ, for activations of mean norm √C."""
_START = 0.1  # the norm of a direction at first
_WARM = 0.05  # of the steps, over which λ rises
_CONTEXT = (6, 3)  # tokens of an example before and after the most active one


@dataclass(frozen=True)
class CrossFeature(Data):
    """A feature of both models, active in a share ``active`` of held-out tokens.

    ``relative`` is ‖decoder of the second‖ ÷ (‖that of the first‖ + ‖that of the second‖): 0 is a feature of the first
    model alone, 1 of the second alone. ``cosine`` is that of both directions. ``found_in`` is a model's name, "both",
    or "both, turned" for two directions below a cosine of ``SAME_DIRECTION``. ``examples`` are the tokens where it is
    most active, in << >>.
    """

    COLUMNS: ClassVar = {
        "feature": ColumnStyle("feature", "%d", "right"),
        "found_in": ColumnStyle("in"),
        "relative": ColumnStyle("relative norm", "%.3f", bar="ffn"),
        "cosine": ColumnStyle("cosine", "%+.2f", drop=2),
        "active": ColumnStyle("active", lambda share: f"{100 * share:.2g} %", "right", drop=1),
        "examples": ColumnStyle("most active", lambda texts: texts[0] if texts else "", shrink=16),
    }

    feature: int
    found_in: str
    relative: float
    cosine: float
    active: float
    examples: tuple[str, ...]


@dataclass(frozen=True)
class CrosscoderTraining(Report):
    """A crosscoder of the step ``at`` of two models, the first of which is ``versus`` and the second the model itself.

    ``counts`` are the features active on ``held_out`` tokens that the first has alone, both have in one direction, both
    have in two, and the second has alone; ``features`` are the most active of each. ``explained`` is the share of each
    model's variance that is rebuilt there, ``l0`` the mean number of active features of a token. ``encoder`` (2, C, F),
    ``bias`` (F,), ``decoder`` (F, 2, C) and ``output_bias`` (2, C) are for unscaled values.
    """

    KIND = "train_crosscoder"
    EVENTS: ClassVar = {"features": "feature"}
    ROWS: ClassVar = "features"

    at: str
    versus: str
    counts: tuple[int, int, int, int]
    features: tuple[CrossFeature, ...]
    explained: tuple[float, float]
    l0: float
    held_out: int
    tokens: int
    batch: int
    lr: float
    sparsity: float
    seed: int
    encoder: Tensor
    bias: Tensor
    decoder: Tensor
    output_bias: Tensor
    stopped: bool = False

    def in_a_sentence(self) -> str:
        """How many features one of the models has alone."""
        assert self.about is not None
        first, both, turned, second = self.counts
        names = _names(self.versus, self.about.model.name)
        kept = " and ".join(percent(max(0.0, share)) for share in self.explained)
        active = plural(sum(self.counts), "active feature")
        return (
            f"Of {active} of {self.at}, {first:,} are of {names[0]} alone, {second:,} of {names[1]} alone, {both:,} of "
            f"both, and {turned:,} of both in two directions; they keep {kept} of the variance."
        )

    def fields(self) -> dict[str, Any]:
        names = ("at", "versus", "explained", "l0", "held_out", "tokens", "batch", "lr", "sparsity", "seed")
        counts = dict(zip(("first", "both", "turned", "second"), self.counts, strict=True))
        return {**self.members(*names), "counts": counts, **self.members("interrupted", "features")}

    def metadata(self) -> dict[str, Any]:
        """As of every report, and what ``open_crosscoder`` needs: the step and the other model."""
        return {**super().metadata(), **self.members("at", "versus")}

    def save(self, path: str | Path) -> None:
        """Write the file of tensors that ``open_crosscoder`` opens, as ``tinytf train-sae -o FILE.safetensors`` does.

        Raises UsageError for another ending, OSError if it cannot be written.
        """
        path = Path(path)
        if path.suffix.lower() != ".safetensors":
            raise UsageError(f"{path.name} is no file of tensors", "name it FILE.safetensors")
        write_output(path, safetensors(self.stored(), {"tinytf": to_json(plain(self.metadata())).decode("utf-8")}))

    def stored(self) -> list[Array]:
        axes = {
            "encoder": ("model", "width", "feature"), "bias": ("feature",), "decoder": ("feature", "model", "width"),
            "output_bias": ("model", "width"),
        }  # fmt: skip
        return [Array.of(name, axes[name], getattr(self, name)) for name in axes]


class _Crosscoder(nn.Module):
    """The parameters, for values times ``scales`` (2,), which give each model a mean norm of √C.

    Both models start alike, so what differs afterwards is theirs.
    """

    def __init__(self, sample: Tensor, n_features: int, generator: torch.Generator) -> None:
        super().__init__()
        sizes = sample.norm(dim=-1).mean(0)
        if not bool(sizes.all()):
            raise TrainingError("the step is 0 at every token", "take another one with --at")
        width = sample.shape[-1]
        self.scales = width**0.5 / sizes
        rows = functional.normalize(torch.randn(n_features, width, generator=generator).to(sample), dim=-1)
        self.decoder = nn.Parameter(_START * torch.stack((rows, rows), dim=1))  # (F, 2, C)
        self.encoder = nn.Parameter(_START * torch.stack((rows.T, rows.T)))  # (2, C, F)
        self.bias = nn.Parameter(sample.new_zeros(n_features))
        self.output_bias = nn.Parameter(sample.mean(0) * self.scales[:, None])  # (2, C)

    def activations(self, x: Tensor) -> Tensor:
        """f (B, F) of scaled values (B, 2, C)."""
        return (torch.einsum("bmc,mcf->bf", x - self.output_bias, self.encoder) + self.bias).relu()

    def rebuilt(self, active: Tensor) -> Tensor:
        return torch.einsum("bf,fmc->bmc", active, self.decoder) + self.output_bias

    def loss(self, x: Tensor, sparsity: float) -> Tensor:
        active = self.activations(x)
        error = (x - self.rebuilt(active)).square().sum((1, 2)).mean()
        return error + sparsity * (active @ self.decoder.norm(dim=-1).sum(-1)).mean()


def train_crosscoder(
    model: TextModel,
    versus: TextModel,
    corpus: Corpus,
    at: str,
    *,
    features: int = 1024,
    sparsity: float = SPARSITY,
    tokens: int = 1_000_000,
    batch: int = 512,
    lr: float = 1e-3,
    window: int | None = None,
    seed: int = 0,
    top: int = 6,
    on_progress: Progress = ignore_progress,
) -> CrosscoderTraining:
    """Train one crosscoder on the step ``at`` of ``versus`` and of ``model``, such as two checkpoints of a run.

    Each model's activations are scaled to a mean norm of √C, so that a stream that grew as a whole makes no feature
    the second's. ``sparsity`` is λ, which rises over the first twentieth of the steps; ``lr`` falls to 0 over the last
    fifth. ``top`` features of each kind are listed. Corpus, split and Ctrl-C are as in ``train_sae``.

    Raises UsageError for models with other vocabularies or widths of the step, and for a corpus too short for a batch
    or without a document to hold out; AddressError as ``train_sae``; TrainingError for a loss that is not finite.
    """
    models = (versus, model)
    places = [place_at(at, table_of(one.config)) for one in models]
    widths = [place.width(one.config) for place, one in zip(places, models, strict=True)]
    if widths[0] != widths[1]:
        raise UsageError(
            f"{at} has {widths[1]:,} numbers here and {widths[0]:,} in {versus.name}", "take checkpoints of one run"
        )
    if not same_vocabulary(model.tokenizer, versus.tokenizer):
        raise UsageError(f"{model.name} and {versus.name} cut texts into other tokens", "take checkpoints of one run")
    if min(tokens, batch, features) < 1 or tokens < batch:
        raise UsageError(f"{tokens:,} tokens are not one batch of {batch:,}", "raise --tokens or lower --batch")
    train, held_out = corpus.split(HELD_OUT)
    if not len(held_out):
        raise UsageError(ONE_DOCUMENT, "separate two by a blank line")
    generator, n_steps = torch.Generator().manual_seed(seed), tokens // batch

    def batches() -> Iterator[Tensor]:
        while True:
            seen = 0
            values = _values(models, corpus_windows(model, train, window), places)
            for seen, rows in enumerate(shuffled(values, batch, generator), 1):  # noqa: B007 - counts
                yield rows
            if not seen:
                raise UsageError(f"the corpus has fewer tokens than one batch of {batch:,}", "lower --batch")

    coder, done = None, 0
    with suppress(KeyboardInterrupt):
        for number, values in enumerate(islice(batches(), n_steps), 1):
            if coder is None:
                coder = _Crosscoder(values, features, generator)
                adam = torch.optim.Adam(coder.parameters(), lr=lr)
            adam.param_groups[0]["lr"] = lr * min(1.0, 5 * (n_steps - number + 1) / n_steps)
            loss = coder.loss(values * coder.scales[:, None], sparsity * min(1.0, number / (_WARM * n_steps)))
            if not bool(loss.isfinite()):
                raise TrainingError("the loss is not finite", "lower --lr")
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(coder.parameters(), 1.0)
            adam.step()
            done = number
            on_progress(done * batch, n_steps * batch)
    if coder is None or not done:
        raise KeyboardInterrupt
    windows = _first(corpus_windows(model, held_out, window), MEASURED)
    measured = _measured(coder, models, windows, places, top)
    with torch.no_grad():
        return CrosscoderTraining(
            at=str(places[1]),
            versus=versus.name,
            held_out=sum(len(one.own) for one in windows),
            tokens=done * batch,
            batch=batch,
            lr=lr,
            sparsity=sparsity,
            seed=seed,
            encoder=(coder.encoder * coder.scales[:, None, None]).clone(),
            bias=coder.bias.clone(),
            decoder=(coder.decoder / coder.scales[:, None]).clone(),
            output_bias=(coder.output_bias / coder.scales[:, None]).clone(),
            stopped=done < n_steps,
            about=About(model),
            **measured,
        )


def _names(first: str, second: str) -> tuple[str, str]:
    """What the two models are called; by their order where both have one name."""
    return (first, second) if first != second else ("the first", "the second")


def _values(models: Sequence[TextModel], windows: Iterable[Window], places: Sequence[Place]) -> Iterator[Tensor]:
    """The values (n, 2, C) of the texts' own tokens in both models, some windows at a time."""
    remaining, device = iter(windows), next(models[1].transformer.parameters()).device
    passes = [
        Passes(one.transformer, targets_of([str(place)], one.config), torch.float32, every_token=True)
        for one, place in zip(models, places, strict=True)
    ]
    while some := list(islice(remaining, BATCH)):
        rows = []
        for one, place in zip(passes, places, strict=True):
            with one:
                rows.append(one(some)[str(place)].flatten(1).to(device))
        yield torch.stack(rows, dim=1)


def _first(windows: Iterable[Window], tokens: int) -> list[Window]:
    """The first windows with at least as many tokens."""
    chosen: list[Window] = []
    for window in windows:
        chosen.append(window)
        if sum(len(one.own) for one in chosen) >= tokens:
            break
    return chosen


@torch.no_grad()
def _measured(
    coder: _Crosscoder, models: Sequence[TextModel], windows: Sequence[Window], places: Sequence[Place], top: int
) -> dict[str, Any]:
    """What the features are on held-out windows."""
    x = torch.cat(list(_values(models, windows, places))) * coder.scales[:, None]  # (N, 2, C)
    active = coder.activations(x)  # (N, F)
    error = (x - coder.rebuilt(active)).square().sum((0, 2))
    explained = 1 - error / (x - x.mean(0)).square().sum((0, 2)).clamp_min(1e-30)
    share = (active > 0).float().mean(0)
    norms = coder.decoder.norm(dim=-1)  # (F, 2)
    relative = norms[:, 1] / norms.sum(-1).clamp_min(1e-30)
    cosines = functional.cosine_similarity(coder.decoder[:, 0], coder.decoder[:, 1], dim=-1)
    first, second = _names(models[0].name, models[1].name)
    names = (first, "both", "both, turned", second)
    kinds = 1 + (cosines < SAME_DIRECTION).long()
    kinds = kinds.masked_fill(relative < EXCLUSIVE, 0).masked_fill(relative > 1 - EXCLUSIVE, 3)
    alive = share > 0
    # a feature is used by its activation times the norms of its directions
    used = (active.mean(0) * norms.sum(-1)).masked_fill(~alive, 0)
    listed = []
    for kind in (3, 0, 2, 1):
        chosen = ((kinds == kind) & alive).nonzero().flatten().tolist()
        for feature in sorted(chosen, key=lambda feature: -float(used[feature]))[:top]:
            listed.append(
                CrossFeature(
                    feature, names[kind], float(relative[feature]), float(cosines[feature]), float(share[feature]),
                    _examples(models[1], windows, active[:, feature]),
                )
            )  # fmt: skip
    return {
        "counts": tuple(int(((kinds == kind) & alive).sum()) for kind in range(len(names))),
        "features": tuple(listed),
        "explained": tuple(explained.tolist()),
        "l0": float((active > 0).sum(1).float().mean()),
    }


def _examples(model: TextModel, windows: Sequence[Window], active: Tensor, most: int = 3) -> tuple[str, ...]:
    """The tokens at which a feature (N,) is most active, with some around them."""
    places = [(window, index) for window in windows for index in window.own]
    examples = []
    for number in active.topk(min(most, len(active))).indices.tolist():
        if float(active[number]) <= 0:
            break
        window, at = places[number]
        before, after = window.ids[max(0, at - _CONTEXT[0]) : at], window.ids[at + 1 : at + 1 + _CONTEXT[1]]
        first, middle, last = ("".join(map(model.tokenizer.shown, ids)) for ids in (before, [window.ids[at]], after))
        examples.append(f"{first}<<{middle}>>{last}")
    return tuple(dict.fromkeys(examples))
