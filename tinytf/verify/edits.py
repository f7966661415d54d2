"""Other numbers for a worked example: a TOML file of ``NAME = VALUE`` and ``"NAME[row,column]" = NUMBER``."""

import re
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tinytf.nearest import did_you_mean
from tinytf.verify.claims import read_claim
from tinytf.verify.example import TOO_LARGE, Edit, Example, ExampleError, read_toml

_SUCH_AS = 'such as: d_k = 16, or "S[0,1]" = 5'
_PLACE = re.compile(r"([^\W\d]\w*)\s*(?:\[([^\[\]]*)\])?")


def edited(example: Example, path: Path) -> Example:
    """The example with the numbers of an edit file. A name is of a given value or of a step, whole or a cell.

    A whole value has the shape of the one that it replaces; the words of a cell are numbers, slices, or names of the
    step's rows and columns. A step's numbers replace those that its formula gives. Raises ExampleError, with the line.
    """
    data, lines = read_toml(path, f"a file of numbers to change, {_SUCH_AS}")
    edits = [_edit(example, place, value, f"{path}, line {lines.of('', 0, place)}") for place, value in data.items()]
    if not edits:
        raise ExampleError(f"{path} changes no number", f"write some, {_SUCH_AS}")
    given = dict(example.given)
    for edit in edits:
        if edit.name in given:
            given[edit.name] = edit.applied(given[edit.name], partial(np.array, dtype=np.float64), lambda value: value)
    return replace(example, given=given, edits=tuple(edits))


def _edit(example: Example, place: str, value: Any, where: str) -> Edit:
    if isinstance(value, dict):
        raise ExampleError(f"{where}: {place!r} is a table", "write the numbers at the top of the file: d_k = 16")
    steps = {step.name: step for step in example.steps}
    match = _PLACE.fullmatch(place.strip())
    if match is None:
        raise ExampleError(f"{where}: {place!r} is not a name or a cell", 'such as d_k = 16, or "S[0,1]" = 5')
    name, words = match[1], None if match[2] is None else tuple(word.strip() for word in match[2].split(","))
    if name not in steps and name not in example.given:
        raise ExampleError(
            f"{where}: {example.name} has no number {name!r}", did_you_mean(name, [*example.given, *steps])
        )
    number = _number(value, where, place)
    if words is not None and isinstance(number, np.ndarray):
        raise ExampleError(f"{where}: a cell takes one number, and {place!r} has a list", f'"{place}" = 0')
    labels = (steps[name].rows, steps[name].columns) if name in steps else ((), ())
    return Edit(name, words, number, where, labels)


def _number(value: Any, where: str, place: str) -> Any:
    """A number, or a list of numbers as a tensor."""
    kinds = (int, Decimal, list)
    try:
        claim = read_claim(value, 0.0) if isinstance(value, kinds) and not isinstance(value, bool) else None
    except ValueError as error:
        raise ExampleError(f"{where}: {place!r} {error}") from None
    if claim is None or claim.words or claim.truths:
        raise ExampleError(f"{where}: {place!r} is not a number or a list of numbers", f"{place} = 0")
    if not np.isfinite(claim.values).all():
        raise ExampleError(f"{where}: {place!r} has a number that is not finite", f"{place} = 0")
    if isinstance(value, list):
        return claim.values
    if isinstance(value, int) and abs(value) >= TOO_LARGE:
        raise ExampleError(f"{where}: {place!r} is too large a whole number", f"{place} = {float(value):.0e}")
    return value if isinstance(value, int) else float(value)
