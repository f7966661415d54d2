"""Work is bounded before it begins: long texts, long words, what templates write, many beams."""

import json
import shutil
from pathlib import Path

import pytest
from covering import sample
from driving import Tinytf, is_a_clean_error

from tinytf.errors import UsageError
from tinytf.generate.score import SCORE_LIMIT
from tinytf.loading import Model
from tinytf.text import library
from tinytf.text.library import BYTES, DEFAULT_LIMIT
from tinytf.text.tokenizer import Token


@pytest.fixture
def no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made of each token."""
    monkeypatch.setattr(Token, "__init__", lambda *_: pytest.fail("a token was made"))


@pytest.mark.usefixtures("no_tokens")
@pytest.mark.parametrize("text", ["a" * 300_000, "e" + "\u0301" * 300_000, "the cat sat " * 25_000])
@sample("command", ["trace", "attention", "grad", "score", "lens"])
def test_a_text_beyond_the_limit_is_counted_and_refused(tinytf: Tinytf, decoder: Path, text: str, command: str) -> None:
    ran = tinytf(command, "-", "-m", decoder, stdin=text.encode())
    assert is_a_clean_error(ran)
    assert f"takes at most {SCORE_LIMIT if command == 'score' else 64:,}" in ran.err


@pytest.mark.usefixtures("no_tokens")
def test_a_text_that_is_surely_too_long_is_not_even_counted(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "split", lambda *_, **__: pytest.fail("it was split"))
    for command in ("trace", "score", "tokens"):
        ran = tinytf(command, "-", "-m", decoder, stdin=b"a" * 20_000_000)
        assert is_a_clean_error(ran)
        assert "the text has 20,000,000 bytes, and tinytf takes at most 2,097,152" in ran.err


@pytest.mark.usefixtures("no_tokens")
def test_what_a_template_writes_is_refused_as_a_text_is(tinytf: Tinytf, llama: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(llama, tmp_path / "m"))
    path = model / "tokenizer_config.json"
    settings = json.loads(path.read_text("utf-8"))
    for size, message in (
        (300_000, " tokens, and m takes at most 64"),
        (8_000_000, " bytes, and tinytf takes at most 2,097,152"),
    ):
        path.write_text(json.dumps({**settings, "chat_template": f"{{{{ 'a' * {size} }}}}"}), "utf-8")
        ran = tinytf("trace", "--chat", "hello", "-m", model)
        assert is_a_clean_error(ran)
        assert message in ran.err


def test_more_tokens_are_scored_where_they_are_asked_for(tinytf: Tinytf, decoder: Path) -> None:
    text = b"The cat sat on the mat. " * 20
    whole = json.loads(tinytf("score", "-", "-m", decoder, "--json", stdin=text).out)
    count = len(whole["scores"]) + 1
    assert is_a_clean_error(tinytf("score", "-", "-m", decoder, "--limit", str(count - 1), stdin=text))
    assert json.loads(tinytf("score", "-", "-m", decoder, "--limit", str(count), "--json", stdin=text).out) == whole


@pytest.mark.parametrize(("beams", "status"), [("300", 2), ("200", 0)])
def test_there_are_no_more_beams_than_tokens(tinytf: Tinytf, decoder: Path, beams: str, status: int) -> None:
    ran = tinytf("generate", "The", "-m", decoder, "--beams", beams, "--max-tokens", "2")
    assert ran.status == status
    assert (status == 0) == ("beams are more than the" not in ran.err)


def test_beams_that_take_more_than_half_of_the_free_memory_are_refused_before_the_first_step(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("generate", "The", "-m", decoder, "--beams", "290", "--max-tokens", "2")
    monkeypatch.setattr("tinytf.memory.UNASKED", 0)
    monkeypatch.setattr("tinytf.memory.free_bytes", lambda _: 2**30)
    assert tinytf(*words).status == 0
    monkeypatch.setattr("tinytf.generate.beam.Runner", lambda *_, **__: pytest.fail("a step was made"))
    monkeypatch.setattr("tinytf.memory.free_bytes", lambda _: 2**22)
    ran = tinytf(*words)
    assert is_a_clean_error(ran, 1)
    assert "a step of 290 beams takes" in ran.err


def test_the_bytes_of_a_text_are_bounded_and_not_its_characters(opened: Model) -> None:
    opened.tokenizer.encode("a" * 1000)
    DEFAULT_LIMIT.require_bytes(BYTES)
    for text in ("a" * (BYTES + 1), "\U0001f408" * (BYTES // 4 + 1)):
        with pytest.raises(UsageError, match="bytes, and tinytf takes at most 2,097,152"):
            opened.tokenizer.encode(text)
