"""The limits that SECURITY.md lists stand in the code, where it says, and the tests that it names are there."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_ROW = re.compile(r"\| (?P<what>[^|]+) \| (?P<limit>[^|]*) \| `(?P<where>(?!tests/)[^|`]+\.py)` \|")
ROWS = [found.groupdict() for found in map(_ROW.fullmatch, (ROOT / "SECURITY.md").read_text().splitlines()) if found]
_NUMBER = re.compile(r"(\d[\d,]*)( MiB| Mi\b)?")


TESTS = re.findall(r"`(tests/[^`]+\.py)`", (ROOT / "SECURITY.md").read_text())


@pytest.mark.parametrize("name", sorted(set(TESTS)))
def test_every_test_that_holds_a_promise_is_there(name: str) -> None:
    assert re.search(r"^def test_", (ROOT / name).read_text("utf-8"), re.MULTILINE)


def test_there_are_limits() -> None:
    assert len(ROWS) > 10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["what"])
def test_every_number_of_a_limit_is_one_of_its_module(row: dict[str, str]) -> None:
    path = (ROOT / row["where"]).relative_to(ROOT)
    name = ".".join(path.with_suffix("").parts[1 if path.parts[0] == "cli" else 0 :])
    flat = [one for value in vars(import_module(name)).values() for one in (value if type(value) is tuple else [value])]
    there = {one for one in flat if type(one) in (int, float)}
    for digits, unit in _NUMBER.findall(row["limit"]):
        number = int(digits.replace(",", "")) * (2**20 if unit else 1)
        assert number in there, f"{row['what']}: {row['where']} has no {digits}{unit}"
