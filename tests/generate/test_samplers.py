"""Each warper against transformers' own; draws against the probabilities that they are drawn from."""

import math

import pytest
import torch
import transformers
from torch import Tensor
from transformers.generation import logits_process as theirs

from tinytf.errors import UsageError
from tinytf.generate.samplers import (
    Sampling,
    choose,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    warp,
    with_temperature,
)

V = 53


def some_logits(seed: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(V, generator=torch.Generator().manual_seed(seed))


def same(found: Tensor, processor: object, logits: Tensor, seen: list[int] | None = None) -> bool:
    expected = processor(torch.tensor([seen or [0]]), logits[None].clone())[0]
    return torch.equal(found.isneginf(), expected.isneginf()) and torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_each_warper_is_that_of_transformers(seed: int) -> None:
    logits = some_logits(seed)
    for temperature in (0.1, 0.7, 1.0, 2.5):
        assert same(with_temperature(logits, temperature), theirs.TemperatureLogitsWarper(temperature), logits)
    for k in (1, 2, 17, V, V + 5):
        assert same(keep_top_k(logits, k), theirs.TopKLogitsWarper(k), logits)
    for p in (1e-6, 0.3, 0.5, 0.9, 0.999):
        assert same(keep_top_p(logits, p), theirs.TopPLogitsWarper(p), logits)
    for p in (0.01, 0.1, 0.5, 1.0):
        assert same(keep_min_p(logits, p), theirs.MinPLogitsWarper(p), logits)
    for penalty in (0.5, 1.0, 1.3):
        seen = [3, 3, 7, seed]
        processor = theirs.RepetitionPenaltyLogitsProcessor(penalty)
        assert same(penalise_repetition(logits, seen, penalty), processor, logits, seen)


@pytest.mark.parametrize("seed", range(5))
def test_all_of_them_together_are_in_the_order_of_transformers(seed: int) -> None:
    sampling = Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, repetition_penalty=1.2)
    settings = transformers.GenerationConfig(
        do_sample=True, temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, repetition_penalty=1.2
    )
    order = [
        theirs.RepetitionPenaltyLogitsProcessor(settings.repetition_penalty),
        theirs.TemperatureLogitsWarper(settings.temperature),
        theirs.TopKLogitsWarper(settings.top_k),
        theirs.TopPLogitsWarper(settings.top_p),
        theirs.MinPLogitsWarper(settings.min_p),
    ]
    logits = some_logits(seed)
    assert same(warp(logits, sampling, [1, 2]), theirs.LogitsProcessorList(order), logits, [1, 2])


def test_top_p_is_the_smallest_set_that_reaches_the_mass() -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    kept = {p: int(keep_top_p(logits, p).isfinite().sum()) for p in (0.001, 0.49, 0.51, 0.74, 0.76, 0.9, 1.0)}
    assert kept == {0.001: 1, 0.49: 1, 0.51: 2, 0.74: 2, 0.76: 3, 0.9: 4, 1.0: 4}


def test_top_p_keeps_no_token_beyond_a_mass_that_is_reached_exactly() -> None:
    """Four of 0.25, which floating point has exactly: two are a mass of 0.5."""
    kept = {p: int(keep_top_p(torch.zeros(4), p).isfinite().sum()) for p in (0.25, 0.5, 0.75)}
    assert kept == {0.25: 1, 0.5: 2, 0.75: 3}


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=1.0), Sampling(temperature=0.6, top_k=12), Sampling(temperature=1.5, top_p=0.8, min_p=0.05)],
    ids=["as it is", "sharper, top-k", "flatter, top-p, min-p"],
)
def test_draws_have_the_probabilities_that_they_are_drawn_from(sampling: Sampling) -> None:
    """Pearson's chi-square of 20,000 draws; the critical value of 0.001 by Wilson and Hilferty's approximation."""
    draws, generator = 20_000, torch.Generator().manual_seed(11)
    warped = warp(some_logits(3, 1.0), sampling)
    counts = torch.bincount(torch.tensor([choose(warped, sampling, generator) for _ in range(draws)]), minlength=V)
    expected = draws * warped.double().softmax(-1)
    possible = expected > 0
    assert int(counts[~possible].sum()) == 0
    assert float(expected[possible].min()) >= 5
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    freedom = int(possible.sum()) - 1
    critical = freedom * (1 - 2 / (9 * freedom) + 3.0902 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < critical


def test_greedy_takes_the_largest_and_the_penalty_still_counts() -> None:
    logits, generator = torch.tensor([1.0, 3.0, 2.5]), torch.Generator()
    assert choose(warp(logits, Sampling()), Sampling(), generator) == 1
    penalised = Sampling(repetition_penalty=2.0)
    assert choose(warp(logits, penalised, [1]), penalised, generator) == 2


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("top_k", -1), ("top_p", 0.0),
        ("top_p", 1.1), ("top_p", math.nan), ("min_p", -0.1), ("min_p", 1.5), ("repetition_penalty", 0.0),
    ],
)  # fmt: skip
def test_a_setting_outside_its_range_is_refused_with_the_number(setting: str, value: float) -> None:
    with pytest.raises(UsageError, match=str(value).replace(".", r"\.")):
        Sampling(**{setting: value})
