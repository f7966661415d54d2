"""tinytf verify: claimed beside true, the score, the status, and what it refuses."""

import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from driving import Tinytf, is_a_clean_error, without_colour
from rich.cells import cell_len

from tinytf.verify import Verification, open_example, shipped, verify
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.verify import VerificationDisplay, verification

EXAMPLE = """
title = "two products\\u001b[31m"
[given]
A = [[1.0, 2.0], [3.0, 4.0]]
[[step]]
name = "B"
title = "Twice"
value = "A * 2"
claim = [[2.0, 4.0], [6.1, 8.0]]
rows = ["one", "two"]
note = "3 times 2 is 6"
[[step]]
name = "C"
value = "sum(B)"
claim = 20.1
[[step]]
name = "D"
value = "A[0]"
[[step]]
name = "E"
value = "A[1]"
claim = [3.0, 4.0]
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(EXAMPLE, "utf-8")
    return path


def test_claimed_true_and_difference_stand_side_by_side(tinytf: Tinytf, own: Path) -> None:
    ran = tinytf("verify", own, "--full")
    assert ran.status == 1
    rows = [re.findall(r"[^\s│]+", line) for line in ran.lines if line.startswith(("  one", "  two"))]
    assert rows == [
        ["one", "2.0✓", "4.0✓", "2", "4", "0", "0"],
        ["two", "6.1✗", "8.0✓", "6", "8", "+0.1", "0"],
    ]
    assert "✗ B   1 wrong of 4   Twice   A * 2" in ran.lines
    assert "  3 times 2 is 6" in ran.lines
    assert "→ C   carried   sum(B)" in ran.lines
    assert "✓ E   all 2 hold   A[1]" in ran.lines
    assert "\x1b[31m" not in ran.out


def test_the_verdict_comes_first_and_the_digest_has_only_what_does_not_hold(tinytf: Tinytf, own: Path) -> None:
    lines = [line for line in tinytf("verify", own).lines if line]
    assert lines[0] == "Of the 7 numbers of own, 1 is wrong, the first in B; 1 follows from wrong ones."
    assert lines[1] == "own: 5 hold · 1 carried · 1 wrong"
    assert lines[3].startswith("checked: tinytf and float64 numpy agree on every step")
    assert lines[4:] == [
        "✗ B   1 wrong of 4  [two,0] 6.1✗ (true 6)",
        "  3 times 2 is 6",
        "→ C   carried  20.1→ (true 20)",
        "  --wrong   every number of the 2 steps that do not hold",
        "  --full    every number of all 4 steps",
    ]
    wrong = tinytf("verify", own, "--wrong").out
    assert "6.1✗" in wrong
    assert "two" in wrong
    assert "✓ E" not in wrong


def test_a_step_on_which_tinytf_and_numpy_disagree_is_among_the_faulty_ones() -> None:
    found = checked("cat-sat")
    steps = [replace(one, apart=1.0) if one.step.name == "order" else one for one in found.steps]
    lines = painted(replace(found, steps=tuple(steps)), 100)
    assert "check failed: tinytf and float64 numpy disagree, largest difference 1.0e+00 at order" in lines
    assert "  tinytf and numpy differ here by 1.0e+00" in lines
    assert any(line.startswith("= order   not claimed") for line in lines)


@pytest.mark.parametrize("name", shipped())
def test_the_digest_of_an_example_fits_one_screen(name: str) -> None:
    assert len(painted(checked(name), 100)) <= 45


def test_a_step_of_adam_shows_that_the_weight_moves(tinytf: Tinytf) -> None:
    rows = [line.split() for line in tinytf("verify", "transformer-flow", "--full").lines]
    assert ["0.05", "0.00025", "0.5", "0.25", "0.9999"] in rows
    assert ["0.025", "0.00028975", "0.131579", "0.144947", "0.999865"] in rows
    own = tinytf("verify", "cat-sleeps").out
    assert re.search(r"mean +0\.715261 +0\.714828", own)
    assert re.search(r"W +0\.398996 +0\.298997 +0\.198998", own)


def test_a_fault_inside_torch_is_said_in_our_own_words(tinytf: Tinytf, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[given]\nX = [[1, 2, 3]]\n[[step]]\nname = 's'\nvalue = 'softmax(X @ X)'\n", "utf-8")
    ran = tinytf("verify", path)
    assert is_a_clean_error(ran, 2)
    assert "line 5, field 'value' of step 's': X @ X cannot be computed from 1 × 3 and 1 × 3" in ran.err
    assert "mat1" not in ran.err


def test_right_and_wrong_are_told_apart_without_colour_and_with_it(tinytf: Tinytf, own: Path) -> None:
    coloured = tinytf("verify", own, "--full", "--color", "always").out
    assert re.search("\x1b\\[38;[0-9;]+m✓", coloured.replace("\x1b[0m", ""))
    plain = tinytf("verify", own, "--full", "--color", "never").lines
    assert [line.rstrip() for line in without_colour(coloured).splitlines()] == [line.rstrip() for line in plain]
    assert "6.1x" in tinytf("verify", own, "--ascii").out
    assert tinytf("verify", own, "--ascii").out.isascii()
    assert "claimed 0 6.1 wrong" in tinytf("verify", own, "--wrong", "--plain").out
    assert "20.1 carried" in tinytf("verify", own, "--plain").out


def test_an_example_that_holds_exits_0(tinytf: Tinytf, own: Path) -> None:
    own.write_text(EXAMPLE.replace("6.1", "6.0").replace("20.1", "20.0"), "utf-8")
    ran = tinytf("verify", own, "--wrong")
    assert ran.status == 0
    assert "own: 7 hold · 0 carried · 0 wrong" in ran.lines
    assert not any(line.startswith(("✓", "✗")) for line in ran.lines)


def test_the_data_are_those_of_the_library(tinytf: Tinytf) -> None:
    data = json.loads(tinytf("verify", "cat-sleeps", "--json").out)
    found = verify(open_example("cat-sleeps"))
    assert data["kind"] == "verify"
    assert (data["claims"], data["hold"], data["holds"]) == (found.claims, found.holding, False)
    for step, checked in zip(data["steps"], found.steps, strict=True):
        assert step["true"] == checked.true.tolist()
        assert step["holds"] == (None if checked.holds is None else checked.holds.tolist())
    events = [json.loads(line) for line in tinytf("verify", "cat-sleeps", "--format", "ndjson").lines]
    assert [event["type"] for event in events] == ["verify", *["step"] * len(data["steps"]), "check"]
    assert [event for event in events if event["type"] == "step"] == [{"type": "step", **s} for s in data["steps"]]


@pytest.mark.slow
def test_without_a_file_the_shipped_ones_are_listed_with_their_scores(tinytf: Tinytf) -> None:
    ran = tinytf("verify")
    assert ran.status == 0
    for name in shipped():
        row, title = [line.split(maxsplit=1) for line in ran.lines if line.split()[:1] == [name]]
        assert title[1] == open_example(name).title
        row = " ".join(row).split()
        hold, carried, wrong, claims = map(int, row[1:5])
        assert hold + carried + wrong == claims
    assert max(map(len, ran.lines)) <= 100
    data = json.loads(tinytf("verify", "--json").out)
    assert [one["name"] for one in data["worked_examples"]] == list(shipped())


def test_several_files_are_verified_in_turn(tinytf: Tinytf, own: Path) -> None:
    ran = tinytf("verify", own, "cat-sleeps", "--json")
    assert [one["name"] for one in json.loads(ran.out)["verifications"]] == ["own", "cat-sleeps"]
    assert tinytf("verify", own, "cat-sleeps").out.count(" wrong\n") == 2


@functools.cache
def checked(name: str) -> Verification:
    return verify(open_example(name))


def painted(found: Verification, width: int, **how: bool) -> list[str]:
    terminal = Terminal(width=width)
    return list(paint(verification(found, terminal, VerificationDisplay(**how)), terminal))


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_every_line_of_an_example_fits_the_screen(name: str, width: int) -> None:
    for how in ({}, {"full": True}):
        assert max(map(cell_len, painted(checked(name), width, **how))) <= width


def test_token_ids_are_checked_by_the_tokenizer_that_is_given(tinytf: Tinytf, own: Path) -> None:
    own.write_text("[[step]]\nname = 'ids'\nvalue = \"token_ids('The cat sat')\"\nclaim = [1, 2, 3]\n", "utf-8")
    assert "0 hold · 0 carried · 0 wrong · 3 not checked" in tinytf("verify", own).out
    assert tinytf("verify", own).status == 0
    ran = tinytf("verify", own, "--tokenizer", "tiny")
    assert ran.status == 1
    assert "✗ ids   3 wrong of 3" in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cat-sleep",), "did you mean cat-sleeps?"),
        (("no-such-file.toml",), "cannot read no-such-file.toml"),
        ((".",), "cannot read .: it is a folder, not a file"),
        (("cat-sleeps", "--tokenizer", "tinny"), "did you mean tiny?"),
        (("transformer-flow", "--tokenizer", "tiny"), "are from GPT-2, but this tokenizer has another vocabulary"),
    ],
)
def test_what_cannot_be_verified_is_refused(tinytf: Tinytf, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf("verify", *arguments)
    assert is_a_clean_error(ran, 2)
    assert said in ran.err


def test_a_claim_of_another_shape_infinities_and_very_small_numbers_are_shown(tinytf: Tinytf, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(
        """
[given]
A = [[1, 2], [3, 4]]
[[step]]
name = "short"
value = "A"
claim = [[1, 2]]
[[step]]
name = "endless"
value = "[inf, 2, -inf] + 0"
claim = [1.0, inf, 3.0]
[[step]]
name = "small"
value = "1e-12"
claim = 2e-12
""",
        "utf-8",
    )
    ran = tinytf("verify", path, "--full")
    assert ran.status == 1
    assert "✗ short   incomplete   A" in ran.lines
    assert "  wrong shape: 1 × 2 claimed, 2 × 2 true" in ran.lines
    assert "1e-12  │  +1e-12" in ran.out
    assert re.search(r"inf +2 +-inf +│ +-inf +\+inf +\+inf", ran.out)
    assert not ran.err


@pytest.mark.parametrize("seconds", ["nan", "0", "-1"])
def test_a_limit_that_is_none_is_refused(tinytf: Tinytf, seconds: str) -> None:
    assert is_a_clean_error(tinytf("verify", "cat-sat", "--seconds", seconds))


EDITED = """
[given]
S = [[12.0, 8.0], [9.0, 15.0]]
d = 64

[[step]]
name = "scaled"
value = "scale(S, d)"
claim = [[1.50, 1.00], [1.20, 1.88]]

[[step]]
name = "sums"
value = "sum(scaled, -1)"
columns = ["The", "cat"]

[[step]]
name = "root"
value = "sqrt(d)"
claim = 8
"""


def test_an_edit_shows_the_claim_the_truth_and_the_number_after_it(tinytf: Tinytf, tmp_path: Path) -> None:
    example, edit = tmp_path / "own.toml", tmp_path / "edit.toml"
    example.write_text(EDITED, "utf-8")
    edit.write_text('"S[0,1]" = 20', "utf-8")
    words = ("verify", example, "--edit", edit)
    ran = tinytf(*words)
    assert ran.status == 1, "a claim is wrong, whatever is edited"
    assert "edited S[0,1] = 20: 2 numbers in 2 steps of 3 move" in ran.lines
    rows = [line.split() for line in ran.lines if line.startswith("  s")]
    assert rows[1:] == [
        ["scaled", "1", "of", "4", "[0,1]", "1.00✓", "1.0000", "2.5000"],
        ["sums", "1", "of", "2", "[The]", "2.5", "4"],
    ]
    assert "\n".join(tinytf(*words, "--full").lines).count("•") == 2
    assert "2.5000 moved" in tinytf(*words, "--full", "--plain").out
    data = json.loads(tinytf(*words, "--json").out)
    assert data["edits"] == ["S[0,1] = 20"]
    assert data["steps"][0]["after"] == [[1.5, 2.5], [1.125, 1.875]]
    assert data["steps"][0]["moved"] == [[False, True], [False, False]]


def test_a_whole_number_that_moves_to_a_fraction_is_not_cut(tinytf: Tinytf, tmp_path: Path) -> None:
    example, edit = tmp_path / "own.toml", tmp_path / "edit.toml"
    example.write_text(EDITED, "utf-8")
    edit.write_text("d = 60", "utf-8")
    (row,) = [line.split() for line in tinytf("verify", example, "--edit", edit).lines if line.startswith("  root")]
    assert row == ["root", "1", "of", "1", "8✓", "8.00", "7.75"]


@pytest.mark.parametrize(("names", "count"), [((), "none is"), (("cat-sat", "notebook"), "2 are")])
def test_an_edit_is_of_one_example(tinytf: Tinytf, names: tuple[str, ...], count: str) -> None:
    ran = tinytf("verify", *names, "--edit", "x.toml")
    assert ran.status == 2
    assert f"--edit changes one example, and {count} named" in ran.err
    assert "hint: such as: tinytf verify cat-sat --edit" in ran.err


def test_a_missing_file_of_edits_is_not_taken_for_an_example(tinytf: Tinytf, tmp_path: Path) -> None:
    ran = tinytf("verify", "cat-sat", "--edit", tmp_path / "none.toml")
    assert ran.status == 2
    assert "none.toml: No such file" in ran.err
    assert 'hint: a file of numbers to change, such as: d_k = 16, or "S[0,1]" = 5' in ran.err
    assert "tinytf verify lists" in tinytf("verify", tmp_path / "none.toml").err
