"""Which positions of two runs correspond, so that their numbers can be compared."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tinytf.compare.dumps.dumped import DumpSide
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.text_model import TextModel
from tinytf.trace.record import walk
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class Side:
    """One of two runs: a model, its tokenizer, and the encoded text; its ``trace`` if it was recorded."""

    model: Transformer
    tokenizer: Tokenizer
    encoding: Encoding
    trace: Trace | None = None

    @classmethod
    def of(cls, model: TextModel, text: Text | Encoding, truncate: bool) -> Self:
        """A run of a text, its tokens or its trace, on a model."""
        if isinstance(text, Trace):
            return cls(model.transformer, model.tokenizer, text.encoding, text)
        encoding = text if isinstance(text, Encoding) else model.encode(text, truncate=truncate)
        return cls(model.transformer, model.tokenizer, encoding)

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def parts(self, force: bool) -> Iterator[Trace]:
        """The embeddings, each layer and the final norm in turn; if there is a trace, that trace each time."""
        return walk(self.model, self.encoding, force=force) if self.trace is None else itertools.repeat(self.trace)

    def rows(self) -> tuple[int, ...]:
        """The positions that have logits."""
        return tuple(range(len(self.encoding.tokens)))

    def outcomes(self, part: Trace, rows: Sequence[int]) -> dict[str, Tensor]:
        """The steps from hidden states to logits by name, (P, V) each, at some positions of the last part."""
        return self.model.over_vocabulary(part.last_hidden[list(rows)])


AnySide = Side | DumpSide
"""A run of a model, or a dump of one by another program."""


@dataclass(frozen=True)
class Alignment:
    """The first ``positions`` of both runs are compared, position by position.

    ``changed`` are those with different tokens. ``asked`` are the pairs of positions at which the runs predict: the
    ends of the texts, or the masks of an encoder that both have. ``note`` says what is omitted.
    """

    positions: int
    changed: tuple[int, ...]
    asked: tuple[tuple[int, int], ...]
    same_vocabulary: bool
    note: str = ""


def align(first: AnySide, second: AnySide) -> Alignment:
    """Align two runs, position by position.

    Raises UsageError for runs that cannot be compared: one text that two tokenizers split differently, from the first
    token or in a model that looks both ways; texts of different lengths in such a model; different texts in different
    vocabularies.
    """
    same_vocabularies = _same_vocabulary(first, second)
    lengths = [len(side.encoding.tokens) for side in (first, second)]
    one_text = first.encoding.text == second.encoding.text
    if not same_vocabularies:
        if not one_text:
            raise UsageError(
                "two texts in two vocabularies have no numbers in common", "compare two models on one text"
            )
        n_alike, note_on_splits = _same_cuts(first, second)
        if note_on_splits:
            return Alignment(n_alike, (), (), same_vocabularies, note_on_splits)
    if lengths[0] != lengths[1] and any(side.config.looks_ahead for side in (first, second)):
        raise UsageError(
            f"the texts have {lengths[0]:,} and {lengths[1]:,} tokens, and this model looks both ways: another "
            "length changes every position",
            "give texts with the same number of tokens; tinytf tokens shows how they split",
        )
    n = min(lengths)
    pairs = list(zip(first.encoding.tokens[:n], second.encoding.tokens[:n], strict=True))
    changed = tuple(i for i, (a, b) in enumerate(pairs) if same_vocabularies and a.id != b.id)
    note = second.note if isinstance(second, DumpSide) else ""
    if lengths[0] != lengths[1]:
        longer = "second" if lengths[1] > lengths[0] else "first"
        note = f"the texts have {lengths[0]:,} and {lengths[1]:,} tokens: the first {n:,} are compared, one by one"
        note += f", the other {abs(lengths[0] - lengths[1]):,} of the {longer} are omitted"
    asked: tuple[tuple[int, int], ...]
    if {side.config.head.row_read for side in (first, second)} == {0}:
        asked = ((0, 0),)
    elif first.config.causal and second.config.causal:
        asked = ((lengths[0] - 1, lengths[1] - 1),)
    else:
        masks = [
            {i for i, id in enumerate(s.encoding.ids) if s.tokenizer is not None and id == s.tokenizer.mask_id}
            for s in (first, second)
        ]
        asked = tuple((i, i) for i in sorted(masks[0] & masks[1]))
    return Alignment(n, changed, asked, same_vocabularies, note)


def _same_vocabulary(first: AnySide, second: AnySide) -> bool:
    if first.config.vocab_size != second.config.vocab_size:
        return False
    if first.tokenizer is None or second.tokenizer is None:
        return True
    return same_vocabulary(first.tokenizer, second.tokenizer)


def same_vocabulary(first: Tokenizer, second: Tokenizer) -> bool:
    """Whether each token of the smaller vocabulary has the same id in the other, which may be padded."""
    small, large = sorted((first.library.get_vocab(), second.library.get_vocab()), key=len)
    return first is second or small.items() <= large.items()


def _same_cuts(first: AnySide, second: AnySide) -> tuple[int, str]:
    """The number of leading tokens that two tokenizers cut alike, and a note on the rest. UsageError if it is 0."""
    cuts = [[(token.start, token.end) for token in side.encoding.tokens] for side in (first, second)]
    if cuts[0] == cuts[1]:
        return len(cuts[0]), ""
    split_at = next((i for i, (a, b) in enumerate(zip(*cuts, strict=False)) if a != b), min(map(len, cuts)))
    at_split = [
        side.encoding.tokens[split_at].shown if split_at < len(side.encoding.tokens) else "the end"
        for side in (first, second)
    ]
    message = f"split the text differently, first at token {split_at}: {at_split[0]} and {at_split[1]}"
    if not split_at or any(side.config.looks_ahead for side in (first, second)):
        raise UsageError(
            f"the two models have different vocabularies and {message} ({len(cuts[0]):,} and {len(cuts[1]):,} tokens "
            "in all)",
            "models with one tokenizer can be compared, such as the checkpoints of a run",
        )
    return split_at, f"the tokenizers {message}; the tokens before are compared"
