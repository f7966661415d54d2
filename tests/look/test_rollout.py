"""Attention rollout against float64 numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from architectures import KINDS, asked, config_of, encoding_of, lively, some_ids
from covering import along

from tinytf.errors import AddressError, MemoryShortage, TinytfError, UsageError
from tinytf.loading import load
from tinytf.look.rollout import COMBINED, Rollout, default_query
from tinytf.trace.record import record
from tinytf.trace.trace import Trace


def traced(kind: str, tokens: int = 7, **changes: int) -> Trace:
    config = config_of(kind, **changes)
    return record(lively(config), encoding_of(some_ids(config, batch=1, length=tokens)[0].tolist()))


def rollout(trace: Trace, **settings: Any) -> Rollout:
    return asked(trace.model).rollout(trace, **settings)


def maps_by_numpy(trace: Trace, heads: str) -> list[np.ndarray]:
    """Of each layer ½·A + ½·I, from the scores before the softmax, in float64."""
    found = []
    for layer in range(trace.config.n_layers):
        scores = trace.step(trace.steps.at("weights", layer).inputs[0], layer).double().numpy()
        exponents = np.exp(scores - scores.max(axis=-1, keepdims=True))
        whole = exponents.sum(axis=-1, keepdims=True)
        if trace.config.at(layer).attention_sinks:
            sink = trace[f"L{layer}.sink.logit"].double().numpy()[:, None, None]
            whole = whole + np.exp(sink - scores.max(axis=-1, keepdims=True))
        weights = exponents / whole
        combined = getattr(weights, heads)(axis=0)
        mixed = 0.5 * combined + 0.5 * np.eye(len(combined))
        found.append(mixed / mixed.sum(axis=-1, keepdims=True))
    return found


@along({"kind": KINDS, "heads": COMBINED})
def test_rollout_is_the_product_of_the_maps(kind: str, heads: str) -> None:
    trace = traced(kind, n_layers=3)
    if len(trace.steps.attention_layers) < 3:
        with pytest.raises(UsageError, match="no attention weights"):
            rollout(trace, heads=heads)
        return
    if any(block.mixer.blocks.block_size for block in trace.config.blocks):
        with pytest.raises(UsageError, match="also look at blocks of tokens"):
            rollout(trace, heads=heads)
        return
    maps = maps_by_numpy(trace, heads)
    for layer in range(3):
        found = rollout(trace, heads=heads, layer=layer)
        expected = np.linalg.multi_dot([*maps[layer::-1], np.eye(7)])
        assert np.abs(found.shares.numpy() - expected).max() < 1e-6
        assert found.holds
    assert torch.equal(rollout(trace, heads=heads).shares, found.shares)


def test_shares_sum_to_one_and_none_comes_from_what_is_not_seen() -> None:
    found = rollout(traced("llama, grouped"))
    assert found.shares.dtype == torch.float64
    assert torch.allclose(found.shares.sum(dim=-1), torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-12)
    assert found.shares.triu(1).abs().max() == 0
    narrow = rollout(traced("mistral, a window and stretched waves", tokens=12))  # 4 a layer, so 7 back in two of them
    assert narrow.shares.tril(-7).abs().max() == 0
    assert narrow.shares.tril(-6).abs().max() > 0


def test_a_text_of_one_token_holds_itself() -> None:
    assert rollout(traced("gpt2", tokens=1)).shares.tolist() == [[1.0]]


def test_what_was_not_recorded_is_an_error_and_not_made_up() -> None:
    model = lively(config_of("gpt2", n_layers=3))
    trace = record(model, encoding_of([1, 2, 3]), layers=(0, 2))
    with pytest.raises(AddressError, match="layer 1 was not recorded"):
        rollout(trace)
    assert rollout(trace, layer=0).layer == 0


def test_weights_that_are_no_numbers_are_an_error() -> None:
    model = lively(config_of("gpt2"))
    with torch.no_grad():
        model.blocks[1].attention.q.weight[0, 0] = torch.nan
    with pytest.raises(TinytfError, match=r"first at L1\.q\b"):
        rollout(record(model, encoding_of([1, 2, 3])))


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_that_is_not_there_is_refused(layer: int) -> None:
    with pytest.raises(AddressError, match="there is no layer"):
        rollout(traced("gpt2"), layer=layer)


def test_a_word_that_combines_no_heads_is_refused() -> None:
    with pytest.raises(UsageError, match="'median'"):
        rollout(traced("gpt2"), heads="median")


def test_maps_that_do_not_fit_into_memory_are_refused_unless_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced("gpt2")
    monkeypatch.setattr("tinytf.memory.UNASKED", 0)
    monkeypatch.setattr("tinytf.memory.free_bytes", lambda device: 1000)
    with pytest.raises(MemoryShortage, match="7 tokens in 2 layers"):
        rollout(trace)
    assert rollout(trace, force=True).holds


def test_the_position_that_is_read_is_the_last_or_the_mask() -> None:
    tiny, encoder = load("tiny", device="cpu"), load("tiny-encoder", device="cpu")
    mask = encoder.tokenizer.mask_id
    assert default_query(tiny.trace("The cat sat"), None) == 2
    assert default_query(encoder.trace("The cat [MASK] on"), mask) == 3
    assert default_query(encoder.trace("The cat sat"), mask) == 3
    assert encoder.trace("The cat sat").tokens[3].shown == "sat"


def test_a_model_rolls_out_a_text_or_its_trace() -> None:
    model = load("tiny", device="cpu")
    trace = model.trace("The cat sat")
    assert torch.equal(model.rollout("The cat sat").shares, model.rollout(trace).shares)
