"""A census of a model's heads: their scores on repeated random tokens and on text, and a label each.

Attention weights are scored during the pass, one layer of a few sequences at a time; none are kept. Shapes: B sequences
of a batch, H heads, T tokens (Q and K where query and key differ).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.files import parse_json
from tinytf.look.heads.across import ALONG, CrossScores, scores_across
from tinytf.look.heads.kinds import LABELS
from tinytf.look.heads.measures import (
    Named,
    by_offset,
    copy_losses,
    distance,
    duplicate,
    entropy,
    entropy_share,
    first,
    induction,
    named,
    overlap,
    own,
    previous,
    repeated_tokens,
    require_attention,
    spread_over_layers,
    stack_heads,
    visible_counts,
)
from tinytf.model.transformer import Source, Transformer
from tinytf.nearest import did_you_mean
from tinytf.report import About, Progress, Report, ignore_progress, plain
from tinytf.sentences import listed, several
from tinytf.steps.operations.mask import Sight
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text.corpus import Reading, find_files
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding
from tinytf.text.windows import text_windows
from tinytf.text_model import TextModel
from tinytf.trace.faults import require_finite_texts
from tinytf.trace.hooks import tap_steps
from tinytf.trace.trace import Trace

SEQUENCES = 16
RANDOM = "random tokens, each also its own target"
SHORTEST_COPY = 3  # in copies of 2, the token after the last occurrence is the previous one: induction is previous
_USUAL_COPY = 50

_ROOM = 256 * 2**20  # bytes of one layer's attention that a batch may take
_COPIES = 8  # tensors of the size of the weights that exist at once: scores, scaled, masked, those of scoring

SCORES = {
    "induction": "mean weight, in the second copy, on the token that followed the query's in the first",
    "duplicate": "mean weight, in the second copy, on the query's token in the first",
    "previous": "mean weight on the token before",
    "first": "mean weight on the first token",
    "self": "mean weight on the query's own token",
    "offset": "the offset with most weight, key − query in tokens, among offsets that half of the queries have",
    "offset_weight": "mean weight at that offset",
    "entropy": "how far a token spreads its weight: the mean entropy of a query, in nats",
    "entropy_share": "entropy divided by that of equal weights on every visible token",
    "distance": "mean distance from query to key in tokens, weighted",
    "agreement": "mean overlap Σ√(p·q) with the other heads of the layer: 1 for equal weights, 0 for no shared token",
}
"""Every score of the census, with its definition."""

ON_REPEATS = ("induction", "duplicate", "previous")
"""Scores read on random tokens, where only position and repetition guide attention."""


@dataclass(frozen=True)
class CensusScores:
    """Scores of every head: ``values`` by their names in SCORES, each (layers, heads), float64.

    They are means over ``sequences`` sequences of ``tokens`` tokens each. ``duplicate`` and ``induction`` exist only on
    repeated tokens, not on text. ``agreement`` is NaN for a head that is alone in its layer.
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
    """Every head of a model, with scores on repeated random tokens (``repeats``) and on ``text``, if any.

    A copy has ``length`` tokens. The losses, in nats a token, belong to the first and second copy; None for a model
    that does not predict the next token. ``labels`` are layers × heads. In ``to_dict`` heads are sorted ``by`` a score,
    and only the ``top`` ones are kept (None: all). ``corpus`` names the text, the rest of which is ``unread``. Of two
    stacks the heads are the decoder's own, each sequence a target whose source is its first copy; those of
    cross-attention have the scores ``across``.
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
    unread: bool = False
    across: CrossScores | None = None

    def in_a_sentence(self) -> str:
        """How many heads are of each kind; more than three kinds: those that copy, and the most common."""
        names = Counter(named.name for row in self.labels for named in row)
        kinds = sorted((label for label in LABELS if names[label.name]), key=lambda one: -names[one.name])
        told = [label for label in kinds if label.name == "induction" or label in kinds[:3]]
        others = names.total() - sum(names[label.name] for label in told) - names["–"]
        counted = [(names[label.name], label.does) for label in told]
        counted += [(others, "have another pattern"), (names["–"], "have no pattern")]
        words = f"Of {names.total()} heads {listed([several(count, does) for count, does in counted if count])}"
        if self.text is not None and self.unread:
            read = self.text.sequences * self.text.tokens
            return f"{words}. Only the first {read:,} tokens of {printable(self.corpus, spaces=False)} were read."
        if self.across is None:
            return f"{words}."
        layer, head = self.across.ranked[0]
        along = float(self.across.values["monotone"][layer, head])
        if abs(along) < ALONG:
            return f"{words}; across, none moves along the source (L{layer}H{head} most, {along:+.2f} of ±1)."
        way = "in order" if along > 0 else "backwards"
        return f"{words}; across, L{layer}H{head} moves along the source most, {way} ({along:+.2f} of ±1)."

    def fields(self) -> dict[str, Any]:
        """The JSON data; heads are sorted by score, highest first, all or only the ``top`` ones."""
        return {
            "repeats": {**self.repeats.size(), **self.members("length", "seed", "first_loss", "second_loss")},
            "text": self.text and {"corpus": self.corpus, **self.text.size(), "unread": self.unread},
            "by": self.by,
            "scores": SCORES,
            "labels": plain(LABELS),
            "heads": [self._head(layer, head) for layer, head in self.order()[: self.top]],
            **({"across": self.across.to_dict()} if self.across is not None else {}),
        }

    def _head(self, layer: int, head: int) -> dict[str, Any]:
        named = self.labels[layer][head]
        data: dict[str, Any] = {"layer": layer, "head": head, "label": named.label and named.label.name}
        data["evidence"] = named.evidence
        for name, scores in (("repeats", self.repeats), ("text", self.text)):
            values = None if scores is None else scores.of(layer, head)
            data[name] = values and {score: value if math.isfinite(value) else None for score, value in values.items()}
        return data

    @property
    def key(self) -> str:
        """The score that heads are sorted by."""
        return "offset_weight" if self.by == "offset" else self.by

    def order(self) -> list[tuple[int, int]]:
        """All heads as (layer, head), the highest score first, heads without a score last."""
        values = self.score(self.key).nan_to_num(nan=-math.inf).tolist()
        heads = [
            (layer, head) for layer in table_of(self.config).attention_layers for head in range(len(values[layer]))
        ]
        return sorted(heads, key=lambda head_at: -values[head_at[0]][head_at[1]])

    def stored(self) -> list[Array]:
        """Every score, (layers, heads), under ``repeats.`` or ``text.`` and its name."""
        kinds = {"repeats": self.repeats, "text": self.text, "across": self.across}
        named = [(kind, scores) for kind, scores in kinds.items() if scores]
        tensors = ((f"{kind}.{score}", values) for kind, scores in named for score, values in scores.values.items())
        return [Array.of(name, ["layer", "head"], values) for name, values in tensors]

    def measured_on(self, by: str) -> CensusScores:
        """The scores that hold ``by``: ON_REPEATS are read on repeats, the others on text if there is any."""
        return self.repeats if by in ON_REPEATS or self.text is None else self.text

    def score(self, by: str) -> Tensor:
        """One of SCORES for every head, (layers, heads)."""
        return self.measured_on(by).values[by]


def require_score(by: str) -> str:
    """The key in SCORES of a score's name. Raises UsageError for an unknown name."""
    score = by.replace("-", "_")
    if score not in SCORES:
        raise UsageError(f"there is no score {by!r}", did_you_mean(by, SCORES))
    return score


def copy_length(config: ModelConfig, length: int | None = None, *, added: int = 0) -> int:
    """The length of a copy: ``length``, else 50 or as many as fit the context beside ``added`` tokens.

    In a window every token must be visible from its repetition. Raises UsageError for a length that does not fit.
    """
    longest = (config.context - added) // 2
    longest = min(longest, config.window - 1) if config.window else longest
    room_words = f"a context of {config.context:,}" + (f" with a window of {config.window:,}" if config.window else "")
    if longest < SHORTEST_COPY:
        raise UsageError(
            f"not even {SHORTEST_COPY} tokens fit {room_words} twice",
            "heads can only be told apart in a longer context",
        )
    if length is not None and not SHORTEST_COPY <= length <= longest:
        problem = "is too short to tell heads apart" if length < SHORTEST_COPY else f"does not fit {room_words} twice"
        raise UsageError(f"a copy of {length:,} tokens {problem}", f"give a length from {SHORTEST_COPY} to {longest:,}")
    return min(_USUAL_COPY, longest) if length is None else length


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
    progress: Progress = ignore_progress,
) -> Census:
    """Score every head on repeated random tokens, and on a file or folder of text or on ``text``.

    By default the text is the model's own corpus, if it is known; ``random_only`` leaves text out. Heads are sorted
    ``by`` a score (induction; previous for an encoder), and the ``top`` ones reported. Other settings are those of
    ``census``. Of two stacks a corpus is a table of sources and targets, for the scores across.

    Raises the errors of ``census`` and ``text_windows``, and TinytfError for a model that is not finite.
    """
    config, tokenizer = model.config, model.tokenizer
    score = require_score(by or ("induction" if config.causal else "previous"))
    if config.encoder is not None:
        return _of_two_stacks(model, corpus, text, length, count, seed, score, top, progress)
    before, after = tokenizer.surrounding_ids()
    if config.causal:
        after = [token for token in after if token not in tokenizer.end_ids]  # a text for continuation has no end token
    copy = copy_length(config, length, added=len(before) + len(after))
    source_file = model.corpus if corpus is None and not random_only else corpus
    source = text if text is not None or source_file is None else [Path(source_file)]
    windows = () if source is None else text_windows(source, tokenizer, config.vocab_size, 2 * copy, before, after)
    require_finite_texts(model.name, model.transformer, [[*before, *range(min(copy, config.vocab_size)), *after]])
    result = census(
        model.transformer, windows, length=copy, count=count, seed=seed, before=before, after=after, progress=progress
    )
    own_corpus = f"{model.name}'s {model.corpus.name}" if model.corpus else ""
    name = "the text" if text is not None else str(corpus or own_corpus)
    return replace(result, by=score, top=top, corpus=name, about=About(model))


def _of_two_stacks(
    model: TextModel, corpus: str | Path | None, text: str | None, length: int | None, count: int, seed: int,
    score: str, top: int | None, progress: Progress,
) -> Census:  # fmt: skip
    """The decoder's own heads on random targets, and those of cross-attention on the pairs of a table, or on those."""
    if text is not None:
        raise UsageError("a text has no target", "name a table of sources and targets")
    before, after = model.tokenizer.of_source.surrounding_ids()
    start = [model.config.start_id]
    copy = copy_length(model.config, length, added=max(1, len(before) + len(after)))
    repeated = repeated_tokens(model.config.common_vocabulary, copy, count, seed)
    pairs: list[tuple[str | Trace, str | Encoding]] = [
        (model.encoder.trace(ids=[*before, *row, *after]), model.tokenizer.encode_ids([*start, *row]))
        for row in repeated[:, :copy].tolist()
    ]
    of = f"{count} texts of {RANDOM}"
    if corpus is not None:
        documents = find_files([Path(corpus)], reading=Reading(field="", form="pair")).documents().texts()
        of, pairs = str(corpus), [tuple(parse_json(one)) for one in islice(documents, count)]
    across = scores_across(model, of, pairs)

    def read(ids: Tensor) -> Source | None:
        alone = [torch.tensor(added, dtype=torch.long).expand(len(ids), -1).to(ids.device) for added in (before, after)]
        return model.transformer.read(torch.cat((alone[0], ids[:, 1 : 1 + copy], alone[1]), dim=1))

    result = census(model.transformer, length=copy, count=count, seed=seed, before=start, read=read, progress=progress)
    return replace(result, by=score, top=top, across=across, about=About(model))


def census(
    model: Transformer,
    windows: Iterable[Tensor] = (),
    *,
    length: int | None = None,
    count: int = SEQUENCES,
    seed: int = 0,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    read: Callable[[Tensor], Source | None] | None = None,
    progress: Progress = ignore_progress,
) -> Census:
    """Score every head on ``count`` sequences of repeated random tokens, and on at most as many ``windows`` of text.

    ``windows`` are ids (T,), all of one length. ``before`` and ``after`` are put around the random tokens, as a
    tokenizer does around a text; a copy has ``length`` tokens. ``progress`` receives the number of sequences done and
    the most there can be. Of two stacks, ``read`` gives the source of some sequences. The model is left as it was.

    Raises UsageError for a length that does not fit.
    """
    config = model.config
    length = copy_length(config, length, added=len(before) + len(after))
    repeated = repeated_tokens(config.common_vocabulary, length, count, seed)
    added_ids = [torch.tensor(added, dtype=torch.long).expand(count, -1) for added in (before, after)]
    ids = torch.cat((added_ids[0], repeated, added_ids[1]), dim=1)
    copies = slice(len(before), len(before) + 2 * length)
    remaining = iter(windows)
    first_window = next(remaining, None)
    total = count if first_window is None else 2 * count
    losses: list[tuple[float, float]] = []

    def predicted(hidden: Tensor, batch: Tensor) -> None:
        if config.head.kind == "lm":
            for row, copied in zip(hidden[:, copies], batch[:, copies], strict=True):  # (T, V), a sequence at a time
                losses.append(copy_losses(model.unembed(row)[None], copied[None], length))

    repeats = _Tally(config, ids.shape[1], copies)
    _run_sequences(model, iter(ids), repeats, lambda done: progress(done, total), predicted, read)
    text_tally: _Tally | None = None
    if first_window is not None:
        text_tally = _Tally(config, len(first_window))
        _run_sequences(
            model,
            islice(chain((first_window,), remaining), count),
            text_tally,
            lambda done: progress(count + done, total),
        )
    on_repeats, on_text = repeats.scores(), None if text_tally is None else text_tally.scores()
    labels = tuple(
        tuple(
            named(on_repeats.of(layer, head), None if on_text is None else on_text.of(layer, head))
            for head in range(config.n_heads)
        )
        for layer in range(config.n_layers)
    )
    means = [sum(column) / len(losses) for column in zip(*losses, strict=True)] or [None, None]
    return Census(
        config=config,
        length=length,
        seed=seed,
        repeats=on_repeats,
        text=on_text,
        first_loss=means[0],
        second_loss=means[1],
        labels=labels,
        unread=next(remaining, None) is not None,
    )


@torch.no_grad()
def _run_sequences(
    model: Transformer,
    sequences: Iterator[Tensor],
    tally: "_Tally",
    progress: Callable[[int], None],
    also: Callable[[Tensor, Tensor], None] = lambda hidden, ids: None,
    read: Callable[[Tensor], Source | None] | None = None,
) -> None:
    """Run sequences (T,) through the model, a few at a time, and let ``tally`` score the weights of each layer."""
    device = model.embed.tokens.weight.device

    def tap(name: str, tensor: Tensor) -> Tensor:  # (B, H, T, T), once a layer
        tally.add(tensor.float())
        return tensor

    weights = (table_of(model.config).weights,)
    with tap_steps(model, tap, weights), torch.autocast(device.type, enabled=False):  # no other scores in an autocast
        while batch := list(islice(sequences, tally.batch)):
            ids = torch.stack(batch).to(device)
            also(model.hidden(ids, source=None if read is None else read(ids)), ids)
            tally.sequences += len(batch)
            progress(tally.sequences)


class _Tally:
    """Sums of scores over sequences of ``tokens`` tokens; layers are added in order.

    ``copies`` are the positions of both copies, if tokens are repeated.
    """

    def __init__(self, config: ModelConfig, tokens: int, copies: slice | None = None) -> None:
        self.tokens, self.copies = tokens, copies
        self.sequences = 0
        self.batch = max(1, min(SEQUENCES, _ROOM // (4 * _COPIES * config.n_heads * tokens**2)))
        self._layer, self._layers, self._count = 0, require_attention(table_of(config)), config.n_layers
        self._visible = [visible_counts(Sight.of(config.at(layer)), tokens) for layer in self._layers]  # (Q,) each
        self._sums = [dict[str, Tensor]() for _ in self._layers]

    def add(self, weights: Tensor) -> None:
        """Add the next layer's weights (B, H, T, T)."""
        scores = {
            "previous": previous(weights),
            "first": first(weights),
            "self": own(weights),
            "entropy": entropy(weights),
            "entropy_share": entropy_share(weights, self._visible[self._layer]),
            "distance": distance(weights),
            "agreement": overlap(weights, self._visible[self._layer]),
            "offset": by_offset(weights.sum(dim=0, keepdim=True)),  # (1, H, 2T − 1)
        }
        if self.copies is not None:
            copied, length = weights[..., self.copies, self.copies], (self.copies.stop - self.copies.start) // 2
            scores |= {"duplicate": duplicate(copied, length), "induction": induction(copied, length)}
        sums = self._sums[self._layer]
        for name, score in scores.items():
            summed = score.cpu().double().sum(dim=0)
            sums[name] = sums[name] + summed if name in sums else summed
        self._layer = (self._layer + 1) % len(self._sums)

    def scores(self) -> CensusScores:
        """The means over all added sequences."""
        means = {
            name: stack_heads([sums[name] for sums in self._sums]) / self.sequences for name in self._sums[0]
        }  # (layers, H), the offsets (layers, H, 2T − 1)
        offsets = torch.arange(1 - self.tokens, self.tokens)
        queries = self.tokens - offsets.abs()  # queries that have a key at that offset
        share = torch.where(2 * queries >= self.tokens, means.pop("offset") / queries, -1.0)
        weight, index = share.max(dim=-1)
        means |= {"offset": torch.where(weight.isnan(), torch.nan, offsets[index].double()), "offset_weight": weight}
        scores = {name: spread_over_layers(means[name], self._layers, self._count) for name in SCORES if name in means}
        return CensusScores(self.sequences, self.tokens, scores)
