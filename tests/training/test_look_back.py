"""Where copying begins: half of the first block's key heads start by looking at the token before."""

from pathlib import Path

import pytest
import torch
from architectures import LLAMA, SIZES, encoding_of

from tinytf.config import ModelConfig
from tinytf.errors import ConfigError
from tinytf.model.transformer import Transformer
from tinytf.text.corpus import find_files
from tinytf.trace.record import record
from tinytf.training.data.setup import prepare
from tinytf.training.recipe import Recipe

WIDE = {**SIZES, "d_model": 64, "n_heads": 4, "d_head": 32, "vocab_size": 500}


def previous(model: Transformer) -> torch.Tensor:
    """Mean weight on the token before, (layers, heads), over random ids."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 500, (30,), generator=generator).tolist()
    return record(model, encoding_of(ids))["L*.weights"].diagonal(-1, dim1=-2, dim2=-1).mean(-1)


@pytest.mark.parametrize("shared", [4, 2, 1])
def test_queries_of_half_of_the_key_heads_prefer_the_token_before(shared):
    fields = {**LLAMA, "qkv_bias": True, "embed_scale": 8.0, "n_kv_heads": shared}
    scores = previous(Transformer.initialised(ModelConfig.of(**{**WIDE, **fields}), 1, look_back=True))
    chosen = max(1, shared // 2) * (4 // shared)
    assert (scores[0, :chosen] > 0.3).all()
    assert (scores[0, chosen:] < 0.2).all()
    assert (scores[1] < 0.2).all()


@pytest.mark.parametrize("fields", [{"positions": "learned"}, {**LLAMA, "qkv_bias": True}])
def test_unless_it_is_asked_for_no_head_prefers_anything(fields):
    model = Transformer.initialised(ModelConfig.of(**{**WIDE, **fields}), 1)
    assert (previous(model) < 0.2).all()
    assert all(not bias.any() for name, bias in model.named_parameters() if name.endswith("q.bias"))


def test_a_recipe_that_asks_for_it_needs_rotary_biases(tmp_path: Path):
    recipe = Recipe(first_weights="look_back", model={"n_layers": 1, "qkv_bias": True}, tokenizer="char", block=8)
    assert prepare(find_files("The cat sat."), recipe, tmp_path).model.blocks[0].attention.q.bias.any()
    with pytest.raises(ConfigError, match="look_back needs rotary positions, and biases of queries and keys"):
        Recipe(first_weights="look_back").model_config(100)
