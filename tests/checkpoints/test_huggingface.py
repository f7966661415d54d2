"""Directories in all their spellings: what is read, what is refused by name, and what is said."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from architectures import config_of, enliven, facing, furthest
from checkpoint_directories import logits, refused, shard
from reference import class_named, saved
from safetensors.torch import load_file, save_file

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.checkpoints.huggingface.neox import NEOX
from tinytf.checkpoints.weights import not_finite

LLAMA = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
BERT = {
    key: value for key, value in LLAMA.items() if key not in {"num_key_value_heads", "bos_token_id", "eos_token_id"}
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.fixture
def llama(tmp_path):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    enliven(model, 3)
    model.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def bert(tmp_path):
    model = transformers.BertForMaskedLM(transformers.BertConfig(**BERT))
    enliven(model, 3)
    model.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("transformer.", ""),
        ("transformer.ln_f.", "ln_f."),  # half of them
    ],
)
def test_gpt2_with_or_without_its_prefix(gpt2, rename, old, new):
    before = logits(gpt2)
    rename(gpt2, lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()})
    assert torch.equal(logits(gpt2), before)


def test_buffers_of_older_versions_are_passed_over(gpt2, rename):
    before = logits(gpt2)
    mask = torch.ones(1, 1, 24, 24).tril()
    rename(
        gpt2, lambda t: {**t, "transformer.h.0.attn.bias": mask, "transformer.h.1.attn.masked_bias": torch.tensor(-1e4)}
    )
    opened = read_directory(gpt2).load()
    assert opened.notes == ()
    assert torch.equal(logits(gpt2), before)


def test_a_tied_head_may_be_stored_a_second_time(gpt2, rename):
    before = logits(gpt2)
    rename(gpt2, lambda tensors: {**tensors, "lm_head.weight": tensors["transformer.wte.weight"]})
    assert torch.equal(logits(gpt2), before)
    rename(gpt2, lambda tensors: {**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1})
    error = refused(gpt2)
    assert "lm_head.weight differs from transformer.wte.weight" in error.message
    assert '"tie_word_embeddings": false' in error.hint


def test_berts_old_names_and_its_missing_prefix(bert, rename):
    before = logits(bert)
    spell = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def older(tensors):
        for new, old in spell.items():
            tensors = {name.replace(new, old).removeprefix("bert."): tensor for name, tensor in tensors.items()}
        return tensors

    rename(bert, older)
    assert any(name.endswith("gamma") for name in load_file(bert / "model.safetensors"))
    assert torch.equal(logits(bert), before)


def test_berts_head_bias_under_either_name(bert, rename):
    before = logits(bert)
    rename(bert, lambda t: {n.replace("cls.predictions.bias", "cls.predictions.decoder.bias"): x for n, x in t.items()})
    assert torch.equal(logits(bert), before)


def test_a_next_sentence_head_is_passed_over_and_said(tmp_path):
    model = transformers.BertForPreTraining(transformers.BertConfig(**BERT))
    model.save_pretrained(tmp_path)
    assert read_directory(tmp_path).load().notes == ("not opened: the next-sentence head (cls)",)


@pytest.mark.parametrize(
    ("today", "older"),
    [
        ({"rope_theta": 700.0, "rope_type": "default"}, {"rope_theta": 700.0}),
        (
            {"rope_theta": 700.0, "rope_type": "linear", "factor": 4.0},
            {"rope_theta": 700.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
        ),
        (
            {"rope_theta": 700.0, "rope_type": "llama3", **LLAMA3},
            {"rope_theta": 700.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        ),
    ],
    ids=["theta", "linear", "llama3"],
)
def test_either_spelling_of_rotary_settings(llama, bend, today, older):
    plain = logits(llama)
    bend(llama, rope_parameters=today, rope_theta=..., rope_scaling=...)
    expected = logits(llama)
    bend(llama, rope_parameters=..., **older)
    assert torch.equal(logits(llama), expected)
    assert furthest(expected, plain) > 1e-3


def test_either_spelling_of_a_rotary_base_for_layers_with_a_window(tmp_path, bend):
    kinds = {"sliding_window_pattern": 2, "sliding_window": 3, "head_dim": 8}
    config = transformers.Gemma3TextConfig(**{**LLAMA, "pad_token_id": 0}, **kinds)
    transformers.Gemma3ForCausalLM(config).save_pretrained(tmp_path)
    linear = {"rope_type": "linear", "factor": 4.0}
    base = {"sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}
    bend(tmp_path, rope_parameters={"full_attention": {**linear, "rope_theta": 900.0}, **base})
    expected = read_directory(tmp_path).config
    assert dict(expected.by_layer)["rope_theta"] == (300.0, 900.0)
    bend(tmp_path, rope_parameters=..., rope_theta=900.0, rope_local_base_freq=300.0, rope_scaling=linear)
    assert read_directory(tmp_path).config == expected
    bend(tmp_path, layer_types=..., _sliding_window_pattern=..., sliding_window_pattern=2)
    assert read_directory(tmp_path).config == expected
    bend(tmp_path, rope_parameters={"rope_theta": 300.0})
    assert "rope_parameters that are not by kind of layer are not implemented" in refused(tmp_path).message


REFUSED = [
    ({"rope_parameters": {"rope_type": "ntk", "factor": 4.0}}, "rope_type 'ntk' is not implemented"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "lacks low_freq_factor"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not implemented"),
    ({"rope_interleaved": True}, "rope_interleaved True is not implemented"),
    ({"use_mrope": True}, "use_mrope True is not implemented"),
    ({"hidden_act": "mish"}, "hidden_act 'mish' is not implemented"),
    ({"hidden_size": "16"}, "hidden_size is '16', and has to be a whole number"),
    ({"hidden_size": True}, "hidden_size is True, and has to be a whole number"),
    ({"hidden_size": ...}, "lacks hidden_size"),
    ({"hidden_size": 0}, "d_model 0 is below 1"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small', and has to be a number"),
    ({"attention_bias": 1}, "attention_bias is 1, and has to be true or false"),
    ({"num_attention_heads": 3, "head_dim": ...}, "d_model 16 is not divisible by n_heads 3"),
    ({"model_type": "llamma"}, "the architecture 'llamma' is not one that tinytf opens"),
    ({"model_type": ...}, "has no model_type"),
    ({"quantization_config": {"bits": 4}}, "quantised weights (quantization_config) are not implemented"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_implemented_is_refused_by_name(llama, bend, keys, message):
    bend(llama, rope_theta=..., **{"rope_parameters": ..., **keys})
    error = refused(llama)
    assert message in error.message
    assert "config.json" in error.message


def test_a_gpt2_with_cross_attention_is_refused(gpt2, bend):
    bend(gpt2, add_cross_attention=True)
    assert "add_cross_attention True is not implemented" in refused(gpt2).message


@pytest.mark.parametrize(("key", "value"), [("position_embedding_type", "relative_key"), ("is_decoder", True)])
def test_switches_of_bert_that_change_the_numbers_are_refused(bert, bend, key, value):
    bend(bert, **{key: value})
    assert f"{key} {value!r} is not implemented" in refused(bert).message


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"k_groups": 2}, "k_groups 2 is not implemented beside q_groups 4"),
        ({"v_groups": ..., "q_groups": 2, "k_groups": 2}, "v_groups 4 is not implemented beside q_groups 2"),
        ({"output_groups": 1}, "output_groups 1 is not implemented beside intermediate_groups 4"),
        ({"post_attention_groups": 4}, "post_attention_groups 4 is not implemented"),
        ({"embedding_size": 8}, "embedding_size 8 is not implemented"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-05 is not implemented"),
        ({"q_groups": 3, "k_groups": 3, "v_groups": 3}, "queries, keys or values of 16 numbers are not divisible"),
    ],
)
def test_groups_of_squeezebert_that_differ_are_refused_by_name(tmp_path, bend, keys, message):
    transformers.SqueezeBertModel(transformers.SqueezeBertConfig(**BERT, embedding_size=16)).save_pretrained(tmp_path)
    bend(tmp_path, **keys)
    assert message in refused(tmp_path).message


def test_layer_types_that_transformers_ignores_are_refused(tmp_path, bend):
    transformers.MistralForCausalLM(transformers.MistralConfig(**LLAMA, sliding_window=3)).save_pretrained(tmp_path)
    bend(tmp_path, layer_types=["sliding_attention", "full_attention"])
    error = refused(tmp_path)
    assert "layer_types full_attention, sliding_attention are not implemented" in error.message
    assert '"model_type": "ministral"' in error.hint


def test_a_key_that_nobody_knows_is_said(llama, bend):
    bend(llama, secret_sauce=3)
    assert read_directory(llama).load().notes == ("config.json has keys that tinytf does not know: secret_sauce",)


def test_keys_of_generation_and_bookkeeping_are_not_noted(llama, bend):
    """What transformers writes into any config.json, today and in older versions."""
    bend(
        llama,
        _model_name_or_path="someone/llama",
        _commit_hash="1f",
        num_beams=4,
        top_p=0.9,
        max_length=20,
        xla_device=0,
    )
    assert read_directory(llama).load().notes == ()


def test_an_unknown_architecture_is_answered_with_what_is_known(llama, bend):
    bend(llama, model_type="rwkv7")
    assert "such as gpt2, llama, qwen3 and bert" in refused(llama).hint


def test_every_tensor_is_accounted_for(gpt2, rename):
    rename(gpt2, lambda tensors: {name: t for name, t in tensors.items() if "h.1.ln_2" not in name})
    assert "lacks transformer.h.1.ln_2.weight (2 of 28 tensors are missing)" in refused(gpt2).message


def test_a_tensor_without_a_place_is_refused_with_the_nearest_name(gpt2, rename):
    rename(gpt2, lambda tensors: {**tensors, "transformer.h.0.ln_3.weight": torch.ones(16)})
    error = refused(gpt2)
    assert "holds 'transformer.h.0.ln_3.weight', which a GPT-2 model has no place for" in error.message
    assert error.hint == "did you mean transformer.h.0.ln_2.weight?"


def test_a_wrong_shape_is_named_with_both(gpt2, rename):
    rename(gpt2, lambda tensors: {**tensors, "transformer.wpe.weight": torch.ones(9, 16)})
    assert "transformer.wpe.weight has shape (9, 16), the configuration needs (24, 16)" in refused(gpt2).message


def test_weights_that_are_no_numbers_are_opened_and_said(gpt2, rename):
    def poison(tensors):
        tensors["transformer.h.1.mlp.c_fc.weight"][3, 4] = torch.nan
        return tensors

    rename(gpt2, poison)
    state = read_directory(gpt2).load().transformer.state_dict()
    assert not_finite(state) == ("the weights hold NaN or infinities: blocks.1.ffn.up.weight",)


def test_whole_numbers_are_no_weights(gpt2, rename):
    rename(gpt2, lambda tensors: {**tensors, "transformer.wpe.weight": torch.ones(24, 16, dtype=torch.int32)})
    assert "transformer.wpe.weight holds torch.int32 numbers, which cannot be weights" in refused(gpt2).message


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
def test_shards_are_read_by_their_index(tmp_path, gpt2, safe):
    expected = logits(gpt2)
    tensors = load_file(gpt2 / "model.safetensors")
    (gpt2 / "model.safetensors").unlink()
    shard(gpt2, tensors, safe)
    assert torch.equal(logits(gpt2), expected)


@pytest.mark.parametrize("new_format", [True, False])
def test_a_pickled_file_gives_the_same(gpt2, new_format):
    expected = logits(gpt2)
    tensors = load_file(gpt2 / "model.safetensors")
    (gpt2 / "model.safetensors").unlink()
    torch.save(tensors, gpt2 / "pytorch_model.bin", _use_new_zipfile_serialization=new_format)
    assert torch.equal(logits(gpt2), expected)


def test_weights_are_views_of_the_file(gpt2):
    """Nothing is copied where the file holds the dtype that is asked for: q, k and v share one stored matrix."""
    attention = read_directory(gpt2).load().transformer.blocks[0].attention
    assert attention.q.weight.untyped_storage().data_ptr() == attention.v.weight.untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_another_dtype_is_one_rounding_away(gpt2, dtype):
    single = read_directory(gpt2).load().transformer.state_dict()
    other = read_directory(gpt2).load(dtype).transformer.state_dict()
    assert {tensor.dtype for tensor in other.values()} == {dtype}
    assert all(torch.equal(other[name], single[name].to(dtype)) for name in single)


def test_a_cap_that_a_gemma_2_leaves_out_has_its_default_and_null_is_none(tmp_path: Path) -> None:
    theirs = transformers.Gemma2Config(
        vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        intermediate_size=40, max_position_embeddings=32,
    )  # fmt: skip
    transformers.Gemma2ForCausalLM(theirs).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text("utf-8"))
    for given, expected in (
        ({}, (50.0, 30.0)),
        ({"attn": None, "final": None}, (0.0, 0.0)),
        ({"attn": 7}, (7.0, 30.0)),
    ):
        keys = {f"{name}_logit_softcapping": value for name, value in given.items()}
        plain = {name: value for name, value in written.items() if "softcapping" not in name}
        (tmp_path / "config.json").write_text(json.dumps(plain | keys), "utf-8")
        config = read_directory(tmp_path).config
        assert (config.attention_cap, config.logit_cap) == expected


@pytest.mark.parametrize(("width", "turned"), [(44, 30), (78, 62), (94, 6), (8, 2), (16, 16)])
def test_the_share_that_a_neox_turns_survives_the_way_back(width: int, turned: int) -> None:
    config = config_of(
        "pythia, side by side and turned in part", d_head=width, d_model=4 * width, rope_width=turned % width
    )
    written = NEOX.write(config)
    assert written is not None
    assert int(width * written["rotary_pct"]) == turned


@torch.no_grad()
def test_a_head_of_t5_that_differs_from_its_embeddings_is_read_though_it_is_said_to_be_tied(tmp_path):
    """As transformers 5 reads it, which writes "tie_word_embeddings": true of every T5."""
    for file in saved("t5 1.1").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    copied = {**tensors, "lm_head.weight": tensors["shared.weight"].clone()}
    for stored, tied in ((copied, True), ({**tensors, "lm_head.weight": tensors["shared.weight"].flip(0)}, False)):
        save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
        ours = facing(read_directory(tmp_path).load().transformer)
        assert ours.config.tied_head is tied
        theirs = class_named("T5ForConditionalGeneration").from_pretrained(tmp_path).eval()
        ids = torch.tensor([[3, 5, 8, 13, 21]])
        assert furthest(ours(ids), theirs(ids).logits) < 1e-5
