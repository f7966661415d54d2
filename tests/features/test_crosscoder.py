"""Crosscoders between two models: nothing is exclusive in equal ones, and what is planted in one is found as its."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tinytf
from tinytf.errors import UsageError
from tinytf.features.train_crosscoder import EXCLUSIVE, CrosscoderTraining
from tinytf.steps.table import table_of
from tinytf.text.corpus import Corpus, find_files
from tinytf.trace.hooks import module_of

AT, LAYER, EVERY = "L2.out", 2, 3
SETTINGS: dict[str, Any] = {"features": 48, "tokens": 12_800, "batch": 64, "lr": 3e-3}


@pytest.fixture(scope="module")
def tiny() -> tinytf.Model:
    return tinytf.load("tiny")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    text = (Path(tinytf.__file__).parent / "assets" / "tiny" / "held_out.txt").read_text("utf-8")
    return find_files(text[:6000])


@contextmanager
def planted(model: tinytf.Model, direction: Tensor) -> Iterator[tinytf.Model]:
    """A copy of the model in which the step has the direction added at each token of every third id.

    Of a single token, one feature of both models with another direction in each would do, at less cost.
    """
    clone = copy.deepcopy(model.transformer)
    there = {}
    module = module_of(clone, table_of(model.config).at("out", LAYER), LAYER)
    clone.embed.tokens.register_forward_pre_hook(lambda _, args: there.update(mask=args[0] % EVERY == 0))
    module.register_forward_hook(lambda _, args, result: result + there["mask"][..., None] * direction)
    yield replace(model, transformer=clone)


def test_of_equal_models_no_feature_is_exclusive(tiny: tinytf.Model, corpus: Corpus) -> None:
    report = tiny.train_crosscoder(tiny, corpus, AT, **SETTINGS)
    assert report.counts[0] == report.counts[2] == 0 < report.counts[1]
    norms = report.decoder.norm(dim=-1)
    torch.testing.assert_close(norms[:, 0], norms[:, 1], rtol=1e-3, atol=1e-6)
    assert {feature.found_in for feature in report.features} == {"both"}
    assert min(report.explained) > 0.3


@pytest.mark.parametrize("swapped", [False, True])
def test_a_planted_feature_is_found_as_that_of_the_model_that_has_it(
    tiny: tinytf.Model, corpus: Corpus, swapped: bool
) -> None:
    size = float(tiny.trace("The cat sat on the mat.")[AT].norm(dim=-1).mean())
    direction = torch.randn(tiny.config.d_model, generator=torch.Generator().manual_seed(3))
    direction *= size / direction.norm()
    with planted(tiny, direction) as other:
        pair = (other, tiny) if swapped else (tiny, other)
        report: CrosscoderTraining = pair[1].train_crosscoder(pair[0], corpus, AT, **SETTINGS)
    own = 0 if swapped else 1
    first, _, second = report.counts
    assert (first, second)[own] >= 1
    assert (first, second)[1 - own] == 0
    feature = next(one for one in report.features if one.found_in == ("the first", "the second")[own])
    assert (feature.relative > 1 - EXCLUSIVE) if own else (feature.relative < EXCLUSIVE)
    found = report.decoder[feature.feature, own]
    assert float(torch.cosine_similarity(found, direction, dim=0)) > 0.9
    marks = [example.partition("<<")[2].partition(">>")[0] for example in feature.examples]
    shown = {tiny.shown(token) for token in range(0, tiny.config.vocab_size, EVERY)}
    assert marks
    assert shown.issuperset(marks)


def test_models_that_do_not_fit_are_refused(tiny: tinytf.Model, corpus: Corpus) -> None:
    other = replace(tiny, tokenizer=tinytf.load("tiny-encoder").tokenizer)
    with pytest.raises(UsageError, match="cut texts into other tokens"):
        tiny.train_crosscoder(other, corpus, AT, tokens=64, batch=16)
    with pytest.raises(UsageError, match="not one batch"):
        tiny.train_crosscoder(tiny, corpus, AT, tokens=8, batch=16)
