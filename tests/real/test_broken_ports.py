"""SmolLM2 of transformers with one mistake in it, dumped by forward hooks: the step of the mistake is named."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from covering import sample
from torch import Tensor, nn

from tinytf.compare.dumps.read import open_dump
from tinytf.loading import Model

pytestmark = pytest.mark.real

TEXT = "The capital of France is Paris, and the capital of Italy is"


@pytest.fixture
def port(theirs: Any) -> Any:
    """A copy that a test may break."""
    return copy.deepcopy(theirs)


@torch.no_grad()
def dumped(port: nn.Module, ids: list[int], path: Path) -> Path:
    """What every module returns for ``ids``, under its path, as anybody writes it down."""
    found: dict[str, Any] = {}

    def hook(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, out: Any) -> None:
            out = out[0] if isinstance(out, tuple) else out
            if isinstance(out, Tensor):
                found[name] = out.numpy()

        return keep

    for name, module in port.named_modules():
        if name:
            module.register_forward_hook(hook(name))
    found["logits"] = port(torch.tensor([ids])).logits.numpy()
    np.savez(path, **found)
    return path


def _rotary_base(port: Any) -> None:
    inverse = port.model.rotary_emb.inv_freq  # base^(-2i/d)
    inverse.copy_(10_000.0 ** -(torch.arange(len(inverse)) / len(inverse)))


def _eps(port: Any) -> None:
    for module in port.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-3


def _permuted(port: Any) -> None:
    """The rows of GGUF and of Meta's files: each head in pairs, where transformers wants halves."""
    for layer in port.model.layers:
        for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            rows = linear.weight.data
            paired = rows.view(-1, 2, 32, rows.shape[1]).transpose(1, 2)  # (H, 2, 32, C) -> (H, 32, 2, C)
            linear.weight.data = paired.reshape(rows.shape)


def _swapped(port: Any) -> None:
    ffn = port.model.layers[17].mlp
    ffn.gate_proj, ffn.up_proj = ffn.up_proj, ffn.gate_proj


@sample(
    ("mistake", "first", "step", "words"),
    [
        (_rotary_base, "L0.attn", "L0.q_rot and L0.k_rot", "a rotary base of 10,000 instead of 100,000"),
        (_eps, "L0.norm1", "L0.norm1", "eps 0.001 instead of 1e-05"),
        (_permuted, "L0.q", "L0.q", "the rows of each head in pairs"),
        (_swapped, "L17.ffn.hidden", "L17.ffn.hidden", "the numbers of L17.ffn.gate"),
    ],
    every=2,
)
def test_a_mistake_in_smollm2_is_named_at_its_step(
    model: Model, port: Any, tmp_path: Path, mistake: Callable[[Any], None], first: str, step: str, words: str
) -> None:
    mistake(port)
    path = dumped(port, model.encode(TEXT).ids, tmp_path / "port.npz")
    found = model.diff(TEXT, open_dump(path))
    assert found.first is not None
    assert found.first.name == first  # no module returns rotated queries: attention is the first that has them
    assert found.cause is not None
    assert (found.cause.step, found.cause.found) == (step, True)
    assert found.cause.words.startswith(words)


def test_smollm2_without_a_mistake_has_no_difference(model: Model, port: Any, tmp_path: Path) -> None:
    found = model.diff(TEXT, open_dump(dumped(port, model.encode(TEXT).ids, tmp_path / "port.npz")))
    assert found.first is None
    assert found.worst is not None
    assert found.worst.relative < 1e-4
    assert len(found.steps) > 300
