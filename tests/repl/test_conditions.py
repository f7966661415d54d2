"""Conditions: what they measure, against numpy, and how they are read."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytf.errors import AddressError, PlacedError, UsageError
from tinytf.loading import load
from tinytf.trace.conditions import parse_condition
from tinytf.trace.measures import MEASURES, Moment, Term, measure
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
    assert parse_condition("nan").holds(Moment(broken, step, 1))
    assert not parse_condition("nan").holds(Moment(broken, step, 0))


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
    assert parse_condition(text).meaning(lambda term: numbers.get(term.measure, float("nan"))) is holds


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
    table = trace.steps
    with pytest.raises(UsageError, match="ffn has no entropy"):
        parse_condition("max > 3 or entropy < 1").require(table, table.by_name["ffn"], int)
    with pytest.raises(UsageError, match="ffn has no entropy"):
        parse_condition("entropy(L1.ffn) < 1").require(table, table.by_name["weights"], int)
    parse_condition("entropy < 1").require(table, table.by_name["weights"], int)


def test_every_measure_says_what_it_is() -> None:
    assert all(about for _, about in MEASURES.values())


_TEXT, _BEFORE = "The cat sat on the mat", "The dog sat on the mat"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max", lambda now, last: now("L1.weights")[:, 1:].max()),
        ("max(L0.ffn)", lambda now, last: now("L0.ffn").max()),
        ("norm(mid)", lambda now, last: np.linalg.norm(now("L1.mid"))),
        ("mean(L0-2.ffn)", lambda now, last: np.mean([now(f"L{layer}.ffn") for layer in range(3)])),
        ("max(L2H1-2.scores[-1])", lambda now, last: now("L2.scores")[1:3, -1].max()),
        ("min(L2H1.weights[3:,:2])", lambda now, last: now("L2.weights")[1, 3:, :2].min()),
        ("L1H2.weights[mat,cat]", lambda now, last: now("L1.weights")[2, 5, 1]),
        ("1 - 2 * L3.ffn[sat,7]", lambda now, last: 1 - 2 * now("L3.ffn")[2, 7]),
        ("abs(min(L0.ffn)) / max(L0.ffn)", lambda now, last: abs(now("L0.ffn").min()) / now("L0.ffn").max()),
        ("last(max)", lambda now, last: last("L1.weights")[:, 1:].max()),
        ("last(max(L0.ffn) - L3.ffn[sat,7])", lambda now, last: last("L0.ffn").max() - last("L3.ffn")[2, 7]),
        ("max(logits[-1])", lambda now, last: now("logits")[-1].max()),
        ("logits[0,7]", lambda now, last: now("logits")[0, 7]),
    ],
)  # fmt: skip
def test_a_side_of_a_comparison_is_numpys(
    text: str, expected: Callable[[Callable[[str], np.ndarray], Callable[[str], np.ndarray]], float]
) -> None:
    model = load("tiny", device="cpu")
    trace, before = model.trace(_TEXT), model.trace(_BEFORE)
    moment = Moment(trace, trace.steps.by_name["weights"], 1, None, ("1:",), before)
    value = float(expected(lambda of: trace[of].double().numpy(), lambda of: before[of].double().numpy()))
    for bound, holds in ((value - 1e-4, True), (value + 1e-4, False)):
        assert parse_condition(f"{text} > {bound:.9f}").holds(moment) is holds
        assert parse_condition(f"not {text} > {bound:.9f}").holds(moment) is not holds


def test_the_probability_and_the_rank_of_a_token_are_those_of_the_lens(trace: Trace) -> None:
    model = load("tiny", device="cpu")
    token = model.find_outcome("and")
    for layer in range(4):
        hidden = trace.step("out", layer)[-1:]
        logits = trace.model.unembed(trace.model.final_norm(hidden))[0].detach().double().numpy()
        prob, rank = np.exp(logits - np.logaddexp.reduce(logits))[token], (logits > logits[token]).sum() + 1
        moment = Moment(trace, trace.steps.by_name["out"], layer, find=model.find_outcome)
        assert moment.value(Term("prob", "and")) == pytest.approx(prob, rel=1e-5)
        assert parse_condition(f"rank(·and) == {rank}").holds(moment)
    last = Moment(trace, trace.steps.by_name["probs"], None, find=model.find_outcome)
    assert last.value(Term("prob", "and")) == pytest.approx(float(trace["probs"][-1][token]), rel=1e-5)
    assert np.isnan(Moment(trace, trace.steps.by_name["q"], 1, find=model.find_outcome).value(Term("prob", "and")))


def test_where_a_condition_holds_is_the_cell_of_the_largest_number(trace: Trace) -> None:
    weights = trace["L2.weights"].numpy()[:, 1:]
    head, query, key = np.unravel_index(weights.argmax(), weights.shape)
    query += 1
    said = parse_condition("max > 0 and nan == 0").said(Moment(trace, trace.steps.by_name["weights"], 2, None, ("1:",)))
    tokens = [token.shown for token in trace.tokens]
    at = f"L2H{head}.weights[{query},{key}], query {tokens[query]}, key {tokens[key]}"
    assert said == f"max {weights.max():.4g} at {at}"


def test_what_a_text_lacks_does_not_hold(trace: Trace) -> None:
    moment = Moment(trace, trace.steps.by_name["weights"], 1)
    for text in ("L1H2.weights[dog,cat] > -1", "max(L1.weights[9:]) > -1", "last(max) > -1", "not last(max) > 1"):
        assert not parse_condition(text).holds(moment)
    with pytest.raises(AddressError, match="no token is 'dog'"):
        parse_condition("L1H2.weights[dog,cat] > 1").require(trace.steps, moment.step, int, trace)
    for text in ("L1.weights[1,0] > 1", "L1H2.weights[1] > 1", "L1H2 > 1", "max(ids) > 1"):
        with pytest.raises(UsageError):
            parse_condition(text).require(trace.steps, moment.step, int, trace)


@pytest.mark.parametrize(
    ("step", "never", "maybe"),
    [("weights", "max > 2", "max >= 1"), ("weights", "2 < max", "max > 0.999"), ("weights", "2 <= max", "not max > 2"),
     ("weights", "mean < 1 and min < -0.1", "max > 2 or min < 1"), ("weights", "max == 2", "max != 2"),
     ("weights", "entropy < -1", "max * 2 > 1.5"), ("probs", "max >= 1.5", "max > 0.1"),
     ("ffn", "norm < 0", "norm == 0"), ("ffn", "std == -1", "max > 2"), ("out", "prob(·mat) > 1", "prob(·mat) > 0.9"),
     ("out", "rank(·mat) < 1", "rank(·mat) == 1"), ("ffn", "max(L0.weights) > 1", "max(L0.scores) > 1"),
     ("ffn", "L1H2.weights[4,1] < 0", "L1H2.scores[4,1] < 0"), ("weights", "max > 2", "last(max) > 2")],
)  # fmt: skip
def test_only_what_can_never_hold_is_refused(trace: Trace, step: str, never: str, maybe: str) -> None:
    def refused(text: str) -> bool:
        try:
            parse_condition(text).require(trace.steps, trace.steps.by_name[step], lambda _: 0, trace)
        except UsageError as error:
            return "can never hold" in error.message
        return False

    assert (refused(never), refused(maybe)) == (True, False)
