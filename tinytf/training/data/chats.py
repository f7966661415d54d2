"""Examples of the chat objective: conversations in the model's template, whose assistant tokens are the targets.

A stream of conversations is uint32: ids, with one bit for the first token of each and one for tokens to learn.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tinytf.errors import TrainingError
from tinytf.text.chat import Conversation
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.answers import assistant_spans
from tinytf.training.data.examples import IGNORED, Batch, DrawnExamples, Ids, positions_where
from tinytf.training.recipe import Recipe

FIRST, LEARNED = np.uint32(1 << 31), np.uint32(1 << 30)
_ID = np.uint32((1 << 30) - 1)


def plain_ids(stream: Ids) -> NDArray[np.int64]:
    """The ids of a stream without their marks."""
    return (stream & _ID).astype(np.int64)


def conversation_ids(tokenizer: Tokenizer, text: str) -> NDArray[np.uint32]:
    """The marked ids (N,) of a conversation given as JSON; a token is learned if any of it is the assistant's."""
    conversation = Conversation.from_json(text)
    full_text, spans = assistant_spans(tokenizer, conversation)
    encoded = tokenizer.encode(full_text, special=False)
    ids = np.array(encoded.ids, dtype=np.uint32)
    starts, ends = (np.array([getattr(token, name) for token in encoded.tokens]) for name in ("start", "end"))
    for first, last in spans:
        ids[(starts < last) & (ends > first)] |= LEARNED
    ids[:1] |= FIRST
    return ids


def pack(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Pack texts, by index, into rows of ``width``: longest text first, each into the first row with room for it."""
    rows: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        free = (row for row in rows if sum(lengths[n] for n in row) + lengths[number] <= width)
        if (row := next(free, None)) is None:
            rows.append(row := [])
        row.append(number)
    return rows


class Turns:
    """The conversations of a stream in parts of at most ``block`` + 1 tokens, without parts that have nothing to learn.

    With ``packs`` short parts share a row, without seeing each other.
    """

    def __init__(self, stream: Ids, block: int, packs: bool = False) -> None:
        self.stream, self.block, self.packs = stream, block, packs
        firsts = positions_where(stream, lambda part: (part & FIRST) > 0)
        learned = positions_where(stream, lambda part: (part & LEARNED) > 0)
        ends = np.append(firsts, len(stream))[1:]
        self.lengths = ends - firsts
        parts = [
            (start, min(start + block + 1, end))
            for begin, end in zip(firsts.tolist(), ends.tolist(), strict=True)
            for start in range(begin, end - 1, block)
        ]
        self.parts = [
            (start, stop) for start, stop in parts if np.diff(np.searchsorted(learned, (start + 1, stop)))[0] > 0
        ]

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def long(self) -> tuple[int, int]:
        """How many conversations exceed a part, and how many of their tokens come after the first one."""
        beyond = np.maximum(self.lengths - (self.block + 1), 0)
        return int((beyond > 0).sum()), int(beyond.sum())

    def rows(self, numbers: Sequence[int]) -> tuple[list[list[tuple[int, int]]], int]:
        """The parts in each row of a batch, and its width, the length of the longest part."""
        parts = [self.parts[number] for number in numbers]
        lengths = [stop - start - 1 for start, stop in parts]
        rows = pack(lengths, max(lengths)) if self.packs else [[index] for index in range(len(parts))]
        return [[parts[index] for index in row] for row in rows], max(lengths)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """A batch of some parts, padded on the right, where a causal mask hides the padding."""
        rows, width = self.rows(numbers)
        ids = np.zeros((len(rows), width), dtype=np.int64)
        targets, texts = np.full_like(ids, IGNORED), np.zeros_like(ids)
        for row, parts in enumerate(rows):
            end = 0
            for number, span in enumerate(parts, 1):
                part = self.stream[slice(*span)]
                ids_of_part = plain_ids(part)
                begin, end = end, end + len(part) - 1
                ids[row, begin:end], texts[row, begin:end] = ids_of_part[:-1], number
                targets[row, begin:end] = np.where(part[1:] & LEARNED, ids_of_part[1:], IGNORED)
        shared = any(len(parts) > 1 for parts in rows)
        return Batch(torch.from_numpy(ids), torch.from_numpy(targets), torch.from_numpy(texts) if shared else None)

    def padding(self, numbers: Sequence[int]) -> tuple[int, int]:
        """The number of padding tokens in a batch, and of all its tokens."""
        rows, width = self.rows(numbers)
        size = len(rows) * width
        return size - sum(stop - start - 1 for row in rows for start, stop in row), size


class ChatTurns(DrawnExamples):
    """Conversations drawn uniformly; only the assistant's tokens are targets."""

    def __init__(self, train: Ids, held_out: Ids, recipe: Recipe, packs: bool = False) -> None:
        self.train, self.held_out_set = Turns(train, recipe.block, packs), Turns(held_out, recipe.block, packs)
        self.size, self.seed = recipe.batch, recipe.seed
        if not len(self.train):
            raise TrainingError("no conversation has an assistant message after another message")

    def tokens(self, step: int) -> int:
        padding, size = self.train.padding(self.drawn(step))
        return size - padding

    def padding(self, steps: int) -> float:
        """The share of padding in the batches of the first ``steps`` steps."""
        padding, sizes = zip(*(self.train.padding(self.drawn(step)) for step in range(steps)), strict=True)
        return sum(padding) / sum(sizes)

    @property
    def prompt(self) -> list[int]:
        """The first held-out conversation, or else the first one, up to where the assistant speaks."""
        batch = self.first
        first = int((batch.targets[0] != IGNORED).nonzero()[0])
        ids: list[int] = batch.ids[0, : first + 1].tolist()
        return ids
