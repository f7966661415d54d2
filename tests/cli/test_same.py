"""``tinytf same``: its table, its JSON, and bad input."""

import json

import pytest
from driving import Tinytf


def test_the_built_in_model_is_the_same_in_every_way(tinytf: Tinytf) -> None:
    ran = tinytf("same", "The cat sat", "A dog ran away from the house")
    assert ran.status == 0, ran.err
    assert ran.lines[0].startswith("The same in all 7 ways of running the text, to ")
    data = json.loads(tinytf("same", "The cat sat", "--json").out)
    assert data["check"]["holds"] is True
    assert [way["way"] for way in data["ways"]][:2] == [
        "padded on the right", "padded on the left",
    ]  # fmt: skip
    assert all(way["holds"] or way["why"] for way in data["ways"])


def test_three_texts_are_refused(tinytf: Tinytf) -> None:
    ran = tinytf("same", "a", "b", "c")
    assert ran.status == 2
    assert "this takes a text and one beside it, not 3" in ran.err


@pytest.mark.slow
def test_a_long_text_is_cut_if_asked(tinytf: Tinytf) -> None:
    long = "the cat " * 200
    refused = tinytf("same", long)
    assert (refused.status, "add --truncate" in refused.err) == (2, True)
    data = json.loads(tinytf("same", "--truncate", long, "--json").out)
    assert "the text fills the context" in {way["why"] for way in data["ways"] if way["holds"] is None}
    assert data["check"]["holds"] is True


def test_a_module_of_a_file_runs_in_the_same_ways(tinytf: Tinytf) -> None:
    ran = tinytf("same", "The cat sat", "--module", "samples/my_gpt.py:GPT")
    assert (
        ran.status,
        ran.lines[0].startswith("samples/my_gpt.py:GPT is the same in all 4 ways of running the text, to "),
    ) == (0, True)
    missing = tinytf("same", "The cat sat", "--module", "samples/my_gpt.py:Nothing")
    assert (missing.status, "has no class or function 'Nothing'" in missing.err) == (2, True)
