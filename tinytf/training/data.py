"""Examples to train on: windows of a token stream, or spans of sentences with masked tokens.

Which examples a step sees is a pure function of (seed, step).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinytf.errors import TrainingError
from tinytf.text.tokenizer import Tokenizer

IGNORED = -100
"""The target of a position that does not count towards the loss."""

MASKED_SHARE = 0.15
BLANK_LINE = re.compile(r"\n[ \t]*\n")
_LONGEST_PHRASE, _FEW_PHRASES = 8, 4
_LOOKED_AT_ONCE = 1 << 22  # tokens of a stream that may lie on disk
_HELD_OUT = 1 << 40  # the step that seeds held-out masking: no training step gets there


@dataclass(frozen=True)
class Batch:
    """``ids`` (B, T) in, ``targets`` (B, T) out (IGNORED where nothing is asked), ``padding_mask`` (B, T) or None."""

    ids: Tensor
    targets: Tensor
    padding_mask: Tensor | None

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        mask = None if self.padding_mask is None else self.padding_mask.to(device)
        return Batch(self.ids.to(device), self.targets.to(device), mask)


class Examples(Protocol):
    """What the loop needs of any objective."""

    def batch(self, step: int) -> Batch: ...

    def held_out(self, limit: int | None = None) -> Iterator[Batch]: ...


def _random(seed: int, step: int) -> np.random.Generator:
    return np.random.default_rng([seed, step])


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text: what blank lines separate. They are its documents."""
    return [piece for piece in BLANK_LINE.split(text) if piece.strip()]


def split_held_out(documents: list[str], share: float) -> tuple[list[str], list[str]]:
    """The last documents, ``share`` of all characters, are held out; at least one stays on either side."""
    total = sum(map(len, documents))
    kept, count = 0, 0
    while count < len(documents) - 1 and kept + len(documents[count]) <= total * (1 - share):
        kept += len(documents[count])
        count += 1
    return documents[: max(1, count)], documents[max(1, count) :]


def token_stream(documents: list[str], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """All documents behind each other, an end token after each where the tokenizer has one."""
    end = tokenizer.end_id
    encodings = tokenizer.library.encode_batch_fast(documents, add_special_tokens=False)
    tail = [] if end is None else [end]
    return np.concatenate([np.array(encoding.ids + tail, dtype=np.int64) for encoding in encodings])


def _behind(stream: NDArray[np.integer[Any]], token: int) -> NDArray[np.int64]:
    """The places behind each ``token`` of a stream, which is looked at part by part."""
    starts = range(0, len(stream), _LOOKED_AT_ONCE)
    return np.concatenate([np.flatnonzero(stream[i : i + _LOOKED_AT_ONCE] == token) + (i + 1) for i in starts])


class NextToken:
    """Windows of ``block`` tokens from the stream, in memory or mapped; each target is the token that follows.

    Half of the windows begin where a document does (behind an ``end`` token), the others anywhere.
    A share ``repeats`` of the windows (in the first ``repeats_first`` steps all of them) is made of a few phrases of
    random ids below ``vocab_size`` instead, told over and over in random order: only copying what followed the last
    time helps, and no fixed distance does. There only what can be copied is asked for. A window has 2 phrases or more,
    at first a handful and later as many as fit twice: copying is learned where few tokens are candidates.
    """

    def __init__(
        self,
        train: NDArray[np.integer[Any]],
        held_out: NDArray[np.integer[Any]],
        *,
        block: int,
        batch: int,
        seed: int,
        vocab_size: int,
        end: int | None = None,
        repeats: float = 0.0,
        repeats_first: int = 0,
    ) -> None:
        if len(train) <= block:
            raise TrainingError(
                f"the text has {len(train)} tokens to train on, and a block needs {block + 1}",
                "give a longer text or a smaller --block",
            )
        self.train, self.kept, self.block, self.size, self.seed = train, held_out, block, batch, seed
        beginnings = _behind(train, end) if end is not None else np.zeros(0, dtype=np.int64)
        self.beginnings = np.concatenate(([0], beginnings[beginnings < len(train) - block]))
        self.vocab_size, self.repeats, self.repeats_first = vocab_size, repeats, repeats_first

    def batch(self, step: int) -> Batch:
        random = _random(self.seed, step)
        starts = random.integers(0, len(self.train) - self.block, self.size)
        if len(self.beginnings) > 1:
            chosen = self.beginnings[random.integers(0, len(self.beginnings), self.size)]
            starts = np.where(random.random(self.size) < 0.5, chosen, starts)
        windows = self.train[starts[:, None] + np.arange(self.block + 1)]  # (B, T + 1)
        batch = self._shifted(windows)
        progress = min(1.0, (step + 1) / self.repeats_first) if self.repeats_first else 1.0
        share = 1.0 if progress < 1.0 else self.repeats
        for row in np.flatnonzero(random.random(self.size) < share):
            window, known = self._phrases(random, progress)
            if not known.any():  # a block too short for a phrase to come back
                continue
            batch.ids[row] = torch.from_numpy(window[:-1])
            batch.targets[row] = torch.from_numpy(np.where(known, window[1:], IGNORED))
        return batch

    def _phrases(self, random: np.random.Generator, progress: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """A window (T + 1,) of phrases told in random order, and which of its T next tokens can be known."""
        length = int(random.integers(2, max(2, min(_LONGEST_PHRASE, self.block // 4)) + 1))
        fit = max(2.0, self.block / length / 2)
        most = min(fit, _FEW_PHRASES * (fit / _FEW_PHRASES) ** progress) if fit > _FEW_PHRASES else fit
        count = int(np.exp(random.uniform(np.log(2), np.log(most + 1))))
        phrases = random.integers(0, self.vocab_size, (count, length))
        order = random.integers(0, count, self.block // length + 2)
        start = int(random.integers(length))
        told = slice(start, start + self.block + 1)
        step = (order[:, None] * length + np.arange(length)).ravel()[told]  # (T + 1,) which phrase, and where in it
        _, first = np.unique(step[1:], return_index=True)
        known = step[1:] % length > 0
        known[first] = False
        return phrases.ravel()[step], known

    def held_out(self, limit: int | None = None) -> Iterator[Batch]:
        count = (len(self.kept) - 1) // self.block
        windows = [self.kept[i * self.block : (i + 1) * self.block + 1] for i in range(count)]
        if not windows and len(self.kept) > 1:
            windows = [self.kept]
        for first in range(0, len(windows), self.size):
            if limit is not None and first >= limit * self.size:
                return
            yield self._shifted(np.stack(windows[first : first + self.size]))

    @staticmethod
    def _shifted(windows: NDArray[np.integer[Any]]) -> Batch:
        windows = windows.astype(np.int64, copy=False)
        return Batch(torch.from_numpy(windows[:, :-1].copy()), torch.from_numpy(windows[:, 1:].copy()), None)


class MaskedTokens:
    """Runs of whole sentences between [CLS] and [SEP]; of each, 15 % of the tokens are to be filled in.

    Of those, 80 % become [MASK], 10 % a random token, 10 % stay (Devlin et al. 2019, section 3.1).
    """

    def __init__(
        self, train: list[str], held_out: list[str], tokenizer: Tokenizer, block: int, batch: int, seed: int
    ) -> None:
        ids = [tokenizer.special_id(name) for name in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")]
        if None in ids:
            raise TrainingError("the masked objective needs a tokenizer with [CLS], [SEP], [MASK] and [PAD]")
        self.cls, self.sep, self.mask, self.pad = (int(i or 0) for i in ids)
        self.block, self.size, self.seed = block, batch, seed
        self.words = np.setdiff1d(np.arange(tokenizer.vocab_size), sorted(tokenizer.special_ids))
        self.train, self.kept = self._sentences(train, tokenizer), self._sentences(held_out, tokenizer)
        if not self.train:
            raise TrainingError("the text has no sentence to train on")

    @staticmethod
    def _sentences(documents: list[str], tokenizer: Tokenizer) -> list[tuple[int, list[int]]]:
        """Every sentence as (number of its document, ids)."""
        flat = [
            (number, sentence)
            for number, document in enumerate(documents)
            for sentence in re.split(r"(?<=[.!?])\s+", document.strip())
        ]
        encodings = tokenizer.library.encode_batch_fast([sentence for _, sentence in flat], add_special_tokens=False)
        return [(number, encoding.ids) for (number, _), encoding in zip(flat, encodings, strict=True)]

    def _example(self, sentences: list[tuple[int, list[int]]], start: int, count: int) -> tuple[list[int], int]:
        """``count`` sentences from ``start``, within their document, as many as fit the block; and how many fit."""
        document, ids, used = sentences[start][0], list(sentences[start][1]), 1
        for number, more in sentences[start + 1 : start + count]:
            if number != document or len(ids) + len(more) > self.block - 2:
                break
            ids += more
            used += 1
        return [self.cls, *ids[: self.block - 2], self.sep], used

    def batch(self, step: int) -> Batch:
        random = _random(self.seed, step)
        starts = random.integers(0, len(self.train), self.size)
        counts = random.integers(1, 9, self.size)
        return self._masked([self._example(self.train, s, c)[0] for s, c in zip(starts, counts, strict=True)], random)

    def held_out(self, limit: int | None = None) -> Iterator[Batch]:
        examples, place = [], 0
        while place < len(self.kept):
            example, used = self._example(self.kept, place, 8)
            examples.append(example)
            place += used
        for first in range(0, len(examples), self.size):
            if limit is not None and first >= limit * self.size:
                return
            yield self._masked(examples[first : first + self.size], _random(self.seed, _HELD_OUT + first))

    def _masked(self, examples: list[list[int]], random: np.random.Generator) -> Batch:
        length = max(map(len, examples))
        ids = np.full((len(examples), length), self.pad, dtype=np.int64)
        for row, example in enumerate(examples):
            ids[row, : len(example)] = example
        real = ids != self.pad
        fillable = real & (ids != self.cls) & (ids != self.sep)
        draw = np.where(fillable, random.random(ids.shape), 1.0)
        chosen = draw < np.maximum(MASKED_SHARE, draw.min(axis=1, keepdims=True) + 1e-12)  # at least one a row
        chosen &= fillable
        targets = np.where(chosen, ids, IGNORED)
        how = random.random(ids.shape)
        shown = np.where(chosen & (how < 0.8), self.mask, ids)
        others = random.choice(self.words, ids.shape)
        shown = np.where(chosen & (how >= 0.8) & (how < 0.9), others, shown)
        return Batch(torch.from_numpy(shown), torch.from_numpy(targets), torch.from_numpy(real))
