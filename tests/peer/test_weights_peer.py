"""Composition scores of a whole model, and copying scores, beside those of TransformerLens."""

from copy import deepcopy

import pytest
import torch
from architectures import asked
from peer_models import bridged, peers
from reference import pair

from tinytf.look.weights.copying import eigenvalue_score
from tinytf.look.weights.factors import HeadKey, circuits

FAMILIES = ("gpt2", "llama")
"""LayerNorm with biases and learned positions; RMSNorm, rotary and grouped heads."""


@pytest.mark.parametrize("family", FAMILIES)
def test_composition_is_that_of_transformer_lens_with_its_norms_folded(family: str) -> None:
    both = pair(family)
    theirs = bridged(deepcopy(both.theirs))
    theirs.enable_compatibility_mode()  # multiplies gains into matrices, and centres what they write
    for way in "QKV":
        scores = theirs.all_composition_scores(way).scores  # (layers, heads, layers, heads)
        for head in range(both.ours.config.n_heads):
            ours = asked(both.ours).composition(f"L0H{head}").scores[way.lower()][1]
            torch.testing.assert_close(scores[0, head, 1].double(), ours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_eigenvalues_and_singular_values_are_those_of_a_factored_matrix(family: str) -> None:
    from transformer_lens import FactoredMatrix

    model = peers(family).ours
    own = torch.randn(model.config.d_model, model.config.d_model, dtype=torch.float64)
    for head in range(model.config.n_heads):
        ov = circuits(model, HeadKey(0, head)).ov
        left, right = ov.left.detach(), ov.right.detach()
        sizes = ov.spectrum.singular_values
        torch.testing.assert_close(FactoredMatrix(left, right).S[: len(sizes)], sizes)
        values = FactoredMatrix(own @ left, right).eigenvalues
        assert float(values.sum().real / values.abs().sum()) == pytest.approx(eigenvalue_score(ov, own), abs=1e-9)
