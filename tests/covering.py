"""Which cases of a product the gate runs: some in which every value of every axis is; the others with --exhaustive."""

import sys
from collections.abc import Callable, Iterable, Iterator
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


def sample(names: Any, cases: Iterable[Any], every: int = 3, ids: Any = None) -> pytest.MarkDecorator:
    """Parametrise by like cases, of which the gate tries one in ``every`` so many."""
    several = len(names.split(",") if isinstance(names, str) else names) > 1
    marks = [() if number % every == 0 else (pytest.mark.exhaustive,) for number in range(every)]
    values = [
        pytest.param(*(case if several else (case,)), marks=marks[number % every]) for number, case in enumerate(cases)
    ]
    return pytest.mark.parametrize(names, values, ids=ids)


PART = 30
"""Of what holds of every kind of model, the gate tries one kind in so many."""
PICKED = 15
"""Models of a test that are picked by hand are at most so many, and are all tried."""


def thin_out(metafunc: pytest.Metafunc, turns: dict[str, int]) -> None:
    """Leaves out what only repeats before it is made: values marked ``exhaustive``, and most models of a property.

    Each test of a property takes other kinds (architectures.KINDS) than the one before it, so every kind has one in
    PART of the tests, and every test one in PART of the kinds; of the families that transformers has
    (reference.FAMILIES), which are opened once a file, each file takes others. ``turns`` has the turn of each test and
    file so far. Marked ``every`` a test is tried with all, and so is what is named, by file, on the command line; and
    so are models that are picked by hand: PICKED or fewer. Of the cases of a test marked ``share(n)``, one in n is
    made.
    """
    make, test = metafunc.parametrize, metafunc.definition
    share = [mark.args[0] for mark in test.iter_markers("share")]
    named = any(".py" in argument for argument in metafunc.config.args)
    whole = test.get_closest_marker("every") or named

    def make_some(names: Any, values: Iterable[Any], *, ids: Any = None, _param_mark: Any = None, **how: Any) -> None:
        several = len(names.split(",") if isinstance(names, str) else names) > 1
        values = [
            value if hasattr(value, "marks") else pytest.param(*(value if several else [value])) for value in values
        ]
        kept = [n for n, value in enumerate(values) if all(mark.name != "exhaustive" for mark in value.marks)]
        models = {model for n in kept for model, *_ in _models(values[n].values)}
        if not whole and len(models) > PICKED:
            kept = [n for n in kept if _has_the_turn(test.nodeid, values[n].values, turns)]
        if not named and share and len(kept) > 1:  # along the first axis that has several values
            kept = kept[:: share.pop()]
        kept = kept or [*range(len(values))][:1]
        if ids is not None and not callable(ids):
            ids = [name for n, name in zip(range(len(values)), ids, strict=True) if n in kept]
        make(names, [values[n] for n in kept], ids=ids, **how)

    metafunc.parametrize = make_some  # type: ignore[method-assign]


def _has_the_turn(test: str, values: Iterable[Any], turns: dict[str, int]) -> bool:
    """Whether a test is tried with some values: of models a share is, and what is no model always."""
    for _, number, end in _models(values):
        return (number + turns.setdefault(test.partition(end)[0], len(turns))) % PART == 0
    return True


def _models(values: Iterable[Any]) -> Iterator[tuple[str, int, str]]:
    """The models among some values: name, number in their table, and where the name of what takes turns ends."""
    for module, table, end in (("architectures", "KINDS", "["), ("reference", "FAMILIES", "::")):
        names = [*getattr(sys.modules.get(module), table, ())]  # none where no test has imported it
        for value in values:
            if isinstance(value, str) and value in names:
                yield value, names.index(value), end
