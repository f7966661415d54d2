"""What read_code.py takes an expression for: an instance of a type, a record with named members, a list …"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Known:
    """A value that the code spells out, or that a module holds."""

    value: Any


MISSING = Known(Ellipsis)
"""An argument or entry that is not always there."""


@dataclass(frozen=True)
class Of:
    """An instance of a class; ``Of(object)`` may be anything."""

    kind: Any


ANYTHING = Of(object)
"""What cannot be read."""
OPEN = Of(Any)
"""What an annotation declares to be anything."""


@dataclass
class Record:
    """A dict: its named members, whether each is always there, and the values of all other names."""

    members: dict[str, tuple["Value", bool]] = field(default_factory=dict)
    rest: "Value | None" = None
    key: "Value" = Of(str)

    def put(self, name: str, value: "Value", always: bool = True) -> None:
        self.members[name] = value, always


@dataclass(frozen=True)
class Items:
    """A list, or anything that is iterated, of like entries."""

    of: "Value"


@dataclass(frozen=True)
class Fixed:
    """A tuple or list of so many entries."""

    entries: tuple["Value", ...]


@dataclass(frozen=True)
class Either:
    options: tuple["Value", ...]


@dataclass(frozen=True)
class Code:
    """A function with what it is bound to: ``owner`` is its first argument, ``closure`` what is around it."""

    function: Any
    owner: "Value | None" = None
    closure: Mapping[str, "Value"] = field(default_factory=dict)
    globals: Mapping[str, Any] = field(default_factory=dict)


Value = Known | Of | Record | Items | Fixed | Either | Code
Env = dict[str, Any]
NONE = Known(None)
NUMBERS = Of(np.ndarray)
"""Nested lists of numbers: what ``tolist`` gives is told by the array that it comes from."""


@dataclass(frozen=True)
class Listed:
    """What ``tolist`` gives: a number, or nested lists of numbers."""


def either(values: "Sequence[Any]") -> Any:
    """One of some values, each once."""
    flat: list[Any] = []
    for value in values:
        for option in value.options if isinstance(value, Either) else (value,):
            if not any(option is other or option == other for other in flat):
                flat.append(option)
    return flat[0] if len(flat) == 1 else Either(tuple(flat)) if flat else ANYTHING


def options(value: Any) -> tuple[Any, ...]:
    return value.options if isinstance(value, Either) else (value,)


def without_none(value: Any) -> Any:
    rest = [option for option in options(value) if option not in (NONE, Of(type(None)))]
    return either(rest) if rest else value


@dataclass(frozen=True)
class Starred:
    """Arguments whose number is not known."""

    of: Any


def put(made: Record, key: Any, value: Any) -> None:
    """``made[key] = value``, where the key may be one of several, or any."""
    names = options(key)
    for name in names:
        if isinstance(name, Known) and isinstance(name.value, str):
            made.put(name.value, value, len(names) == 1)
        elif name != MISSING:
            made.rest, made.key = value if made.rest is None else either([made.rest, value]), name


def typed(value: Any) -> Any:
    return type(value.value) if isinstance(value, Known) else value.kind if isinstance(value, Of) else None


def falsy(value: Any) -> Iterator[Any]:
    """What ``value and …`` gives of a value that is false."""
    for option in options(value):
        if isinstance(option, Known):
            if not option.value:
                yield option
        elif isinstance(option, Of) and option.kind in (bool, int, float, str):
            yield {bool: Known(False), int: Known(0), float: Of(float), str: Known("")}[option.kind]
        elif isinstance(option, Items):
            yield Fixed(())
        elif isinstance(option, Record):
            yield Record()
