"""Which cases of a product the gate runs: some in which every value of every axis is; the others with --exhaustive."""

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
