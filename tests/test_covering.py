"""The gate leaves out most of the kinds in a test of all, and no kind altogether."""

from types import SimpleNamespace
from typing import Any

import covering
import pytest
from architectures import KINDS


def made(
    tests: int,
    values: Any = tuple(KINDS),
    named: tuple[str, ...] = (),
    *marks: str,
    names: str = "kind",
    share: tuple[Any, ...] = (),
) -> list[list[Any]]:
    """With which values each of some tests of them is made."""
    turns: dict[str, int] = {}
    found: list[list[Any]] = []
    for number in range(tests):
        test: Any = SimpleNamespace(
            definition=SimpleNamespace(
                nodeid=f"tests/test_some.py::test_{number}",
                get_closest_marker=marks.count,
                iter_markers=lambda name: share,
            ),
            config=SimpleNamespace(args=named),
            parametrize=lambda names, values, **how: found.append(
                [*(value for case in values for value in case.values)]
            ),
        )
        covering.thin_out(test, turns)
        test.parametrize(names, values)
    return found


def test_as_many_tests_in_turn_try_every_kind_once() -> None:
    found = made(covering.PART)
    assert all(found)
    assert sorted(kind for kinds in found for kind in kinds) == sorted(KINDS)


def test_marked_or_named_all_kinds_are_tried() -> None:
    assert made(2, named=("tests/test_some.py",)) == made(2, tuple(KINDS), (), "every") == [list(KINDS)] * 2


def test_what_is_left_to_exhaustive_is_not_made_though_it_is_named() -> None:
    once, other, *_ = KINDS
    repeated = pytest.param(other, marks=pytest.mark.exhaustive)
    assert made(1, (once, repeated), ("tests/test_some.py",)) == [[once]]


def test_models_that_are_picked_by_hand_are_all_tried() -> None:
    picked = [*KINDS][: covering.PICKED]
    assert made(2, picked) == [picked] * 2
    assert made(1, [(kind, seed) for kind in picked for seed in (1, 2)], names="kind, seed") == [
        [value for kind in picked for seed in (1, 2) for value in (kind, seed)]
    ]
    assert len(made(1, [*KINDS][: covering.PICKED + 1])[0]) < covering.PICKED


def test_a_model_beside_another_value_is_a_model() -> None:
    every = made(covering.PART, [(kind, number) for number, kind in enumerate(KINDS)], (), names="kind, number")
    assert sorted(found for values in every for found in values[::2]) == sorted(KINDS)


def test_of_the_cases_of_a_test_that_repeats_a_share_is_made_unless_it_is_named() -> None:
    share = (SimpleNamespace(args=(2,)),)
    assert made(1, [1, 2, 3, 4, 5], share=share) == [[1, 3, 5]]
    assert made(1, [1], share=share) == [[1]]
    assert made(1, [1, 2, 3], ("tests/test_some.py",), share=share) == [[1, 2, 3]]


def test_what_is_no_model_is_always_tried() -> None:
    assert made(2, (1, "left", None)) == [[1, "left", None]] * 2
