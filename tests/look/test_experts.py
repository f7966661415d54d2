"""Which experts tokens go to, where a bias decides beside the router."""

import torch
from architectures import config_of, lively

import tinytf
from tinytf.look.experts import expert_load, experts
from tinytf.text.corpus import find_files
from tinytf.text_model import TextModel

TEXT = "The cat sat on the mat, and the dog looked at it."


def biased() -> TextModel:
    """A model of three experts, of which the bias keeps the second from every token."""
    tiny = tinytf.load("tiny")
    settings = {"experts": 3, "experts_per_token": 2, "expert_groups": 0, "vocab_size": tiny.config.vocab_size}
    config = config_of("experts by sigmoids, in the best groups, without a gate", **settings)
    transformer = lively(config)
    with torch.no_grad():
        for block in transformer.blocks:
            block.ffn.preference.weight.copy_(torch.tensor([0.0, -5.0, 0.0]))
    return TextModel("biased", transformer, tiny.tokenizer, "made by hand")


def test_an_expert_that_the_bias_keeps_back_is_sent_no_token() -> None:
    model = biased()
    found = experts(model, TEXT)
    trace = model.trace(TEXT)
    assert found.check.holds
    for load in found.load:
        score = trace[f"L{load.layer}.ffn.router"].sigmoid() + torch.tensor([0.0, -5.0, 0.0])
        expected = torch.zeros_like(score).scatter(-1, score.topk(2).indices, 1.0).sum(0)
        assert load.counts == tuple(expected.int().tolist()) == (load.tokens, 0, load.tokens)


def test_the_load_of_a_corpus_counts_what_the_bias_lets_through() -> None:
    for load in expert_load(biased(), find_files(TEXT)):
        assert load.counts == (load.tokens, 0, load.tokens)
        assert load.tokens > 5
