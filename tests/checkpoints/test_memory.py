"""Models of transformers that are in memory: the same as their directories, and their own weights, not copies."""

import copy
import gc
import json
import os

import pytest
import torch
import transformers
from architectures import enliven
from directories import LAYOUTS
from hard_strings import hard_strings

import tinytf
from tinytf.checkpoints.weights import Mapped
from tinytf.errors import CheckpointError, TokenizerError, UsageError
from tinytf.text.huggingface import load_tokenizer_directory

LLAMA = {
    "vocab_size": 1000,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def llama(**keys):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **keys}))
    with torch.no_grad():
        enliven(model, 3)
    return model.eval()


@pytest.fixture
def gpt2_tokenizer(tmp_path):
    LAYOUTS["gpt2_json"](tmp_path)
    return transformers.AutoTokenizer.from_pretrained(tmp_path)


def test_a_model_and_its_tokenizer_are_asked_as_any_other(gpt2_tokenizer):
    theirs = llama()
    model = tinytf.load(theirs, gpt2_tokenizer)
    trace = model.trace("the naïve cat")
    ids = gpt2_tokenizer("the naïve cat").input_ids
    assert trace.encoding.ids == ids
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0, -1]
    assert torch.allclose(trace["logits"][-1], expected, atol=1e-5)
    assert model.source == "LlamaForCausalLM in memory"


@pytest.mark.parametrize("kind", LAYOUTS)
def test_the_tokenizer_in_memory_is_that_of_the_directory(tmp_path, kind):
    LAYOUTS[kind](tmp_path)
    if not (tmp_path / "config.json").exists():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}), "utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = tinytf.load(llama(eos_token_id=None), theirs).tokenizer
    expected = load_tokenizer_directory(tmp_path).tokenizer
    for text in hard_strings(40, seed=11):
        assert ours.encode(text) == expected.encode(text)
    assert ours.mask_id == expected.mask_id


def test_weights_are_shared_and_tied_ones_stay_one():
    theirs = llama(tie_word_embeddings=True)
    ours = tinytf.load(theirs).transformer
    assert ours.config.tied_head
    with torch.no_grad():
        theirs.model.layers[1].self_attn.q_proj.weight[3, 4] = 7.0
        theirs.lm_head.weight[5, 6] = 9.0
    assert ours.blocks[1].attention.q.weight[3, 4] == 7.0
    assert ours.embed.tokens.weight[5, 6] == 9.0
    storages = {tensor.untyped_storage().data_ptr() for tensor in theirs.state_dict().values()}
    assert {tensor.untyped_storage().data_ptr() for tensor in ours.state_dict().values()} == storages


def test_the_dtype_is_kept_unless_another_is_asked_for():
    theirs = llama().to(torch.bfloat16)
    assert {one.dtype for one in tinytf.load(theirs).transformer.parameters()} == {torch.bfloat16}
    assert {one.dtype for one in tinytf.load(theirs, dtype="float64").transformer.parameters()} == {torch.float64}
    assert {one.dtype for one in theirs.parameters()} == {torch.bfloat16}


def test_theirs_is_left_as_it_was():
    theirs = llama().train()
    before = copy.deepcopy(theirs.state_dict())
    tinytf.load(theirs).trace("3 1 4")
    assert theirs.training
    assert all(one.requires_grad for one in theirs.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in theirs.state_dict().items())


def test_without_a_tokenizer_a_text_is_ids():
    theirs = llama()
    model = tinytf.load(theirs)
    assert model.trace("31 4 15").encoding.ids == [31, 4, 15]
    with torch.no_grad():
        expected = theirs(torch.tensor([[31, 4, 15]])).logits[0, -1].argmax()
    assert model.generate("31 4 15", max_tokens=1).split() == [str(int(expected))]
    for text in ("the cat", "31 1000", "-3"):
        with pytest.raises(TokenizerError, match="is not an id below 1,000, and this model has no tokenizer"):
            model.trace(text)


def test_a_model_with_classes_has_its_head():
    config = transformers.LlamaConfig(**LLAMA, id2label={0: "no", 1: "yes", 2: "perhaps"})
    theirs = transformers.LlamaForSequenceClassification(config).eval()
    trace = tinytf.load(theirs).trace("3 1 4")
    with torch.no_grad():
        expected = theirs(torch.tensor([[3, 1, 4]])).logits[0]
    assert trace.config.labels == ("no", "yes", "perhaps")
    assert torch.allclose(trace["logits"][-1], expected, atol=1e-5)


def test_what_is_no_model_of_transformers_is_refused_with_what_reads_it():
    for thing, name in ((torch.nn.Linear(2, 2), "Linear"), (7, "int"), (None, "NoneType")):
        with pytest.raises(UsageError, match=f"a {name} is not a model of transformers") as caught:
            tinytf.load(thing)
        assert "tinytf.capture" in caught.value.hint


def test_an_architecture_that_is_not_opened_says_what_it_lacks():
    theirs = transformers.ConvBertModel(
        transformers.ConvBertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    )
    with pytest.raises(CheckpointError, match="the architecture 'convbert' is not one that tinytf opens"):
        tinytf.load(theirs)


def test_weights_that_are_not_here_are_refused():
    with torch.device("meta"):
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    with pytest.raises(UsageError, match="the weights are on meta"):
        tinytf.load(theirs)


def test_a_quantised_model_is_refused_by_its_method():
    theirs = llama()
    theirs.config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(CheckpointError, match="is quantised by 'bitsandbytes'"):
        tinytf.load(theirs)


def test_a_tokenizer_goes_with_a_model_in_memory_alone(gpt2_tokenizer):
    with pytest.raises(UsageError, match="goes with a model in memory"):
        tinytf.load("tiny", gpt2_tokenizer)
    with pytest.raises(UsageError, match="a str has no backend_tokenizer"):
        tinytf.load(llama(), "gpt2")


def test_an_open_file_of_weights_is_closed_by_no_code_of_ours(tmp_path):
    """A ``__del__`` may run when Python is taken down, and the names that it uses are gone."""
    (tmp_path / "weights").write_bytes(b"numbers")
    mapped = Mapped(tmp_path / "weights")
    assert not hasattr(mapped, "__del__")
    descriptor = mapped.file.fileno()
    del mapped
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
