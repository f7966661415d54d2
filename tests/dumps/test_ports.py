"""Ports with one mistake each: the step that it is in is the first that differs, whatever else differs after it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import asked

sys.path += [str(Path(__file__).parents[1] / "parity"), str(Path(__file__).parent)]

from ports import MISTAKES, llama
from reference import saved

from tinytf.analysis.difference import Difference
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.dumps.read import open_dump

IDS = [3, 14, 15, 9, 2, 6, 5]


@pytest.fixture(scope="module")
@torch.no_grad()
def folder() -> Path:
    return saved("llama, biases everywhere")


def against(folder: Path, tensors: dict[str, np.ndarray], path: Path, **settings: Any) -> Difference:
    np.savez(path, **tensors)
    model = asked(read_directory(folder).load().transformer)
    return model.diff(" ".join(map(str, IDS)), open_dump(path), **settings)


def test_a_port_without_a_mistake_has_no_difference(folder: Path, tmp_path: Path) -> None:
    found = against(folder, llama(folder, IDS), tmp_path / "port.npz")
    assert found.first is None
    assert found.missing == ("embed.tokens",)
    assert found.worst is not None
    assert found.worst.relative < 1e-5


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_at_its_step_with_its_cause(folder: Path, tmp_path: Path, mistake: str) -> None:
    step, words = MISTAKES[mistake]
    found = against(folder, llama(folder, IDS, mistake), tmp_path / "port.npz")
    assert found.first is not None
    assert found.first.name == step
    assert found.cause is not None
    assert (found.cause.step, found.cause.found, found.cause.unseen) == (step, True, ())
    assert found.cause.words.startswith(words)


BLOCK_BY_BLOCK = ("embed.out", "norm1", "v", "weights", "attn", "mid", "out", "final.norm", "logits")


@pytest.mark.parametrize(
    ("mistake", "first", "step"),
    [
        ("rotary base", "L0.weights", "L0.q_rot and L0.k_rot"),
        ("q and k permuted", "L0.weights", "L0.q and L0.k"),
        ("matrices swapped", "L1.out", "L1.ffn.act"),
        ("o_proj transposed", "L0.attn", "L0.attn"),
        ("head order", "L0.weights", "L0.scores"),
        ("bias missing", "L0.weights", "L0.q"),
        ("tanh gelu", "L0.out", "L0.ffn.act"),
    ],
)
def test_the_cause_is_found_where_the_file_lacks_its_step(
    folder: Path, tmp_path: Path, mistake: str, first: str, step: str
) -> None:
    every = llama(folder, IDS, mistake)
    few = {name: one for name, one in every.items() if name.endswith(BLOCK_BY_BLOCK)}
    found = against(folder, few, tmp_path / "port.npz")
    assert found.first is not None
    assert found.first.name == first
    assert found.cause is not None
    assert (found.cause.step, found.cause.found) == (step, True)


def test_where_no_mistake_is_recognised_it_is_said_where_it_may_begin(folder: Path, tmp_path: Path) -> None:
    every = llama(folder, IDS)
    every["L0.weights"] = every["L0.weights"] ** 2
    few = {name: one for name, one in every.items() if name.endswith(BLOCK_BY_BLOCK)}
    found = against(folder, few, tmp_path / "port.npz")
    assert found.cause is not None
    assert not found.cause.found
    assert found.cause.unseen == ("L0.q", "L0.k", "L0.q_rot", "L0.k_rot", "L0.scores", "L0.scaled", "L0.masked")
    whole = against(folder, every, tmp_path / "port.npz").cause
    assert whole is not None
    assert (whole.step, whole.words, whole.found) == ("L0.weights", "the axis of the softmax", False)


@pytest.mark.parametrize("hidden", [-1e4, -1e9, float(np.finfo(np.float32).min)])
def test_masked_scores_of_any_program_are_masked(folder: Path, tmp_path: Path, hidden: float) -> None:
    every = llama(folder, IDS)
    for name in every:
        if name.endswith("masked"):
            every[name] = np.where(np.isinf(every[name]), hidden, every[name])
    found = against(folder, every, tmp_path / "port.npz")
    assert found.first is None
    assert "read as masked" in next(one for one in found.steps if one.name == "L1.masked").note
