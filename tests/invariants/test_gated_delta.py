"""The gated delta rule against Yang et al. 2024 written out token by token, and a state in the place of a cache."""

import numpy as np
import pytest
import torch
from architectures import config_of, encoding_of, furthest, lively, some_ids

from tinytf.config import ModelConfig
from tinytf.errors import AddressError, ConfigError, UsageError
from tinytf.look.heads.measures import measures_of
from tinytf.model.transformer import Transformer
from tinytf.steps.operations.delta import delta_rule
from tinytf.trace.address import parse_address
from tinytf.trace.record import record

KIND = "gated delta, and gated heads in one layer"
ALONE = {"by_layer": (), "mixer": "gated_delta", "n_heads": 6, "n_kv_heads": 3, "d_head": 5, "d_value": 7}
Numbers = np.ndarray


def recurrence(q: Numbers, k: Numbers, v: Numbers, beta: Numbers, decay: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Equation 10 of the paper for one head, one token after the other: what is written and read, and the state."""
    state, written, read = np.zeros((k.shape[1], v.shape[1])), np.zeros_like(v), np.zeros_like(v)
    for t in range(len(v)):
        state = np.exp(decay[t]) * state
        written[t] = beta[t] * (v[t] - k[t] @ state)
        state = state + np.outer(k[t], written[t])
        read[t] = q[t] @ state / np.sqrt(k.shape[1])
    return written, read, state


def test_what_is_written_and_read_is_that_of_the_recurrence() -> None:
    model = lively(config_of(KIND)).double()
    trace = record(model, encoding_of([3, 14, 15, 9, 2, 6, 5, 3, 3, 14]))
    given = {name: trace[f"L0.{name}"].numpy() for name in ("q", "k", "v", "beta_in", "decay_in")}
    taps = {name: trace[f"L0.{name}_conv.W"].numpy() for name in "qkv"}  # (channels, taps)
    shared = model.config.at(0).heads_per_kv
    for head in range(6):
        inputs = []
        for name, number in (("q", head // shared), ("k", head // shared), ("v", head)):
            x = given[name][number]
            own = taps[name].reshape(len(given[name]), x.shape[1], -1)[number]  # (D, taps)
            padded = np.concatenate([np.zeros((own.shape[1] - 1, x.shape[1])), x])
            made = sum(padded[i : i + len(x)] * own[:, i] for i in range(own.shape[1]))
            made = made / (1 + np.exp(-made))
            inputs.append(made if name == "v" else made / np.sqrt((made**2).sum(-1, keepdims=True) + 1e-6))
        rate, bias = (float(trace[f"L0H{head}.{name}"]) for name in ("decay.A", "dt.b"))
        beta = 1 / (1 + np.exp(-given["beta_in"][head, :, 0]))
        decay = -np.exp(rate) * np.log1p(np.exp(given["decay_in"][head, :, 0] + bias))
        written, read, _ = recurrence(*inputs, beta, decay)
        assert np.abs(trace[f"L0H{head}.written"].numpy() - written).max() < 1e-12
        assert np.abs(trace[f"L0H{head}.head_out"].numpy() - read).max() < 1e-12


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 130])
def test_in_pieces_it_is_the_recurrence_too(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(1, heads, length, 6, generator=generator, dtype=torch.float64) for heads in (1, 1, 2))
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    beta = torch.rand(1, 2, length, 1, generator=generator, dtype=torch.float64)
    decay = -torch.rand(1, 2, length, 1, generator=generator, dtype=torch.float64)
    read, state = delta_rule(q, k, v, beta, decay, None, 6**0.5)
    first, between = delta_rule(*(x[:, :, : length // 2] for x in (q, k, v, beta, decay)), None, 6**0.5)
    second, after = delta_rule(*(x[:, :, length // 2 :] for x in (q, k, v, beta, decay)), between, 6**0.5)
    for head in range(2):
        one = (x[0, min(head, len(x[0]) - 1)].numpy() for x in (q, k, v))
        _, expected, end = recurrence(*one, beta[0, head, :, 0].numpy(), decay[0, head, :, 0].numpy())
        assert np.abs(read[0, head].numpy() - expected).max() < 1e-12
        assert np.abs(state[0, head].numpy() - end).max() < 1e-12
    assert furthest(torch.cat((first, second), dim=2), read) < 1e-12
    assert furthest(after, state) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, ALONE], ids=["some layers", "all layers"])
def test_a_state_can_go_one_token_back_and_be_chosen_among_texts(changes: dict) -> None:
    model = lively(config_of(KIND, **changes))
    ids = some_ids(model.config, 3, 9)
    cache = model.cache(20, 3)
    model.hidden(ids[:, :6], cache=cache)
    once = model.hidden(ids[:, 6:7], cache=cache)
    cache.position -= 1
    assert torch.equal(model.hidden(ids[:, 6:7], cache=cache), once)
    cache.select([2, 0])
    found = model.unembed(model.hidden(ids[[2, 0], 7:], cache=cache))
    assert furthest(found, model(ids[[2, 0]])[:, 7:]) < 1e-5
    cache.position -= 5
    with pytest.raises(UsageError, match="the state that far back is not cached"):
        model.hidden(ids[[2, 0], :1], cache=cache)
    cache.clear()
    assert furthest(model.unembed(model.hidden(ids[[2, 0]], cache=cache)), model(ids[[2, 0]])) < 1e-5


def test_one_step_of_training_moves_every_parameter() -> None:
    model = Transformer.initialised(config_of(KIND), 3).train()
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = some_ids(model.config, 4, 16)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    assert not [name for name, one in model.named_parameters() if torch.equal(one, before[name])]
    assert losses[-1] < losses[0] / 2


def test_what_such_layers_do_not_have_is_said() -> None:
    trace = record(lively(config_of(KIND)), encoding_of([1, 2, 3]))
    with pytest.raises(AddressError, match="layer 0 has no step weights: it is a step of attention"):
        trace["L0.weights"]
    with pytest.raises(AddressError, match="layer 1 has no step written: it is a step of gated delta"):
        trace.step("written", 1)
    with pytest.raises(AddressError, match="head_out has different axes in some of these layers"):
        parse_address("L*H*.head_out", trace.steps)
    alone = record(lively(config_of(KIND, **ALONE)), encoding_of([1, 2, 3]))
    with pytest.raises(UsageError, match="no layer of this model has attention weights"):
        measures_of(alone, ["entropy"])
    with pytest.raises(UsageError, match="several texts in one row would mix"):
        alone.model(torch.tensor([[1, 2, 3]]), padding_mask=torch.tensor([[1, 1, 2]]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"causal": False}, "reads from left to right, but causal is false"),
        ({**ALONE, "n_kv_heads": 4}, "n_heads 6 is not divisible by n_kv_heads 4"),
        ({"mixer": "recurrent"}, "mixer 'recurrent' is not one of attention, gated_delta"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(KIND, **changes)


def test_layers_of_both_kinds_are_read_by_their_flat_names() -> None:
    config = config_of(KIND)
    assert (config.n_heads, config.d_head) == (4, 6)  # of the layers with attention
    assert (config.at(0).n_heads, config.at(0).d_value) == (6, 7)
    again = ModelConfig.from_dict(config.to_dict())
    assert again == config
    assert again.at(1).mixer == "attention"
