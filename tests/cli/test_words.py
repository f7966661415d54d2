"""tinytf help words: every word of the screens in one line, from the tables that the screens use."""

import json
import re
import subprocess
import sys

import pytest
from driving import Tinytf, is_a_clean_error

from tinytf.glossary import _WORDS, glossary, meanings_of
from tinytf.lessons import TITLES, find
from tinytf.look.kinds import LABELS
from tinytf.steps.table import STEPS
from tinytf_cli.main import EVERY


def test_every_step_lesson_and_kind_of_head_is_a_word_with_what_its_table_says() -> None:
    words = {word.name: word.meaning for word in glossary().words}
    assert list(words) == sorted(words, key=str.casefold)
    for name in {step.name for step in STEPS} - {*TITLES, *_WORDS}:
        assert words[name] == "; ".join(dict.fromkeys(step.title for step in STEPS if step.name == name))
    assert all(words[name] == title for name, title in TITLES.items() if name not in _WORDS)
    assert all(words[f"{label.name} head"] == f"a head that {label.meaning}" for label in LABELS)
    assert all(words[name] == word["is"] for name, word in _WORDS.items())


@pytest.mark.parametrize("name", _WORDS)
def test_a_word_is_said_without_another_word_of_its_table_and_where_to_read_on_exists(name: str) -> None:
    word = _WORDS[name]
    used = set(re.findall(r"[a-z]+", word["is"])) - {name}
    assert not used & {form for other in _WORDS for form in (other, f"{other}s")}
    assert word["is"][0].islower()
    assert re.fullmatch(r".*[^.]", word["is"])
    for line in word["read"]:
        command, *rest = [line] if line in EVERY else line.split()
        assert command in EVERY
        assert not rest or (command == "learn" and find(rest[0]))


def test_words_are_listed_and_one_is_explained_at_length(tinytf: Tinytf) -> None:
    lines = [line.split(maxsplit=1)[0] for line in tinytf("help", "words", "--width", "300").lines]
    assert [word.name.split()[0] for word in glossary().words] == lines
    found = " ".join(tinytf("help", "logit").out.split())
    assert _WORDS["logit"]["is"] in found
    assert _WORDS["logit"]["more"] in found
    assert "tinytf learn logits" in found
    data = json.loads(tinytf("help", "norm", "--json").out)["meanings"]
    assert [(one["name"], one["kind"]) for one in data] == [("norm", "word"), ("norm", "lesson")]


def test_a_command_is_helped_as_before_and_an_unknown_word_names_the_nearest(tinytf: Tinytf) -> None:
    assert tinytf("help", "lens").out == tinytf("lens", "--help").out
    for word, hint in (("logitt", "did you mean logit?"), ("trce", "did you mean trace?"), ("#", "tinytf help words")):
        ran = tinytf("help", word)
        assert is_a_clean_error(ran)
        assert f"there is no command or word {word!r}" in ran.err
        assert hint in ran.err


def test_a_kind_of_head_is_found_with_and_without_its_noun() -> None:
    assert meanings_of("Induction") == meanings_of("induction head")


def test_the_words_need_no_torch() -> None:
    code = "import sys; from tinytf_cli.main import run; run(['help', 'norm']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
