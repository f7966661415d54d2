"""Scores of heads against TransformerLens' head detector, on the same tiny random weights.

What is detected is the same place of the same weights; what it is divided by is not. TransformerLens takes the share of
all attention, every query of T tokens counted: so of a previous-token head it misses 1 of T by construction, and a
head that repeats is seen in the second copy alone, half of the queries. Here a score is the mean over those queries
that could do it. So ours is theirs · T / (T − 1), and theirs · 2.
"""

from itertools import count
from typing import Any

import pytest
import torch
from peer_models import PEERS, peers
from torch import Tensor

from tinytf.look.heads.census import census
from tinytf.look.heads.measures import repeated_tokens

LENGTH, SEQUENCES = 7, 3
QUERIES = {
    "previous_token_head": ("previous", 2 * LENGTH / (2 * LENGTH - 1)),
    "duplicate_token_head": ("duplicate", 2.0),
    "induction_head": ("induction", 2.0),
}


def distinct(vocab_size: int) -> int:
    """A seed whose copies have no token twice: TransformerLens counts every earlier place of a token."""
    return next(
        seed
        for seed in count()
        if all(
            len(set(row)) == LENGTH for row in repeated_tokens(vocab_size, LENGTH, SEQUENCES, seed)[:, :LENGTH].tolist()
        )
    )


def detected(model: Any, ids: Tensor, name: str, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """TransformerLens' scores (layers, heads) of one sequence of ids, which it would make of a text."""
    from transformer_lens.head_detector import detect_head

    monkeypatch.setattr(model, "to_tokens", lambda text: ids[None])
    with torch.no_grad():
        _, cache = model.run_with_cache(ids[None], remove_batch_dim=True)
        return detect_head(model, "these ids", name, cache=cache, error_measure="mul")


@pytest.mark.parametrize("family", PEERS)
@pytest.mark.parametrize("name", QUERIES)
def test_scores_are_those_of_the_head_detector(family: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both = peers(family)
    vocab_size = both.ours.config.vocab_size
    seed = distinct(vocab_size)
    found = census(both.ours, length=LENGTH, count=SEQUENCES, seed=seed)
    sequences = repeated_tokens(vocab_size, LENGTH, SEQUENCES, seed)
    theirs = torch.stack([detected(both.theirs, ids, name, monkeypatch) for ids in sequences]).mean(dim=0)
    score, factor = QUERIES[name]
    assert theirs.max() > 0.05
    torch.testing.assert_close(found.score(score), theirs * factor, rtol=0, atol=1e-4, check_dtype=False)
