"""Of a model that takes images too, the part for text is opened, and what is left is said."""

import json
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


_QWEN_VISION: dict[str, Any] = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16}


def qwen2_5_vl() -> Any:
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "mrope_section": [1, 1, 1]}}
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config={**_QWEN_VISION, "out_hidden_size": 24})
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl() -> Any:
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "mrope_section": [1, 1, 1]}}
    vision = {**_QWEN_VISION, "out_hidden_size": 24, "deepstack_visual_indexes": [0]}
    return transformers.Qwen3VLForConditionalGeneration(
        transformers.Qwen3VLConfig(text_config=text, vision_config=vision)
    )


def qwen3_5() -> Any:
    text = {
        **TEXT, "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4,
        "linear_num_key_heads": 2, "linear_key_head_dim": 5, "linear_value_head_dim": 6,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.7, "mrope_section": [1, 1, 0]
        },
    }  # fmt: skip
    config = transformers.Qwen3_5Config(text_config=text, vision_config={**_QWEN_VISION, "out_hidden_size": 24})
    return transformers.Qwen3_5ForConditionalGeneration(config)


def gemma4() -> Any:
    text = {
        **TEXT, "global_head_dim": 10, "sliding_window": 4, "layer_types": ["full_attention"] * 2,
        "hidden_size_per_layer_input": 5, "vocab_size_per_layer_input": 41, "num_kv_shared_layers": 1,
    }  # fmt: skip
    vision = {**VISION, "num_key_value_heads": 2, "head_dim": 8, "pooling_kernel_size": 1}
    config = transformers.Gemma4Config(text_config=text, vision_config=vision, audio_config=None)
    return transformers.Gemma4ForConditionalGeneration(config)


@torch.no_grad()
def test_an_older_file_has_the_keys_and_tensors_of_the_text_part_outside(tmp_path) -> None:
    theirs = qwen2_5_vl().eval()
    enliven(theirs, 7)
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text("utf-8"))
    text = config.pop("text_config")
    rotary = {"rope_theta": 300.0, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 1]}}
    kept = {name: value for name, value in text.items() if name not in ("model_type", "rope_parameters")}
    path.write_text(json.dumps({**config, **kept, **rotary}), "utf-8")
    ids = torch.tensor([[3, 14, 15, 9, 2, 6]])
    assert furthest(read_directory(tmp_path).load().transformer(ids), theirs(ids).logits) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("make", [llava, gemma3, gemma4, llama4, qwen2_5_vl, qwen3_vl, qwen3_5])
def test_the_text_part_gives_their_logits(make, tmp_path) -> None:
    theirs = make().eval()
    enliven(theirs, 7)
    tower = {llama4: "vision_model", qwen2_5_vl: "visual", qwen3_vl: "visual", qwen3_5: "visual"}.get(
        make, "vision_tower"
    )
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
