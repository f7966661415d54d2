"""The gate leaves out five of six kinds in a test, and no kind altogether."""

from types import SimpleNamespace
from typing import Any

import covering
from architectures import KINDS


class _Test(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def asked(functions: int, named: bool = False, *marks: str) -> list[tuple[str, str]]:
    """Which kinds the gate tries in each of some tests of all kinds."""
    tests: list[Any] = [
        _Test(
            nodeid=f"test_{number}[{kind}]",
            callspec=SimpleNamespace(params={"kind": kind}),
            get_closest_marker=marks.count,
        )
        for number in range(functions)
        for kind in KINDS
    ]
    left_out = covering.left_out(tests, named)
    return [(test.nodeid.partition("[")[0], test.callspec.params["kind"]) for test in tests if test not in left_out]


def test_as_many_tests_in_turn_try_every_kind_once() -> None:
    found = asked(covering.PART)
    assert sorted(kind for _, kind in found) == sorted(KINDS)
    assert {function for function, _ in found} == {f"test_{number}" for number in range(covering.PART)}


def test_marked_or_named_all_kinds_are_tried() -> None:
    assert len(asked(2, False, "every")) == len(asked(2, named=True)) == 2 * len(KINDS)


def test_what_is_left_to_exhaustive_is_left_out_though_it_is_named() -> None:
    assert asked(2, True, "exhaustive") == []
