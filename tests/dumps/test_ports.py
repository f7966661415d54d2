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
    assert found.missing == ("embed.tokens", *(f"L{layer}.in" for layer in range(3)))
    assert found.worst is not None
    assert found.worst.relative < 1e-5


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_at_its_step(folder: Path, tmp_path: Path, mistake: str) -> None:
    found = against(folder, llama(folder, IDS, mistake), tmp_path / "port.npz")
    assert found.first is not None
    assert found.first.name == MISTAKES[mistake]
