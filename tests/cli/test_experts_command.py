"""``tinytf experts``: where each token goes, the load of a text and of a corpus, and what cannot be asked."""

import json
from collections import Counter
from pathlib import Path

import pytest
from driving import Tinytf

import tinytf as library
from tinytf.steps.table import table_of

TEXT = "The cat sat on the mat and looked at the dog."
MODEL = ("-m", "preset:mixtral-tiny", "--seed", "3")


@pytest.fixture(scope="module")
def found() -> library.Model:
    return library.load("preset:mixtral-tiny", seed=3)


def test_each_token_goes_where_the_router_has_its_largest_numbers(tinytf: Tinytf, found: library.Model) -> None:
    data = json.loads(tinytf("experts", TEXT, *MODEL, "--json").out)
    assert data["kind"] == "experts"
    trace = found.trace(TEXT)
    count = Counter()
    for one in data["routes"]:
        router = trace[f"L{one['layer']}.ffn.router"][one["position"]]
        best = router.topk(2)
        assert one["experts"] == best.indices.tolist()
        assert one["weights"] == pytest.approx(best.values.softmax(-1).tolist(), abs=1e-6)
        count.update((one["layer"], number) for number in one["experts"])
    for load in data["load"]:
        assert load["counts"] == [count[load["layer"], number] for number in range(8)]
        assert load["effective"] <= 8 - load["unused"] + 1e-9
    assert data["check"]["holds"]


def test_the_screen_has_the_answer_first_and_fits(tinytf: Tinytf) -> None:
    ran = tinytf("experts", TEXT * 9, *MODEL, "--width", "80")
    assert ran.status == 0, ran.err
    assert len(ran.lines) <= 40
    assert max(map(len, ran.lines)) <= 80
    assert any("2 of 8 a token in 4 layers" in line for line in ran.lines[:8])


def test_one_layer_is_shown_with_every_weight(tinytf: Tinytf) -> None:
    ran = tinytf("experts", TEXT, *MODEL, "--layer", "2")
    assert ran.status == 0
    assert any("E7" in line for line in ran.lines)
    assert "L3" not in ran.out


def test_the_load_of_a_corpus_is_that_of_its_texts(tinytf: Tinytf, found: library.Model, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n\nHello there, little bird.\n", "utf-8")
    data = json.loads(tinytf("experts", TEXT, *MODEL, "--corpus", tmp_path / "texts.txt", "--json").out)
    texts = (found.experts(TEXT), found.experts("Hello there, little bird."))
    for number, load in enumerate(data["corpus"]):
        expected = [sum(pair) for pair in zip(*(one.load[number].counts for one in texts), strict=True)]
        assert sum(load["counts"]) == 2 * load["tokens"]
        assert sum(abs(a - b) for a, b in zip(load["counts"], expected, strict=True)) <= 4  # the texts end otherwise


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("experts", TEXT), "tiny has no experts"),
        (("experts", TEXT, *MODEL, "--layer", "9"), "there is no layer 9"),
        (("neurons", TEXT, *MODEL), "the feed-forwards of this model are experts"),
        (("trace", *MODEL, "--at", "L1.expert.W_up"), "L1.expert.W_up exists for each of 8 experts"),
        (("trace", TEXT, *MODEL, "--at", "L1E8"), "there is no expert 8"),
        (("ablate", TEXT, "--sweep", "experts"), "this model has no experts"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_a_hint(tinytf: Tinytf, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf(*arguments)
    assert ran.status == 2
    assert said in ran.err
    assert "hint:" in ran.err
    assert "Traceback" not in ran.err


def test_an_expert_and_its_steps_have_addresses(tinytf: Tinytf, found: library.Model) -> None:
    ran = tinytf("trace", TEXT, *MODEL, "--at", "L1E6.ffn.hidden", "--json")
    (address,) = json.loads(ran.out)["values"]
    assert address == "L1E6.expert.hidden"
    assert table_of(found.config).at("expert.hidden", 1).letter == "E"
