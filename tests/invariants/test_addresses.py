"""Addresses: what each one names, what it is called, and what is said of one that names nothing."""

import pytest
import torch
from architectures import BERT, LLAMA, SIZES, config_of, encoding_of, lively

from tinytf.config import ModelConfig
from tinytf.errors import AddressError
from tinytf.steps.table import StepTable
from tinytf.trace.address import parse_address
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

WORDS = ("The", "·cat", "·sat", "·on", "·the", "·mat", ".")
GPT2 = StepTable(ModelConfig.of(**{**SIZES, "n_layers": 4}))
BERT_TABLE = StepTable(ModelConfig.of(**SIZES, **BERT, head="mlm"))
LLAMA_TABLE = StepTable(ModelConfig.of(**SIZES, **LLAMA, n_kv_heads=2))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return record(lively(ModelConfig.of(**{**SIZES, "n_layers": 4})), encoding_of([3, 14, 15, 9, 2, 6, 5], WORDS))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("L3", "L3"),
        ("L3H2", "L3H2"),
        ("L0-2", "L0-2"),
        ("L*", "L0-3"),
        ("L*H*", "L0-3H0-3"),
        ("L3.weights", "L3.weights"),
        ("L3H2.weights", "L3H2.weights"),
        ("L0-2H*.weights", "L0-2H0-3.weights"),
        ("L1-1H2-2.scores", "L1H2.scores"),
        ("  L0.ffn.hidden  ", "L0.ffn.hidden"),
        ("L0.weights[ sat , cat ]", "L0.weights[sat,cat]"),
        ("L0H1.weights[2]", "L0H1.weights[2]"),
        ("embed.out", "embed.out"),
        ("logits[-1,7]", "logits[-1,7]"),
        ("final.norm[6]", "final.norm[6]"),
        ("L007.q", "L7.q"),
    ],
)
def test_an_address_has_one_canonical_name(text, canonical):
    table = StepTable(ModelConfig.of(**{**SIZES, "n_layers": 8})) if "7.q" in canonical else GPT2
    address = parse_address(text, table)
    assert str(address) == canonical
    assert str(parse_address(str(address), table)) == canonical


@pytest.mark.parametrize(
    ("alias", "table", "canonical"),
    [
        ("hook_embed", GPT2, "embed.tokens"),
        ("hook_pos_embed", GPT2, "embed.positions"),
        ("blocks.3.hook_resid_pre", GPT2, "L3.in"),
        ("blocks.0.attn.hook_q", GPT2, "L0.q"),
        ("blocks.0.attn.hook_k", GPT2, "L0.k"),
        ("blocks.0.attn.hook_v", GPT2, "L0.v"),
        ("blocks.1.attn.hook_attn_scores", GPT2, "L1.masked"),
        ("blocks.1.attn.hook_pattern[2,1]", GPT2, "L1H2.weights[1]"),
        ("blocks.1.attn.hook_q[5,-1]", GPT2, "L1H3.q[5]"),
        ("L1.attn.hook_z[:,0:2]", GPT2, "L1H0-1.head_out"),
        ("blocks.1.attn.hook_k[:,1]", LLAMA_TABLE, "L1H2.k"),
        ("blocks.1.attn.hook_z", GPT2, "L1.head_out"),
        ("blocks.1.hook_attn_out", GPT2, "L1.attn"),
        ("blocks.1.hook_resid_mid", GPT2, "L1.mid"),
        ("blocks.1.mlp.hook_pre", GPT2, "L1.ffn.hidden"),
        ("blocks.1.mlp.hook_post", GPT2, "L1.ffn.act"),
        ("blocks.1.hook_mlp_out", GPT2, "L1.ffn"),
        ("blocks.1.hook_resid_post", GPT2, "L1.out"),
        ("ln_final.hook_out", GPT2, "final.norm"),
        ("blocks.1.mlp.hook_pre", LLAMA_TABLE, "L1.ffn.gate"),
        ("blocks.1.mlp.hook_pre_linear", LLAMA_TABLE, "L1.ffn.hidden"),
        ("blocks.1.attn.hook_rot_q", LLAMA_TABLE, "L1.q_rot"),
        ("blocks.1.attn.hook_rot_k", LLAMA_TABLE, "L1.k_rot"),
    ],
)
def test_a_name_of_transformer_lens_is_understood_and_said_in_ours(alias, table, canonical):
    address = parse_address(alias, table)
    assert str(address) == canonical
    assert address.note == f"{alias.replace('L1', 'blocks.1')} is {canonical} here"


@pytest.mark.parametrize("name", ["blocks.0.ln1.hook_normalized", "blocks.0.ln1.hook_scale"])
def test_a_name_of_another_tensor_is_no_step(name):
    with pytest.raises(AddressError, match=f"^{name} is not a step here, but ") as caught:
        parse_address(name, GPT2)
    assert caught.value.hint == "L0.norm1 is the step"


@pytest.mark.parametrize(
    ("text", "table", "message", "hint"),
    [
        ("", GPT2, "'' is not an address", "a layer is L3"),
        (
            "L3.weights[",
            GPT2,
            "'L3.weights[' is not an address: at character 11, '[', the bracket is not closed",
            "a layer is L3",
        ),
        (
            "L3.weights[1]x",
            GPT2,
            "'L3.weights[1]x' is not an address: at character 11, '[', the bracket is not closed",
            "a layer is L3",
        ),
        (
            "L3-.q",
            GPT2,
            "'L3-.q' is not an address: at character 3, '-', the address should end",
            "a layer is L3",
        ),
        (
            "L3H.q",
            GPT2,
            "'L3H.q' is not an address: at character 3, 'H', the address should end",
            "a layer is L3",
        ),
        ("L3.", GPT2, "'L3.' is not an address: at its end a step is expected", "a layer is L3"),
        (
            "3.weights",
            GPT2,
            "'3.weights' is not an address: at character 1, '3', a layer or a step is expected",
            "a layer is L3",
        ),
        ("L4", GPT2, "there is no layer 4: the model has 4 layers, 0 to 3", ""),
        ("L0-9.q", GPT2, "there is no layer 9: the model has 4 layers, 0 to 3", ""),
        ("L2-1.q", GPT2, "layers 2-1 run backwards", ""),
        ("L0H4.q", GPT2, "there is no head 4: the model has 4 heads, 0 to 3", ""),
        ("L0.wieghts", GPT2, "there is no step 'wieghts'", "did you mean weights?"),
        ("L0.Weights", GPT2, "there is no step 'Weights'", "did you mean weights?"),
        ("weights", GPT2, "'weights' is a step of every layer", "say which: L0.weights … L3.weights, or L*.weights"),
        ("L0.logits", GPT2, "'logits' is not inside a layer", "write logits alone"),
        ("L0H1.ffn", GPT2, "ffn is not split into heads", "its axes are token, d_model"),
        ("L0.weights[1,2,3]", GPT2, "weights has cells of at most two words, [row,column]", ""),
        ("L0.q_rot", GPT2, "this model has no step 'q_rot': positions are learned, added to the embeddings", ""),
        ("L0.ffn.gate", GPT2, "this model has no step 'ffn.gate': the feed-forward of this model has no gate", ""),
        ("pooled", GPT2, "this model has no step 'pooled': this model has no pooler", ""),
        ("embed.types", GPT2, "this model has no step 'embed.types': this model has no token types", ""),
        ("head.dense", GPT2, "this model has no step 'head.dense': the head of this model has no dense layer", ""),
        ("embed.positions", LLAMA_TABLE, "this model has no step 'embed.positions': positions are rotary", ""),
        ("L0.masked", BERT_TABLE, "this model has no step 'masked': this model looks both ways", ""),
        ("final.norm", BERT_TABLE, "this model has no step 'final.norm': norms come after the residual sums", ""),
        ("L0.sum", GPT2, "this model has no step 'sum': the layers of this model add up to out directly", ""),
        ("blocks.9.attn.hook_q", GPT2, "there is no layer 9: the model has 4 layers, 0 to 3", ""),
        ("blocks.0.attn.hook_rot_q", GPT2, "'blocks.0.attn.hook_rot_q' is not a name that this model has", ""),
        ("blocks.0.attn.hook_patern", GPT2, "'blocks.0.attn.hook_patern' is not a name", "did you mean attn.hook_pat"),
    ],
)
def test_an_address_of_nothing_says_what_there_is(text, table, message, hint):
    with pytest.raises(AddressError) as caught:
        parse_address(text, table)
    assert caught.value.message.startswith(message.replace("has it", "has this step"))
    assert caught.value.hint.startswith(hint)


def test_one_layer_is_spoken_of_in_the_singular():
    table = StepTable(ModelConfig.of(**{**SIZES, "n_layers": 1}))
    with pytest.raises(AddressError, match=r"^there is no layer 1: the model has one layer, 0$"):
        parse_address("L1.q", table)


@pytest.mark.parametrize(
    ("text", "canonical", "note"),
    [
        ("L1.out", "L1.norm2", "out is norm2 in this model"),
        ("embed.out", "embed.norm", "embed.out is embed.norm in this model"),
        ("L1H0.heads[1,2]", "L1H0.head_out[1,2]", "heads is head_out in this model"),
    ],
)
def test_a_step_by_another_name_is_that_step(text, canonical, note):
    address = parse_address(text, BERT_TABLE)
    assert (str(address), address.note) == (canonical, note)


def test_shared_key_heads_are_pointed_out():
    assert parse_address("L0H3.k", LLAMA_TABLE).note == "2 query heads share one key head"
    assert parse_address("L0H3.q", LLAMA_TABLE).note == ""


def test_a_query_heads_number_finds_its_shared_key_head():
    trace = record(lively(config_of("llama, grouped")), encoding_of([1, 2, 3]))
    assert trace["L0.k"].shape[0] == 2
    for head in range(4):
        for step in ("k", "v", "k_rot"):
            assert torch.equal(trace[f"L0H{head}.{step}"], trace[f"L0.{step}"][head // 2])


def test_a_head_is_that_slice_of_its_layer(trace):
    for step in ("q", "k", "v", "scores", "scaled", "masked", "weights", "head_out"):
        assert torch.allclose(trace[f"L2H1.{step}"], trace[f"L2.{step}"][1], atol=1e-6), step
    assert torch.equal(trace["L2.concat"][:, 6:12], trace["L2H1.head_out"])


def test_sets_are_stacked(trace):
    assert trace["L*.in"].shape == (4, 7, 24)
    assert trace["L0-2H*.weights"].shape == (3, 4, 7, 7)
    assert trace["L0-2H1.weights"].shape == (3, 7, 7)
    assert trace["L3H1-2.weights"].shape == (2, 7, 7)
    assert torch.equal(trace["L0-2H1-2.weights"][2, 1], trace["L2H2.weights"])


def test_a_cell_is_the_element_of_the_tensor(trace):
    assert trace["L1H2.weights[4,1]"] == trace["L1H2.weights"][4, 1]
    assert trace["L1H2.weights[·the,cat]"] == trace["L1H2.weights"][4, 1]
    assert trace["L1H2.weights[-1,0]"] == trace["L1H2.weights"][6, 0]
    assert torch.equal(trace["L1H2.weights[4]"], trace["L1H2.weights"][4])
    assert torch.equal(trace["L1.in[mat]"], trace["L1.in"][5])
    assert trace["L1.in[mat,3]"] == trace["L1.in"][5, 3]
    assert trace["embed.out[2,5]"] == trace["embed.out"][2, 5]
    assert torch.allclose(trace["logits[on]"], trace["logits"][3], atol=1e-6)
    assert trace["logits[on,8]"] == trace["logits[on]"][8]
    assert torch.allclose(trace["probs[on]"], trace["probs"][3], atol=1e-6)
    assert trace["ids"].tolist() == [3, 14, 15, 9, 2, 6, 5]


@pytest.mark.parametrize("row", [1, 4])
def test_a_cell_of_all_heads_is_that_cell_of_each(trace, row):
    assert torch.equal(trace[f"L1.weights[{row},1]"], trace["L1.weights"][:, row, 1])
    assert torch.equal(trace[f"L1.q[{row},2]"], trace["L1.q"][:, row, 2])
    assert torch.equal(trace[f"L0-2H*.weights[{row},1]"], trace["L0-2H*.weights"][..., row, 1])


@pytest.mark.parametrize(
    ("word", "place"), [("The", 0), ("·the", 4), ("the", 4), ("cat", 1), ("CAT", 1), (".", 6), ("-7", 0)]
)
def test_a_token_is_found_by_its_text(trace, word, place):
    assert trace.index(word, "key", 7) == place


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("L0H0.weights[tHe,0]", "'tHe' occurs at 0, 4"),
        ("L0H0.weights[dog,0]", "no token is 'dog'"),
        ("L0H0.weights[7,0]", "query 7 is out of range: there are 7, 0 to 6"),
        ("L0H0.weights[0,-8]", "key -8 is out of range: there are 7, 0 to 6"),
        ("L0.in[0,cat]", "d_model takes a number, and 'cat' is not one"),
        ("L0.in[0,24]", "d_model 24 is out of range: there are 24, 0 to 23"),
        ("logits[0,31]", "vocab 31 is out of range: there are 31, 0 to 30"),
        ("L0", "L0 names no step"),
        ("tokens", "tokens is not a tensor"),
    ],
)
def test_a_cell_that_is_not_there_says_what_is(trace, address, message):
    with pytest.raises(AddressError) as caught:
        trace[address]
    assert caught.value.message == message


@pytest.mark.parametrize("word", ["--1", "²", "٣", "9" * 5000])
def test_a_word_that_looks_like_a_number_is_refused_as_an_address(trace, word):
    with pytest.raises(AddressError):
        trace[f"L0.weights[{word},0]"]


def test_a_layer_of_five_thousand_digits_is_refused_as_an_address(trace):
    with pytest.raises(AddressError):
        trace["L" + "9" * 5000]


def test_a_vector_has_no_second_word_in_its_cell():
    trace = record(lively(config_of("bert with a pooler")), encoding_of([1, 2, 3]))
    assert trace["pooled[4]"] == trace["pooled"][4]
    with pytest.raises(AddressError, match=r"^pooled has cells of one word; 'pooled\[4,1\]' has 2$"):
        trace["pooled[4,1]"]


@pytest.mark.parametrize("text", ["L0[1,2]", "L0H1[1,2]"])
def test_a_cell_without_a_step_is_asked_for_one(text):
    with pytest.raises(AddressError, match="has a cell but no step"):
        parse_address(text, GPT2)
