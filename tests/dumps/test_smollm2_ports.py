"""Four broken copies of SmolLM2-135M, run by transformers: each is named at its step, with its cause."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_transformers_ports import other_base, other_eps
from transformers import AutoModelForCausalLM

import tinytf
from tinytf.dumps.read import open_dump
from tinytf.loading import Model, load

pytestmark = pytest.mark.real
TEXT = "The cat sat on the mat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = os.environ.get("TINYTF_REAL_WEIGHTS")
    found = sorted(Path(place).rglob("SmolLM2-135M-Instruct.Q4_1.gguf")) if place else []
    if not found:
        pytest.skip("TINYTF_REAL_WEIGHTS names no folder with SmolLM2-135M-Instruct.Q4_1.gguf")
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    load(str(found[0]), device="cpu").export(folder)
    return folder


@pytest.fixture(scope="module")
def right(folder: Path) -> Model:
    return load(str(folder), device="cpu")


def permuted(model: Any) -> None:
    for layer in model.model.layers:
        for part, heads in ((layer.self_attn.q_proj, 9), (layer.self_attn.k_proj, 3)):
            rows = part.weight.data
            part.weight.data = rows.view(heads, 2, -1, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def swapped(model: Any) -> None:
    mlp = model.model.layers[17].mlp
    mlp.up_proj.weight.data, mlp.gate_proj.weight.data = mlp.gate_proj.weight.data, mlp.up_proj.weight.data


@pytest.mark.parametrize(
    ("change", "first", "step", "words"),
    [
        (other_base, "L0.weights", "L0.q_rot and L0.k_rot", "a rotary base of 10,000 instead of 100,000"),
        (other_eps, "L0.norm1", "L0.norm1", "eps 0.001 instead of 1e-05"),
        (permuted, "L0.q", "L0.q", "the rows of each head in pairs"),
        (swapped, "L17.ffn.hidden", "L17.ffn.hidden", "the numbers of L17.ffn.gate"),
    ],
)
@torch.no_grad()
def test_a_broken_copy_is_named_at_its_step(
    tmp_path: Path, folder: Path, right: Model, change: Callable[[Any], None], first: str, step: str, words: str
) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    change(theirs)
    with tinytf.capture(theirs) as dump:
        made = theirs(input_ids=torch.tensor([right.encode(TEXT).ids]), output_attentions=True)
    dump.tensors |= {f"attentions.{layer}": weights for layer, weights in enumerate(made.attentions)}
    dump.save(tmp_path / "theirs.safetensors")
    found = right.diff(TEXT, open_dump(tmp_path / "theirs.safetensors"))
    assert found.first is not None
    assert found.first.name == first
    assert found.cause is not None
    assert (found.cause.step, found.cause.found) == (step, True)
    assert found.cause.words.startswith(words)
