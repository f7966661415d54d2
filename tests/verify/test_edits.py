"""A worked example with other numbers: what follows from them, by numpy, and what cannot be put there."""

import re
from pathlib import Path

import numpy as np
import pytest

from tinytf.verify import Verification, edited, parse, verify
from tinytf.verify.example import ExampleError

EXAMPLE = """
[given]
S = [[12.0, 8.0], [9.0, 15.0]]
d = 64
who = ["The", "cat"]

[[step]]
name = "scaled"
value = "scale(S, d)"
claim = [[1.50, 1.00], [1.12, 1.88]]

[[step]]
name = "weights"
value = "softmax(scaled)"
claim = [[0.62, 0.38], [0.40, 0.60]]
rows = ["The", "cat"]
columns = ["The", "cat"]

[[step]]
name = "total"
value = "sum(weights)"
claim = 2.0

[[step]]
name = "root"
value = "sqrt(d)"
claim = 8

[[step]]
name = "slope"
value = "gradient(top, S)"

[[step]]
name = "kept"
value = "d + 1"
claim = 65
""".replace('[[step]]\nname = "slope"', '[[step]]\nname = "top"\nvalue = "max(weights[0])"\n\n[[step]]\nname = "slope"')


@pytest.fixture
def run(tmp_path: Path) -> "Run":
    (tmp_path / "own.toml").write_text(EXAMPLE, "utf-8")
    return Run(tmp_path)


class Run:
    """An example in a folder, and edits of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, text: str) -> Verification:
        path = self.folder / "edit.toml"
        path.write_text(text, "utf-8")
        example = parse(self.folder / "own.toml")
        return verify(example, edit=edited(example, path))


def after(report: Verification, name: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    (cells,) = [step.after for step in report.steps if step.step.name == name]
    assert cells is not None
    return cells


def shares(scores: "list[list[float]]", root: float) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    powers: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.exp(np.array(scores) / root)
    return powers / powers.sum(-1, keepdims=True)


def test_everything_after_an_edited_number_follows_from_it(run: Run) -> None:
    report = run('d = 16\n"S[0,1]" = 20')
    assert report.worst.agrees
    np.testing.assert_allclose(after(report, "weights"), shares([[12, 20], [9, 15]], 4))
    assert [step.step.name for step in report.moved] == ["scaled", "weights", "root", "top", "slope", "kept"]
    weights = next(step for step in report.steps if step.step.name == "weights")
    assert weights.true is not None
    np.testing.assert_allclose(weights.true, shares([[12, 8], [9, 15]], 8))
    assert (weights.holding, weights.claims) == (2, 4), "the claims are held against the example itself"


def test_an_edited_step_is_the_start_of_what_follows_only(run: Run) -> None:
    report = run('"weights[cat,The]" = 0.5\n"weights[0,:]" = 0.25')
    np.testing.assert_allclose(after(report, "weights"), [[0.25, 0.25], [0.5, shares([[9, 15]], 8)[0, 1]]])
    np.testing.assert_allclose(after(report, "total"), 1 + shares([[9, 15]], 8)[0, 1])
    np.testing.assert_allclose(after(report, "slope"), np.zeros((2, 2)), atol=1e-12)
    assert report.worst.agrees, "by autograd and by finite differences, no score reaches a number that is put there"
    assert "scaled" not in [step.step.name for step in report.moved]
    whole = run("scaled = [[1, 1], [0, 0]]\ntotal = 3")
    np.testing.assert_allclose(after(whole, "weights"), np.full((2, 2), 0.5))
    assert after(whole, "total") == 3


def test_a_number_that_is_the_same_moves_nothing(run: Run) -> None:
    assert not run("d = 64").moved


def test_the_example_itself_stays_as_it_is(run: Run) -> None:
    example = parse(run.folder / "own.toml")
    assert run("d = 16").summary() == verify(example).summary()
    assert example.given["d"] == 64


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("d = nan", "line 1: 'd' has a number that is not finite"),
        ("d = inf", "line 1: 'd' has a number that is not finite"),
        ('\nd = "16"', "line 2: 'd' is not a number or a list of numbers"),
        ("d = true", "line 1: 'd' is not a number or a list of numbers"),
        ("d = 9_223_372_036_854_775_808", "line 1: 'd' is too large a whole number"),
        ("who = 1", "line 1: who is a text, and has no numbers"),
        ("# S\nq = 1", "line 2: own has no number 'q'"),
        ("S = [[1, 2, 3]]", "line 1: S would be 1 × 3, and is 2 × 2"),
        ("S = [[1], [2, 3]]", "line 1: 'S' has rows of different lengths"),
        ("weights = 1", "line 1: weights would be one number, and is 2 × 2"),
        ('d = 2\n"S[0,2]" = 1', "line 2: column 2 is out of range: there are 2, 0 to 1"),
        ('"weights[dog,0]" = 1', "line 1: row takes a number, and 'dog' is not one"),
        ('"S[0,0,0]" = 1', "line 1: S has 2 axes, and 3 are named"),
        ('"S[0,0]" = [1]', "line 1: a cell takes one number, and 'S[0,0]' has a list"),
        ('"S[0" = 1', "line 1: 'S[0' is not a name or a cell"),
        ("[given]\nd = 3", "line 1: 'given' is a table"),
        ("", "changes no number"),
        ("d = ", "is not TOML"),
    ],
)
def test_what_cannot_be_put_there_names_its_line(run: Run, edit: str, message: str) -> None:
    with pytest.raises(ExampleError, match=re.escape(message)) as told:
        run(edit)
    assert "\n" not in told.value.message
