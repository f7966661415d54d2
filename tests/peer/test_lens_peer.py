"""Lens and attribution agree with TransformerLens 4 on the same weights within 1e-4."""

from typing import Any

import pytest
import torch
from architectures import asked
from peer_models import IDS, PEERS, peers
from torch import Tensor

WITHIN = 1e-4
families = pytest.mark.parametrize("family", PEERS)


def _lens_of_theirs(theirs: Any, cache: Any) -> tuple[list[str], Tensor]:
    """Their names of the states of the stream, and logits (states, T, V) through their final norm and unembedding."""
    states, names = cache.accumulated_resid(incl_mid=True, apply_ln=True, return_labels=True)
    bias = theirs.b_U
    return names, states @ theirs.W_U + (0.0 if bias is None else bias)


@families
def test_the_lens_says_the_same_after_every_layer_and_every_attention(family: str) -> None:
    both = peers(family)
    logits, cache = both.cached()
    names, states = _lens_of_theirs(both.theirs, cache)
    vocabulary = both.ours.config.vocab_size
    found = asked(both.ours).lens(both.trace(), top=vocabulary, track=range(vocabulary), sublayers=True)
    assert len(names) == len(found.stages) == 2 * both.ours.config.n_layers + 1
    final = states[-1].log_softmax(-1)
    assert torch.allclose(final, logits.log_softmax(-1), atol=WITHIN)
    for stage, theirs in zip(found.stages, states, strict=True):
        logs = theirs.log_softmax(-1)
        assert torch.allclose(stage.probabilities.log().float(), logs, atol=WITHIN), stage.name
        assert torch.allclose(stage.entropy.float(), -(logs.exp() * logs).sum(-1), atol=WITHIN), stage.name
        assert torch.allclose(stage.divergence.float(), (final.exp() * (final - logs)).sum(-1), atol=WITHIN)
        assert stage.top_ids[:, 0].tolist() == logs.argmax(-1).tolist()


@families
def test_every_head_feed_forward_and_embedding_adds_the_same_to_a_difference_of_logits(family: str) -> None:
    both = peers(family)
    _, cache = both.cached()
    stack, names = cache.get_full_resid_decomposition(expand_neurons=False, return_labels=True)
    # Their directions know nothing of the final norm's gain, which is not folded into the unembedding here.
    scaled = cache.apply_ln_to_stack(stack, layer=-1, has_batch_dim=False) * both.ours.final_norm.weight
    token, other = 7, 21
    theirs = scaled @ (both.theirs.W_U[:, token] - both.theirs.W_U[:, other])  # (parts, T)
    trace = both.trace()
    for position in range(len(IDS)):
        found = asked(both.ours).attribute(trace, token=token, versus=other, position=str(position))
        expected = dict(zip(names, theirs[:, position].tolist(), strict=True))
        ours = _in_their_names({part.name: part.value for part in found.parts})
        final_bias = ours.pop("final.norm bias", 0.0)
        assert ours == pytest.approx({name: expected[name] for name in ours}, abs=WITHIN)
        assert set(expected) - set(ours) <= {"bias"}  # without attention biases theirs is 0
        assert sum(expected.values()) + final_bias == pytest.approx(found.logit, abs=WITHIN)


def _in_their_names(parts: dict[str, float]) -> dict[str, float]:
    """A feed-forward with its bias is one part of theirs, the biases behind all attentions another."""
    named = {"embed.tokens": "embed", "embed.positions": "pos_embed"}
    found: dict[str, float] = {}
    for part, value in parts.items():
        name = named.get(part, part)
        if ".ffn" in part:
            name = f"{part[1 : part.index('.')]}_mlp_out"
        elif part.endswith("attn bias"):
            name = "bias"
        found[name] = found.get(name, 0.0) + value
    return found
