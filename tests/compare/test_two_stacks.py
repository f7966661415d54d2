"""Runs of models of two stacks: what differs in the encoder is named there."""

import copy

import pytest
import torch
from architectures import SOURCE, asked, config_of, encoding_of, facing, lively

from tinytf.compare.diff import Difference
from tinytf.model.transformer import Source, Transformer, reading
from tinytf.trace.record import record

KINDS = ("t5, two stacks", "bart, two stacks", "two stacks that norm what they add, with a cap")
TEXT = "3 14 15 9 2 6 5"


def compared(first: Transformer, second: Transformer) -> Difference:
    return asked(first).diff(TEXT, (asked(second), TEXT))


def having_read(model: Transformer, ids: list[int]) -> Transformer:
    assert model.encoder is not None
    with torch.no_grad():
        trace = record(model.encoder, encoding_of(ids))
    return reading(model, Source(trace.last_hidden[None], trace=trace))


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_of_the_encoder_is_named_where_it_first_matters(kind: str) -> None:
    first = lively(config_of(kind))
    second = copy.deepcopy(first)
    assert second.encoder is not None
    with torch.no_grad():
        second.encoder.blocks[-1].ffn.down.weight.mul_(1.5)
    found = compared(first, facing(second))
    assert found.first is not None
    assert found.first.name == f"enc.L{first.config.encoder.n_layers - 1}.ffn"
    assert found.steps[0].name.startswith("enc.embed")
    assert found.parameters is not None
    assert "enc.L" in found.parameters.in_words()
    assert found.parameters.differ == 1
    names = [step.name for step in found.steps]
    assert len({*names}) == len(names)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_reads_two_texts_is_one_model(kind: str) -> None:
    model = lively(config_of(kind))
    found = compared(having_read(model, SOURCE), having_read(model, [*SOURCE[:3], SOURCE[3] + 1, *SOURCE[4:]]))
    assert found.first is not None
    assert (found.first.name, found.first.token) == ("enc.embed.tokens", 3)
    assert found.parameters is None
    assert not found.moved
    assert found.losses is not None
    assert found.losses[0] != found.losses[1]


def test_sources_of_two_lengths_leave_the_encoder_out_and_say_so() -> None:
    model = lively(config_of(KINDS[0]))
    found = compared(having_read(model, SOURCE), having_read(model, SOURCE[:-1]))
    assert not any(step.stack for step in found.steps)
    (said,) = (one.why for one in found.incomparable if one.name == "enc")
    assert "7 and 6 tokens" in said
