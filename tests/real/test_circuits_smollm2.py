"""SmolLM2's heads as circuits: one that completes phrases, and scores that are those of a text."""

import pytest
import torch

from tinytf.loading import Model
from tinytf.look.weights.factors import HeadKey, Vocabulary, queries_and_keys

pytestmark = pytest.mark.real


def test_a_head_completes_phrases_by_its_weights_alone(model: Model) -> None:
    """Attending to a mistake promotes making one."""
    report = model.head_weights("L26H3", tokens=["mistake"], top=3)
    words = [report.word(token) for token, _ in report.sources[0].most]
    assert words == ["·made", "made", "·makes"]
    assert abs(report.copying) < 0.5


def test_a_query_scores_its_own_token_as_the_first_layer_does(model: Model) -> None:
    trace = model.trace("The capital of France is Paris")
    ids, vocabulary = torch.tensor(trace.encoding.ids), Vocabulary(model.transformer)
    for head in range(model.config.n_heads):
        queries, keys = (
            queries_and_keys(model.transformer, HeadKey(0, head), ids, vocabulary, which) for which in (0, 1)
        )
        own = trace.step("scores", 0)[head].diagonal()
        torch.testing.assert_close((queries * keys).sum(-1), own, atol=1e-3, rtol=1e-4)
