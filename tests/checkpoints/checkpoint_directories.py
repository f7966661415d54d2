"""What the tests here do with a model directory."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.errors import CheckpointError


def logits(directory: Path) -> Tensor:
    """What the model of a directory says of the first nine ids."""
    model = read_directory(directory).load().transformer
    with torch.no_grad():
        return model(torch.arange(9)[None])


def refused(directory: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_directory(directory).load()
    return caught.value


def shard(directory: Path, tensors: dict[str, Tensor], safe: bool = True) -> None:
    """Two files and an index, as transformers writes them."""
    stem, suffix = ("model", "safetensors") if safe else ("pytorch_model", "bin")
    names = sorted(tensors)
    parts = {f"{stem}-{n + 1:05}-of-00002.{suffix}": names[n::2] for n in range(2)}
    for file, chosen in parts.items():
        part = {name: tensors[name].contiguous() for name in chosen}
        save_file(part, directory / file) if safe else torch.save(part, directory / file)
    places = {name: file for file, chosen in parts.items() for name in chosen}
    (directory / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": places}), "utf-8")
