"""How alike two texts are: the cosine of their vectors, split into pairs of tokens that sum to it.

A pooled vector is a sum with a part for each token, and so is whatever a linear layer makes of it. The dot product of
two such sums is the sum over all pairs of their parts, and nothing is left over.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.model.without import with_config
from tinytf.parts.pooling import TOKENS, UNREAD
from tinytf.report import About, Data, Report, Verified, derived, text_data
from tinytf.sentences import listed
from tinytf.steps.operations import Activate, Linear, Pool
from tinytf.tables import Array
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding, cut_in_words
from tinytf.text_model import TextModel
from tinytf.tolerance import MARGIN
from tinytf.trace.trace import Trace

_BY_CHANCE = 2
"""Cosines of at most so many standard deviations of two random directions say that texts have nothing in common."""


@dataclass(frozen=True)
class Word(Data):
    """Tokens that belong together: the pieces of a word, a run of punctuation, a special token, or a ``bias``.

    ``total`` is the sum of all pairs with it; ``spoken`` is false for what has no letter or digit.
    """

    shown: str
    tokens: tuple[int, ...]
    spoken: bool
    total: float = 0.0


@dataclass(frozen=True)
class WordPair(Data):
    """A word of each text, by number, and what the pairs of their tokens add to the cosine."""

    first: int
    second: int
    added: float


@dataclass(frozen=True, eq=False)
class Similar(Report):
    """The ``cosine`` of the vectors of two texts.

    ``pairs`` (T, T′) has what each token of the first text adds with each token of the ``other``: their sum is the
    cosine. Where a dense layer has a bias, it is a last row and column. None where the vector is no sum over tokens;
    ``unsplit`` then says why. ``layers`` are the cosines if the model ended before the first layer, or after each.
    ``note`` says how the tokens are pooled. Two random vectors have a cosine of 0 ± ``chance`` (1/√E, one standard
    deviation).
    """

    KIND = "similar"
    EVENTS: ClassVar = {"tokens": "token", "words": "word", "word_pairs": "pair", "layers": "layer", "check": "check"}
    TABLE = ("word_pairs",)

    cosine: float
    other: Encoding
    words: tuple[tuple[Word, ...], tuple[Word, ...]]
    pairs: Tensor | None
    unsplit: str
    layers: tuple[float, ...]
    chance: float
    note: str
    check: Verified | None

    @property
    def unrelated(self) -> bool:
        """Whether the cosine is one that two random vectors may have."""
        return abs(self.cosine) <= _BY_CHANCE * self.chance

    @derived
    def by_word(self) -> Tensor | None:
        """What each word of the first text adds with each word of the other: sums of pairs of tokens, (W, W′)."""
        if self.pairs is None:
            return None
        rows = torch.stack([self.pairs[list(word.tokens)].sum(0) for word in self.words[0]])
        return torch.stack([rows[:, list(word.tokens)].sum(1) for word in self.words[1]], dim=1)

    @derived
    def word_pairs(self) -> tuple[WordPair, ...]:
        """All pairs of words, those that add most first."""
        if self.by_word is None:
            return ()
        pairs = [WordPair(i, j, x) for i, row in enumerate(self.by_word.tolist()) for j, x in enumerate(row)]
        return tuple(sorted(pairs, key=lambda pair: -pair.added))

    @property
    def outside_words(self) -> float:
        """The part of the cosine from pairs with a special token, punctuation or a bias in them."""
        first, second = self.words
        inner = (pair.added for pair in self.word_pairs if first[pair.first].spoken and second[pair.second].spoken)
        return self.cosine - sum(inner)

    def in_a_sentence(self) -> str:
        """The cosine, the two pairs of words that add most to it, and whether most of it is from no words at all."""
        if self.unrelated:
            number = f"cosine {self.cosine:.2f}, by chance 0 ± {self.chance:.2f}"
            return f"The two texts are no more alike than two random vectors ({number})."
        first, second = self.words
        told = [
            f"{first[pair.first].shown} with {second[pair.second].shown} ({pair.added:.3f})"
            for pair in self.word_pairs
            if first[pair.first].spoken and second[pair.second].spoken and pair.added > 0
        ]
        words = f"The vectors of the two texts have a cosine of {self.cosine:.2f}, of at most 1"
        words += f"; {listed(told[:2])} add{'s' * (len(told) == 1)} most to it" if told else ""
        one = [pair for pair in self.word_pairs if pair.added]
        if len(one) == 1:
            words += (
                f"; all of it is from {first[one[0].first].shown} with {second[one[0].second].shown}, since pooling "
            )
            words += "takes one token of each text"
        elif self.pairs is not None and self.outside_words > self.cosine / 2 > 0:
            words += f"; special tokens, biases and punctuation add more than half of it, {self.outside_words:.2f}"
        return f"{words}."

    def fields(self) -> dict[str, Any]:
        other = text_data(self.other)
        first, second = self.words
        named = [{**p.to_dict(), "words": [first[p.first].shown, second[p.second].shown]} for p in self.word_pairs]
        return {
            "other": {"text": other["text"], "tokens": other["tokens"]},
            **self.members("cosine", "chance", "note", "unsplit", "pairs"),
            "words": [{"text": n, **word.to_dict()} for n, words in enumerate(self.words) for word in words],
            "word_pairs": named,
            "layers": [{"after": layer - 1, "cosine": cosine} for layer, cosine in enumerate(self.layers)],
            **self.members("check"),
        }

    def stored(self) -> list[Array]:
        """The pairs of tokens."""
        pairs = self.pairs
        return [] if pairs is None else [Array("pairs", ["first", "second"], lambda: pairs)]


@torch.no_grad()
def similar(
    model: TextModel,
    first: str,
    second: str,
    *,
    pooling: str | None = None,
    prompts: Sequence[str | None] = (None, None),
    truncate: bool = False,
) -> Similar:
    """The cosine of the vectors of two texts, and what each pair of their tokens adds to it.

    ``pooling`` replaces the model's own; ``prompts`` are the names of those to put before each text, by default the
    model's default one.

    Raises UsageError for a model without pooling, unless one is given, for an unknown prompt, and like ``trace``.
    """
    if model.late is not None and pooling is None:
        raise UsageError(
            "this model compares texts token by token", "model.interaction(query, document), or pooling='mean'"
        )
    model, note = pooled_model(model, pooling)
    texts = [model.prompts.of(name) + text for name, text in zip(prompts, (first, second), strict=True)]
    traces = model.traces(texts, truncate=truncate)
    if cut := traces[1].encoding.cut:
        note += f"; {cut_in_words(cut, len(traces[1].tokens))}, of the second text"
    vectors = [vector_of(trace) for trace in traces]
    cosine = cosine_of(*vectors)
    unsplit = _unsplit(traces[0])
    groups = [_words(trace.encoding) for trace in traces]
    pairs, check = None, None
    if not unsplit:
        shares = [_shares(trace) for trace in traces]
        lengths = [float(share.sum(0).norm()) or 1.0 for share in shares]
        pairs = shares[0] @ shares[1].T / (lengths[0] * lengths[1])
        bulk = [float(share.norm(dim=1).sum()) / length for share, length in zip(shares, lengths, strict=True)]
        allowed = MARGIN * torch.finfo(traces[0].last_hidden.dtype).eps * bulk[0] * bulk[1]
        check = Verified("the pairs sum to the cosine", abs(float(pairs.sum()) - cosine), allowed)
        if len(shares[0]) > len(traces[0].tokens):
            groups = [
                (*group, Word("bias", (len(trace.tokens),), False)) for group, trace in zip(groups, traces, strict=True)
            ]
        totals = pairs.sum(1), pairs.sum(0)
        groups = [
            tuple(replace(word, total=float(total[list(word.tokens)].sum())) for word in group)
            for group, total in zip(groups, totals, strict=True)
        ]
    return Similar(
        cosine, traces[1].encoding, (groups[0], groups[1]), pairs, unsplit, _by_layer(*traces),
        len(vectors[0]) ** -0.5, note, check, about=About(model, traces[0].encoding),
    )  # fmt: skip


def pooled_model(model: TextModel, pooling: str | None) -> tuple[TextModel, str]:
    """The model with a way of pooling, its own or another one, and a note on it."""
    own = model.config.pooling
    if pooling not in (None, own):
        dense = {"pooled_dense": (), "unit_embedding": False} if own == TOKENS else {}
        config = model.config.but(pooling=pooling, pooler=False, **dense)
        model = replace(model, transformer=with_config(model.transformer, config))
    elif own == "none":
        if unread := next((note for note in model.file_notes if note.startswith(UNREAD)), ""):
            raise UsageError(unread, "--pooling mean takes the mean of the last hidden states instead")
        raise UsageError(
            "this model does not say how the tokens of a text become one vector",
            "folders of sentence-transformers do; --pooling mean takes the mean of the last hidden states",
        )
    told = model.config.described()["pooling"]
    return model, f"vector: {told}" + ("" if pooling in (None, own) else "; that is your choice, not the model's own")


def vector_of(trace: Trace) -> Tensor:
    """The vector of the text (E,), in float64."""
    return trace.step(trace.steps.vector_steps[-1].name).double()


def cosine_of(a: Tensor, b: Tensor) -> float:
    """The cosine of two vectors; 0 where one of them is 0."""
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0, eps=1e-300))


def _unsplit(trace: Trace) -> str:
    """Why the vector is no sum over the tokens; empty where it is one."""
    acts = [step for step in trace.steps.vector_steps if isinstance(step.operation, Activate)]
    return f"{acts[0].name} is not linear, so the vector is no sum over the tokens" if acts else ""


def _shares(trace: Trace) -> Tensor:
    """What each token gives to the vector of the text before it is scaled, (T, E) in float64; then the bias, if any."""
    parts, bias = trace.last_hidden.double(), None
    for step in trace.steps.vector_steps:
        if isinstance(step.operation, Pool):
            parts = step.operation.shares(parts)
        elif isinstance(step.operation, Linear):
            layer: Any = trace.model.get_submodule(step.module)
            weight = layer.weight.double()
            parts, bias = parts @ weight.T, None if bias is None else bias @ weight.T
            if layer.bias is not None:
                bias = layer.bias.double() + (0.0 if bias is None else bias)
    return parts if bias is None else torch.cat([parts, bias[None]])


def _by_layer(first: Trace, second: Trace) -> tuple[float, ...]:
    """The cosine if the model ended before its first layer, or after each: its final norm and pooling follow."""
    model, output = first.model, first.steps.output
    assert model.pooling is not None
    streams = [
        [trace.model_input, *(trace.step(output, n) for n in trace.recording.layers)] for trace in (first, second)
    ]
    return tuple(
        cosine_of(*(model.pooling(model.final_norm(stream[None]))[0] for stream in pair))
        for pair in zip(*streams, strict=True)
    )


def _words(encoding: Encoding) -> tuple[Word, ...]:
    """The tokens of a text, grouped by the word that they are pieces of."""
    ends = [match.end() for match in re.finditer(r"\w+|[^\w\s]+", encoding.text)]
    groups: dict[tuple[str, int], list[int]] = {}
    for number, token in enumerate(encoding.tokens):
        piece = encoding.text[token.start : token.end]
        start = token.start + len(piece) - len(piece.lstrip())
        of_word = piece.strip() and not token.is_added
        end = next((end for end in ends if end > start), -1)
        groups.setdefault(("word", end) if of_word else ("token", number), []).append(number)
    return tuple(_word(encoding, numbers) for numbers in groups.values())


def _word(encoding: Encoding, numbers: list[int]) -> Word:
    tokens = [encoding.tokens[number] for number in numbers]
    text = encoding.text[tokens[0].start : tokens[-1].end].strip()
    shown = printable(text, spaces=False) if text else tokens[0].shown
    spoken = bool(re.search(r"\w", text)) and not all(token.special for token in tokens)
    return Word(shown, tuple(numbers), spoken)
