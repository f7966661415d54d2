"""Weights that transformers would make up or ignore are refused: the numbers would not be those of the file."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from tinytf.errors import CheckpointError
from tinytf.through.opening import open_module


@pytest.fixture
def bend(directories, tmp_path):
    """A function that makes the directory of a kind of model with other tensors."""

    def bent(kind, change):
        for file in directories(kind).iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        tensors = load_file(tmp_path / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path

    return bent


@pytest.mark.parametrize("kind", ["llama", "convbert"])
def test_scales_of_weights_without_their_configuration_are_refused(kind, bend):
    def scaled(tensors):
        for name in [name for name in tensors if re.search(r"(query|q_proj)\.weight$", name)]:
            tensors[f"{name}_scale_inv"] = torch.full((1, 1), 0.5)

    with pytest.raises(CheckpointError, match=r"would ignore tensors of .*: \S+_scale_inv, \S+_scale_inv$") as caught:
        open_module(bend(kind, scaled))
    assert caught.value.hint.startswith("config.json may lack its quantization_config")


def test_missing_weights_are_named(bend):
    folder = bend("llama", lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"finds no lm_head\.weight in .*, and would make it up"):
        open_module(folder)


def test_what_a_table_skips_is_no_fault(bend):
    folder = bend("llama", lambda tensors: tensors.update({"score.weight": torch.zeros(2, 16)}))
    assert type(open_module(folder)).__name__ == "LlamaForCausalLM"
