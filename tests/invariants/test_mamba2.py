"""Mamba-2 against Dao and Gu 2024 written out token by token, and its state in the place of a cache."""

import copy

import numpy as np
import pytest
import torch
from architectures import asked, config_of, encoding_of, furthest, lively, some_ids

from tinytf.errors import ConfigError
from tinytf.model.transformer import Transformer
from tinytf.steps.operations.unroll import state_space
from tinytf.trace.record import record

KIND = "mamba 2, a state space before a layer of attention"
ALONE = {"by_layer": (), "mixer": "mamba2", "n_heads": 6, "n_kv_heads": 2, "d_head": 5, "d_value": 8}
Numbers = np.ndarray


def silu(x: Numbers) -> Numbers:
    return x / (1 + np.exp(-x))


def recurrence(q: Numbers, k: Numbers, v: Numbers, dt: Numbers, rate: float) -> tuple[Numbers, Numbers]:
    """Equation 1 of the paper for one head, one token after the other: what is read, and the state at last."""
    state, read = np.zeros((k.shape[1], v.shape[1])), np.zeros_like(v)
    for t in range(len(v)):
        state = np.exp(-rate * dt[t]) * state + dt[t] * np.outer(k[t], v[t])
        read[t] = q[t] @ state
    return read, state


def test_what_is_read_is_that_of_the_recurrence_and_the_map_gives_it_from_the_values() -> None:
    model = lively(config_of(KIND)).double()
    trace = record(model, encoding_of([3, 14, 15, 9, 2, 6, 5, 3, 3, 14]))
    own = {name.removeprefix("mamba."): one.detach().numpy() for name, one in model.blocks[0].named_parameters()}
    gated = []
    for head in range(6):
        inputs = {}
        for name, number in (("q", head // 3), ("k", head // 3), ("v", head)):
            x = trace[f"L0.{name}"].numpy()[number]  # (T, D)
            rows = slice(number * x.shape[1], (number + 1) * x.shape[1])
            taps, bias = own[f"{name}_conv.weight"][rows], own[f"{name}_conv.bias"][rows]
            padded = np.concatenate([np.zeros((2, x.shape[1])), x])
            inputs[name] = silu(sum(padded[i : i + len(x)] * taps[:, i] for i in range(3)) + bias)
        dt = np.log1p(np.exp(trace[f"L0H{head}.dt_in"].numpy()[:, 0] + own["dt.bias"][head]))
        read, _ = recurrence(*inputs.values(), dt, np.exp(own["decay.weight"][head]))
        read += own["read.weight"][head] * inputs["v"]
        assert np.abs(trace[f"L0H{head}.head_out"].numpy() - read).max() < 1e-12
        assert np.abs(trace[f"L0H{head}.read"].numpy() @ inputs["v"] - read).max() < 1e-12
        gated.append(read * silu(trace[f"L0H{head}.gate"].numpy()))
    for group in range(2):
        together = np.concatenate(gated[3 * group : 3 * group + 3], axis=1)  # (T, 3·D)
        normed = together / np.sqrt((together**2).mean(axis=1, keepdims=True) + model.config.norm_eps)
        expected = normed * own["norm.weight"][24 * group : 24 * group + 24]
        assert np.abs(trace["L0.concat"].numpy()[:, 24 * group : 24 * group + 24] - expected).max() < 1e-12


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 130])
def test_in_pieces_it_is_the_recurrence_too(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(1, heads, length, 6, generator=generator, dtype=torch.float64) for heads in (1, 1, 2))
    dt = torch.rand(1, 2, length, 1, generator=generator, dtype=torch.float64)
    read, state = state_space(q, k, v, dt, -1.5 * dt, None)
    first, between = state_space(*(x[:, :, : length // 2] for x in (q, k, v, dt, -1.5 * dt)), None)
    second, after = state_space(*(x[:, :, length // 2 :] for x in (q, k, v, dt, -1.5 * dt)), between)
    for head in range(2):
        expected, end = recurrence(
            *(x[0, min(head, len(x[0]) - 1)].numpy() for x in (q, k, v)), dt[0, head, :, 0].numpy(), 1.5
        )
        assert np.abs(read[0, head].numpy() - expected).max() < 1e-12
        assert np.abs(state[0, head].numpy() - end).max() < 1e-12
    assert furthest(torch.cat((first, second), dim=2), read) < 1e-12
    assert furthest(after, state) < 1e-12


@torch.no_grad()
def test_a_head_ablated_is_one_whose_columns_of_the_output_matrix_are_0() -> None:
    model = asked(lively(config_of(KIND)).double())
    found = model.ablate("3 14 15 9 2", "L0H2")
    without = copy.deepcopy(model.transformer)
    without.blocks[0].mamba.o.weight[:, 16:24] = 0.0
    before, after = (
        one(torch.tensor([[3, 14, 15, 9, 2]]))[0, -1].log_softmax(-1) for one in (model.transformer, without)
    )
    assert found.check.holds
    assert found.effect.kl == pytest.approx(float((before.exp() * (before - after)).sum()), abs=1e-10)


def test_training_moves_every_parameter() -> None:
    model = Transformer.initialised(config_of(KIND), 3).train()
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids, losses = some_ids(model.config, 4, 16), []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert not [name for name, one in model.named_parameters() if torch.equal(one, before[name])]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"causal": False}, "reads from left to right, but causal is false"),
        ({**ALONE, "n_kv_heads": 4}, "n_heads 6 is not divisible by n_kv_heads 4"),
    ],
)
def test_what_cannot_be_built_is_refused(changes: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(KIND, **changes)
