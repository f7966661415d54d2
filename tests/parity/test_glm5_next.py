"""GLM-5.3 as it is published, and where its pools hide keys: against transformers' own loading and fused attention."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import enliven, furthest, padding
from reference import FAMILIES
from safetensors.torch import load_file, save_file
from whole_models import build

from tinytf.checkpoints.huggingface.glm5_next import GLM5_NEXT
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.errors import TinytfError
from tinytf.fields import Fields
from tinytf.generate.loop import stream
from tinytf.model.transformer import Transformer

IDS = torch.tensor([[3, 14, 15, 9, 2, 6, 5, 11, 4, 21, 33, 8, 17]])


def opened(folder: Path) -> Transformer:
    return read_directory(folder).load().transformer


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Any, Path]:
    """A whole model with vision, and the folder that transformers writes of it."""
    model = build("glm5_next", "Glm5NextForConditionalGeneration")
    model.size = 1.0
    with torch.no_grad():
        enliven(model, 7)
    model.save_pretrained(tmp_path)
    return model, tmp_path


@torch.no_grad()
def test_generation_with_a_cache_follows_the_logits_of_the_whole_model(whole) -> None:
    model, folder = whole
    text = IDS[0, :5].tolist()
    for step in stream(opened(folder), text, max_tokens=14):
        expected = model(input_ids=torch.tensor([text])).logits[0, -1].log_softmax(-1)
        assert step.id == int(expected.argmax())
        assert step.log_probability == pytest.approx(float(expected.max()), abs=2e-5)
        text.append(step.id)


@torch.no_grad()
def test_names_as_published_open_without_the_layers_that_predict_further_tokens(whole) -> None:
    model, folder = whole
    tensors = load_file(folder / "model.safetensors")
    layers = "model.language_model.layers"
    for part in ("q_conv1d", "k_conv1d", "v_conv1d", "f_a_proj", "f_b_proj"):
        assert f"{layers}.0.self_attn.{part}.weight" in tensors
    for name in ("self_attn.A_log", "self_attn.dt_bias", "hc_attn_fn", "hc_ffn_scale", "mlp.gate_proj.weight"):
        assert f"{layers}.0.{name}" in tensors
    assert f"{layers}.1.mlp.experts.0.gate_proj.weight" in tensors
    count = model.config.text_config.num_hidden_layers
    tensors[f"{layers}.{count}.self_attn.q_proj.weight"] = torch.zeros(3)
    tensors[f"{layers}.{count}.shared_head.head.weight"] = torch.zeros(3)
    tensors[f"{layers}.0.shared_head.norm.weight"] = torch.zeros(3)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert furthest(opened(folder)(IDS), model(input_ids=IDS).logits) < 1e-5
    assert any("predict further tokens" in note for note in read_directory(folder).load().notes)


@torch.no_grad()
def test_the_names_of_the_modules_open_too(whole) -> None:
    model, folder = whole
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors")
    assert furthest(opened(folder)(IDS), model(input_ids=IDS).logits) < 1e-5


@torch.no_grad()
def test_a_text_only_folder_has_its_keys_at_the_top(whole) -> None:
    model, folder = whole
    config = json.loads((folder / "config.json").read_text("utf-8"))
    flat = {**config["text_config"], **{key: config[key] for key in ("architectures", "model_type")}}
    (folder / "config.json").write_text(json.dumps(flat), "utf-8")
    assert furthest(opened(folder)(IDS), model(input_ids=IDS).logits) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("pool", [2, 3, 4])
def test_without_its_tail_a_query_that_sees_no_whole_pool_sees_nothing_as_in_fused_attention(pool, side, tmp_path):
    """Their attention step by step gives such a query the mean of all values, those of later tokens too."""
    config = FAMILIES["glm 5.3"]().config
    config.update({"index_kpool": pool, "index_topk": 2 * pool, "index_kpool_always_select_tail": False})
    theirs = transformers.Glm5NextTextModel(config)
    theirs.size = 1.0
    enliven(theirs, 7)
    theirs.eval().set_attn_implementation("sdpa")
    theirs.save_pretrained(tmp_path)
    ids, real = IDS.expand(3, -1), padding(side, 3, IDS.shape[1])
    real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    expected = theirs(ids, attention_mask=real.long()).last_hidden_state
    found = opened(tmp_path).hidden(ids, padding_mask=real)
    assert furthest(found[real], expected[real]) < 1e-5


SIZES = {
    "vocab_size": 41, "hidden_size": 24, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 16,
    "moe_intermediate_size": 8, "n_shared_experts": 1, "routed_scaling_factor": 2.5,
}  # fmt: skip


def read(**keys: Any) -> Any:
    """Our configuration of a text part with these keys, and theirs."""
    theirs = transformers.Glm5NextTextConfig(**SIZES, **keys)
    data = {**SIZES, "max_position_embeddings": 64, "model_type": "glm5_next_text", **keys}
    return GLM5_NEXT.read(Fields(data, "config.json"), {}), theirs


BOUNDS = [
    {}, {"linear_lower_bound": None}, {"linear_lower_bound": -3.0}, {"linear_attn_config": {"num_heads": 3}},
    {"linear_attn_config": {"gate_lower_bound": -2.0, "head_dim": 6}}, {"linear_attn_config": {"safe_gate": False}},
    {"linear_lower_bound": None, "linear_attn_config": {}},
    {"linear_lower_bound": None, "linear_attn_config": {"safe_gate": False}},
    {"linear_attn_config": {"gate_lower_bound": None, "safe_gate": False, "short_conv_kernel_size": 2}},
]  # fmt: skip


@pytest.mark.parametrize("keys", BOUNDS, ids=str)
def test_the_layers_are_read_as_transformers_reads_them(keys) -> None:
    ours, theirs = read(**keys)
    assert ours.at(0).decay_bound == -(theirs.linear_lower_bound or 0.0)
    sizes = (theirs.linear_num_heads, theirs.linear_head_dim, theirs.linear_conv_kernel_dim)
    assert (ours.at(0).n_heads, ours.at(0).d_head, ours.at(0).conv_width) == sizes
    words = {"kimi_delta": "linear_attention", "attention": "indexed_attention"}
    assert [words[ours.at(layer).mixer] for layer in range(5)] == theirs.layer_types
    assert [bool(ours.at(layer).experts) for layer in range(5)] == [kind == "sparse" for kind in theirs.mlp_layer_types]


WRONG = [
    ({"index_topk": 9, "index_kpool": 2}, "index_keys 9 are not whole blocks of 2"),
    ({"linear_lower_bound": 0.5}, "linear_lower_bound 0.5 is not below 0"),
    ({"swiglu_limit": 0.0}, "swiglu_limit 0 is not above 0"),
    ({"qk_rope_head_dim": 4}, "qk_rope_head_dim 4 is not implemented"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented"),
    ({"attention_bias": True}, "attention_bias True is not implemented"),
    ({"index_topk_pattern": "FFFSF"}, "the first layer shares the choice of an indexer, and there is none"),
]


@pytest.mark.parametrize(("keys", "message"), WRONG, ids=str)
def test_what_no_model_computes_is_refused(keys, message) -> None:
    with pytest.raises(TinytfError, match=message):
        GLM5_NEXT.read(Fields({**SIZES, "max_position_embeddings": 64, **keys}, "config.json"), {})
