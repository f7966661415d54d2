"""One validator: what a field may hold, and the sentence for what does not fit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import Fields, Limits, fields_of, require_fields


@dataclass(frozen=True)
class Layered:
    width: int
    windows: tuple[int, ...] = ()
    best: float | None = None
    name: str = "a"
    extra: Mapping[str, Any] = field(default_factory=dict)


KNOWN = fields_of(Layered, {"windows": Limits(least=0), "name": Limits(choices=("alpha", "beta"))})


def test_a_list_becomes_a_tuple_and_null_stays_where_it_may_be():
    assert require_fields({"width": 3, "windows": [4, 0], "best": None}, KNOWN, "it") == {
        "width": 3, "windows": (4, 0), "best": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        ({"width": 1, "window": []}, "f.json: it has no field 'window'", "did you mean windows?"),
        ({}, "f.json: it lacks width", ""),
        ({"width": None}, "f.json: width is None, and has to be a whole number", ""),
        ({"width": True}, "f.json: width is True, and has to be a whole number", ""),
        ({"width": 1, "windows": 3}, "f.json: windows is 3, and has to be an array of whole numbers", ""),
        ({"width": 1, "windows": [3, -1]}, "f.json: windows[1] -1 is below 0", ""),
        ({"width": 1, "windows": [3, "a"]}, "f.json: windows is an array of 2, and has to be an array of whole", ""),
        ({"width": 1, "name": "bata"}, "f.json: name 'bata' is not one of alpha, beta", "did you mean beta?"),
        ({"width": 1, "best": math.nan}, "f.json: best nan is not a finite number", ""),
        ({"width": 1, "best": 10**400}, "f.json: best a number of more than 80 digits is not a finite number", ""),
        ({"width": 1, "extra": []}, "f.json: extra is an array of 0, and has to be an object", ""),
    ],
)
def test_each_fault_is_named_with_the_value_and_what_is_allowed(data, message, hint):
    with pytest.raises(UsageError) as caught:
        require_fields(data, KNOWN, "it", UsageError, "f.json")
    assert caught.value.message.startswith(message)
    assert caught.value.hint == hint


def test_a_long_string_is_cut_and_escaped():
    with pytest.raises(CheckpointError) as caught:
        Fields({"a": "\x1b[31m" + "x" * 1000}, "f").whole("a")
    assert "\x1b" not in caught.value.message
    assert len(caught.value.message) < 150


def test_names_that_nobody_asked_for_are_told_from_harmless_ones():
    fields = Fields({"a": 1, "b": None, "c": 3, "d": 4}, "f")
    assert (fields.whole("a"), fields.number("b", 0.5)) == (1, 0.5)
    assert list(fields.unknown({"d"})) == ["c"]
    with pytest.raises(CheckpointError, match=r"f lacks e"):
        fields.text("e")
    with pytest.raises(CheckpointError, match=r"f: c 3 is not implemented"):
        fields.require("c", (1, 2))


def test_an_index_is_one_of_so_many():
    fields = Fields({"last": 4, "beyond": 5, "before": -1}, "f")
    assert (fields.index("last", 5), fields.index("none", 5)) == (4, None)
    for name in ("beyond", "before"):
        with pytest.raises(CheckpointError, match=name):
            fields.index(name, 5)
