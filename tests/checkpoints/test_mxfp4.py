"""Weights in MXFP4 are opened as transformers and the gguf library do it."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from architectures import enliven, furthest
from reference import gpt_oss
from safetensors.torch import save_file

from tinytf.checkpoints import mxfp4
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.checkpoints.mxfp4 import Mxfp4Weights
from tinytf.checkpoints.weights import Weights
from tinytf.errors import CheckpointError

EXPERTS, ROWS, GROUPS = 3, 10, 2


def as_theirs(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As transformers opens them: importing that takes a second, in which nobody else need wait."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    return convert_moe_packed_tensors(blocks, scales, dtype=dtype)


def packed(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (EXPERTS, ROWS, GROUPS, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(110, 140, (EXPERTS, ROWS, GROUPS), dtype=torch.uint8, generator=generator)
    return {"a.up_blocks": blocks, "a.up_scales": scales, "a.up_bias": torch.ones(EXPERTS, ROWS)}


def opened(tensors: dict[str, torch.Tensor], folder: Path) -> Mxfp4Weights:
    save_file(tensors, folder / "model.safetensors")
    return Mxfp4Weights(Weights(folder))


def in_mxfp4(
    config: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A config.json and tensors whose experts' matrices (E, in, out) are random blocks and scales."""
    state = {}
    for name, tensor in tensors.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            state[name] = tensor
            continue
        experts, inside, outside = tensor.shape
        generator = torch.Generator().manual_seed(len(state))
        blocks = torch.randint(0, 256, (experts, outside, inside // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(123, 126, blocks.shape[:-1], dtype=torch.uint8, generator=generator)
        state |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return {**config, "quantization_config": {"quant_method": "mxfp4"}}, state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_opened_as_transformers_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(mxfp4, "_PIECE", 16 * 7)  # pieces that end within a row
    tensors = packed()
    weights = opened(tensors, tmp_path)
    assert weights.shapes == {"a.up": (EXPERTS, 32 * GROUPS, ROWS), "a.up_bias": (EXPERTS, ROWS)}
    found = dict(weights.tensors(dtype))
    assert list(found) == ["a.up_bias", "a.up"] or list(found) == ["a.up", "a.up_bias"]
    expected = as_theirs(tensors["a.up_blocks"], tensors["a.up_scales"], dtype=dtype)
    assert torch.equal(found["a.up"], expected)


def test_it_is_opened_as_the_gguf_library_does(tmp_path: Path) -> None:
    """Whose blocks begin with the scale, and have the numbers 0 to 15 in the low halves, 16 to 31 in the high ones."""
    tensors = packed(1)
    blocks, scales = (tensors[f"a.up_{name}"].view(-1, size).numpy() for name, size in (("blocks", 16), ("scales", 1)))
    numbers = np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(-1, 32)
    theirs = np.concatenate((scales, numbers[:, :16] | numbers[:, 16:] << 4), axis=1)
    expected = gguf.quants.dequantize(theirs, gguf.GGMLQuantizationType.MXFP4).reshape(EXPERTS, ROWS, -1)
    assert np.array_equal(opened(tensors, tmp_path).stored("a.up").transpose(1, 2).numpy(), expected)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"a.up_scales": None}, "its scales are missing"),
        ({"a.up_scales": torch.zeros(EXPERTS, ROWS, 1, dtype=torch.uint8)}, r"its scales have shape \(3, 10, 1\)"),
        ({"a.up_blocks": torch.zeros(EXPERTS, ROWS, GROUPS, 16)}, "a.up_blocks holds torch.float32"),
    ],
)
def test_what_does_not_belong_together_is_refused(tmp_path: Path, changed: dict, said: str) -> None:
    tensors = {name: tensor for name, tensor in {**packed(), **changed}.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=said):
        opened(tensors, tmp_path).stored("a.up")


def test_gpt_oss_is_opened_with_its_experts_in_mxfp4(tmp_path: Path) -> None:
    """Against transformers' model with the weights that its own code opens."""
    theirs = gpt_oss(hidden_size=32, intermediate_size=64)
    enliven(theirs, 7)
    config, state = in_mxfp4({}, theirs.state_dict())
    for name, tensor in theirs.state_dict().items():
        if f"{name}_blocks" in state:
            tensor.copy_(as_theirs(state[f"{name}_blocks"], state[f"{name}_scales"], dtype=tensor.dtype))
    theirs.save_pretrained(tmp_path)
    save_file(state, tmp_path / "model.safetensors")
    path = tmp_path / "config.json"
    said = json.loads(path.read_text("utf-8")) | config
    path.write_text(json.dumps(said), "utf-8")
    ours = read_directory(tmp_path).load().transformer
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    with torch.no_grad():
        assert furthest(ours(ids), theirs.eval()(ids).logits) < 1e-5
