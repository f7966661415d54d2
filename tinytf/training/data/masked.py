"""Examples of the masked objective: consecutive sentences with some tokens masked."""

import re
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from tinytf.errors import TrainingError
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.examples import IGNORED, Batch, Examples, Ids, positions_after, seeded, spread
from tinytf.training.recipe import Recipe

MASKED_SHARE = 0.15
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_HELD_OUT = 1 << 40  # the step that seeds held-out masking; no training step gets this far
_HELD_OUT_SENTENCES = 8


def sentences_of(documents: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Every sentence of every document, and whether the document ends with it."""
    for document in documents:
        *sentences, last = _SENTENCE.split(document.strip())
        yield from ((sentence, False) for sentence in sentences)
        yield last, True


def sentence_ends(tokenizer: Tokenizer) -> tuple[int, int]:
    """The ids that end sentences in a stream: [SEP] after each sentence, and [CLS] after the last [SEP] of a document.

    Raises TrainingError for a tokenizer without the special tokens of the masked objective. A [SEP] in the text itself
    ends a sentence too.
    """
    cls, sep, *required = (tokenizer.special_id(name) for name in ("[CLS]", "[SEP]", "[MASK]", "[PAD]"))
    if cls is None or sep is None or None in required:
        raise TrainingError("the masked objective needs a tokenizer with [CLS], [SEP], [MASK] and [PAD]")
    return sep, cls


class Sentences:
    """The sentences of a stream, in memory or mapped; only their positions are stored."""

    def __init__(self, stream: Ids, sep: int, cls: int) -> None:
        self.stream = stream
        self.ends = positions_after(stream, sep) - 1  # the [SEP] of each sentence
        next_position = np.minimum(self.ends + 1, max(0, len(stream) - 1))
        self.ends_document = stream[next_position] == cls  # the last sentence of its document?

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> list[int]:
        start = self.ends[number - 1] + 1 + self.ends_document[number - 1] if number else 0
        ids: list[int] = self.stream[start : self.ends[number]].tolist()
        return ids


class MaskedTokens(Examples):
    """Consecutive whole sentences between [CLS] and [SEP]; 15 % of the tokens are to be predicted.

    Of those, 80 % become [MASK], 10 % a random token, 10 % stay (Devlin et al. 2019, section 3.1). ``train`` and
    ``held_out`` are streams of ids with ``sentence_ends``, in memory or mapped.
    """

    def __init__(self, train: Ids, held_out: Ids, recipe: Recipe, tokenizer: Tokenizer) -> None:
        self.sep, self.cls = sentence_ends(tokenizer)
        self.mask, self.pad = (int(tokenizer.special_id(name) or 0) for name in ("[MASK]", "[PAD]"))
        self.block, self.size, self.seed = recipe.block, recipe.batch, recipe.seed
        self.words = np.setdiff1d(np.arange(tokenizer.vocab_size), sorted(tokenizer.special_ids))
        self.train, self.held_out_set = (Sentences(stream, self.sep, self.cls) for stream in (train, held_out))
        if not len(self.train):
            raise TrainingError("the text has no sentence to train on")
        self._starts = self._held_out_starts()

    def _example(self, sentences: Sentences, start: int, count: int) -> tuple[list[int], int]:
        """The ids of up to ``count`` sentences of a document from ``start``, as many as fit; and the number of them."""
        ids, used = sentences[start], 1
        for number in range(start + 1, min(start + count, len(sentences))):
            next_ids = [] if sentences.ends_document[number - 1] else sentences[number]
            if sentences.ends_document[number - 1] or len(ids) + len(next_ids) > self.block - 2:
                break
            ids += next_ids
            used += 1
        return [self.cls, *ids[: self.block - 2], self.sep], used

    def _held_out_starts(self) -> list[int]:
        """The first sentence of each held-out example; each example begins where the previous one ends."""
        starts, number = [], 0
        while number < len(self.held_out_set):
            starts.append(number)
            number += self._example(self.held_out_set, number, _HELD_OUT_SENTENCES)[1]
        return starts

    @property
    def held_out_batches(self) -> int:
        return -(-len(self._starts) // self.size)

    def batch(self, step: int) -> Batch:
        random = seeded(self.seed, step)
        starts = random.integers(0, len(self.train), self.size)
        counts = random.integers(1, 9, self.size)
        return self._masked([self._example(self.train, s, c)[0] for s, c in zip(starts, counts, strict=True)], random)

    def tokens(self, step: int) -> int:
        mask = self.batch(step).padding_mask
        assert mask is not None
        return int(mask.sum())

    def held_out(self, limit: int | None = None) -> Iterator[Batch]:
        for first in spread(self.held_out_batches, self.size, limit):
            starts = self._starts[first : first + self.size]
            examples = [self._example(self.held_out_set, start, _HELD_OUT_SENTENCES)[0] for start in starts]
            yield self._masked(examples, seeded(self.seed, _HELD_OUT + first))

    def _masked(self, examples: list[list[int]], random: np.random.Generator) -> Batch:
        length = max(map(len, examples))
        ids = np.full((len(examples), length), self.pad, dtype=np.int64)
        for row, example in enumerate(examples):
            ids[row, : len(example)] = example
        real = ids != self.pad
        fillable = real & (ids != self.cls) & (ids != self.sep)
        draw = np.where(fillable, random.random(ids.shape), 1.0)
        is_target = draw < np.maximum(MASKED_SHARE, draw.min(axis=1, keepdims=True) + 1e-12)  # at least one a row
        is_target &= fillable
        targets = np.where(is_target, ids, IGNORED)
        draw_kind = random.random(ids.shape)
        inputs = np.where(is_target & (draw_kind < 0.8), self.mask, ids)
        random_words = random.choice(self.words, ids.shape)
        inputs = np.where(is_target & (draw_kind >= 0.8) & (draw_kind < 0.9), random_words, inputs)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(real))
