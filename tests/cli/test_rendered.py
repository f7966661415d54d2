"""A prompt that is rendered already: --rendered adds no start token, in every command that reads a text."""

import json
import shutil
from pathlib import Path

import pytest
from driving import Tinytf, is_a_clean_error
from tokenizers import Tokenizer

PROMPT = "The cat sat on the mat"


@pytest.fixture
def starting(llama: Path, tmp_path: Path) -> tuple[Path, str]:
    """A model whose tokenizer adds a start token, and that token."""
    folder = tmp_path / "starting"
    shutil.copytree(llama, folder)
    data = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    start = data["added_tokens"][0]
    special = {"id": start["content"], "ids": [start["id"]], "tokens": [start["content"]]}
    single = [{"SpecialToken": {"id": start["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    data["post_processor"] = {
        "type": "TemplateProcessing", "pair": [], "single": single, "special_tokens": {start["content"]: special}
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    return folder, start["content"]


def ids_of(data: object) -> list[int]:
    """The ids of the first list of tokens in a report."""
    if isinstance(data, dict):
        tokens = data.get("tokens")
        if isinstance(tokens, list) and tokens and isinstance(tokens[0], dict) and "id" in tokens[0]:
            return [token["id"] for token in tokens]
        data = list(data.values())
    found = (ids_of(one) for one in data) if isinstance(data, list) else iter(())
    return next((ids for ids in found if ids), [])


@pytest.mark.parametrize("command", ["trace", "tokens", "score", "generate", "lens", "diff"])
def test_a_rendered_prompt_has_the_tokens_it_spells_out(
    tinytf: Tinytf, starting: tuple[Path, str], command: str
) -> None:
    folder, start = starting
    more = {"generate": ("--max-tokens", 1), "diff": ("--versus-dtype", "float64")}.get(command, ())
    text = f"{start}{PROMPT}"
    expected = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    ran = tinytf(command, text, "-m", folder, "--rendered", *more, "--json")
    assert (ran.status, ran.err) == (0, "")
    assert ids_of(json.loads(ran.out)) == expected
    plain = json.loads(tinytf(command, PROMPT, "-m", folder, *more, "--json").out)
    assert ids_of(plain) == expected, "the start token was added here, and spelled out there"


def test_it_comes_through_a_pipe_and_line_by_line(tinytf: Tinytf, starting: tuple[Path, str]) -> None:
    folder, start = starting
    lines = f"{start}The cat\nThe cat\n".encode()
    ran = tinytf("score", "-", "-m", folder, "--rendered", "--lines", "--json", stdin=lines)
    assert ran.status == 0
    first, second = (ids_of(report) for report in json.loads(ran.out)["scores"])
    assert first[1:] == second, "the second line spells out no start token, and gets none"


@pytest.mark.parametrize("other", [("--chat",), ("--pair", "The dog")], ids=["chat", "pair"])
def test_what_is_not_a_rendered_prompt_is_one_clear_line(tinytf: Tinytf, other: tuple[str, ...]) -> None:
    ran = tinytf("trace", PROMPT, "--rendered", *other)
    assert is_a_clean_error(ran)
    assert "--rendered takes a text as it is" in ran.err
