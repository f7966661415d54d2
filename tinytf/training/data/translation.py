"""Examples of the translate objective: a source, and its target with teacher forcing.

A stream of pairs is uint32: ids, with one bit for the first token of each source and one for those of targets.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinytf.errors import TrainingError, UsageError
from tinytf.files import parse_json
from tinytf.model.transformer import Transformer, evaluating, facing
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.chats import FIRST, LEARNED, plain_ids
from tinytf.training.data.examples import IGNORED, Batch, DrawnExamples, Ids, positions_where
from tinytf.training.recipe import Recipe


def pair_ids(tokenizer: Tokenizer, text: str) -> NDArray[np.uint32]:
    """The marked ids (N,) of a pair given as JSON: the source as the model reads it, the target with an end token."""
    source, target = parse_json(text)
    written = tokenizer.encode(target).open_ended(tokenizer.end_ids).ids if target else []
    ids = np.array([*tokenizer.encode(source).ids, *written, *tokenizer.end_ids[:1]], dtype=np.uint32)
    ids[-len(written) - 1 :] |= LEARNED
    ids[0] |= FIRST
    return ids


def padded(rows: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor (B, T), padded on the right with 0, and which of its entries (B, T) are real."""
    lengths = np.array([len(row) for row in rows])
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(real.shape, dtype=np.int64)
    ids[real] = np.concatenate(rows)
    return torch.from_numpy(ids), torch.from_numpy(real)


@contextmanager
def facing_row(model: Transformer, batch: Batch, row: int = 0) -> Iterator[None]:
    """Let a model of two stacks read the source of a row of the batch; one of one stack has none."""
    with torch.no_grad(), evaluating(model):
        source = model.read(batch.source_of(row))
    with facing(model, source):
        yield


class Pairs:
    """The pairs of a stream; a target begins with the token ``start``, which the stream leaves out."""

    def __init__(self, stream: Ids, start: int) -> None:
        self.stream, self.start = stream, start
        self.firsts = positions_where(stream, lambda part: (part & FIRST) > 0)
        learned = positions_where(stream, lambda part: (part & LEARNED) > 0)
        self.middles = learned[np.searchsorted(learned, self.firsts)]
        self.ends = np.append(self.firsts, len(stream))[1:]

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def longest(self) -> int:
        """The tokens of the longest source or target."""
        return int(max((self.middles - self.firsts).max(initial=0), (self.ends - self.middles).max(initial=0)))

    def __getitem__(self, number: int) -> tuple[Ids, Ids]:
        """The ids of a source and of its target."""
        first, middle, end = self.firsts[number], self.middles[number], self.ends[number]
        return plain_ids(self.stream[first:middle]), plain_ids(self.stream[middle:end])

    def batch(self, numbers: Sequence[int]) -> Batch:
        """A batch of some pairs: the token before each of the target is given, and itself to be predicted."""
        sources, targets = zip(*(self[number] for number in numbers), strict=True)
        source, source_mask = padded(sources)
        ids, _ = padded([np.insert(target[:-1], 0, self.start) for target in targets])
        labels, real = padded(targets)
        return Batch(ids, torch.where(real, labels, IGNORED), real, source, source_mask)


class Translations(DrawnExamples):
    """Pairs drawn uniformly. Raises UsageError for one that is longer than a block."""

    def __init__(self, train: Ids, held_out: Ids, recipe: Recipe, start: int) -> None:
        self.train, self.held_out_set = Pairs(train, start), Pairs(held_out, start)
        self.size, self.seed = recipe.batch, recipe.seed
        if not len(self.train):
            raise TrainingError("there is no pair to train on")
        if (longest := max(self.train.longest, self.held_out_set.longest)) > recipe.block:
            raise UsageError(
                f"a text of the pairs has {longest:,} tokens, and a block {recipe.block:,}",
                f"give --block {longest}, or leave out long pairs",
            )

    def tokens(self, step: int) -> int:
        batch = self.batch(step)
        return sum(int(mask.sum()) for mask in (batch.padding_mask, batch.source_mask) if mask is not None)
