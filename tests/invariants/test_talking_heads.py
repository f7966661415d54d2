"""Talking heads against Shazeer et al. 2020 written out with loops, and as nothing at all where they begin."""

import itertools

import numpy as np
import torch
from architectures import config_of, encoding_of, lively

from tinytf.model.transformer import Transformer
from tinytf.trace.record import record

IDS = [3, 14, 15, 9, 2]


def test_scores_and_weights_are_mixed_as_the_paper_has_it() -> None:
    """Section 4: L = Σ_h (q·k)_h·P_l[h, g] before the softmax, U = Σ_h W_h·P_w[h, g] after it."""
    model = lively(config_of("talking heads")).double()
    trace = record(model, encoding_of(IDS))
    heads, length = model.config.n_heads, len(IDS)
    scaled, values = trace["L1.scaled"].numpy(), trace["L1.v"].numpy()
    before, after = (trace[f"L1.{name}"].numpy() for name in ("W_TL", "W_TW"))  # (in, out)
    weights, mixed = np.zeros((heads, length, length)), np.zeros((heads, length, length))
    for g, query in itertools.product(range(heads), range(length)):
        logits = [sum(scaled[h, query, key] * before[h, g] for h in range(heads)) for key in range(query + 1)]
        weights[g, query, : query + 1] = np.exp(logits) / np.exp(logits).sum()
    for g, query, key in itertools.product(range(heads), range(length), range(length)):
        mixed[g, query, key] = sum(weights[h, query, key] * after[h, g] for h in range(heads))
    expected = np.stack([mixed[g] @ values[g // model.config.heads_per_kv] for g in range(heads)])
    assert np.abs(trace["L1.weights"].numpy() - weights).max() < 1e-12
    assert np.abs(trace["L1.weights_mixed"].numpy() - mixed).max() < 1e-12
    assert np.abs(trace["L1.head_out"].numpy() - expected).max() < 1e-12


def test_at_first_each_head_is_for_itself() -> None:
    talking, config = Transformer.initialised(config_of("talking heads"), 3), config_of("llama, grouped")
    plain = Transformer.initialised(config, 3)
    ids = torch.tensor([IDS])
    assert torch.allclose(talking(ids), plain(ids), atol=1e-6)
