"""Of a model that takes images too, the part for text is opened, and what is left is said."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import enliven, furthest

from tinytf.checkpoints.huggingface.load import FAMILIES, read_directory
from tinytf.fields import Fields

TEXT: dict[str, Any] = {
    "vocab_size": 41, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "head_dim": 6, "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip


def llava() -> Any:
    text, vision = {**TEXT, "model_type": "llama"}, {**VISION, "model_type": "clip_vision_model"}
    return transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(text_config=text, vision_config=vision))


def gemma3() -> Any:
    config = transformers.Gemma3Config(text_config=TEXT, vision_config=VISION)
    return transformers.Gemma3ForConditionalGeneration(config)


def llama4() -> Any:
    text = {**TEXT, "attention_chunk_size": 4, "intermediate_size_mlp": 40, "num_local_experts": 3, "floor_scale": 2}
    vision = {**VISION, "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
    config = transformers.Llama4Config(text_config=text, vision_config={**vision, "num_attention_heads": 2})
    return transformers.Llama4ForConditionalGeneration(config)


@torch.no_grad()
@pytest.mark.parametrize("make", [llava, gemma3, llama4])
def test_the_text_part_gives_their_logits(make, tmp_path) -> None:
    theirs = make().eval()
    enliven(theirs, 7)
    tower = "vision_model" if make is llama4 else "vision_tower"
    theirs.save_pretrained(tmp_path)
    opened = read_directory(tmp_path).load()
    ids = torch.tensor([[3, 14, 15, 9, 2, 6]])
    assert furthest(opened.transformer(ids), theirs(ids).logits) < 1e-5
    assert any(f"the parts for images or sound ({tower})" in note for note in opened.notes)


def test_what_gemma_3_leaves_out_of_its_text_config_has_the_default_of_transformers() -> None:
    given = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34, "sliding_window": 1024}
    found = FAMILIES["gemma3_text"].read(Fields(given, Path("config.json")), {})
    theirs = transformers.Gemma3TextConfig(**given)
    assert (found.vocab_size, found.context) == (theirs.vocab_size, theirs.max_position_embeddings)
    assert (found.n_heads, found.n_kv_heads, found.d_head) == (
        theirs.num_attention_heads,
        theirs.num_key_value_heads,
        theirs.head_dim,
    )
