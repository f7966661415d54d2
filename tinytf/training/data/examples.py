"""Training examples: the batch of every objective, and windows of a token stream.

The examples of a step are a pure function of (seed, step).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinytf.errors import TrainingError
from tinytf.training.recipe import Recipe

IGNORED = -100
"""The target of a position that does not count towards the loss."""

Ids = NDArray[np.integer[Any]]

_LONGEST_PHRASE, _FEW_PHRASES = 8, 4
_CHUNK = 1 << 22  # tokens read at a time from a stream that may be on disk


@dataclass(frozen=True)
class Batch:
    """Input ``ids`` (B, T), ``targets`` (B, T), IGNORED where there is none, and ``padding_mask`` (B, T) or None.

    The mask is True for a real token. If several texts share a row, it numbers them from 1, and 0 is padding. A model
    of two stacks also reads a ``source`` (B, S), with a mask of its own.
    """

    ids: Tensor
    targets: Tensor
    padding_mask: Tensor | None
    source: Tensor | None = None
    source_mask: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All of them, as BatchLoss takes them."""
        return tuple(vars(self).values())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(*(None if tensor is None else change(tensor) for tensor in self.tensors))  # type: ignore[arg-type]

    def to(self, device: torch.device) -> "Batch":
        """This batch on another device."""
        return self._each(lambda tensor: tensor.to(device))

    def __getitem__(self, rows: slice) -> "Batch":
        """The batch of some rows."""
        return self._each(lambda tensor: tensor[rows])

    def source_of(self, row: int) -> Tensor | None:
        """The source (1, S) of a row, without its padding; None without sources."""
        if self.source is None or self.source_mask is None:
            return None
        return self.source[row, self.source_mask[row]][None]

    def without_targets(self) -> "Batch":
        """The first row, with no targets."""
        return replace(self[:1], targets=torch.full_like(self.targets[:1], IGNORED))


class Examples:
    """The data of a run. A subclass gives the batch of every step, and the held-out text if it has any."""

    @property
    def held_out_batches(self) -> int:
        return 0

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0, and always the same one."""
        raise NotImplementedError

    def tokens(self, step: int) -> int:
        """The tokens of a batch, without padding."""
        return self.batch(step).ids.numel()

    def seen(self, step: int) -> Batch:
        """The training text of a step, without repeated tokens."""
        return self.batch(step)

    def held_out(self, limit: int | None = None) -> Iterator[Batch]:
        """All held-out text, or ``limit`` batches spread over it."""
        return iter(())


class DrawnExamples(Examples):
    """Examples of a set drawn uniformly, ``size`` a step; both sets have a length and a ``batch`` of some numbers."""

    train: Any
    held_out_set: Any
    size: int
    seed: int

    def drawn(self, step: int) -> list[int]:
        """The numbers of the examples of a step."""
        numbers: list[int] = seeded(self.seed, step).integers(0, len(self.train), self.size).tolist()
        return numbers

    def batch(self, step: int) -> Batch:
        batch: Batch = self.train.batch(self.drawn(step))
        return batch

    @property
    def first(self) -> Batch:
        """The first held-out example, or else the first one."""
        batch: Batch = (self.held_out_set if len(self.held_out_set) else self.train).batch([0])
        return batch

    @property
    def held_out_batches(self) -> int:
        return -(-len(self.held_out_set) // self.size)

    def held_out(self, limit: int | None = None) -> Iterator[Batch]:
        for first in spread(self.held_out_batches, self.size, limit):
            yield self.held_out_set.batch(range(first, min(first + self.size, len(self.held_out_set))))


def seeded(seed: int, step: int) -> np.random.Generator:
    """The random generator of a step."""
    return np.random.default_rng([seed, step])


def spread(batches: int, size: int, limit: int | None) -> list[int]:
    """The index of the first example of each batch of ``size``, or of ``limit`` evenly spaced batches."""
    count = batches if limit is None else min(limit, batches)
    return [number * batches // count * size for number in range(count)]


def parts_of(stream: Ids) -> Iterator[Ids]:
    """A stream, part by part, since it may be on disk."""
    return (stream[start : start + _CHUNK] for start in range(0, len(stream), _CHUNK))


def positions_where(stream: Ids, condition: Callable[[Ids], NDArray[np.bool_]]) -> NDArray[np.int64]:
    """The positions of a stream where ``condition`` is true; the stream is read part by part."""
    positions = [np.flatnonzero(condition(part)) + i * _CHUNK for i, part in enumerate(parts_of(stream))]
    return np.concatenate([np.zeros(0, dtype=np.int64), *positions])


def positions_after(stream: Ids, token: int) -> NDArray[np.int64]:
    """The position after each ``token`` of a stream."""
    return positions_where(stream, lambda part: part == token) + 1


class NextToken(Examples):
    """Windows of ``block`` tokens from a stream, in memory or mapped; each target is the next token.

    Windows begin anywhere with equal probability, except for a share ``document_starts`` that begins at the start of a
    document (after an ``end`` token). With several corpora, ``groups`` of (tokens, weight), windows begin in each in
    proportion to its weight.
    A share ``repeats`` of the windows (all of them in the first ``repeats_first`` steps) consists instead of a few
    phrases of random ids below ``vocab_size``, repeated in random order: the only way to predict them is to copy what
    followed the last time, at no fixed distance. Only tokens that can be copied are targets there. A window has at
    least 2 phrases, at first a handful and later as many as fit twice, since copying is learned among few candidates.
    """

    def __init__(
        self,
        train: Ids,
        held_out: Ids,
        recipe: Recipe,
        vocab_size: int,
        end: int | None = None,
        groups: Sequence[tuple[int, float]] = (),
    ) -> None:
        block = recipe.block
        counts, weights = np.array(groups or [(len(train), 1.0)]).T
        if (shortest := int(counts.min())) <= block:
            text = "one of the texts" if len(counts) > 1 else "the text"
            raise TrainingError(
                f"{text} has {shortest:,} tokens to train on, but a block needs {block + 1}",
                "give a longer text or a smaller --block",
            )
        self.train, self.held_out_set, self.recipe, self.block, self.size = train, held_out, recipe, block, recipe.batch
        starts = (
            positions_after(train, end) if recipe.document_starts and end is not None else np.zeros(0, dtype=np.int64)
        )
        self.document_starts = np.concatenate(([0], starts[starts < len(train) - block]))
        self.vocab_size = vocab_size
        self.group_starts, self.start_counts = (counts.cumsum() - counts).astype(int), counts.astype(int) - block
        self.shares = weights / weights.sum()

    def seen(self, step: int) -> Batch:
        return self._drawn(seeded(self.recipe.seed, step))

    def _drawn(self, random: np.random.Generator) -> Batch:
        """Windows of the training text."""
        if len(self.shares) > 1:
            group = random.choice(len(self.shares), self.size, p=self.shares)
            starts = self.group_starts[group] + random.integers(0, self.start_counts[group])
        else:
            starts = random.integers(0, len(self.train) - self.block, self.size)
        if len(self.document_starts) > 1:
            document_starts = self.document_starts[random.integers(0, len(self.document_starts), self.size)]
            starts = np.where(random.random(self.size) < self.recipe.document_starts, document_starts, starts)
        windows = self.train[starts[:, None] + np.arange(self.block + 1)]  # (B, T + 1)
        return self._shifted(windows)

    def batch(self, step: int) -> Batch:
        random = seeded(self.recipe.seed, step)
        batch = self._drawn(random)
        repeat_steps = self.recipe.repeats_first
        progress = min(1.0, (step + 1) / repeat_steps) if repeat_steps else 1.0
        share = 1.0 if progress < 1.0 else self.recipe.repeats
        for row in np.flatnonzero(random.random(self.size) < share):
            window, is_predictable = self._phrases(random, progress)
            if not is_predictable.any():  # the block is too short for a phrase to repeat
                continue
            batch.ids[row] = torch.from_numpy(window[:-1])
            batch.targets[row] = torch.from_numpy(np.where(is_predictable, window[1:], IGNORED))
        return batch

    def _phrases(self, random: np.random.Generator, progress: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """A window (T + 1,) of phrases in random order, and which of its T next tokens (T,) can be predicted."""
        length = int(random.integers(2, max(2, min(_LONGEST_PHRASE, self.block // 4)) + 1))
        fit = max(2.0, self.block / length / 2)
        limit = min(fit, _FEW_PHRASES * (fit / _FEW_PHRASES) ** progress) if fit > _FEW_PHRASES else fit
        count = int(np.exp(random.uniform(np.log(2), np.log(limit + 1))))
        phrases = random.integers(0, self.vocab_size, (count, length))
        order = random.integers(0, count, self.block // length + 2)
        start = int(random.integers(length))
        window = slice(start, start + self.block + 1)
        step = (order[:, None] * length + np.arange(length)).ravel()[window]  # (T + 1,) phrase × length + offset
        _, first = np.unique(step[1:], return_index=True)
        is_predictable = step[1:] % length > 0
        is_predictable[first] = False
        return phrases.ravel()[step], is_predictable

    @property
    def _windows(self) -> int:
        """The number of windows of the held-out text; a text shorter than a block is one window."""
        return max((len(self.held_out_set) - 1) // self.block, int(len(self.held_out_set) > 1))

    @property
    def held_out_batches(self) -> int:
        return -(-self._windows // self.size)

    def tokens(self, step: int) -> int:
        return self.size * self.block

    def held_out(self, limit: int | None = None) -> Iterator[Batch]:
        for first in spread(self.held_out_batches, self.size, limit):
            rows = range(first, min(first + self.size, self._windows))
            windows = [self.held_out_set[row * self.block : (row + 1) * self.block + 1] for row in rows]
            yield self._shifted(np.stack(windows))

    @staticmethod
    def _shifted(windows: Ids) -> Batch:
        windows = windows.astype(np.int64, copy=False)
        return Batch(torch.from_numpy(windows[:, :-1].copy()), torch.from_numpy(windows[:, 1:].copy()), None)
