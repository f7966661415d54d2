"""What digits allow, which cells hold, and whose fault a wrong one is."""

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from tinytf.errors import UsageError
from tinytf.sources import find_source
from tinytf.verify import parse, verify
from tinytf.verify.claims import Claim, compare, read_claim
from tinytf.verify.example import ExampleError

CHAIN = """
seed = 4
[given]
A = [[1.0, 2.0], [3.0, 4.0]]
W = {random = [2, 3], scale = 0.5}

[[step]]
name = "B"
value = "A + 1"
claim = [[2.0, 3.0], [4.0, 6.0]]

[[step]]
name = "C"
value = "B * 2"
claim = [[4.0, 6.0], [8.0, 12.0]]

[[step]]
name = "D"
value = "sum(C)"
claim = 30

[[step]]
name = "E"
value = "shape(A @ W)"
claim = [2, 3]
"""


def cells_that_hold(claim: Claim, truth: np.ndarray) -> np.ndarray:
    return compare(claim, truth)[0]


def example(tmp_path: Path, text: str):
    path = tmp_path / "own.toml"
    path.write_text(text, "utf-8")
    return parse(path)


@pytest.mark.parametrize(
    ("claim", "truth", "holds"),
    [
        ("0.340", 0.3404, True),
        ("0.340", 0.3406, False),
        ("0.34", 0.3449, True),
        ("2.1e6", 2_099_712, True),
        ("2.1e6", 2_160_000, False),
        ("1.00", 0.9949, False),
        ("-0.5", -0.5499, True),
        ("inf", np.inf, True),
        ("-inf", np.inf, False),
        ("nan", np.nan, True),
        ("0.0", np.nan, False),
    ],
)
def test_a_claim_allows_half_a_unit_of_its_last_digit(claim: str, truth: float, holds: bool) -> None:
    assert bool(cells_that_hold(read_claim(Decimal(claim), None), np.array(truth))) is holds


def test_whole_numbers_and_words_and_yes_or_no_are_exact() -> None:
    assert cells_that_hold(read_claim([3, 4], None), np.array([3.0, 4.6])).tolist() == [True, False]
    assert cells_that_hold(read_claim(["a", "b"], None), np.array(["a", "c"])).tolist() == [True, False]
    assert cells_that_hold(read_claim(True, None), np.array(0.9)).tolist() is False
    assert cells_that_hold(read_claim(Decimal("3.0"), 0.7), np.array(3.6)).tolist() is True


def test_cells_that_the_truth_has_not_do_not_hold() -> None:
    holds = cells_that_hold(read_claim([1, 2, 3], None), np.array([1.0, 2.0]))
    assert holds.tolist() == [True, True, False]
    assert not cells_that_hold(read_claim([[1, 2]], None), np.array([1.0, 2.0])).any()


def test_a_claim_that_leaves_cells_of_the_truth_out_does_not_hold(tmp_path: Path) -> None:
    found = verify(example(tmp_path, "[given]\na = [1, 2]\n[[step]]\nname = 's'\nvalue = 'a'\nclaim = [1]\n"))
    assert (found.claims, found.holding, found.holds) == (1, 1, False)


def test_a_wrong_cell_that_follows_from_a_wrong_one_is_told_from_one_that_does_not(tmp_path: Path) -> None:
    found = verify(example(tmp_path, CHAIN))
    b, c, d, e = found.steps
    assert b.holds.tolist() == [[True, True], [True, False]]
    assert not b.carried.any()
    assert c.holds.tolist() == [[True, True], [True, False]]
    assert c.carried.tolist() == [[False, False], [False, True]]
    assert d.holds.tolist() is False  # true 28; the author's own C sums to 30
    assert d.carried.tolist() is True
    assert e.holding == 2
    assert (found.claims, found.holding, found.holds) == (11, 8, False)
    assert b.off.tolist() == [[0, 0], [0, 1]]


def test_a_gradient_is_that_of_the_written_formula(tmp_path: Path) -> None:
    text = """
[given]
x = [0.5, -1.0]
[[step]]
name = "loss"
value = "sum(x * x * x)"
[[step]]
name = "g"
value = "gradient(loss, x)"
claim = [0.75, 3.00]
[[step]]
name = "learnt"
value = "[learns(loss, x), learns(loss, loss)]"
claim = [true, false]
"""
    found = verify(example(tmp_path, text))
    assert found.holds
    assert found.steps[1].true.tolist() == pytest.approx([0.75, 3.0])


def test_without_a_tokenizer_ids_and_what_follows_from_them_are_not_checked(tmp_path: Path) -> None:
    text = """
[[step]]
name = "ids"
value = "token_ids('The cat')"
claim = [1, 2]
[[step]]
name = "count"
value = "size(ids)"
claim = 2
[[step]]
name = "one"
value = "1"
claim = 1
"""
    found = verify(example(tmp_path, text))
    assert [bool(step.skipped) for step in found.steps] == [True, True, False]
    assert (found.claims, found.skipped, found.holds) == (1, 3, True)


def test_a_claim_of_more_cells_than_the_value_has_is_refused_with_its_line(tmp_path: Path) -> None:
    step = "[given]\na = [[1, 2], [3, 4]]\n[[step]]\nname = 's'\nvalue = '{}'\nclaim = {}\n"
    for value, claim, said in (
        ("a[0]", "[1, 2, 3]", "3 cells claimed, but the value is 2 cells"),
        ("a", "[[1, 2], [3, 4], [5, 6]]", "3 × 2 claimed, but the value is 2 × 2"),
        ("sum(a)", "[10, 10]", "2 cells claimed, but the value is one number"),
    ):
        with pytest.raises(ExampleError) as refused:
            verify(example(tmp_path, step.format(value, claim)))
        assert refused.value.message.endswith(f"own.toml, line 6, field 'claim' of step 's': {said}")


def test_an_example_that_takes_too_long_is_refused_with_the_step_it_came_to(tmp_path: Path) -> None:
    text = "[given]\nA = {random = [40, 40]}\n[[step]]\nname = 'loss'\nvalue = 'sum(A @ A @ A)'\n"
    slow = example(tmp_path, text + "[[step]]\nname = 'g'\nvalue = 'gradient(loss, A)'\n")
    with pytest.raises(ExampleError, match="line 8, field 'value' of step 'g': ran out of time"):
        verify(slow, seconds=0.02)


def test_a_vocabulary_is_recognised_by_a_text_and_its_ids(tmp_path: Path) -> None:
    tiny = find_source("tiny").vocabulary().tokenizer
    ids = list(tiny.encode("The cat").ids)
    text = "[vocabulary]\nname = 'ours'\ntext = 'The cat'\nids = {}\n[[step]]\nname = 's'\nvalue = '1'\n"
    assert verify(example(tmp_path, text.format(ids)), tiny).holds
    with pytest.raises(UsageError, match="own are from ours, but this tokenizer has another vocabulary"):
        verify(example(tmp_path, text.format([*ids, 1])), tiny)


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("titel = 1", "line 1, field 'titel'", "no such field"),
        ("title = 1", "line 1, field 'title'", "is a number, but must be a text"),
        ("title = 'x'", "line 1", "there is no [[step]]"),
        ("[given]\nA = [[1], [1, 2]]", "line 2, field 'A'", "rows of different lengths"),
        ("[given]\nA = []", "line 2, field 'A'", "is empty"),
        ("[given]\npi = 3", "line 2, field 'pi'", "is a constant"),
        ("[given]\nA = {random = [1, -2]}", "line 2, field 'A'", "{random = [rows, columns]}"),
        ("[given]\nA = {random = [9999999, 99]}", "line 2, field 'A'", "at most 20,000,000"),
        ("[given]\nA = [1, 'x']", "line 2, field 'A'", "side by side"),
        ("[[step]]\nname = 'a'", "line 1 of step 'a'", "a step needs 'value'"),
        ("[[step]]\nvalue = '1'", "line 1 of step 1", "a step needs 'name'"),
        ("[[step]]\nname = 'a b'\nvalue = '1'", "line 2, field 'name' of step 'a b'", "is not a name"),
        (
            "[[step]]\nname='a'\nvalue='1'\n[[step]]\nname='a'\nvalue='1'",
            "line 5, field 'name' of step 'a'",
            "already defined",
        ),
        ("[[step]]\nname='a'\nvalue='b'", "line 3, field 'value' of step 'a'", "no 'b' before this step"),
        ("[[step]]\nname='a'\nvalue='1/0'", "line 3, field 'value' of step 'a'", "divides by 0"),
        ("[[step]]\nname='a'\nvalue='1'\nclaim={b=1}", "line 4, field 'claim' of step 'a'", "is a table"),
        ("[[step]]\nname='a'\nvalue='1'\nclaim=[[1],2]", "line 4, field 'claim' of step 'a'", "different lengths"),
        ("[[step]]\nname='a'\nvalue='1'\ntolerance=-1", "line 4, field 'tolerance' of step 'a'", "0 or more"),
        ("[[step]]\nname='a'\nvalue='1'\nrows=[1]", "line 4, field 'rows' of step 'a'", "list of words"),
        ('about = """\nname = 1\n"""\n[[step]]\nnames="a"', "line 5, field 'names' of step 1", "no such field"),
        ("[[step", "not TOML", "expected"),
        ("[vocabulary]\nname='x'\ntext='x'\nids=[]\n[[step]]\nname='a'\nvalue='1'", "line 1", "the text's ids"),
        ("[vocabulary]\nname='x'\nwords='x'\nids=[1]\n[[step]]\nname='a'\nvalue='1'", "line 1", "a name, a text"),
        ("[[step]]\nname='a'\nvalue='1'\nshown=1", "line 4, field 'shown' of step 'a'", "must be a yes or no"),
        (
            "[given]\na=[1,2]\n[[step]]\nname='a_'\nvalue='a @ [1,2,3]'",
            "line 5",
            "cannot be computed from 2 numbers and 3 numbers",
        ),
        ("[given]\na = " + "9" * 400, "line 2, field 'a'", "too large"),
        ("[given]\na = [" + "9" * 400 + "]", "line 2, field 'a'", "too large"),
        ("[[step]]\nname='a'\nvalue='1'\nclaim=" + "9" * 400, "line 4, field 'claim' of step 'a'", "too large"),
        ("[[step]]\nname='a'\nvalue='softmax()'", "line 3, field 'value' of step 'a'", "cannot take these arguments"),
        ("[[step]]\nname='a'\nvalue='sinusoidal(3, 5)'", "line 3, field 'value' of step 'a'", "d_model must be even"),
        ("[[step]]\nname='a'\nvalue='9**250 * 9**250'", "line 3", "too large"),
    ],
)
def test_a_fault_is_said_with_its_line_and_field(tmp_path: Path, text: str, where: str, said: str) -> None:
    with pytest.raises(ExampleError) as refused:
        verify(example(tmp_path, text))
    assert where in refused.value.message
    assert said in refused.value.message
    assert refused.value.exit_status == 2


def test_a_number_has_a_transpose_and_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_bytes(b"\xef\xbb\xbf[given]\na = 3\n[[step]]\nname = 's'\nvalue = 'a.T + 1e999'\nclaim = 1e999999\n")
    assert verify(parse(path)).holds


@pytest.mark.filterwarnings("error")
def test_infinities_and_what_is_no_number_are_values_like_others(tmp_path: Path) -> None:
    text = "[given]\na = [0.0, 1.0]\n[[step]]\nname = 's'\nvalue = 'log(a) * [1, 0] + [0, 1] * inf'\n"
    assert verify(example(tmp_path, text + "claim = [nan, inf]\n")).holds


def test_random_tensors_are_those_of_the_seed(tmp_path: Path) -> None:
    first, again = (verify(example(tmp_path, CHAIN)).example.given["W"] for _ in range(2))
    other = example(tmp_path, CHAIN.replace("seed = 4", "seed = 5")).given["W"]
    assert json.dumps(first.tolist()) == json.dumps(again.tolist())
    assert not np.allclose(first, other)
