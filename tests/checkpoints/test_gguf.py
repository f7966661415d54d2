"""GGUF files against transformers with the same numbers, against the library's own reader, and what is refused."""

import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from architectures import furthest
from gguf_files import SMALL, Kind, Parts, converted_factors, model_and_parts, small_parts
from torch import Tensor, nn

from tinytf.checkpoints.gguf import gguf_tokenizer, read_gguf
from tinytf.checkpoints.gguf.header import read_header
from tinytf.checkpoints.gguf.scaling import scaling_from_factors
from tinytf.checkpoints.gguf.weights import GgufWeights
from tinytf.errors import CheckpointError
from tinytf.loading import load

IDS = torch.arange(48).reshape(2, 24) * 5 % 293


@torch.no_grad()
def difference(theirs: nn.Module, path: Path) -> float:
    ours = read_gguf(path).load(torch.float32).transformer
    expected: Tensor = theirs(IDS).logits
    assert float(expected.std()) > 0.3, "too small for a difference to show"
    return furthest(ours(IDS), expected)


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("llama", Kind.F32), ("llama", Kind.Q5_0), ("qwen2", Kind.F16), ("qwen2", Kind.Q8_0), ("qwen2", Kind.Q4_1)],
)
def test_logits_are_those_of_transformers_with_the_quantised_numbers(tmp_path, architecture, kind):
    theirs, parts = model_and_parts(architecture, kind)
    assert difference(theirs, parts.write(tmp_path / "a.gguf")) < 1e-5


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"head_dim": 10, "num_key_value_heads": 1}),
        ("llama", {"num_key_value_heads": 4}),
    ],
)
def test_heads_ties_and_biases(tmp_path, architecture, settings):
    theirs, parts = model_and_parts(architecture, **{**SMALL, **settings})
    assert difference(theirs, parts.write(tmp_path / "a.gguf")) < 1e-5


def test_linear_scaling(tmp_path):
    theirs, parts = model_and_parts(
        "llama", **SMALL, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 700.0}
    )
    unscaled = parts.write(tmp_path / "unscaled.gguf")
    assert difference(theirs, unscaled) > 1e-3
    parts.keys |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert difference(theirs, parts.write(tmp_path / "a.gguf")) < 1e-5
    del parts.keys["llama.rope.scaling.type"]
    assert read_gguf(parts.write(tmp_path / "b.gguf")).config.rope_factor == 4.0
    parts.keys["llama.rope.scaling.type"] = "none"
    assert read_gguf(parts.write(tmp_path / "c.gguf")).config.rope_scaling == "none"


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 700.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def test_the_factors_of_llama_3(tmp_path):
    theirs, parts = model_and_parts("llama", **SMALL, rope_parameters=LLAMA3)
    parts.tensors["rope_freqs.weight"] = converted_factors(8, 700.0, 8.0, 32), Kind.F32
    path = parts.write(tmp_path / "a.gguf")
    assert difference(theirs, path) < 1e-5
    config = read_gguf(path).config
    assert (config.rope_scaling, config.rope_factor, config.rope_original_context) == ("llama3", 8.0, 32)
    assert "rotary scaling of Llama 3, 8 × 32 tokens" in read_gguf(path).load(torch.float32).notes


@pytest.mark.parametrize(("d_head", "factor"), [(64, 32.0), (128, 8.0)])
def test_the_factors_of_every_llama_3_are_found(d_head, factor):
    stored = converted_factors(d_head, 500_000.0, factor, 8192).tolist()
    found = scaling_from_factors(stored, d_head, 500_000.0)
    assert found is not None
    assert (found["rope_factor"], found["rope_original_context"]) == (factor, 8192)


@pytest.mark.parametrize("factors", [[1, 2, 3, 4], [1, 1, 1, np.nan], [8, 8, 8, 1], [0, 0, 0, 0], [np.inf] * 4])
def test_other_rotary_factors_are_refused(tmp_path, factors):
    parts = small_parts()
    parts.tensors["rope_freqs.weight"] = np.array(factors, dtype=np.float32), Kind.F32
    assert "rope_freqs.weight are not those of a Llama 3 scaling" in refused(parts, tmp_path)


def test_factors_of_1_are_no_scaling(tmp_path):
    parts = small_parts()
    parts.tensors["rope_freqs.weight"] = np.ones(4, dtype=np.float32), Kind.F32
    assert read_gguf(parts.write(tmp_path / "a.gguf")).config.rope_scaling == "none"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_are_rounded_once(tmp_path, dtype):
    path = model_and_parts("llama", Kind.Q8_0)[1].write(tmp_path / "a.gguf")
    exact = read_gguf(path).load(torch.float32).transformer.state_dict()
    for name, tensor in read_gguf(path).load(dtype).transformer.state_dict().items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, exact[name].to(dtype)), name


def test_what_is_read_is_a_model_on_the_cpu_in_eval_mode_and_its_types(tmp_path):
    path = model_and_parts("llama", Kind.Q4_1)[1].write(tmp_path / "a.gguf")
    model = read_gguf(path).load(torch.float32)
    assert not model.transformer.training
    assert {parameter.device.type for parameter in model.transformer.parameters()} == {"cpu"}
    assert model.notes == ("weights stored as Q4_1, F32",)
    assert gguf_tokenizer(path).vocab_size == model.transformer.config.vocab_size == 320


def test_the_epsilon_is_the_number_that_was_meant(tmp_path):
    assert read_gguf(small_parts().write(tmp_path / "a.gguf")).config.norm_eps == 3e-5


def test_no_tensor_is_dequantised_whole(tmp_path):
    parts = small_parts(vocab_size=40_000, tie_word_embeddings=True)
    path = parts.write(tmp_path / "a.gguf")
    read_gguf(path).load(torch.float32)
    header = read_header(path)
    weights = GgufWeights(header)
    tracemalloc.start()
    try:
        dict(weights.tensors(torch.bfloat16))  # torch's own memory is not traced: what is, is on the way
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * 2**20 < header.tensors["token_embd.weight"].n_bytes


def test_the_header_is_what_the_library_reads(tmp_path):
    parts = model_and_parts("qwen2", Kind.Q4_0)[1]
    parts.alignment = 64
    parts.keys |= {"some.numbers": [3, -4], "some.truths": [True, False], "some.fractions": [0.5, 1.5]}
    path = parts.write(tmp_path / "a.gguf")
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    expected = {key: entry.contents() for key, entry in theirs.fields.items() if not key.startswith("GGUF.")}
    assert list(ours.metadata) == list(expected)
    for key, value in ours.metadata.items():
        wanted = expected[key]
        same = pytest.approx(wanted, rel=1e-6) if isinstance(value, float) else wanted
        assert (list(value) if isinstance(value, tuple) else value) == same, key
    assert [tensor.name for tensor in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert (found.kind, found.start, found.n_bytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)


def refused(parts: Parts, tmp_path: Path) -> str:
    path = parts.write(tmp_path / "refused.gguf")
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path).load(torch.float32)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    if "tokenizer" not in caught.value.message and "vocabulary" not in caught.value.message:
        with pytest.raises(CheckpointError):
            read_gguf(path)
    return caught.value.message


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("llama.expert_count", 8, "expert_count is 8, but no layer has blk.N.ffn_up_exps.weight"),
        ("llama.attention.causal", False, "attention.causal False is not implemented"),
        ("llama.attention.sliding_window", 16, "a sliding window of 16 tokens is not implemented for llama"),
        ("llama.rope.scaling.type", "ntk", "rope.scaling.type 'ntk' is not implemented"),
        ("llama.rope.scaling.attn_factor", 1.5, "rope.scaling.attn_factor 1.5 is not implemented"),
        ("llama.rope.dimension_count", 5, "rope_width 5 is not an even number up to d_head 8"),
        ("llama.attention.value_length", 4, "attention.value_length 4 is not implemented"),
        ("llama.logit_scale", 0.5, "the key 'llama.logit_scale' is not known"),
        ("llama.attention.head_count_kv", [2, 2], "head_count_kv is an array of 2, and has to be a whole number"),
        ("llama.attention.head_count", 0, "n_heads 0 is below 1"),
        ("llama.block_count", 2**31, "n_layers 2,147,483,648 is above 1,024"),
        ("llama.block_count", 2**10, "holds 12 tensors, too few for 1,024 layers"),
        ("llama.block_count", "one", "block_count is 'one', and has to be a whole number"),
        ("llama.feed_forward_length", 96, "blk.0.ffn_up.weight has shape (64, 32), the configuration needs (96, 32)"),
        ("llama.rope.freq_base", float("nan"), "rope.freq_base nan is not a finite number"),
        ("llama.rope.freq_base", -1.0, "rope_theta -1.0 is not above 0"),
        ("llama.pooling_type", 9, "pooling_type 9 is not implemented"),
        ("llama.vocab_size", 299, "token_embd.weight has 300 rows, and llama.vocab_size 299"),
        ("general.type", "adapter", "holds a 'adapter', not a model"),
        ("general.architecture", "rwkv7", "the architecture 'rwkv7' is not one that tinytf opens"),
    ],
)
def test_metadata_that_would_change_the_numbers_is_refused(tmp_path, key, value, said):
    parts = small_parts()
    parts.keys[key] = value
    assert said in refused(parts, tmp_path)


@pytest.mark.parametrize(
    "key", ["block_count", "context_length", "embedding_length", "attention.layer_norm_rms_epsilon"]
)
def test_metadata_that_is_missing(tmp_path, key):
    parts = small_parts()
    del parts.keys[f"llama.{key}"]
    assert f"lacks llama.{key}" in refused(parts, tmp_path)


@pytest.mark.parametrize(
    "keys",
    [
        {"llama.attention.sliding_window": 64},
        {"llama.attention.sliding_window": 0, "llama.expert_count": 0, "llama.expert_used_count": 0},
        {"llama.rope.dimension_count": 8, "llama.attention.key_length": 8, "llama.attention.value_length": 8},
        {"llama.rope.scaling.original_context_length": 32, "llama.rope.scaling.finetuned": True},
        {"llama.tensor_data_layout": "Meta AI original pth", "general.file_type": 3, "quantize.imatrix.entries": 9},
        {"tokenizer.chat_template": "{{ x }}", "tokenizer.ggml.padding_token_id": 3, "general.tags": ["a", "b"]},
    ],
)
def test_metadata_that_changes_nothing_is_let_be(tmp_path, keys):
    parts = small_parts()
    plain = read_gguf(parts.write(tmp_path / "plain.gguf")).load(torch.float32)
    parts.keys |= keys
    other = read_gguf(parts.write(tmp_path / "other.gguf")).load(torch.float32)
    assert other.transformer.config == plain.transformer.config
    assert torch.equal(other.transformer(IDS), plain.transformer(IDS))


@pytest.mark.parametrize(("number", "pooling"), [(0, "none"), (1, "mean"), (2, "first"), (3, "last"), (4, "none")])
def test_the_pooling_of_a_file_is_a_step(tmp_path, number, pooling):
    parts = small_parts()
    parts.keys["llama.pooling_type"] = number
    model = read_gguf(parts.write(tmp_path / "a.gguf")).load(torch.float32).transformer
    assert model.config.pooling == pooling
    if model.pooling is not None:
        hidden = model.hidden(IDS)
        expected = {"mean": hidden.mean(1), "first": hidden[:, 0], "last": hidden[:, -1]}[pooling]
        assert torch.allclose(model.pooling(hidden), expected, atol=1e-6)


def test_an_unknown_architecture_says_what_is_known(tmp_path):
    parts = small_parts()
    parts.keys["general.architecture"] = "rwkv7"
    with pytest.raises(CheckpointError) as caught:
        read_gguf(parts.write(tmp_path / "a.gguf"))
    assert caught.value.hint.startswith("known: llama, qwen2, ")
    assert gguf_tokenizer(tmp_path / "a.gguf").encode("the cat").ids, "its tokenizer can be looked at all the same"


def test_every_tensor_has_to_be_there(tmp_path):
    for name in small_parts().tensors:
        parts = small_parts()
        del parts.tensors[name]
        if name != "output.weight":  # its absence means that the head is tied
            assert f"lacks {name}" in refused(parts, tmp_path)


@pytest.mark.parametrize("name", ["blk.1.attn_q.weight", "output.bias", "blk.0.attn_q_norm.weight", "x\x1b[31m"])
def test_no_tensor_may_be_left_over(tmp_path, name):
    parts = small_parts()
    parts.tensors[name] = np.ones(32, dtype=np.float32), Kind.F32
    assert f"holds {name!r}, which a llama model has no place for" in refused(parts, tmp_path)


def test_rotary_factors_have_no_place_in_qwen2(tmp_path):
    parts = small_parts("qwen2")
    parts.tensors["rope_freqs.weight"] = np.ones(4, dtype=np.float32), Kind.F32
    assert "holds 'rope_freqs.weight'" in refused(parts, tmp_path)


def test_a_bias_in_one_layer_alone(tmp_path):
    parts = small_parts("qwen2", num_hidden_layers=2)
    del parts.tensors["blk.1.attn_k.bias"]
    assert "lacks blk.1.attn_k.bias" in refused(parts, tmp_path)


def test_weights_that_are_no_numbers_are_said(tmp_path):
    parts = small_parts()
    parts.tensors["output_norm.weight"][0][3] = np.nan
    parts.write(tmp_path / "a.gguf")
    assert "the weights hold NaN or infinities: final_norm.weight" in load(str(tmp_path / "a.gguf")).notes
