"""tokens --versus: the first text that two tokenizers split differently, and how many do."""

import json
from pathlib import Path

import pytest
from driving import CORPUS, Tinytf
from tokenizers import Tokenizer as Library

from tinytf.text.train import train_bpe

TEXTS = ["The cat sat on the mat.", "A zebra zigzags.", "The big red dog ran away."]


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder with a tokenizer alone, which knows fewer words than that of the decoder."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(train_bpe(CORPUS, 262).to_json(), "utf-8")
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join(TEXTS), "utf-8")
    return path


def pieces(folder: Path, text: str) -> list[tuple[str, tuple[int, int]]]:
    """What the library itself makes of a text."""
    found = Library.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False)
    return list(zip(found.tokens, found.offsets, strict=True))


def test_it_counts_what_the_library_itself_splits_differently(tinytf: Tinytf, decoder, other, corpus):
    ran = tinytf("tokens", "-m", decoder, "--versus", other, "--corpus", corpus, "--json")
    assert ran.status == 1
    found = json.loads(ran.out)
    both = [[pieces(folder, text) for text in TEXTS] for folder in (decoder, other)]
    differ = [place for place, (a, b) in enumerate(zip(*both, strict=True)) if a != b]
    assert 0 < len(differ) == found["resplit"]
    assert found["texts"] == len(TEXTS)
    assert found["tokens"] == [sum(map(len, side)) for side in both]
    assert found["characters"] == sum(map(len, TEXTS))
    first = found["first"]
    assert first["number"] == differ[0] + 1
    a, b = (side[differ[0]] for side in both)
    place = next(i for i, (one, another) in enumerate(zip(a, b, strict=False)) if one != another)
    assert first["first"] == place
    assert first["place"] == a[place][1][0]
    ends = [[end for _, (_, end) in side[place:]] for side in (a, b)]
    assert [ends[side][: first["stops"][side] - place][-1] for side in (0, 1)] == [min(set(ends[0]) & set(ends[1]))] * 2


def test_both_splits_stand_side_by_side(tinytf: Tinytf, decoder, other):
    ran = tinytf("tokens", "The cat sat", "-m", decoder, "--versus", other)
    assert ran.status == 1
    said, rows = ran.out.split("first difference")
    assert "different: 1 of 1 text split differently; 11 characters are" in said
    a, b = pieces(decoder, "The cat sat"), pieces(other, "The cat sat")
    for _, (start, end) in {*a[:3], *b[:3]}:
        assert f"{start}:{end}" in rows


def test_the_same_tokenizer_is_the_same_and_status_0(tinytf: Tinytf, decoder, corpus):
    ran = tinytf("tokens", "-m", decoder, "--versus", decoder, "--corpus", corpus)
    assert ran.status == 0
    assert ran.lines[-1].startswith("the same: ")
    assert ran.lines[-1].endswith(f"in 3 texts, {sum(map(len, TEXTS))} characters")


def test_a_space_before_a_word_is_no_difference(tinytf: Tinytf, decoder, encoder):
    found = json.loads(tinytf("tokens", "the cat", "-m", decoder, "--versus", encoder, "--json").out)
    assert [[token["start"] for token in side["tokens"]] for side in found["first"]["texts"]] == [[0, 3], [0, 4]]
    assert (found["resplit"], found["renumbered"]) == (0, 1)


def test_the_same_pieces_with_other_ids_are_told_apart(tinytf: Tinytf, decoder, tmp_path: Path):
    data = json.loads((decoder / "tokenizer.json").read_text("utf-8"))
    vocabulary = data["model"]["vocab"]
    vocabulary["t"], vocabulary["a"] = vocabulary["a"], vocabulary["t"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    found = json.loads(tinytf("tokens", "-", "--lines", "-m", decoder, "--versus", tmp_path, "--json",
                              stdin=b"b\nt zzz\n").out)  # fmt: skip
    assert (found["resplit"], found["renumbered"], found["first"]["number"]) == (0, 1, 2)
    assert found["first"]["place"] == 0
    assert not found["holds"]


def test_tokens_that_only_one_of_them_adds_are_told(tinytf: Tinytf, decoder, encoder):
    ran = tinytf("tokens", "the", "-m", decoder, "--versus", encoder)
    assert ran.status == 1
    assert "added around each text: nothing by A, [CLS] before, [SEP] after by B" in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--corpus", "CORPUS"], "--corpus compares two tokenizers"),
        (["The cat", "--versus", "tiny", "--corpus", "CORPUS"], "--corpus compares two tokenizers"),
        (["The cat", "--versus", "tinny"], "there is no model 'tinny'"),
        (["--versus", "tiny", "--corpus", "nowhere.txt"], "cannot read nowhere.txt"),
        (["--versus", "tiny", "--chat", "The cat"], "this model has no chat template"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, said, tinytf: Tinytf, corpus):
    ran = tinytf("tokens", *(corpus if word == "CORPUS" else word for word in arguments))
    assert ran.status == 2
    assert ran.err.startswith(f"tinytf: error: {said}")
