"""What the data says before any training: the losses of counting tokens, and whether there is anything new in it."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tinytf.training.data.examples import IGNORED, Batch, Examples
from tinytf.training.recipe import FEW_BATCHES, Recipe

PASSAGE = 32
"""Tokens of a passage of the held-out text that is looked for in the training text."""
COMPARED = 20
"""Batches whose examples are compared."""
_BATCHES, _TOKENS = 512, 1 << 20
"""The most batches, and about the most tokens, that are counted from the first step on."""
_DISCOUNT = 0.75
_FACTORS = np.random.default_rng(0).integers(1 << 63, size=1 << 16, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

Ids = NDArray[np.int64]
Hashes = NDArray[np.uint64]


def data_facts(examples: Examples, recipe: Recipe, vocab_size: int) -> dict[str, Any]:
    """What text.json has of the data: ``baselines``, and counts of passages and examples.

    ``baselines`` are losses in nats per token on the batches of every held-out loss: of unigrams, and unless tokens are
    masked of bigrams. Both are counted in what the run itself trains on, at most 512 batches. Of the held-out
    ``passages``, ``known_passages`` occur there too. The first batch has ``first_examples``, the first 20 ``examples``,
    equal ones counted once.
    """
    masked, train, tokens = recipe.objective == "masked", list[Batch](), 0
    for step in range(min(_BATCHES, recipe.steps)):
        train.append(examples.seen(step))
        tokens += train[-1].ids.numel()
        if tokens >= _TOKENS:
            break
    held_out = list(examples.held_out(FEW_BATCHES))
    rows = [hashes(_text(batch, masked)) for batch in train[:COMPARED]]
    known, passages = (np.concatenate([_passages(_text(batch, masked)) for batch in part] or [np.zeros(0, np.uint64)])
                       for part in (train, held_out))  # fmt: skip
    return {
        "baselines": _baselines(train, held_out, vocab_size, masked) if held_out else {},
        "passages": len(passages), "known_passages": int(np.isin(passages, known).sum()),
        "first_examples": len(np.unique(rows[0])), "examples": len(np.unique(np.concatenate(rows))),
    }  # fmt: skip


def _text(batch: Batch, masked: bool) -> Ids:
    """The ids (B, T) of a batch as its text has them, after those of a source."""
    ids: Ids = (batch.targets.where(batch.targets != IGNORED, batch.ids) if masked else batch.ids).numpy()
    return ids if batch.source is None else np.concatenate([batch.source.numpy(), ids], axis=1)


def hashes(ids: NDArray[Any]) -> Hashes:
    """A hash of each row (…, T), whatever its padding with 0."""
    return np.asarray((ids.astype(np.uint64) * _FACTORS[: ids.shape[-1]]).sum(-1))


def _passages(ids: Ids) -> Hashes:
    """Hashes of all passages in rows (B, T), without those of one token, such as padding."""
    if ids.shape[1] < PASSAGE:
        return np.zeros(0, np.uint64)
    windows = sliding_window_view(ids, PASSAGE, axis=1)
    return hashes(windows[windows.min(-1) < windows.max(-1)])


def _asked(batches: Iterable[Batch]) -> tuple[Ids, Ids]:
    """The targets of batches, and the token before each."""
    pairs = [(batch.ids[mask].numpy(), batch.targets[mask].numpy())
             for batch in batches for mask in [batch.targets != IGNORED]]  # fmt: skip
    before, target = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return before, target


def _baselines(train: list[Batch], held_out: list[Batch], vocab_size: int, masked: bool) -> dict[str, float]:
    """The losses of counting tokens.

    A unigram is counted once more than it occurs. Bigrams are interpolated with unigrams by absolute discounting (Ney,
    Essen and Kneser 1994).
    """
    (before, target), (asked_before, asked) = _asked(train), _asked(held_out)
    counts = np.bincount(target, minlength=vocab_size) + 1.0
    unigram = (counts / counts.sum())[asked]
    losses = {"unigram": unigram}
    if not masked:  # the token before may be masked too
        pairs, pair_counts = np.unique(before * vocab_size + target, return_counts=True)
        firsts = np.bincount(before, minlength=vocab_size)[asked_before]  # how often the token before occurs
        followers = np.bincount(pairs // vocab_size, minlength=vocab_size)[asked_before]
        asked_pairs = asked_before * vocab_size + asked
        index = np.searchsorted(pairs, asked_pairs).clip(max=len(pairs) - 1)
        together = np.where(pairs[index] == asked_pairs, pair_counts[index], 0)
        discounted = np.maximum(together - _DISCOUNT, 0.0) + _DISCOUNT * followers * unigram
        losses["bigram"] = np.where(firsts > 0, discounted / np.maximum(firsts, 1), unigram)
    return {name: float(-np.log(probabilities).mean()) for name, probabilities in losses.items()}
