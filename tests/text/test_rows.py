"""Tables as corpora: one field of each row is a document, and what is not understood is refused by name."""

import csv
import json
from pathlib import Path

import pytest

from tinytf.errors import UsageError
from tinytf.text.corpus import Reading, find_files

ROWS = [{"id": n, "text": f'Row {n}\n\nhas «quotes», "and" a\nnew line.', "title": f"t{n}"} for n in range(5)]
TEXTS = [row["text"] for row in ROWS]


def written(folder: Path, suffix: str) -> Path:
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n", "utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as stream:
            table = csv.DictWriter(stream, ["id", "text", "title"], delimiter="\t" if suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows(ROWS)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_a_field_of_each_row_is_a_document_blank_lines_and_all(suffix: str, tmp_path: Path) -> None:
    corpus = find_files([written(tmp_path, suffix)], Reading(field="text"), buffer=7)
    assert list(corpus.documents()) == TEXTS
    train, kept = corpus.split(0.3)
    assert [*train, *kept] == TEXTS
    assert len(kept) == 2
    assert list(find_files([tmp_path], Reading(field="title")).documents()) == [row["title"] for row in ROWS]


def test_the_only_text_of_a_row_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1, "said": "one"}\n{"n": 2, "said": null}\n{"said": "two"}', "utf-8")
    corpus = find_files([path], Reading(field=""))
    assert (list(corpus.documents()), corpus.files[0].field) == (["one", "two"], "said")


@pytest.mark.parametrize(
    ("name", "text", "reading", "said", "hint"),
    [
        (
            "a.jsonl",
            '{"a": "x", "b": "y"}',
            Reading(field=""),
            "several text fields: a, b",
            "choose one, such as --field a",
        ),
        ("a.jsonl", '{"a": 1}', Reading(field=""), "has no text field", "it has a"),
        ("a.jsonl", '{"messages": []}', Reading(field=""), "has no text field", "--objective chat"),
        ("a.jsonl", '{"a": "x"}', Reading(field="b"), "the field b of .* is not a text", "it has a"),
        ("a.jsonl", '{"a": "x"}\n\n{"a": ', Reading(field="a"), "line 3 of .* is not a JSON object", "one object"),
        ("a.jsonl", '{"a": "x"}\n{"a": 3}', Reading(field="a"), "field a in row 2 of .* is not a text", ""),
        ("a.jsonl", "[" * 100_000, Reading(field="a"), "line 1 of .* is not a JSON object", ""),
        ("a.jsonl", "", Reading(field=""), "has no rows", ""),
        (
            "a.jsonl",
            '{"a": "x"}',
            Reading(field="", form="chat"),
            "the field messages of .* is not a list of messages",
            "",
        ),
        ("a.txt", "some text", Reading(field="", form="chat"), "a.txt holds no conversations", "a field messages"),
        ("a.csv", "a,b\nx,y\n", Reading(field="c"), "the field c of .* is not a text", "it has a, b"),
        ("a.parquet", "no such thing", Reading(field="a"), "is not a Parquet file", ""),
    ],
)
def test_what_is_not_understood_is_refused_by_name(name, text, reading, said, hint, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(UsageError, match=said) as caught:
        find_files([tmp_path / name], reading)
    assert hint in caught.value.hint


@pytest.mark.parametrize("buffer", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("document", "found"),
    [
        ("line", ["one", "two words", " three"]),
        ("paragraph", ["one\r\ntwo words", "\n three\n"]),
        ("file", ["one\r\ntwo words\n\n\n three\n"]),
    ],
)
def test_a_document_is_a_paragraph_a_line_or_a_file(document: str, found: list[str], buffer: int, tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo words\n\n\n three\n")
    corpus = find_files([tmp_path], Reading(document), buffer=buffer)
    assert list(corpus.documents()) == found
    assert len(corpus.documents()) == len(found)
