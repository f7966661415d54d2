"""The experts of a checkpoint: one tensor for each, or all of a layer stacked in one, and memory for neither twice."""

import json

import pytest
import torch
from reference import saved
from safetensors.torch import load_file, save_file

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.errors import CheckpointError


def stacked(tensors: dict[str, torch.Tensor], layer: int, count: int) -> dict[str, torch.Tensor]:
    """The experts of one layer as transformers 5 holds them: (E, 2F, C) and (E, C, F)."""
    begun = f"model.layers.{layer}.block_sparse_moe.experts"
    own = [[tensors.pop(f"{begun}.{e}.w{n}.weight") for n in (1, 2, 3)] for e in range(count)]
    name = f"model.layers.{layer}.mlp.experts"
    both = torch.stack([torch.cat((gate, up)) for gate, _, up in own])
    return {f"{name}.gate_up_proj": both, f"{name}.down_proj": torch.stack([down for _, down, _ in own])}


@pytest.fixture
def directory(tmp_path):
    """A Mixtral whose second layer alone is stacked."""
    tensors = load_file(saved("mixtral") / "model.safetensors")
    save_file(tensors | stacked(tensors, 1, 5), tmp_path / "model.safetensors")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {n: t for n, t in tensors.items() if ".1.block_sparse_moe.experts" not in n}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text((saved("mixtral") / "config.json").read_text("utf-8"), "utf-8")
    return tmp_path


@torch.no_grad()
def test_stacked_experts_are_those_that_are_stored_one_by_one(directory):
    one_by_one, together = (read_directory(one).load().transformer for one in (saved("mixtral"), directory))
    for one, other in zip(together.parameters(), one_by_one.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_stacked_matrix_is_a_view_of_the_file_and_the_others_are_copied_once(directory):
    model = read_directory(directory).load().transformer
    up, gate = (getattr(model.blocks[1].ffn.experts, name).weight for name in ("up", "gate"))
    assert up.untyped_storage().data_ptr() == gate.untyped_storage().data_ptr()
    assert model.blocks[0].ffn.experts.up.weight.is_contiguous()


def test_a_missing_expert_is_named(directory):
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.0.block_sparse_moe.experts.3.w2.weight"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.0\.block_sparse_moe\.experts\.3\.w2\.weight"):
        read_directory(directory).load()


def test_more_experts_a_token_than_there_are_is_one_clear_error(directory):
    settings = json.loads((directory / "config.json").read_text("utf-8"))
    (directory / "config.json").write_text(json.dumps({**settings, "num_experts_per_tok": 9}), "utf-8")
    with pytest.raises(CheckpointError, match="experts_per_token 9 is not between 1 and experts 5"):
        read_directory(directory)


def test_layers_that_predict_further_tokens_are_left_out_and_said(tmp_path):
    """The files of GLM-4.5 hold one layer more than its configuration."""
    tensors = load_file(saved("glm 4.5") / "model.safetensors")
    (tmp_path / "config.json").write_text((saved("glm 4.5") / "config.json").read_text("utf-8"), "utf-8")
    last = {name: tensor for name, tensor in tensors.items() if "layers.2." in name}
    further = {name.replace("layers.2.", "layers.3."): tensor.clone() for name, tensor in last.items()}
    save_file(tensors | further, tmp_path / "model.safetensors")
    loaded = read_directory(tmp_path).load()
    assert loaded.transformer.config.n_layers == 3
    assert loaded.notes == ("not opened: layers that predict further tokens (layers)",)
    save_file(tensors | {"model.layers.2.extra.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"which a GLM-4\.5 model has no place for"):
        read_directory(tmp_path).load()
