"""--model by a name of the Hugging Face cache, and by TINYTF_MODEL; what help and completion say of them."""

import json
import shutil
from pathlib import Path

import pytest
from driving import SENTENCE, Tinytf, is_a_clean_error
from test_startup import completed


@pytest.fixture
def snapshot(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Llama in a Hugging Face cache, as some/llama."""
    folder = tmp_path / "hub" / "models--some--llama" / "snapshots" / "abc"
    shutil.copytree(llama, folder)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return folder


def test_the_banner_says_which_files_were_opened(tinytf: Tinytf, snapshot: Path) -> None:
    ran = tinytf("trace", SENTENCE, "-m", "some/llama", "--width", "400")
    assert ran.status == 0
    assert ran.lines[1].startswith("some/llama · ")  # after the sentence
    assert ran.lines[1].endswith(f" · {snapshot}")


def test_a_model_that_is_not_here_is_offered_and_never_fetched(tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: pytest.fail("it was fetched"))
    ran = tinytf("trace", SENTENCE, "-m", "some/other")
    assert is_a_clean_error(ran)
    assert "there is no model 'some/other'" in ran.err
    assert "hub:some/other fetches it" in ran.err


@pytest.mark.parametrize("command", [("trace", SENTENCE), ("tokens", SENTENCE), ("info",)])
def test_the_variable_names_the_model_unless_an_option_does(
    tinytf: Tinytf, snapshot: Path, decoder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def model(*more: str) -> str:
        told = json.loads(tinytf(*command, *more, "--json").out)
        return str(told["model"]["name"] if isinstance(told["model"], dict) else told["model"])

    assert model() == "tiny"
    monkeypatch.setenv("TINYTF_MODEL", "some/llama")
    assert model() == "some/llama"
    assert model(*(["-m"] if len(command) > 1 else []), str(decoder)) == "decoder"
    monkeypatch.setenv("TINYTF_MODEL", "")
    assert model() == "tiny"


def test_a_session_begins_with_the_variable_and_keeps_to_its_own_model(
    tinytf: Tinytf, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYTF_MODEL", "some/llama")
    assert "some/llama" in tinytf("repl", "-c", "model").out
    ran = tinytf(
        "repl", "-c", "model tiny", "-c", f"run {SENTENCE}", "-c", "tokens", "-c", "diff --versus-dtype float64"
    )
    assert ran.status == 0
    assert "llama" not in ran.out


def test_help_says_where_the_default_comes_from(tinytf: Tinytf) -> None:
    assert "[default: TINYTF_MODEL, or tiny]" in " ".join(tinytf("help", "options").out.split())
    for command in ("trace", "tokens", "generate", "repl", "learn"):
        assert "-m" in tinytf(command, "--help").out


def test_completion_knows_the_names_and_imports_nothing_heavy(snapshot: Path) -> None:
    assert completed("tinytf trace -m so", "tinytf info some/") == [(["plain,some/llama"], [])] * 2
