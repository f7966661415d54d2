"""tinytf pairs: what it draws, the tables that it writes, and what it refuses."""

import json
from pathlib import Path

import pytest
from driving import Tinytf, without_colour

from tinytf.loading import load
from tinytf.pairs.pair import PairSet
from tinytf_cli.encodings import to_json


def test_the_json_is_the_report_and_the_table_is_read_again(tinytf: Tinytf, tmp_path: Path) -> None:
    made = load("tiny").pairs("docstring", 6, seed=2, score=True)
    ran = tinytf("pairs", "docstring", "-n", "6", "--seed", "2", "--score", "--json")
    assert json.loads(ran.out) == json.loads(to_json(made.to_dict()))
    for extension in ("jsonl", "csv", "tsv"):
        path = tmp_path / f"pairs.{extension}"
        assert tinytf("pairs", "docstring", "-n", "6", "--seed", "2", "-o", path).status == 0
        assert [pair.row() for pair in PairSet.read(path).pairs] == [pair.row() for pair in made.pairs]
    events = tinytf("pairs", "docstring", "-n", "6", "--format", "ndjson").lines
    assert [json.loads(line)["type"] for line in events] == ["pairs", *["pair"] * 6]


def test_a_screen_has_the_first_pairs_and_says_what_was_left_out(tinytf: Tinytf) -> None:
    for width in ("60", "80", "120"):
        ran = tinytf("pairs", "docstring", "-n", "12", "--width", width, "--score", screen=True)
        lines = without_colour(ran.out).splitlines()
        assert max(map(len, lines)) <= int(width)
        assert len(lines) <= 45
        assert sum("count, pap" in line for line in lines) == sum("paper, cou" in line for line in lines) == 1
    lines = tinytf("pairs", "ioi").lines
    assert lines[0].startswith("200 pairs of ioi for tiny; the first asks for ")
    assert "  the first 8 of 200 pairs; --all shows every pair" in lines
    assert lines[-1].startswith("  left out: 27 words of several tokens: William, Richard")
    assert len(tinytf("pairs", "ioi", "--all").lines) > 400


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-n", "3"), "no task is named to make pairs of"),
        (("oii",), "there is no task 'oii'"),
        (("capitals",), "the pairs of capitals cannot be made for tiny"),
        (("ioi", "-o", "pairs.safetensors"), "there are no tensors to write to pairs.safetensors"),
        (("ioi", "--through", "transformers"), "this needs a model that tinytf computes itself"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_line(
    words: tuple[str, ...], message: str, tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = tinytf("pairs", *words)
    assert ran.status == 2
    assert ran.err.startswith(f"tinytf: error: {message}")
    assert len(ran.err.splitlines()) == 2


def test_no_other_answer_is_written_as_a_table_of_pairs(tinytf: Tinytf, tmp_path: Path) -> None:
    for name in ("x.jsonl", "x.tsv"):
        ran = tinytf("score", "The cat sat", "-o", tmp_path / name)
        assert ran.status == 2
        assert "a table of pairs, and this result has none" in ran.err
        assert not (tmp_path / name).exists()
