"""Directories of tiny models, as transformers writes them, to be read, bent and broken."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import enliven
from safetensors.torch import load_file, save_file

_TESTS = Path(__file__).parent.parent
# hard_strings is in text, the models that families are measured on in parity
sys.path[:0] = [str(Path(__file__).parent), str(_TESTS / "text"), str(_TESTS / "parity")]

SIZES = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24, "bos_token_id": 0, "eos_token_id": 0}


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """A GPT-2 directory without a tokenizer."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=31, **SIZES))
    enliven(model, 3)
    model.save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


@pytest.fixture
def bend() -> Callable[..., None]:
    """Change keys of a directory's config.json; a key given as ``...`` is taken out."""

    def change(directory: Path, **keys: Any) -> None:
        data = json.loads((directory / "config.json").read_text("utf-8")) | keys
        kept = {key: value for key, value in data.items() if value is not ...}
        (directory / "config.json").write_text(json.dumps(kept), "utf-8")

    return change


@pytest.fixture
def rename() -> Callable[..., None]:
    """Change the tensors of a directory's model.safetensors by a function of the whole table."""

    def change(directory: Path, how: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
        tensors = how(load_file(directory / "model.safetensors"))
        save_file(
            {name: tensor.clone().contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors"
        )

    return change
