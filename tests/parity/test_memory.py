"""Blocks beside the stream: what the layer above takes of them, the weights that they share, and copies of these."""

import numpy as np
import pytest
import torch
from architectures import config_of, encoding_of, lively, some_ids
from reference import saved
from safetensors.torch import load_file, save_file

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.errors import CheckpointError
from tinytf.trace.record import record

KIND = "zamba2, attention beside the stream, with shared weights and adapters"
IN_HEADS = "zamba, attention beside the stream, and a selective state space in heads"
IDS = [3, 14, 15, 9, 2, 6, 5]


def rms_norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain


def test_what_a_block_computes_reaches_the_mixer_above_and_not_the_stream() -> None:
    model = lively(config_of(KIND)).double()
    trace = record(model, encoding_of(IDS))
    own = {name: one.detach().numpy() for name, one in model.named_parameters()}
    for layer in (1, 4):
        stream = trace[f"L{layer}.in"].numpy()
        assert torch.equal(trace[f"L{layer}.out"], trace[f"L{layer}.in"])
        both = rms_norm(np.concatenate([stream, trace["embed.out"].numpy()], -1), own["blocks.1.memory.norm.weight"])
        for name in "qkv":
            low, up = (own[f"blocks.{layer}.attention.{name}_{part}.weight"] for part in ("low", "adapter"))
            expected = both @ own[f"blocks.1.attention.{name}.weight"].T + both @ low.T @ up.T
            found = trace[f"L{layer}.{name}_adapted"].transpose(0, 1).flatten(1).numpy()
            assert np.abs(found - expected).max() < 1e-12
        x = rms_norm(trace[f"L{layer}.attn"].numpy(), own["blocks.1.norm2.weight"])
        low = x @ own[f"blocks.{layer}.ffn.low.weight"].T
        gate, up = (
            x @ own[f"blocks.1.ffn.{name}.weight"].T + low @ own[f"blocks.{layer}.ffn.{name}_adapter.weight"].T
            for name in ("gate", "up")
        )
        given = (gate / (1 + np.exp(-gate)) * up) @ own["blocks.1.ffn.down.weight"].T
        given = given @ own[f"blocks.{layer}.memory.out.weight"].T
        read = rms_norm(stream + given, own[f"blocks.{layer + 1}.norm1.weight"])
        assert np.abs(trace[f"L{layer + 1}.norm1"].numpy() - read).max() < 1e-12
        added = trace[f"L{layer + 1}.out"] - trace[f"L{layer + 1}.attn"]
        assert float((added - trace[f"L{layer}.in"]).abs().max()) < 1e-12


@pytest.mark.parametrize(("sets", "first"), [(1, 1), (2, 4), (3, 4)])
def test_layers_that_give_take_turns_with_sets_of_weights(sets: int, first: int) -> None:
    blocks = lively(config_of(KIND, n_layers=9, memory_sets=sets)).blocks
    assert blocks[7].attention.q.weight is blocks[{1: 1, 2: 1, 3: 7}[sets]].attention.q.weight
    assert blocks[4].ffn.down.weight is blocks[first].ffn.down.weight
    for own in ("attention.q_low", "ffn.up_adapter", "memory.out"):
        assert blocks[4].get_submodule(own).weight is not blocks[1].get_submodule(own).weight


def test_heads_of_a_selective_state_space_read_only_their_own_channels() -> None:
    model = lively(config_of(IN_HEADS)).double()
    trace = record(model, encoding_of(IDS))
    own = {name.removeprefix("mamba."): one.detach().numpy() for name, one in model.blocks[0].named_parameters()}
    inner, halves = trace["L0.inner"].numpy(), (slice(0, 24), slice(24, 48))
    for head, half in enumerate(halves):
        key = inner[:, half] @ own["k.weight"][5 * head : 5 * (head + 1)].T
        assert np.abs(trace["L0.k"][head].numpy() - key).max() < 1e-12
        low = inner[:, half] @ own["dt_low.weight"][3 * head : 3 * (head + 1)].T
        step = np.log1p(np.exp(low @ own["dt_in.weight"][half].T + own["dt.bias"][half]))
        assert np.abs(trace["L0.dt"][3 * head : 3 * (head + 1)].transpose(0, 1).flatten(1).numpy() - step).max() < 1e-12
        state, query = np.zeros((24, 5)), inner[:, half] @ own["q.weight"][5 * head : 5 * (head + 1)].T
        rate = -np.exp(own["scan.weight"][half])
        for t, value in enumerate(inner[:, half]):
            state = np.exp(rate * step[t][:, None]) * state + np.outer(step[t] * value, key[t])
            read = state @ query[t] + own["scan.bias"][half] * value
            found = trace["L0.head_out"][3 * head : 3 * (head + 1), t].flatten().numpy()
            assert np.abs(found - read).max() < 1e-12


def test_copies_of_a_shared_block_must_be_equal(tmp_path) -> None:
    folder = saved("zamba2")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    stored = load_file(folder / "model.safetensors")
    name = "model.layers.{}.shared_transformer.self_attn.q_proj.weight"
    copy = stored[name.format(1)].clone()
    save_file({**stored, name.format(3): copy}, tmp_path / "model.safetensors")
    ids = some_ids(read_directory(folder).config)
    models = [read_directory(one).load().transformer for one in (folder, tmp_path)]
    assert torch.equal(*(model(ids) for model in models))
    save_file({**stored, name.format(3): copy + 1}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.3\..* differs from .*layers\.1\..*, but .* they are tied"):
        read_directory(tmp_path).load()
