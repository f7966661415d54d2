"""Two files of pairs compared: differences of means, their intervals, and silence where there is no difference."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import tinytf
from tinytf.cause.over_pairs import OverPairs, heads_over, patch_over, score_over, versus_over
from tinytf.errors import UsageError
from tinytf.estimate import difference_of
from tinytf.metric import Asked

NOUNS = ["ball", "hat", "key", "book", "bell", "coat", "lamp", "cup", "ring", "box", "kite", "drum", "shell", "clock"]
NAMES = ["cat", "dog", "girl", "boy"]


def pairs(count: int, seed: int) -> list[dict[str, Any]]:
    random = torch.Generator().manual_seed(seed)

    def draw(some: list[str]) -> list[str]:
        return [some[i] for i in torch.randperm(len(some), generator=random)[:2].tolist()]

    rows = []
    for _ in range(count):
        (name, _), (one, other) = draw(NAMES), draw(NOUNS)
        text = f"The {name} lost the {{}}. The {name} lost the"
        rows.append({"clean": text.format(one), "corrupt": text.format(other), "answer": one, "versus": other})
    return rows


@pytest.fixture(scope="module")
def tiny() -> tinytf.Model:
    return tinytf.load("tiny")


@pytest.fixture(scope="module")
def report(tiny: tinytf.Model) -> OverPairs:
    usable = [row for row in pairs(60, 1) if all(fits(tiny, row[side]) for side in ("answer", "versus"))]
    return patch_over(tiny, usable[:24], sweep="heads")


def fits(model: tinytf.Model, word: str) -> bool:
    return len(model.tokenizer.encode(f" {word}", special=False).ids) == 1


def made(report: OverPairs, seed: int, shift: float = 0.0) -> OverPairs:
    """The report with drawn values of each pair in place of its own, that are of one distribution in every row."""
    random = torch.Generator().manual_seed(seed)
    first = report.quantities[0]
    values = torch.randn(first.values.shape, generator=random, dtype=torch.float64)
    values[:, 3] += shift
    mean = replace(first, ratio=False).with_values(values, torch.zeros(len(values), 2, dtype=torch.float64))
    return replace(report, quantities=(mean,))


def test_a_difference_is_that_of_the_means_with_an_interval_that_covers_the_true_one(report: OverPairs) -> None:
    found = versus_over(made(report, 1), made(report, 2))
    for row, each in enumerate(found.differences):
        values = [of.quantities[0].values[:, row].mean() for of in (found.first, found.second)]
        assert each.difference.value == pytest.approx(float(values[0] - values[1]), abs=1e-12)
    covered = 0
    for seed in range(200):
        random = torch.Generator().manual_seed(seed)
        one, other = torch.randn(12, 1, generator=random), 0.5 + 2 * torch.randn(20, 1, generator=random)
        ones = [torch.ones(len(some), dtype=torch.float64) for some in (one, other)]
        (estimate,) = difference_of(one.double(), ones[0], other.double(), ones[1], seed=0)
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= -0.5 <= estimate.high
    assert 0.92 * 200 <= covered <= 200


def test_few_texts_have_intervals_of_students_and_one_has_none() -> None:
    ones = torch.ones(4, dtype=torch.float64)
    values = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    (estimate,) = difference_of(values, ones, values + 1, ones, seed=0)
    assert estimate.value == pytest.approx(-1.0)
    error = 3.182 * (2 * float(values.var()) / 4) ** 0.5
    assert estimate.low == pytest.approx(-1 - error, rel=0.1)
    (alone,) = difference_of(values[:1], ones[:1], values, ones, seed=0)
    assert (alone.low, alone.high) == (None, None)


def test_null_conditions_are_silent_and_a_true_difference_is_found(report: OverPairs) -> None:
    """Of 200 comparisons of two draws from one distribution, at most 5 % may claim a difference (and rounding)."""
    claims = sum(versus_over(made(report, 2 * n), made(report, 2 * n + 1)).is_clear for n in range(200))
    assert claims <= 0.08 * 200
    found = versus_over(made(report, 1, shift=4.0), made(report, 2))
    assert found.is_clear
    assert found.differences[found.by].row.name == report.rows[3].name
    assert found.in_a_sentence().startswith("pairs and pairs differ in recovered")
    silent = versus_over(made(report, 1), made(report, 2))
    assert ("do not clearly differ" in silent.in_a_sentence()) is not silent.is_clear


def test_halves_of_one_file_do_not_differ(tiny: tinytf.Model) -> None:
    """20 comparisons of two draws of pairs of one kind: at most one claims a difference."""
    usable = [row for row in pairs(400, 7) if fits(tiny, row["answer"]) and fits(tiny, row["versus"])]
    whole = patch_over(tiny, usable[:120], sweep="heads")
    claims = 0
    for seed in range(20):
        order = torch.randperm(120, generator=torch.Generator().manual_seed(seed)).tolist()
        sides = [sorted(order[:60]), sorted(order[60:])]
        claims += versus_over(*(chosen(whole, side) for side in sides)).is_clear
    assert claims <= 1


def chosen(report: OverPairs, numbers: list[int]) -> OverPairs:
    """The report of some of its pairs."""
    examples = tuple(report.examples[number] for number in numbers)
    leads = torch.tensor([[one.clean_lead, one.corrupt_lead] for one in examples], dtype=torch.float64)
    of = [quantity.with_values(quantity.values[numbers], leads) for quantity in report.quantities]
    return replace(report, examples=examples, n_pairs=len(examples), quantities=tuple(of))


def test_reports_of_other_questions_metrics_or_rows_are_not_compared(tiny: tinytf.Model, report: OverPairs) -> None:
    some = [row for row in pairs(30, 3) if fits(tiny, row["answer"]) and fits(tiny, row["versus"])][:3]
    for message, other in {
        "do not ask one question": score_over(tiny, some),
        "do not ask one metric": replace(report, metric=Asked("kl").measure()),
        "have other rows": patch_over(tiny, some, "L0H1"),
    }.items():
        with pytest.raises(UsageError, match=message):
            versus_over(report, other)
    few = versus_over(heads_over(tiny, some), heads_over(tiny, some))
    assert few.confirmed.low is None
    assert "too few pairs" in few.in_a_sentence()
