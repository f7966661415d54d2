"""The first five lines of each command on docs/questions.md are its answer, on the built-in model and on real ones."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tinytf_cli.main import run

PAGE = Path(__file__).parent.parent / "docs" / "questions.md"
ASKED = dict(re.findall(r"^\| (.*\?) \| `tinytf (.*)` \|$", PAGE.read_text("utf-8"), flags=re.MULTILINE))
REAL = {"SmolLM2": "SmolLM2-135M-Instruct.Q4_1.gguf", "Gemma 3": "gemma-3-270m.gguf"}
REAL_QUESTIONS = [
    pytest.param(
        question, model, marks=() if (question, model) == (next(iter(ASKED)), "SmolLM2") else pytest.mark.exhaustive
    )
    for question in ASKED
    for model in REAL
]
"""Of these the gate asks the first, since real models take a second to open."""


def answered(command: str, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """The sentence of a command, after making sure that it is what the first lines say."""
    line = [*shlex.split(command), *more]
    assert run([*line, "--json"]) == 0, capsys.readouterr().err
    sentence = json.loads(capsys.readouterr().out)["sentence"]
    assert run([*line, "--width", "80"]) == 0
    first = " ".join(capsys.readouterr().out.splitlines()[:5])
    assert first.startswith(sentence)
    return str(sentence)


def test_there_are_twelve() -> None:
    assert len(ASKED) == 12


@pytest.mark.share(4)
@pytest.mark.parametrize("question", ASKED)
def test_each_is_answered_by_the_built_in_model(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = answered(ASKED[question], capsys)
    assert re.fullmatch(r"[A-Z·].* .*\.", sentence)
    assert re.search(r"·(ball|hat|cat|dog)|[0-9]+ heads|surprises it", sentence)


@pytest.mark.real
@pytest.mark.parametrize(("question", "model"), REAL_QUESTIONS)
@pytest.mark.slow
def test_each_is_answered_by_real_models(question: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = sorted(Path(os.environ.get("TINYTF_REAL_WEIGHTS", os.devnull)).rglob(REAL[model]))
    if not found:
        pytest.skip(f"TINYTF_REAL_WEIGHTS names no folder with {REAL[model]}")
    assert answered(ASKED[question], capsys, "-m", str(found[0]))
