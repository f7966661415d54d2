"""Crosscoders between two models: nothing is exclusive in equal ones, and what is planted in one is found as its."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tinytf
from tinytf.errors import CheckpointError, UsageError
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
def planted(model: tinytf.Model, direction: Tensor, token: int | None = None) -> Iterator[tinytf.Model]:
    """A copy of the model in which the step has the direction added at each ``token``, by default every third id.

    Of a single token, one feature of both models with another direction in each would do, at less cost.
    """
    clone = copy.deepcopy(model.transformer)
    there = {}
    module = module_of(clone, table_of(model.config).at("out", LAYER), LAYER)
    marks = (lambda ids: ids % EVERY == 0) if token is None else (lambda ids: ids == token)
    clone.embed.tokens.register_forward_pre_hook(lambda _, args: there.update(mask=marks(args[0])))
    module.register_forward_hook(lambda _, args, result: result + there["mask"][..., None] * direction)
    yield replace(model, transformer=clone)


def test_of_equal_models_no_feature_is_exclusive(tiny: tinytf.Model, corpus: Corpus) -> None:
    report = tiny.train_crosscoder(tiny, corpus, AT, **SETTINGS)
    assert (report.counts[0], *report.counts[2:]) == (0, 0, 0)
    assert report.counts[1] > 0
    norms = report.decoder.norm(dim=-1)
    torch.testing.assert_close(norms[:, 0], norms[:, 1], rtol=1e-3, atol=1e-6)
    assert {feature.found_in for feature in report.features} == {"both"}
    assert min(report.explained) > 0.3


@pytest.mark.parametrize("swapped", [False, True])
def test_a_planted_feature_is_found_as_that_of_the_model_that_has_it(
    tiny: tinytf.Model, corpus: Corpus, swapped: bool
) -> None:
    direction = random_direction(tiny)
    with planted(tiny, direction) as other:
        pair = (other, tiny) if swapped else (tiny, other)
        report: CrosscoderTraining = pair[1].train_crosscoder(pair[0], corpus, AT, **SETTINGS)
    own = 0 if swapped else 1
    first, _, _, second = report.counts
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


def random_direction(model: tinytf.Model) -> Tensor:
    """As long as the step is on average."""
    direction = torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(3))
    size = float(model.trace("The cat sat on the mat.")[AT].norm(dim=-1).mean())
    return direction * size / direction.norm()


@pytest.mark.parametrize("token", [",", " a"])
def test_a_direction_added_at_one_token_turns_the_features_of_that_token(
    tiny: tinytf.Model, corpus: Corpus, token: str
) -> None:
    (number,) = tiny.encode(f"The cat{token}").ids[2:]
    direction = random_direction(tiny)
    with planted(tiny, direction, number) as other:
        report = other.train_crosscoder(tiny, corpus, AT, **SETTINGS)
    first, both, turned, second = report.counts
    assert first == second == 0 < turned < both
    changed = (report.decoder[:, 1] - report.decoder[:, 0]).norm(dim=-1).argmax()
    feature = next(one for one in report.features if one.feature == int(changed))
    assert feature.found_in == "both, turned"
    assert feature.examples[0].partition("<<")[2].partition(">>")[0] == tiny.shown(number)
    added = report.decoder[changed, 1] - report.decoder[changed, 0]
    assert float(torch.cosine_similarity(added, direction, dim=0)) > 0.95


def test_a_written_crosscoder_opens_with_the_activations_of_its_formula(
    tiny: tinytf.Model, corpus: Corpus, tmp_path: Path
) -> None:
    """Against numpy, on another text than that of the training."""
    text, file = "The dog ran to the park, and the cat sat.", tmp_path / "cross.safetensors"
    with planted(tiny, random_direction(tiny)) as other:
        report = other.train_crosscoder(tiny, corpus, AT, **SETTINGS)
        report.save(file)
        crosscoder, trace = tinytf.open_crosscoder(file), other.trace(text)
        coder = crosscoder.beside(tiny, trace)
        features = other.features(trace, coder)
    values = [tiny.trace(text)[AT].numpy(), trace[AT].numpy()]
    encoder, decoder, start = report.encoder.numpy(), report.decoder.numpy(), report.output_bias.numpy()
    parts = [(value - start[m]) @ encoder[m] for m, value in enumerate(values)]
    expected = np.maximum(parts[0] + parts[1] + report.bias.numpy(), 0)
    np.testing.assert_allclose(coder.encode(trace[AT]).numpy(), expected, atol=1e-4)
    np.testing.assert_allclose(coder.reconstruct(trace[AT]).numpy(), expected @ decoder[:, 1] + start[1], atol=1e-3)
    assert features.at == AT
    for row in features.tokens:
        for active in row.features:
            assert active.activation == pytest.approx(expected[row.position, active.feature], abs=1e-4)
    for opens in (tinytf.open_sae, tinytf.open_transcoders):
        with pytest.raises(CheckpointError, match="is a crosscoder of two models") as caught:
            opens(file)
        assert "--versus MODEL" in caught.value.hint
    with pytest.raises(CheckpointError, match="there is no"):
        tinytf.open_crosscoder(tmp_path / "cros.safetensors")
    with pytest.raises(CheckpointError, match="is no crosscoder"):
        tinytf.open_crosscoder(Path(tinytf.__file__))


def test_models_that_do_not_fit_are_refused(tiny: tinytf.Model, corpus: Corpus) -> None:
    other = replace(tiny, tokenizer=tinytf.load("tiny-encoder").tokenizer)
    with pytest.raises(UsageError, match="cut texts into other tokens"):
        tiny.train_crosscoder(other, corpus, AT, tokens=64, batch=16)
    with pytest.raises(UsageError, match="not one batch"):
        tiny.train_crosscoder(tiny, corpus, AT, tokens=8, batch=16)
