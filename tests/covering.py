"""Which cases of a product the gate runs: some in which every value of every axis is; the others with --exhaustive."""

import sys
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest

everything = False
"""Whether --exhaustive was given, which conftest.py says before any test is collected."""


def along(axes: dict[str, Iterable[Any]], ids: Callable[[Any], str] | None = None) -> pytest.MarkDecorator:
    """Parametrise by the product of some axes, of which the gate runs a diagonal.

    Of the first axis, the longest, every value comes once, and of the others every combination in turn. For axes that
    have nothing to do with each other, such as the kind of a model and the type of its numbers. An axis of several
    parameters is named by all of them, as ``"layer, head"``.
    """
    values = [list(axis) for axis in axes.values()]
    others = list(product(*(range(len(axis)) for axis in values[1:])))
    assert len(others) <= len(values[0]), "the first axis is too short for every combination of the others"
    diagonal = {(case, *others[case % len(others)]) for case in range(len(values[0]))}
    cases = []
    for place in product(*(range(len(axis)) for axis in values)):
        chosen = zip(axes, (axis[i] for axis, i in zip(values, place, strict=True)), strict=True)
        case = [one for names, value in chosen for one in (value if "," in names else (value,))]
        cases.append(pytest.param(*case, marks=() if place in diagonal else pytest.mark.exhaustive))
    return pytest.mark.parametrize([name.strip() for names in axes for name in names.split(",")], cases, ids=ids)


PART = 6
"""Of what holds of every kind of model, the gate tries one kind in so many."""


def left_out(items: Iterable[pytest.Item], named: bool) -> set[pytest.Item]:
    """Which tests the gate leaves out: those marked ``exhaustive``, and five of six models of a property.

    Each test of a property takes other kinds (architectures.KINDS) than the one before it, so every kind has a sixth
    of the tests, and every test a sixth of the kinds; of the families that transformers has (reference.FAMILIES),
    which are opened once a file, each file takes others. Marked ``every`` it is tried with all, and so is what is
    ``named``, by file, on the command line.
    """
    turns: dict[str, int] = {}
    models = [(_names("architectures", "KINDS"), "["), (_names("reference", "FAMILIES"), "::")]

    def waits(item: pytest.Item) -> bool:
        for names, end in models:
            for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
                if isinstance(value, str) and value in names:
                    turn = turns.setdefault(item.nodeid.partition(end)[0], len(turns))
                    return (names.index(value) + turn) % PART != 0
        return False

    return {
        item
        for item in items
        if item.get_closest_marker("exhaustive") or (waits(item) and not named and not item.get_closest_marker("every"))
    }


def _names(module: str, table: str) -> list[str]:
    """The names in a table of models; none where no test has imported it."""
    return list(getattr(sys.modules.get(module), table, ()))
