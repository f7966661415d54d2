"""What counting tokens reaches on the held-out text: the losses that a trained model must beat."""

import numpy as np

from tinytf.training.data.examples import IGNORED, NextToken
from tinytf.training.recipe import FEW_BATCHES

_MOST = 1 << 22
"""Training tokens that are counted at most, from the start."""
_DISCOUNT = 0.75


def baselines(examples: NextToken, vocab_size: int) -> dict[str, float]:
    """The losses of unigram and bigram counts in nats per token, on the batches of every held-out loss; {} without any.

    A unigram is counted once more than it occurs. Bigrams are interpolated with unigrams by absolute discounting (Ney,
    Essen and Kneser 1994).
    """
    batches = list(examples.held_out(FEW_BATCHES))
    if not batches:
        return {}
    asked = [batch.targets != IGNORED for batch in batches]
    before = np.concatenate([batch.ids[mask].numpy() for batch, mask in zip(batches, asked, strict=True)])
    target = np.concatenate([batch.targets[mask].numpy() for batch, mask in zip(batches, asked, strict=True)])
    train = np.asarray(examples.train[:_MOST], dtype=np.int64)
    counts = np.bincount(train, minlength=vocab_size) + 1.0
    unigram = (counts / counts.sum())[target]
    pairs, pair_counts = np.unique(train[:-1] * vocab_size + train[1:], return_counts=True)
    firsts = np.bincount(train[:-1], minlength=vocab_size)[before]  # how often the token before occurs
    followers = np.bincount(pairs // vocab_size, minlength=vocab_size)[before]
    asked_pairs = before * vocab_size + target
    index = np.searchsorted(pairs, asked_pairs).clip(max=len(pairs) - 1)
    together = np.where(pairs[index] == asked_pairs, pair_counts[index], 0)
    discounted = np.maximum(together - _DISCOUNT, 0.0) + _DISCOUNT * followers * unigram
    bigram = np.where(firsts > 0, discounted / np.maximum(firsts, 1), unigram)
    losses = {"unigram": unigram, "bigram": bigram}
    return {name: float(-np.log(probabilities).mean()) for name, probabilities in losses.items()}
