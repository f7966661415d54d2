"""Buffers that older versions of transformers stored: a file is opened if they hold what its configuration gives."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_directories import refused
from reference import C, T, saved
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

from tinytf.checkpoints.huggingface.load import read_directory


def mask(window: int = T) -> Tensor:
    """The mask by its definition: each token sees itself and the ``window`` − 1 before it."""
    return torch.tensor([[[[query - window < key <= query for key in range(T)] for query in range(T)]]])


def turns(theta: float, width: int) -> Tensor:
    return torch.tensor([theta ** (-2 * i / width) for i in range(width // 2)])


def stretched() -> Tensor:
    return ROPE_INIT_FUNCTIONS["llama3"](AutoConfig.from_pretrained(saved("llama 3")), "cpu")[0]


BUFFERS: dict[str, tuple[str, Callable[[], Tensor]]] = {
    "transformer.h.2.attn.bias": ("gpt2", lambda: mask().float()),
    "transformer.h.0.attn.masked_bias": ("gpt2", lambda: torch.tensor(-1e4)),
    "transformer.h.1.attn.attention.bias": ("gpt-neo", lambda: mask(4)),
    "transformer.h.2.attn.attention.masked_bias": ("gpt-neo", lambda: torch.tensor(-1e9)),
    "gpt_neox.layers.0.attention.bias": ("pythia", mask),
    "gpt_neox.layers.0.attention.rotary_emb.inv_freq": ("pythia", lambda: turns(900.0, 4)),
    "transformer.h.1.attn.causal_mask": ("codegen", lambda: mask().byte()),
    "transformer.h.1.attn.embed_positions": ("gpt-j", lambda: create_sinusoidal_positions(T, 4)),
    "model.layers.0.self_attn.rotary_emb.inv_freq": ("llama", lambda: turns(500.0, 6)),
    "model.layers.1.self_attn.rotary_emb.inv_freq": ("llama 3", stretched),
    "model.layers.2.self_attn.rotary_emb.inv_freq": ("llama, linear scaling and tied", lambda: turns(700.0, 10)),
    "transformer.h.0.self_attention.rotary_emb.inv_freq": ("falcon", lambda: turns(700.0, 6)),
    "esm.encoder.layer.2.attention.self.rotary_embeddings.inv_freq": ("esm", lambda: turns(300.0, 6)),
    "bert.embeddings.position_ids": ("bert with a masked head", lambda: torch.arange(T)[None]),
    "bert.embeddings.token_type_ids": ("bert with a masked head", lambda: torch.zeros(1, T, dtype=torch.int64)),
    "transformer.position_ids": ("gpt-1", lambda: torch.arange(T)),
    "model.embed_positions.weights": ("xglm", lambda: XGLMSinusoidalPositionalEmbedding(T, C, 1).weights),
}
WRONG = {"masked_bias": -1.0, "bias": 0, "causal_mask": 0, "inv_freq": 0.1, "embed_positions": 0.1, "weights": 0.1}
"""Another last number for a buffer, by the end of its name; else 1: −1 hides nothing, 0 hides a token from itself."""


@pytest.mark.parametrize("name", BUFFERS)
def test_a_stored_buffer_must_hold_what_the_configuration_gives(tmp_path: Path, name: str) -> None:
    family, make = BUFFERS[name]
    shutil.copytree(saved(family), tmp_path, dirs_exist_ok=True)
    path, buffer = tmp_path / "model.safetensors", make().contiguous()
    weights = load_file(path)

    def store(values: Tensor) -> None:
        save_file({**weights, name: values}, path, {"format": "pt"})

    for dtype in (buffer.dtype, *((torch.float16, torch.bfloat16) if buffer.is_floating_point() else ())):
        store(buffer.to(dtype))
        read_directory(tmp_path).load()
    buffer.view(-1)[-1] = WRONG.get(name.rpartition(".")[2], 1)
    store(buffer)
    assert f"{name} differs from the table that the configuration gives by" in refused(tmp_path).message


def test_a_stored_buffer_must_have_the_shape_that_the_configuration_gives(tmp_path: Path) -> None:
    shutil.copytree(saved("llama"), tmp_path, dirs_exist_ok=True)
    path, name = tmp_path / "model.safetensors", "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file({**load_file(path), name: turns(500.0, 8)}, path, {"format": "pt"})
    assert f"{name} has shape (4,), the configuration gives (3,)" in refused(tmp_path).message
