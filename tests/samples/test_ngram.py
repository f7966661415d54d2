"""The n-gram baseline, against the formulas written out with dictionaries and against a calculation by hand."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

VOCABULARY = 6
texts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=60)


def by_dictionaries(ids: Sequence[int], order: int, context: Sequence[int], token: int) -> float:
    """Modified Kneser-Ney, one probability at a time, straight from Chen and Goodman."""
    order = min(order, len(ids))
    seen = [tuple(ids[end - n : end]) for n in range(1, order + 1) for end in range(n, len(ids) + 1)]
    counts: Counter[tuple[int, ...]] = Counter(gram for gram in seen if len(gram) == order)
    before: dict[tuple[int, ...], set[object]] = defaultdict(set)
    for n in range(1, order):
        before[tuple(ids[:n])].add("the beginning")
        for end in range(n + 1, len(ids) + 1):
            before[tuple(ids[end - n : end])].add(ids[end - n - 1])
    counts.update({gram: len(tokens) for gram, tokens in before.items()})

    def discount(gram: tuple[int, ...]) -> float:
        n = [sum(count == k and len(g) == len(gram) for g, count in counts.items()) for k in range(5)]
        if not n[1] or not n[2]:
            return 0.5
        y = n[1] / (n[1] + 2 * n[2])
        d1, d2 = 1 - 2 * y * n[2] / n[1], 2 - 3 * y * n[3] / n[2]
        d3 = 3 - 4 * y * n[4] / n[3] if n[3] else min(max(d2, 0.05), 2.9)
        limits = {1: (d1, 0.95), 2: (d2, 1.9), 3: (d3, 2.9)}[min(counts[gram], 3)]
        return min(max(limits[0], 0.05), limits[1])

    def probability(history: tuple[int, ...]) -> float:
        lower = probability(history[1:]) if history else 1 / VOCABULARY
        followers = [gram for gram in counts if gram[:-1] == history]
        if not followers:
            return lower
        total = sum(counts[gram] for gram in followers)
        own = (*history, token)
        share = counts[own] - discount(own) if own in counts else 0.0
        return (share + sum(map(discount, followers)) * lower) / total

    return probability(tuple(context[max(0, len(context) - order + 1) :]))


def test_a_unigram_model_matches_a_calculation_by_hand() -> None:
    from ngram import fit

    # Four tokens once, two twice, one three times, one four times, two never: Y = 4 / (4 + 2*2) = 1/2, so that
    # D1 = 1 - 2*Y*2/4 = 0.5, D2 = 2 - 3*Y*1/2 = 1.25, D3+ = 3 - 4*Y*1/1 = 1, and 4*0.5 + 2*1.25 + 2*1 = 6.5 is taken.
    model = fit([0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 7, 7, 7, 7], vocab_size=10, order=1)
    floor = 6.5 / 15 / 10
    expected = [0.5 / 15, 0.5 / 15, 0.5 / 15, 0.5 / 15, 0.75 / 15, 0.75 / 15, 2 / 15, 3 / 15, 0, 0]
    np.testing.assert_allclose(model.distribution([]), np.array(expected) + floor)


@settings(deadline=None, max_examples=60)
@given(texts, st.lists(st.integers(0, VOCABULARY - 1), max_size=6), st.integers(1, 5))
def test_a_distribution_matches_the_formulas_written_with_dictionaries(
    ids: list[int], context: list[int], order: int
) -> None:
    from ngram import fit

    expected = [by_dictionaries(ids, order, context, token) for token in range(VOCABULARY)]
    np.testing.assert_allclose(fit(ids, VOCABULARY, order).distribution(context), expected, rtol=1e-9)


@settings(deadline=None, max_examples=60)
@given(texts, st.lists(st.integers(0, VOCABULARY - 1), max_size=8))
def test_every_distribution_sums_to_one_and_leaves_nothing_impossible(ids: list[int], context: list[int]) -> None:
    from ngram import fit

    distribution = fit(ids, VOCABULARY).distribution(context)
    assert distribution.sum() == pytest.approx(1.0)
    assert distribution.min() > 0


@settings(deadline=None, max_examples=60)
@given(texts, texts)
def test_log_probabilities_and_distributions_agree(ids: list[int], unseen: list[int]) -> None:
    from ngram import fit

    model = fit(ids, VOCABULARY)
    expected = [np.log(model.distribution(unseen[:end])[token]) for end, token in enumerate(unseen)]
    np.testing.assert_allclose(model.log_probabilities(unseen), expected)


def test_longer_contexts_predict_stories_better(some_stories: list[str]) -> None:
    from ngram import fit

    characters = list("\n".join(some_stories[:600]).encode())
    train, held_out = characters[:150_000], characters[150_000:170_000]
    losses = [-fit(train, 256, order).log_probabilities(held_out).mean() for order in range(1, 6)]
    assert losses == sorted(losses, reverse=True)
    assert losses[4] < 0.6 * losses[0]


def test_nothing_to_count_is_refused() -> None:
    from ngram import fit

    with pytest.raises(ValueError, match="at least one token"):
        fit([], 10)


def test_an_id_outside_the_vocabulary_is_refused_with_the_limit() -> None:
    from ngram import fit

    with pytest.raises(ValueError, match="from 0 to 9, but 3 to 12 were given"):
        fit([3, 12], 10)


def test_no_tokens_have_no_probabilities() -> None:
    from ngram import fit

    assert fit([1, 2, 3], 10).log_probabilities([]).shape == (0,)
