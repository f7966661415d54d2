"""Directories of DeBERTa-v2 and v3 as they are published: their heads, their spellings, and what is refused by name."""

import pytest
import torch
import transformers
from architectures import enliven, furthest
from checkpoint_directories import logits, refused

from tinytf.checkpoints.huggingface.load import read_directory

SIZES = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}


@pytest.fixture
def v3(tmp_path):
    """As microsoft/deberta-v3-base is: its head is stored as that of its training, which config.json does not say."""
    model = transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**SIZES, legacy=False))
    enliven(model, 3)
    model.save_pretrained(tmp_path / "v3")
    return tmp_path / "v3"


def test_the_head_of_the_training_is_opened_whatever_legacy_says(v3, bend):
    before = logits(v3)
    bend(v3, legacy=...)
    assert torch.equal(logits(v3), before)
    with torch.no_grad():
        expected = transformers.DebertaV2ForMaskedLM.from_pretrained(v3, legacy=False)(torch.tensor([[3, 14, 15, 9]]))
        found = read_directory(v3).load().transformer(torch.tensor([[3, 14, 15, 9]]))
    assert furthest(found, expected.logits) < 1e-5


def test_what_nothing_reads_is_passed_over(v3, rename):
    before = logits(v3)
    more = {
        "deberta.embeddings.position_embeddings.weight": torch.zeros(24, 16),
        "mask_predictions.dense.weight": torch.zeros(16, 16),
    }
    rename(v3, lambda tensors: {**tensors, **more})
    assert read_directory(v3).load().notes == (
        "not opened: positions that are not added to the embeddings (embeddings)",
        "not opened: the replaced-token head (mask_predictions)",
    )
    assert torch.equal(logits(v3), before)


def test_heads_of_both_layouts_are_one_too_many(v3, rename):
    rename(v3, lambda tensors: {**tensors, "cls.predictions.transform.dense.weight": torch.zeros(16, 16)})
    with pytest.raises(Exception, match=r"holds both .* which are the same tensor"):
        read_directory(v3).load()


def test_terms_and_distances_are_read_in_both_spellings(v3, bend):
    before = read_directory(v3).config
    assert (before.distances, before.farthest, before.attention_divisor) == (8, 24, 24**0.5)
    bend(v3, pos_att_type=["c2p", "p2c"], max_relative_positions=24)
    assert read_directory(v3).config == before
    bend(v3, position_buckets=..., max_relative_positions=-1)
    config = read_directory(v3).config
    assert (config.distances, config.farthest) == (24, 0)
    bend(v3, relative_attention=False)
    assert (read_directory(v3).config.distances, read_directory(v3).config.attention_divisor) == (0, 24**0.5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"conv_kernel_size": 4}, "conv_kernel_size 4 is not implemented: it is even"),
        ({"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups 2 is not implemented"),
        ({"conv_kernel_size": 3, "conv_act": "mish"}, "conv_act 'mish' is not implemented"),
        ({"conv_kernel_size": 3}, "lacks"),
        ({"embedding_size": 8}, "embedding_size 8 is not implemented"),
        ({"attention_head_size": 4}, "attention_head_size 4 is not implemented"),
        ({"pooler_hidden_size": 4}, "pooler_hidden_size 4 is not implemented"),
        ({"pos_att_type": "p2c|p2p"}, "pos_att_type 'p2p' is not implemented"),
        ({"norm_rel_ebd": "rms"}, "norm_rel_ebd 'rms' is not implemented"),
        ({"pos_att_type": [1]}, "pos_att_type is an array of 1, and has to be an array of strings"),
        ({"position_buckets": "x"}, "position_buckets is 'x', and has to be"),
        ({"position_buckets": 50}, "farthest 24 does not fit distances 50"),
        ({"position_buckets": 1}, "farthest 24 does not fit distances 1"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(v3, bend, keys, message):
    bend(v3, **keys)
    assert message in refused(v3).message
