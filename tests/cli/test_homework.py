"""Sheets for students: an example with blanks and its solution, and small matrices for LaTeX."""

import re
from pathlib import Path

import numpy as np
import pytest
from covering import sample
from driving import Tinytf, is_a_clean_error

from tinytf.loading import Model, load
from tinytf.verify import open_example, shipped, verify

BLANK = "______"
CELL = ("explain", "L1H2.scores[sat,cat]", "The cat sat")


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load("tiny")


def matrices(text: str) -> list[list[list[str]]]:
    """The cells of every pmatrix, without the labels above them."""
    bodies = re.findall(r"\\begin\{pmatrix\}\n(.*?)\\end\{pmatrix\}", text, re.DOTALL)
    label = re.compile(r"\\overset\{\\text\{.*?\}\}\{([^{}]*|\\text\{[^}]*\})\}(?= &| \\\\)")
    return [[label.sub(r"\1", row).removesuffix(r" \\").split(" & ") for row in body.splitlines()] for body in bodies]


def assert_sound(text: str) -> None:
    """Every group and environment is closed, in order, and no sign is a command by accident."""
    open_: list[str] = []
    for begin, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if begin == "begin":
            open_.append(name)
        else:
            assert open_.pop() == name
    assert not open_
    bare = re.sub(r"\\[\\{}$&#%_]", "", re.sub(r"^%.*", "", text))
    depth = 0
    for sign in bare:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert not re.search(r"\\\\\s*[\[*]", text), "a line break takes what follows as its option"
    assert "#" not in bare
    assert "~" not in bare
    for table in re.findall(r"\\begin\{tabular\}\{(\w+)\}\n(.*?)\\end", text, re.DOTALL):
        assert {re.sub(r"\\&", "", row).count("&") for row in table[1].splitlines()} == {len(table[0]) - 1}


@sample("name", ("cat-sleeps", "notebook", "cat-sat"), every=3)
def test_a_sheet_has_a_blank_for_each_number_of_its_solution_and_gives_none_away(tinytf: Tinytf, name: str) -> None:
    sheet, solution = (tinytf("verify", name, f"--{kind}", "--width", "300") for kind in ("homework", "solution"))
    assert (sheet.status, solution.status) == (0, 0)
    given, answers = sheet.out.split("\n\n", 2)[1], sheet.out.split("\n\n", 2)[2]
    assert given in solution.out
    true = [checked.true for checked in verify(open_example(name)).steps if checked.true is not None]
    expected = sum(cells.size for cells in true if all(size <= 10 for size in cells.shape))
    assert sheet.out.count(BLANK) == expected
    assert BLANK not in solution.out
    assert not re.search(r"^ .*\d\.\d", answers, re.MULTILINE)


def test_a_sheet_of_some_steps_asks_for_them_and_gives_what_their_formulas_read(tinytf: Tinytf) -> None:
    chosen = ("verify", "cat-sleeps", "--step", "scores", "--step", "weights")
    sheet, solution = tinytf(*chosen, "--homework"), tinytf(*chosen, "--solution")
    heads = re.findall(r"^(\w+)   (given)?", sheet.out, re.MULTILINE)
    assert heads == [("given", ""), ("Q", "given"), ("K", "given"), ("scores", ""), ("weights", "")]
    assert sheet.out.count(BLANK) == 2 * 9
    assert sheet.out.split("\nscores ")[0].splitlines()[2:] == solution.out.split("\nscores ")[0].splitlines()[1:]


def test_what_leads_to_a_loss_is_given_for_its_gradient() -> None:
    example = open_example("cat-sleeps")
    everything = {*example.given, *(step.name for step in example.steps)}
    read = example.read_by(["gradient_logits"])
    assert {"X", "W_Q", "W_FFN2", "scores", "predictions", "labels", "loss"} <= read <= everything
    assert not any(name.startswith(("gradient", "new", "lr")) for name in read)


def test_the_matrices_of_a_solution_are_those_of_the_example(tinytf: Tinytf, tmp_path: Path) -> None:
    path = tmp_path / "x.tex"
    assert tinytf("verify", "cat-sleeps", "--solution", "-o", path).status == 0
    text = path.read_text("utf-8")
    assert_sound(text)
    text = re.sub(r" \\times 10\^\{(-?\d+)\}", r"e\1", text)
    numbers = [np.array(cells, dtype=float) for cells in matrices(text) if r"\text" not in str(cells)]
    given = [np.array(value) for value in open_example("cat-sleeps").given.values() if np.ndim(value)]
    for shown, value in zip(numbers, given, strict=False):
        np.testing.assert_allclose(shown, np.atleast_2d(value))
    x, w_q = given[0], given[1]
    assert any(shown.shape == (3, 3) and np.allclose(shown, x @ w_q, atol=1e-4) for shown in numbers)


def test_an_explanation_as_homework_has_blanks_where_its_solution_has_numbers(tinytf: Tinytf) -> None:
    sheet, solution = tinytf(*CELL, "--homework"), tinytf(*CELL)
    total = re.search(r"= ([-\d.]+) +recorded", solution.out)
    assert total is not None
    assert total[1][:4] not in sheet.out
    assert sheet.out.count(BLANK) == 8 + 2  # the terms, their sum, the result
    assert "24 more" in sheet.out
    assert "is 53" not in sheet.out


def test_a_picture_of_homework_does_not_say_the_answer_in_its_alternative_text(tinytf: Tinytf, tmp_path: Path) -> None:
    assert tinytf(*CELL, "--homework", "-o", tmp_path / "x.svg").status == 0
    text = (tmp_path / "x.svg").read_text("utf-8")
    assert "53.0" not in text


def test_a_blank_on_paper_has_room_for_a_number(tinytf: Tinytf, tmp_path: Path) -> None:
    path = tmp_path / "x.tex"
    for words, blanks in ((("verify", "cat-sleeps", "--step", "weights"), 9), (CELL, 8 + 2)):
        assert tinytf(*words, "--homework", "-o", path).status == 0
        text = path.read_text("utf-8")
        assert_sound(text)
        assert text.count(r"\rule{4em}{0.4pt}") == blanks
        assert r"\_\_" not in text


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "L3.norm1[1,64]", "The cat sat"),
        ("explain", "probs[1,·on]", "The cat sat", "--depth", "3"),
        ("attention", "The cat sat", "--head", "L0H1"),
    ],
    ids=lambda words: words[1],
)
def test_a_document_of_arithmetic_has_no_letter_that_pdflatex_lacks(
    tinytf: Tinytf, tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / "x.tex"
    assert tinytf(*words, "-o", path).status == 0
    text = path.read_text("utf-8")
    assert_sound(text)
    assert text.isascii()


@pytest.mark.parametrize("address", ["L0H0.weights", "L1H2.scores", "L0H1.masked"])
def test_a_matrix_of_a_trace_is_a_pmatrix_with_its_tokens(
    tinytf: Tinytf, tmp_path: Path, tiny: Model, address: str
) -> None:
    path = tmp_path / "x.tex"
    assert tinytf("trace", "The cat sat", "--at", address, "-o", path).status == 0
    text = path.read_text("utf-8")
    assert_sound(text)
    (cells,) = matrices(text)
    recorded = tiny.trace("The cat sat")[address]
    for row, (texts, numbers) in enumerate(zip(cells, recorded.tolist(), strict=True)):
        for column, (shown, value) in enumerate(zip(texts, numbers, strict=True)):
            masked = column > row and not address.endswith("scores")
            assert shown == r"\cdot" if masked else float(shown) == pytest.approx(value, abs=6e-3)
    assert text.count(r"\text{$\cdot$cat}") == 2


@pytest.mark.parametrize(
    "words",
    [
        CELL,
        ("explain", "probs[-1,7]", "100 % of {a} \\ $b_c$ #1 ^~ [x] & *y*"),
        ("explain", "L0.out[1,2]", "a\x1b[31m “b”", "--depth", "3"),
        ("verify", "cat-sleeps"),
        ("verify", "cat-sleeps", "--full"),
        ("trace", "[a] &", "--at", "L0H0.weights"),
    ],
    ids=" ".join,
)
def test_latex_is_sound_whatever_the_text_has(tinytf: Tinytf, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "x.tex"
    assert tinytf(*words, "-o", path).status <= 1
    text = path.read_text("utf-8")
    assert_sound(text)
    assert not re.search("[\ue000-\uf8ff\x00-\x09\x0b-\x1f]", text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trace", "The cat sat", "--at", "L0H0.q"), "too large for LaTeX: at most 10 × 10"),
        (("trace", "a b c d e f g h i j k l m", "--at", "L0H0.weights"), "too large for LaTeX"),
        (("trace", "The cat sat"), "is a picture, which LaTeX cannot set"),
    ],
)
def test_what_latex_has_no_room_for_is_refused_in_a_line(
    tinytf: Tinytf, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    ran = tinytf(*words, "-o", tmp_path / "x.tex")
    assert is_a_clean_error(ran)
    assert said in ran.err
    assert not (tmp_path / "x.tex").exists()


def test_a_sheet_of_no_example_by_name_is_of_the_first_and_names_the_others(tinytf: Tinytf) -> None:
    first, *others = shipped()
    ran = tinytf("verify", "--homework")
    assert ran.out == tinytf("verify", first, "--homework").out
    assert all(name in ran.err for name in (first, *others))


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "paper:induction", "--solution"),
        ("verify", "cat-sat", "--homework", "--edit", "missing.toml"),
        ("explain", "L0H0.W_Q[1,2]", "--homework"),
        ("verify", "cat-sat", "--step", "scores"),
        ("verify", "cat-sat", "--homework", "--step", "no such step"),
        ("verify", "paper:induction", "--step", "scores"),
    ],
    ids=" ".join,
)
def test_homework_of_what_has_no_arithmetic_is_refused(tinytf: Tinytf, words: tuple[str, ...]) -> None:
    assert is_a_clean_error(tinytf(*words))
