"""Answers of a process that a stranger may control: data of the declared type, an error, or nothing that is used."""

import ast
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from tinytf.confined import ANSWER, BadAnswer, read_answer, write_answer
from tinytf.errors import CheckpointError, ConfigError, PlacedError, TinytfError, UsageError

ROOT = Path(__file__).parents[1]


class Pair(NamedTuple):
    ids: list[int]
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class Row:
    name: str
    size: tuple[int, ...]
    place: tuple[str, int | None]
    difference: float | None
    holds: bool
    pair: Pair


ROW = Row("a\ud800\x1b", (2, 3), ("x", None), float("inf"), True, Pair([1], [(0, 1), (1, 2)]))


def row() -> Row:
    return ROW


def answered(work=row, data: object = None, length: int | None = None):
    stream = io.BytesIO()
    if data is None:
        write_answer(stream, work)
    else:
        sent = data if isinstance(data, bytes) else json.dumps(data).encode()
        stream.write((len(sent) if length is None else length).to_bytes(8, "big") + sent)
    stream.seek(0)
    return read_answer(stream, work)


def test_an_answer_comes_back_as_what_it_was() -> None:
    assert answered() == ROW
    assert type(answered().pair) is Pair
    assert answered(lambda: {"plain": [1, "2"]}) == {"plain": [1, "2"]}


MEMBERS = json.loads(json.dumps({**vars(ROW), "pair": [[1], [[0, 1]]]}))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"value": ' + b"9" * 5000 + b"}", 7, {},
        {"value": 7}, {"value": None}, {"value": {}}, {"value": {**MEMBERS, "more": 1}},
        {"value": {**MEMBERS, "name": 1}}, {"value": {**MEMBERS, "holds": 1}}, {"value": {**MEMBERS, "size": 2}},
        {"value": {**MEMBERS, "size": [2, "3"]}},
        {"value": {**MEMBERS, "place": ["x"]}}, {"value": {**MEMBERS, "place": ["x", 1.5]}},
        {"value": {**MEMBERS, "difference": "0"}}, {"value": {**MEMBERS, "pair": [[1]]}},
        {"value": {**MEMBERS, "pair": [[1], [[0]]]}}, {"value": {**MEMBERS, "pair": [[1], [[True, 1]]]}},
        {"error": "UsageError"}, {"error": "Popen", "message": "ls", "hint": ""},
        {"error": "PlacedError", "message": "", "hint": ""}, {"error": 1, "message": "", "hint": ""},
    ],
)  # fmt: skip
def test_an_answer_of_another_form_or_type_is_refused(data: object) -> None:
    assert answered(data={"value": MEMBERS}).name == ROW.name
    with pytest.raises(BadAnswer):
        answered(data=data)


def test_an_answer_that_is_cut_short_or_too_long_is_refused_and_not_read() -> None:
    with pytest.raises(BadAnswer, match="cut short"):
        answered(data={"value": MEMBERS}, length=ANSWER)
    with pytest.raises(BadAnswer, match=f"{ANSWER + 1:,} bytes; the limit is {ANSWER:,}"):
        answered(data={"value": MEMBERS}, length=ANSWER + 1)
    with pytest.raises(EOFError):
        read_answer(io.BytesIO(), row)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("a", "b"), ConfigError),
        (CheckpointError("a"), CheckpointError),
        (PlacedError("a", "line", 2, "b"), UsageError),
        (TinytfError("a", "b"), TinytfError),
        (MemoryError(), MemoryError),
        (KeyError("a"), RuntimeError),
    ],
)
def test_an_error_comes_back_by_its_kind(error: Exception, kind: type[Exception]) -> None:
    def work() -> Row:
        raise error

    with pytest.raises(Exception) as raised:  # noqa: PT011 - its type is what is asked
        answered(work)
    assert type(raised.value) is kind
    if isinstance(raised.value, TinytfError) and isinstance(error, TinytfError):
        assert (raised.value.message, raised.value.hint) == (error.message, error.hint)
    if isinstance(raised.value, RuntimeError):
        assert str(raised.value) == "KeyError: 'a'"
        assert "in work" in raised.value.__notes__[0]


@pytest.mark.slow
def test_nothing_is_unpickled_but_requests_in_the_process_that_they_are_sent_to() -> None:
    found = []
    for file in [*(ROOT / "tinytf").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]:
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef):
                found += [f"{file.name}: {function.name}" for node in ast.walk(function)
                          if isinstance(node, ast.Attribute) and ast.unparse(node) in UNPICKLING]  # fmt: skip
    assert found == ["worker.py: serve"]


UNPICKLING = {"pickle.load", "pickle.loads", "pickle.Unpickler"}
