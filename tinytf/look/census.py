"""What every head of a model does: its scores on repeated random tokens and on text, and a label in a line.

Attention weights are scored as they pass, one layer of a few sequences at a time; none are kept. Shapes: B sequences
of a batch, H heads, T tokens (Q and K where query and key differ).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.look.heads import (
    LABELS,
    Named,
    by_offset,
    choosing,
    copy_losses,
    distance,
    duplicate,
    entropy,
    entropy_share,
    first,
    in_place,
    induction,
    named,
    overlap,
    own,
    previous,
    repeated_tokens,
    require_attention,
)
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.report import About, Progress, Report, plain, unheard
from tinytf.steps.operations.mask import Sight
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text.windows import text_windows
from tinytf.text_model import TextModel
from tinytf.trace.hooks import tapped

SEQUENCES = 16
SHORTEST_COPY = 3  # of two tokens, the one after the last time is the one before: induction is previous
_USUAL_COPY = 50

_ROOM = 256 * 2**20  # bytes of one layer's attention that a batch may take
_COPIES = 8  # tensors of the size of the weights that exist at once: scores, scaled, masked, what scoring makes

SCORES = {
    "induction": "mean weight, in the second copy, on the token that followed the query's in the first",
    "duplicate": "mean weight, in the second copy, on the query's token in the first",
    "previous": "mean weight on the token before",
    "first": "mean weight on the first token",
    "self": "mean weight on the query's own token",
    "offset": "where most weight goes, key − query in tokens, of the offsets that half of the queries have",
    "offset_weight": "mean weight at that offset",
    "entropy": "mean entropy of a query's weights, in nats",
    "entropy_share": "entropy divided by that of looking at every visible token alike",
    "distance": "mean distance from query to key in tokens, weighted",
    "agreement": "mean overlap Σ√(p·q) with the other heads of the layer: 1 look alike, 0 share no token",
}
"""Every score of the census, and what it is."""

ON_REPEATS = ("induction", "duplicate", "previous")
"""CensusScores that are read on random tokens, where nothing but place and repetition says where to look."""


@dataclass(frozen=True)
class CensusScores:
    """``values`` are scores of every head by their names in SCORES, each (layers, heads), float64.

    Means over ``sequences`` sequences of ``tokens`` tokens each. ``duplicate`` and ``induction`` are of repeated
    tokens, and missing on text. ``agreement`` is NaN for a head that is alone in its layer.
    """

    sequences: int
    tokens: int
    values: Mapping[str, Tensor]

    def size(self) -> dict[str, int]:
        return {"sequences": self.sequences, "tokens": self.tokens}

    def of(self, layer: int, head: int) -> Mapping[str, float]:
        """The scores of one head by name."""
        return {name: float(score[layer, head]) for name, score in self.values.items()}


@dataclass(frozen=True)
class Census(Report):
    """Every head of a model. ``repeats`` are its scores on repeated random tokens, ``text`` those on text, if any.

    A copy has ``length`` tokens. The losses, in nats a token, are over either copy; None where no next token is
    predicted. ``labels`` are layers × heads. In ``to_dict`` heads are sorted ``by`` a score, and only the ``top`` ones
    are kept (None: all). ``corpus`` says what the text is.
    """

    KIND = "heads"
    EVENTS: ClassVar = {"heads": "head"}

    config: ModelConfig
    length: int
    seed: int
    repeats: CensusScores
    text: CensusScores | None
    first_loss: float | None
    second_loss: float | None
    labels: tuple[tuple[Named, ...], ...]
    by: str = "induction"
    top: int | None = None
    corpus: str = ""

    def fields(self) -> dict[str, Any]:
        """The heads with the highest score first: all of them, or the ``top`` ones."""
        return {
            "repeats": {**self.repeats.size(), **self.members("length", "seed", "first_loss", "second_loss")},
            "text": self.text and {"corpus": self.corpus, **self.text.size()},
            "by": self.by,
            "scores": SCORES,
            "labels": plain(LABELS),
            "heads": [self._head(layer, head) for layer, head in self.order()[: self.top]],
        }

    def _head(self, layer: int, head: int) -> dict[str, Any]:
        named = self.labels[layer][head]
        found: dict[str, Any] = {"layer": layer, "head": head, "label": named.label and named.label.name}
        found["evidence"] = named.evidence
        for name, scores in (("repeats", self.repeats), ("text", self.text)):
            of = None if scores is None else scores.of(layer, head)
            found[name] = of and {score: value if math.isfinite(value) else None for score, value in of.items()}
        return found

    @property
    def key(self) -> str:
        """The score that heads are sorted by."""
        return "offset_weight" if self.by == "offset" else self.by

    def order(self) -> list[tuple[int, int]]:
        """All heads, the highest score first, and those without one last."""
        values = self.score(self.key).nan_to_num(nan=-math.inf).tolist()
        heads = [(layer, head) for layer in table_of(self.config).attending for head in range(len(values[layer]))]
        return sorted(heads, key=lambda place: -values[place[0]][place[1]])

    def stored(self) -> list[Array]:
        """Every score, (layers, heads), under ``repeats.`` or ``text.`` and its name."""
        named = [(where, one) for where, one in (("repeats", self.repeats), ("text", self.text)) if one]
        each = ((f"{where}.{score}", values) for where, one in named for score, values in one.values.items())
        return [Array.of(name, ["layer", "head"], values) for name, values in each]

    def measured_on(self, by: str) -> CensusScores:
        """Where a score is read: those of ON_REPEATS there, the others on text where there is some."""
        return self.repeats if by in ON_REPEATS or self.text is None else self.text

    def score(self, by: str) -> Tensor:
        """One of SCORES for every head, (layers, heads)."""
        return self.measured_on(by).values[by]


def require_score(by: str) -> str:
    """The score that heads can be sorted by under this name. UsageError for another."""
    score = by.replace("-", "_")
    if score not in SCORES:
        raise UsageError(f"there is no score {by!r}", did_you_mean(by, SCORES))
    return score


def copy_length(config: ModelConfig, length: int | None = None, *, added: int = 0) -> int:
    """The length of a copy: the one given, else 50 or what fits the context beside ``added`` tokens.

    In a window every token must be visible from its repetition. Raises UsageError for a length that does not fit.
    """
    most = (config.context - added) // 2
    most = min(most, config.window - 1) if config.window else most
    where = f"a context of {config.context:,}" + (f" with a window of {config.window:,}" if config.window else "")
    if most < SHORTEST_COPY:
        raise UsageError(f"not even {SHORTEST_COPY} tokens fit {where} twice", "heads are told apart there")
    if length is not None and not SHORTEST_COPY <= length <= most:
        said = "is too short to tell heads apart" if length < SHORTEST_COPY else f"does not fit {where} twice"
        raise UsageError(f"a copy of {length:,} tokens {said}", f"give a length from {SHORTEST_COPY} to {most:,}")
    return min(_USUAL_COPY, most) if length is None else length


def heads(
    model: TextModel,
    corpus: str | Path | None = None,
    *,
    text: str | None = None,
    random_only: bool = False,
    length: int | None = None,
    count: int = SEQUENCES,
    seed: int = 0,
    by: str | None = None,
    top: int | None = None,
    progress: Progress = unheard,
) -> Census:
    """What every head does: its scores on repeated random tokens, and on a file or folder of text, or a ``text``.

    Without either the text is the model's own corpus, where one is known, unless ``random_only`` says none. Heads are
    sorted ``by`` a score (induction, of an encoder previous), and the ``top`` ones reported. Other settings and errors
    are those of ``census``, errors also those of ``text_windows``.
    """
    config, tokenizer = model.config, model.tokenizer
    score = require_score(by or ("induction" if config.causal else "previous"))
    before, after = tokenizer.around()
    if config.causal:
        after = [token for token in after if token not in tokenizer.end_ids]  # what comes next is open
    copy = copy_length(config, length, added=len(before) + len(after))
    file = model.corpus if corpus is None and not random_only else corpus
    source = text if text is not None or file is None else [Path(file)]
    windows = () if source is None else text_windows(source, tokenizer, config.vocab_size, 2 * copy, before, after)
    found = census(
        model.transformer, windows, length=copy, count=count, seed=seed, before=before, after=after, progress=progress
    )
    own_corpus = f"{model.name}'s {model.corpus.name}" if model.corpus else ""
    return replace(found, by=score, top=top, corpus=str(corpus or own_corpus), about=About(model))


def census(
    model: Transformer,
    windows: Iterable[Tensor] = (),
    *,
    length: int | None = None,
    count: int = SEQUENCES,
    seed: int = 0,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    progress: Progress = unheard,
) -> Census:
    """Score every head on ``count`` sequences of repeated random tokens, and on at most as many ``windows`` of text.

    ``windows`` are ids (T,), all of one length; ``before`` and ``after`` are put around the random ones, as a tokenizer
    does around a text; ``length`` is that of a copy. ``progress`` counts the sequences, of how many at
    most. The model is left as it was. Raises UsageError for a length that does not fit.
    """
    config = model.config
    length = copy_length(config, length, added=len(before) + len(after))
    twice = repeated_tokens(config.vocab_size, length, count, seed)
    around = [torch.tensor(added, dtype=torch.long).expand(count, -1) for added in (before, after)]
    ids = torch.cat((around[0], twice, around[1]), dim=1)
    copies = slice(len(before), len(before) + 2 * length)
    text = iter(windows)
    opening = next(text, None)
    of = count if opening is None else 2 * count
    losses: list[tuple[float, float]] = []

    def predicted(hidden: Tensor, batch: Tensor) -> None:
        if config.head.kind == "lm":
            for row, said in zip(hidden[:, copies], batch[:, copies], strict=True):  # (T, V) of one sequence at a time
                losses.append(copy_losses(model.unembed(row)[None], said[None], length))

    repeats = _Tally(config, ids.shape[1], copies)
    _run(model, iter(ids), repeats, lambda done: progress(done, of), predicted)
    heard: _Tally | None = None
    if opening is not None:
        heard = _Tally(config, len(opening))
        _run(model, islice(chain((opening,), text), count), heard, lambda done: progress(count + done, of))
    on_repeats, on_text = repeats.scores(), None if heard is None else heard.scores()
    labels = tuple(
        tuple(
            named(on_repeats.of(layer, head), None if on_text is None else on_text.of(layer, head))
            for head in range(config.n_heads)
        )
        for layer in range(config.n_layers)
    )
    means = [sum(some) / len(losses) for some in zip(*losses, strict=True)] or [None, None]
    return Census(
        config=config,
        length=length,
        seed=seed,
        repeats=on_repeats,
        text=on_text,
        first_loss=means[0],
        second_loss=means[1],
        labels=labels,
    )


@torch.no_grad()
def _run(
    model: Transformer,
    sequences: Iterator[Tensor],
    tally: "_Tally",
    progress: Callable[[int], None],
    also: Callable[[Tensor, Tensor], None] = lambda hidden, ids: None,
) -> None:
    """Let sequences (T,) go through the model, a few at a time, and ``tally`` see the weights of each layer."""
    device = model.embed.tokens.weight.device

    def tap(name: str, tensor: Tensor) -> Tensor:  # (B, H, T, T), once a layer
        tally.add(tensor.float())
        return tensor

    weights = (table_of(model.config).weights,)
    with tapped(model, tap, weights), torch.autocast(device.type, enabled=False):  # no other scores in an autocast
        while batch := list(islice(sequences, tally.batch)):
            ids = torch.stack(batch).to(device)
            also(model.hidden(ids), ids)
            tally.sequences += len(batch)
            progress(tally.sequences)


class _Tally:
    """Sums of the scores of one kind of sequence of ``tokens`` tokens, over sequences; layers come in their order.

    ``copies`` are the places of both copies, where tokens are repeated.
    """

    def __init__(self, config: ModelConfig, tokens: int, copies: slice | None = None) -> None:
        self.tokens, self.copies = tokens, copies
        self.sequences = 0
        self.batch = max(1, min(SEQUENCES, _ROOM // (4 * _COPIES * config.n_heads * tokens**2)))
        self._visible = choosing(Sight.of(config), tokens)  # (Q,)
        self._layer, self._layers, self._count = 0, require_attention(table_of(config)), config.n_layers
        self._sums = [dict[str, Tensor]() for _ in self._layers]

    def add(self, weights: Tensor) -> None:
        """The next layer's weights (B, H, T, T)."""
        found = {
            "previous": previous(weights),
            "first": first(weights),
            "self": own(weights),
            "entropy": entropy(weights),
            "entropy_share": entropy_share(weights, self._visible),
            "distance": distance(weights),
            "agreement": overlap(weights, self._visible),
            "offset": by_offset(weights.sum(dim=0, keepdim=True)),  # (1, H, 2T − 1)
        }
        if self.copies is not None:
            said, length = weights[..., self.copies, self.copies], (self.copies.stop - self.copies.start) // 2
            found |= {"duplicate": duplicate(said, length), "induction": induction(said, length)}
        sums = self._sums[self._layer]
        for name, score in found.items():
            summed = score.cpu().double().sum(dim=0)
            sums[name] = sums[name] + summed if name in sums else summed
        self._layer = (self._layer + 1) % len(self._sums)

    def scores(self) -> CensusScores:
        """The means over all sequences that were added."""
        means = {
            name: torch.stack([sums[name] for sums in self._sums]) / self.sequences for name in self._sums[0]
        }  # (layers, H), the offsets (layers, H, 2T − 1)
        offsets = torch.arange(1 - self.tokens, self.tokens)
        queries = self.tokens - offsets.abs()  # how many have a key at that offset
        share = torch.where(2 * queries >= self.tokens, means.pop("offset") / queries, -1.0)
        weight, place = share.max(dim=-1)
        means |= {"offset": offsets[place].double(), "offset_weight": weight}
        found = {name: in_place(means[name], self._layers, self._count) for name in SCORES if name in means}
        return CensusScores(self.sequences, self.tokens, found)
