"""``tinytf check``: what a student reads, what a script reads, and what goes wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from driving import Tinytf
from rich.cells import cell_len
from rich.text import Text

from tinytf.check.checked import check
from tinytf.check.reference import reference

SAMPLE = str(Path(__file__).parents[2] / "samples" / "my_gpt.py")
LIKE = ("--like", "gpt2-tiny", "--with", "n_layers=2,d_model=48,vocab_size=2048,context=32")


@pytest.fixture
def right(tmp_path: Path) -> Path:
    """The sample without its mistakes, which says a few things while it runs."""
    text = Path(SAMPLE).read_text("utf-8").replace("math.sqrt(C)", "math.sqrt(k.size(-1))")
    text = text.replace("F.gelu(self.c_fc(x))", 'F.gelu(self.c_fc(x), approximate="tanh")')
    file = tmp_path / "mine.py"
    file.write_text(
        text.replace("        B, T = idx.shape\n", "        B, T = idx.shape\n        print('in forward')\n")
    )
    return file


@pytest.mark.slow
def test_a_wrong_file_is_1_and_its_first_lines_say_where_why_and_what_to_read(tinytf: Tinytf) -> None:
    ran = tinytf("check", f"{SAMPLE}:GPT", *LIKE, "--width", "200")
    assert ran.status == 1
    assert "is wrong at L0.scaled, scaled scores: scores / √12" in ran.lines[0]
    assert "divided by √d_model, not √d_head" in ran.lines[1]
    assert ran.lines[2].split()[1:] == ["att", "=", "att", "/", "math.sqrt(C)"]
    assert "L0.ffn.act: the activation is GELU(erf)" in ran.lines[3]
    assert any(line.startswith("  tinytf learn 7 ") for line in ran.lines)
    assert len(ran.lines) <= 45


def test_a_right_file_is_0_and_what_it_prints_is_no_data(tinytf: Tinytf, right: Path) -> None:
    ran = tinytf("check", f"{right}:GPT", *LIKE, "--json")
    data = json.loads(ran.out)
    assert ran.status == 0
    assert data["holds"]
    assert data["first_wrong"] is None
    assert data["printed"] == "in forward\n"
    assert ran.err == ""
    shown = tinytf("check", f"{right}:GPT", *LIKE)
    assert "is right: all 41 steps" in " ".join(" ".join(shown.lines).split())
    assert [line.strip() for line in shown.lines].count("in forward") == 1


def test_full_shows_every_step_with_the_line_that_makes_it(tinytf: Tinytf, right: Path) -> None:
    ran = tinytf("check", f"{right}:GPT", *LIKE, "--full")
    shown = {line.split()[1]: line for line in ran.lines if line.split()[:1] == ["✓"] and "." in line.split()[1]}
    source = right.read_text("utf-8").splitlines()
    number = next(int(word) for word in shown["L0.scaled"].split()[2:] if word.isdecimal() and int(word) > 20)
    assert source[number - 1].strip() == "att = att / math.sqrt(k.size(-1))"
    assert len([name for name in shown if name.startswith("L1.")]) == 18


@pytest.mark.share(6)
@pytest.mark.usefixtures("checks_here")
@pytest.mark.parametrize("width", ["60", "80", "200"])
@pytest.mark.slow
def test_it_fits_the_terminal(width: str, tinytf: Tinytf) -> None:
    ran = tinytf("check", f"{SAMPLE}:GPT", *LIKE, "--width", width, screen=True)
    assert ran.status == 1
    assert max(cell_len(Text.from_ansi(line).plain) for line in ran.lines) <= int(width)


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("words", "status", "said", "hint"),
    [
        (("mine.py:GTP",), 2, "has no class or function 'GTP'", "did you mean GPT?"),
        (("mine.py",), 2, "names no class", "mine.py:NAME"),
        (("none.py:GPT",), 2, "cannot be read", "my_gpt.py:GPT"),
        (("mine.py:GPT", "--args", "x"), 2, "is not a list of keywords", "--args 'n_layer=4,bias=False'"),
        (("mine.py:GPT", "--with", "n_layers=2"), 2, "tiny has weights", "--like"),
        (("mine.py:GPT", "--like", "gpt2-tiny", "--with", "n_layer=2"), 2, "has no 'n_layer'", "n_layers"),
        (("mine.py:GPT", "--like", "bert-base"), 1, "returns nothing with 768 numbers a token", "an encoder its last"),
        (("mine.py:GPT", "--like", "gpt3"), 2, "there is no model 'gpt3'", ""),
        (("mine.py:GPT", "--names", "none.toml"), 1, "there is no file none.toml", ""),
        (("bad.py:GPT",), 1, "bad.py, line 2: ZeroDivisionError", "it says: x = 1 / 0"),
        (("leaves.py:GPT",), 1, "leaves.py: it exited Python (os._exit)", ""),
    ],
)
def test_what_goes_wrong_is_a_line_and_a_hint(
    words: tuple[str, ...],
    status: int,
    said: str,
    hint: str,
    tinytf: Tinytf,
    right: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(right.parent)
    (right.parent / "bad.py").write_text("\nx = 1 / 0\n", "utf-8")
    (right.parent / "leaves.py").write_text("import os; os._exit(0)\n", "utf-8")
    ran = tinytf("check", *words)
    assert (ran.status, ran.out) == (status, "")
    error, *more = ran.err.splitlines()
    assert error.startswith("tinytf: error: ")
    assert said in error
    assert hint in " ".join(more)


@pytest.mark.slow
def test_a_name_that_would_act_on_the_terminal_is_shown(tinytf: Tinytf, right: Path) -> None:
    text = right.read_text("utf-8").replace("att = att / math.sqrt(k.size(-1))", "att = att  # \x1b[31m red")
    right.write_text(text, "utf-8")
    ran = tinytf("check", f"{right}:GPT", *LIKE)
    assert "\x1b" not in ran.out


@pytest.mark.exhaustive
@pytest.mark.usefixtures("checks_here")
@pytest.mark.slow
def test_nothing_of_an_answer_acts_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    found = check(reference("gpt2-tiny", {"n_layers": 1, "vocab_size": 2048, "context": 32}), f"{SAMPLE}:GPT")
    wrong, (mistake, *_) = found.first_wrong, found.mistakes
    assert wrong is not None
    acts = "\x1b[31m red"
    wrong = replace(wrong, formula=acts, title=acts, lesson_title=acts)
    forged = replace(
        found, first_wrong=wrong, mistakes=(replace(mistake, mistake=acts),), unheld=(acts,), unexplained=acts
    )
    forged.show()
    assert capsys.readouterr().out.count("\\x1b[31m red") == 6


@pytest.mark.usefixtures("checks_here")
@pytest.mark.slow
def test_a_session_takes_the_command_too(tinytf: Tinytf) -> None:
    ran = tinytf("repl", "-c", f"check {SAMPLE}:GPT {' '.join(LIKE)}")
    assert "is wrong at L0.scaled" in ran.out
