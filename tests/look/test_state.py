"""The state of a head against the recurrence of its paper, one token after the other in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from architectures import asked, config_of, encoding_of, lively

from tinytf.errors import AddressError, UsageError
from tinytf.loading import load
from tinytf.look.state import layers_with_state
from tinytf.sentences import percent
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

KINDS = {
    "gated_delta": "gated delta, and gated heads in one layer",
    "mamba2": "mamba 2, a state space before a layer of attention",
    "mamba": "mamba, a selective state space before a layer of attention",
    "kimi_delta": "kimi delta, a decay for each channel before latent attention without positions",
    "griffin": "griffin, gated linear recurrences before attention",
    "lightning": "minimax, lightning attention, and residuals of normed inputs",
}


def traced(kind: str) -> Trace:
    model = lively(config_of(KINDS[kind])).double()
    return record(model, encoding_of([3, 14, 15, 9, 2, 6, 5, 3]))


def by_hand(kind: str, trace: Trace, layer: int, head: int) -> list[np.ndarray]:
    """The state before the first token and after each, from its definition."""

    def of(name: str, number: int | None = None) -> np.ndarray:
        tensor = trace.step(name, layer)
        found = tensor[head * len(tensor) // config.n_heads if number is None else number]
        return found.detach().numpy()

    config = trace.config.at(layer)
    if kind == "griffin":
        states, (decay, x) = [np.zeros((1, config.d_head))], (of("decay", head), of("v_gated", head))
        for t in range(len(x)):
            taken = np.sqrt(1 - np.exp(2 * decay[t])) if t else 1.0
            states.append(np.exp(decay[t]) * states[-1] + taken * x[t])
        return states
    v = trace.step("v_act", layer)[head].detach().numpy()
    k = of({"gated_delta": "k_unit", "kimi_delta": "k_unit", "mamba": "k"}.get(kind, "k_act"))
    states = [np.zeros((v.shape[1], k.shape[1]) if kind == "mamba" else (k.shape[1], v.shape[1]))]
    for t in range(len(v)):
        before = states[-1]
        if kind == "gated_delta":
            kept = np.exp(of("decay", head)[t, 0]) * before
            beta = of("beta_scaled" if config.beta_scale != 1 else "beta", head)[t, 0]
            states.append(kept + np.outer(k[t], beta * (v[t] - k[t] @ kept)))
        elif kind == "kimi_delta":
            kept = np.exp(of("decay", head)[t])[:, None] * before
            states.append(kept + np.outer(k[t], of("beta", head)[t, 0] * (v[t] - k[t] @ kept)))
        elif kind == "mamba2":
            states.append(np.exp(of("decay", head)[t, 0]) * before + of("dt", head)[t, 0] * np.outer(k[t], v[t]))
        elif kind == "lightning":
            rate = 2 ** (-8 * (head + 1) / config.n_heads) * config.decay_scale
            states.append(np.exp(-rate) * before + np.outer(k[t], v[t]))
        else:
            rates = np.exp(trace.model.blocks[layer].mamba.scan.weight.detach().numpy())
            rates, dt = rates.reshape(config.n_heads, -1, rates.shape[1])[head], of("dt", head)[t]
            states.append(np.exp(-dt[:, None] * rates) * before + np.outer(dt * v[t], k[t]))
    return states


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_that_of_the_recurrence_and_of_the_cache(kind: str) -> None:
    trace = traced(kind)
    (layer, *_), ask = layers_with_state(trace), asked(trace.model)
    for head, position in ((0, 5), (trace.config.at(layer).n_heads - 1, 7)):
        found, states = (
            ask.state(trace, layer=layer, head=head, position=str(position)),
            by_hand(kind, trace, layer, head),
        )
        whole = states[position + 1]
        assert np.abs(found.state.numpy() - whole).max() < 1e-12
        assert found.sizes.numpy() == pytest.approx([np.linalg.norm(state) for state in states[1:]])
        assert found.holds
        assert found.deviation < 1e-12
        assert float(found.shares.sum()) == pytest.approx(1)
        assert len(found.shares) == position + 1
        small = {"state": found.state / 1e6, "cached": found.cached / 1e6}  # no size is too small to be checked
        for numbers in ({}, small):
            scaled = replace(found, **numbers)
            assert scaled.holds
            assert not replace(scaled, cached=scaled.cached + scaled.state.abs().max() / 100).holds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_any_precision_it_is_that_of_the_cache(kind: str, dtype: torch.dtype) -> None:
    model = lively(config_of(KINDS[kind])).to(dtype)
    trace = record(model, encoding_of([3, 14, 15, 9, 2, 6, 5, 3]))
    (layer, *_) = layers_with_state(trace)
    assert all(asked(model).state(trace, layer=layer, head=head).holds for head in range(2))


@pytest.mark.parametrize("kind", ["gated_delta", "mamba2", "lightning"])
def test_a_token_keeps_the_share_of_its_decay_and_wrote_what_would_be_missing(kind: str) -> None:
    trace = traced(kind)
    (layer, *_) = layers_with_state(trace)
    found, states = asked(trace.model).state(trace, layer=layer, head=1), by_hand(kind, trace, layer, 1)
    if kind == "lightning":
        config = trace.config.at(layer)
        kept = np.full(8, np.exp(-(2 ** (-16 / config.n_heads)) * config.decay_scale))
    else:
        kept = np.exp(trace.step("decay", layer)[1, :, 0].detach().numpy())
    assert found.kept[0] == 0
    assert found.kept[1:].numpy() == pytest.approx(kept[1:])
    last = states[-1] - kept[-1] * states[-2]  # what the last token wrote
    assert float(found.shares[-1]) == pytest.approx((last * states[-1]).sum() / (states[-1] ** 2).sum())


def test_the_sentence_names_who_wrote_most_and_what_was_kept() -> None:
    trace = traced("mamba2")
    found = asked(trace.model).state(trace, head=2, position="6")
    token, most = trace.tokens[6].shown, int(found.shares.argmax())
    share, kept = percent(float(found.shares[most])), percent(float(found.kept[6]))
    assert found.sentence == (
        f"After {token}, the state of L0H2 comes most from {trace.tokens[most].shown} ({share}); "
        f"of what was there before, {token} kept {kept}."
    )
    assert asked(trace.model).state(trace, position="0").sentence.endswith("holds what this token wrote.")


def test_a_layer_without_a_state_and_a_head_that_is_not_there_are_refused() -> None:
    trace = traced("mamba2")
    ask = asked(trace.model)
    assert ask.state(trace, head=-1).head == trace.config.at(0).n_heads - 1
    with pytest.raises(AddressError, match="layer 1 keeps no state"):
        ask.state(trace, layer=1)
    with pytest.raises(AddressError, match="has no head 99"):
        ask.state(trace, head=99)
    with pytest.raises(UsageError, match="no layer of this model has a state"):
        load("tiny").state("The cat")
