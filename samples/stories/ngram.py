"""A 5-gram language model over token ids: the honest baseline of the neural one.

Interpolated modified Kneser-Ney smoothing, after S. F. Chen and J. Goodman, "An empirical study of smoothing techniques
for language modeling", Computer Speech and Language 13 (1999), 359-394, where it is the last method that they define:
three discounts for each order, and lower orders estimated from continuation counts. Under the unigrams lies the uniform
distribution, so that no token is impossible.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Order:
    """What is known of the n-grams of one length, sorted by context and then by token.

    A context is a number: its rank among the contexts of the same length, so that `(context, token)` fits one integer.
    """

    keys: Integers  # (N,) context * vocabulary + token, ascending: one for each n-gram that was seen
    shares: Floats  # (N,) what the n-gram keeps of the probability in its context after the discount
    back_off: Floats  # (M,) for each context, the weight of the next lower order
    starts: Integers  # (M + 1,) where each context begins in `keys`
    children: Integers  # (N,) the number, at the next order, of the context that this n-gram is; -1 where it has none


@dataclass(frozen=True)
class NGramModel:
    """Probabilities of the next token given up to `len(orders) - 1` tokens before it.

    A context is read forwards, so its number is found by walking down `orders`: a unigram is a context of one, ...
    """

    vocab_size: int
    orders: tuple[Order, ...]  # unigrams, bigrams, ...

    def log_probabilities(self, ids: Sequence[int]) -> Floats:
        """Returns the natural logarithm of the probability of each token given those before it in `ids`.

        The first is predicted from nothing, the next from one token, and so on. Raises ValueError for an id outside
        the vocabulary.
        """
        tokens = checked(ids, self.vocab_size)
        probabilities = np.full(len(tokens), 1.0 / self.vocab_size)
        contexts = self._contexts(tokens)
        for order, context in zip(self.orders, contexts, strict=True):
            known = context >= 0
            keys = np.where(known, context * self.vocab_size + tokens, -1)
            at, seen = find(order.keys, keys)
            own = np.where(seen, order.shares[at], 0.0)
            weight = order.back_off[np.maximum(context, 0)]
            probabilities = np.where(known, own + weight * probabilities, probabilities)
        logs: Floats = np.log(probabilities)
        return logs

    def distribution(self, context: Sequence[int]) -> Floats:
        """Returns the probability of each token of the vocabulary after `context`, (V,)."""
        tokens = checked(context, self.vocab_size)
        probabilities = np.full(self.vocab_size, 1.0 / self.vocab_size)
        for length, order in enumerate(self.orders):
            number = self._context_number(tokens[len(tokens) - length :]) if length <= len(tokens) else -1
            if number < 0:
                break
            probabilities *= order.back_off[number]
            here = slice(order.starts[number], order.starts[number + 1])
            probabilities[order.keys[here] - number * self.vocab_size] += order.shares[here]
        return probabilities

    def _contexts(self, tokens: Integers) -> list[Integers]:
        """Returns for each order the number of the context before each token, -1 where it is too short or unseen."""
        numbers = np.zeros(len(tokens), dtype=np.int64)  # of the empty context
        contexts = [numbers]
        for order in self.orders[:-1]:
            # The context that ends one token further on, one token longer: what was numbered, then this token.
            keys = np.where(numbers >= 0, numbers * self.vocab_size + tokens, -1)
            at, seen = find(order.keys, keys)
            numbers = np.concatenate([[-1], np.where(seen, order.children[at], -1)[:-1]])[: len(tokens)]
            contexts.append(numbers)
        return contexts

    def _context_number(self, context: Integers) -> int:
        number = 0
        for order, token in zip(self.orders, context.tolist(), strict=False):
            at, seen = find(order.keys, np.array([number * self.vocab_size + token]))
            number = int(order.children[at[0]]) if seen[0] else -1
            if number < 0:
                break
        return number


def fit(ids: Sequence[int], vocab_size: int, order: int = 5) -> NGramModel:
    """Counts the n-grams of `ids` up to length `order` and smooths them.

    Raises ValueError if there is no token, or one outside the vocabulary.
    """
    tokens = checked(ids, vocab_size)
    if not len(tokens):
        raise ValueError("an n-gram model needs at least one token to count")
    grams = count_grams(tokens, vocab_size, order)
    orders = []
    for length, gram in enumerate(grams):
        longer = grams[length + 1] if length + 1 < len(grams) else None
        orders.append(smoothed(gram, gram.counts if longer is None else gram.continuations, vocab_size))
    return NGramModel(vocab_size, tuple(orders))


@dataclass
class Grams:
    """The distinct n-grams of one length, sorted, and how often each was seen."""

    keys: Integers  # (N,) context * vocabulary + token
    counts: Integers  # (N,) occurrences
    continuations: (
        Integers  # (N,) how many different tokens were seen before it; occurrences at the very beginning count 1
    )
    children: Integers  # (N,) its number as a context of the next order, -1 for none
    contexts: int  # how many contexts there are


def count_grams(tokens: Integers, vocab_size: int, order: int) -> list[Grams]:
    """Returns the n-grams of each length up to `order`; those that the tokens are too few for are left out."""
    numbers = np.zeros(len(tokens), dtype=np.int64)  # of the context before each position
    contexts = 1
    ranks: Integers | None = None  # of the n-gram one shorter that ends at each position, for the continuations
    found: list[Grams] = []
    for length in range(1, min(order, len(tokens)) + 1):
        ends = np.arange(length - 1, len(tokens))
        keys, inverse, counts = np.unique(numbers * vocab_size + tokens[ends], return_inverse=True, return_counts=True)
        if ranks is not None:
            suffixes = np.zeros(len(keys), dtype=np.int64)
            suffixes[inverse] = ranks[1:]
            shorter = found[-1]
            shorter.continuations = np.bincount(suffixes, minlength=len(shorter.keys))
            shorter.continuations[ranks[0]] += 1  # nothing stands before the first n-gram: a predecessor of its own
        gram = Grams(keys, counts, counts, np.full(len(keys), -1), contexts)
        found.append(gram)
        # An n-gram that something follows is a context of the next order; the last one perhaps is not.
        followed = np.unique(inverse[:-1])
        gram.children[followed] = np.arange(len(followed))
        numbers, contexts, ranks = gram.children[inverse[:-1]], len(followed), inverse
    return found


def smoothed(gram: Grams, counts: Integers, vocab_size: int) -> Order:
    """Discounts the counts of each context, and gives what is taken to the lower order."""
    context = gram.keys // vocab_size  # (N,)
    starts = np.searchsorted(context, np.arange(gram.contexts + 1))
    totals = np.bincount(context, weights=counts, minlength=gram.contexts)  # (M,)
    amounts = discounts(counts)[np.minimum(counts, 3)]  # (N,)
    taken = np.bincount(context, weights=amounts, minlength=gram.contexts)
    return Order(gram.keys, (counts - amounts) / totals[context], taken / totals, starts, gram.children)


def discounts(counts: Integers) -> Floats:
    """Returns what to take from a count of 0, 1, 2, and 3 or more, as Chen and Goodman estimate it.

    Where the counts of counts are too few for the estimate it is kept inside 0 and the count, and half where unknown.
    """
    ones, twos, threes, fours = (int(np.sum(counts == times)) for times in (1, 2, 3, 4))
    if not ones or not twos:
        return np.array([0.0, 0.5, 0.5, 0.5])
    unit = ones / (ones + 2 * twos)
    one = 1 - 2 * unit * twos / ones
    two = 2 - 3 * unit * threes / twos
    more = 3 - 4 * unit * fours / threes if threes else two
    return np.array([0.0, np.clip(one, 0.05, 0.95), np.clip(two, 0.05, 1.9), np.clip(more, 0.05, 2.9)])


def find(ordered: Integers, wanted: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Returns where each wanted key is, and whether it is there at all."""
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return at, ordered[at] == wanted


def checked(ids: Sequence[int], vocab_size: int) -> Integers:
    tokens = np.asarray(ids, dtype=np.int64).reshape(-1)
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        raise ValueError(
            f"token ids must be from 0 to {vocab_size - 1}, but {tokens.min()} to {tokens.max()} were given"
        )
    return tokens
