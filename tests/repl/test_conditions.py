"""Conditions: what they measure, against numpy, and how they are read."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytf.errors import PlacedError, UsageError
from tinytf.loading import load
from tinytf.trace.conditions import MEASURES, measure, parse_condition
from tinytf.trace.trace import Trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return load("tiny", device="cpu").trace("The cat sat on the mat")


_NUMPY: dict[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "std": np.std,
    "norm": lambda values: np.sqrt((values**2).sum()),
}


@pytest.mark.parametrize("name", _NUMPY)
@pytest.mark.parametrize("step", ["q", "scores", "masked", "weights", "ffn"])
def test_a_measure_is_numpys_over_what_is_not_masked(trace: Trace, name: str, step: str) -> None:
    heads = (1,) if trace.steps.by_name[step].is_split else None
    values = trace.step(step, 2, heads).double().numpy()
    if step in ("masked", "weights"):
        values = values[:, np.tri(values.shape[-1], dtype=bool)]
    found = measure(trace, name, trace.steps.by_name[step], 2, heads)
    assert found == pytest.approx(_NUMPY[name](values), rel=1e-9)


def test_the_entropy_is_the_mean_over_rows_and_heads(trace: Trace) -> None:
    weights = trace.step("weights", 1).double().numpy()
    weights /= weights.sum(-1, keepdims=True)
    safe = np.where(weights > 0, weights, 1.0)
    expected = -(weights * np.log(safe)).sum(-1).mean()
    assert measure(trace, "entropy", trace.steps.by_name["weights"], 1) == pytest.approx(expected, rel=1e-9)
    assert np.isnan(measure(trace, "entropy", trace.steps.by_name["ffn"], 1))


def test_what_is_no_number_is_counted_and_otherwise_left_out(trace: Trace) -> None:
    broken = load("tiny", device="cpu").trace("The cat sat on")
    ffn = broken.recording.tensors["L1.ffn"]
    expected = ffn.double().numpy().copy()
    ffn[0, 0], ffn[1, 2], ffn[1, 3] = float("nan"), float("inf"), float("nan")
    expected[0, 0] = expected[1, 2] = expected[1, 3] = -1e9
    step = broken.steps.by_name["ffn"]
    assert measure(broken, "nan", step, 1) == 2
    assert measure(broken, "inf", step, 1) == 1
    assert measure(broken, "max", step, 1) == pytest.approx(expected.max())
    assert parse_condition("nan").holds(broken, step, 1)
    assert not parse_condition("nan").holds(broken, step, 0)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("max > 2", True),
        ("max > 3", False),
        ("2 < max", True),
        ("max>=3", True),
        ("max <= 2.9", False),
        ("max == 3", True),
        ("max != 3.0", False),
        ("min < -.5e0", True),
        ("max > min", True),
        ("nan", False),
        ("max > 2 and min < 0", True),
        ("max > 9 and min < 0", False),
        ("max > 9 or min < 0", True),
        ("max > 9 and min < 0 or max == 3", True),
        ("max == 3 or max > 9 and min < -9", True),
        ("(max == 3 or max > 9) and min < -9", False),
        ("((max == 3))", True),
        ("-2 < min < max <= 3", True),
        ("0 < min < max", False),
        ("entropy < 9", False),
    ],
)
def test_and_binds_closer_than_or_and_brackets_closest(text: str, holds: bool) -> None:
    numbers = {"max": 3.0, "min": -1.0, "nan": 0.0}
    assert parse_condition(text).meaning(lambda name: numbers.get(name, float("nan"))) is holds


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("", 0, "the condition is missing"),
        ("max", 3, "a comparison must follow max"),
        ("max >", 5, "cannot read"),
        ("max >> 3", 0, "only measures and numbers"),
        ("max > True", 6, "only measures and numbers"),
        ("max in min", 7, "a comparison is one of <"),
        ("max > 3 and", 11, "cannot read"),
        ("max > 3 max", 8, "cannot read"),
        ("maxi > 3", 0, "there is no measure 'maxi'"),
        ("max > 3 and  maxi > 3", 13, "there is no measure 'maxi'"),
        ("  maxi > 3", 2, "there is no measure 'maxi'"),
        ("max ~ 3", 4, "cannot contain '~'"),
        ("max > 3 and é", 12, "cannot contain 'é'"),
        ("max = 3", 4, "cannot read"),
        ("(max > 3", 0, "cannot read"),
        ("max > 3)", 7, "cannot read"),
        ("and > 3", 0, "cannot read"),
        ("f(max) > 3", 0, "only measures and numbers"),
        ("max > " + "(" * 500, 206, "cannot read"),
        ("-" * 2_000 + "3 < max", 1_000, "at most 1,000 characters"),
    ],
)
def test_what_does_not_parse_points_at_the_place(text: str, column: int, said: str) -> None:
    with pytest.raises(PlacedError) as caught:
        parse_condition(text, f"break L0 if {text}", 12)
    assert said in caught.value.message
    assert caught.value.column == 12 + column


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_one_error_inside_the_text(text: str) -> None:
    column = 0
    try:
        parse_condition(text)
    except PlacedError as error:
        column = error.column
    assert 0 <= column <= len(text)


def test_the_entropy_of_what_has_none_is_refused(trace: Trace) -> None:
    with pytest.raises(UsageError, match="ffn has no entropy"):
        parse_condition("max > 3 or entropy < 1").require_entropy(trace.steps.by_name["ffn"])
    parse_condition("entropy < 1").require_entropy(trace.steps.by_name["weights"])


def test_every_measure_says_what_it_is() -> None:
    assert all(about for _, about in MEASURES.values())
