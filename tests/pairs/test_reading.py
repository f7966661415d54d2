"""Tables of pairs: written and read again as they are, and refused by line."""

import json
from pathlib import Path

import pytest

import tinytf
from tinytf.errors import UsageError
from tinytf.pairs.pair import PairSet

ROWS = [
    {
        "clean": 'She said "no, thanks" and',
        "corrupt": "He said\nnothing,",
        "answer": " she",
        "versus": "=he",
        "kind": "a,b",
    },
    {"clean": "-The cats", "corrupt": "'The cat", "answer": "are", "versus": "is", "kind": "ü\t|"},
]
GOOD = '{"clean": "The cats", "corrupt": "The cat", "answer": "were", "versus": "was"}\n'


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


@pytest.mark.parametrize("extension", [".jsonl", ".csv", ".tsv"])
def test_a_table_gives_back_every_character(extension: str, tmp_path: Path) -> None:
    path = tmp_path / f"pairs{extension}"
    pairs = PairSet.of(ROWS)
    path.write_text(pairs.as_table(extension), "utf-8", newline="")
    again = PairSet.read(path)
    assert [pair.row() for pair in again.pairs] == ROWS
    assert PairSet.read(path).where(["kind=a,b"]).pairs == again.pairs[:1]


@pytest.mark.parametrize("extension", [".jsonl", ".csv"])
def test_a_byte_order_mark_and_blank_lines_change_no_line_number(extension: str, tmp_path: Path) -> None:
    path = tmp_path / f"pairs{extension}"
    lines = PairSet.of(ROWS[1:] * 2).as_table(extension).replace("\n", "\r\n\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + lines.encode("utf-8"))
    pairs = PairSet.read(path).pairs
    assert [pair.row() for pair in pairs] == ROWS[1:] * 2
    assert [pair.number for pair in pairs] == ([1, 3] if extension == ".jsonl" else [3, 5])


def of(row: dict[str, object]) -> str:
    return json.dumps({**json.loads(GOOD), **row}) + "\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.jsonl", f"{GOOD}\n\n{of({'answer': None})}", "line 4 of {path} has no answer"),
        ("p.jsonl", GOOD + of({"versus": 5}), "line 2 of {path}: versus is 5, and must be a text"),
        ("p.jsonl", GOOD + of({"clean": "  "}), "line 2 of {path}: clean is empty"),
        ("p.jsonl", GOOD + GOOD.replace("}", ', "weight": NaN}'), "line 2 of {path}: weight is nan"),
        ("p.jsonl", f"{GOOD}\n[1]\n", "line 3 of {path} is not a JSON object"),
        ("p.jsonl", "", "{path} holds no pairs"),
        ("p.csv", "clean,corrupt,answer,versus\n", "{path} holds no pairs"),
        ("p.csv", "clean,corrupt,answer\n\na,b,c\n", "line 3 of {path} has no versus"),
        ("p.csv", "clean,corrupt,answer,versus\na,b,c,d,e\n", "line 2 of {path} has more cells"),
        ("p.txt", GOOD, "{path} is not a table of pairs"),
    ],
)
def test_what_is_no_pair_is_refused_by_its_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError) as caught:
        PairSet.read(path)
    assert caught.value.message.startswith(message.format(path=path))
    assert caught.value.hint
    with pytest.raises(UsageError, match="cannot read"):
        PairSet.read(tmp_path / "missing.jsonl")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "elephantine"}, "answer 'elephantine' is"),
        ({"versus": "were"}, "answer and versus are one token"),
        ({"clean": "The cats " * 200}, "the text has 401 tokens, and tiny takes at most 256"),
        ({"clean": "In 17", "corrupt": "In 18", "answer": "45"}, "answer '45' is not one token after 'In 17'"),
    ],
)
def test_a_pair_that_the_model_cannot_answer_is_refused_by_its_line(
    row: dict[str, object], message: str, model: tinytf.Model, tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f"{GOOD}\n{of(row)}", "utf-8")
    with pytest.raises(UsageError) as caught:
        PairSet.read(path).encoded(model)
    assert caught.value.message.startswith(f"line 3 of {path}: {message}")
    assert "--truncate" not in caught.value.hint


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [("The two cats", "the texts have 2 and 3 tokens"), ("The cats", "both texts have the same tokens")],
)
def test_pairs_that_cannot_be_compared_are_left_out_and_named_and_refused_if_no_other_is_left(
    corrupt: str, message: str, model: tinytf.Model, tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f"{GOOD}\n{of({'corrupt': corrupt})}", "utf-8")
    pairs = PairSet.read(path)
    encoded = pairs.encoded(model)
    assert [each.pair.number for each in encoded] == [1]
    assert pairs.left_out_of(encoded) == (3,)
    assert pairs.left_out_of(pairs.encoded(model, even=False)) == ()
    path.write_text(of({"corrupt": corrupt}), "utf-8")
    with pytest.raises(UsageError, match=f"line 1 of .*: {message}"):
        PairSet.read(path).encoded(model)


def test_an_answer_continues_its_text_as_a_word_or_a_number(model: tinytf.Model) -> None:
    rows = [json.loads(of({})), json.loads(of({"clean": "In 17", "corrupt": "In 18", "answer": "4", "versus": "#7"}))]
    word, digit = PairSet.of(rows).encoded(model)
    assert model.shown(word.answer) == "·were"
    assert model.shown(digit.answer) == "4"  # " 4" is a token too, and no continuation of a number
    assert digit.versus == 7


def test_rows_are_chosen_by_their_labels() -> None:
    pairs = PairSet.of([{**json.loads(GOOD), "number": number, "hard": number > 1} for number in (1, 2, 3)], "p")
    assert len(pairs.where(["hard=true"]).pairs) == 2
    assert [pair.labels["number"] for pair in pairs.where(["hard=true", "number=3"]).pairs] == [3]
    for condition, message in (("hard", "'hard' is not a column of p"), ("number=9", "no pair of p has number=9")):
        with pytest.raises(UsageError, match=message):
            pairs.where([condition])
    some = PairSet.of([json.loads(of({"kind": None})), json.loads(of({"kind": "a"})), json.loads(GOOD)])
    with pytest.raises(UsageError) as caught:  # a row without the label has no value of it
        some.where(["kind=None"])
    assert caught.value.hint == "kind is a"
