"""Parts: frozen dataclasses in a tree, whose leaves have one flat name each in files, recipes and options."""

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

from tinytf.errors import ConfigError
from tinytf.fields import Field, Limits, field_of

_MOST = 2**31 - 1
POSITIVE, COUNT = Limits(least=1, most=_MOST), Limits(least=0, most=_MOST)
ABOVE_ZERO, NOT_NEGATIVE, SHARE = Limits(above=0), Limits(least=0), Limits(least=0, below=1)


def leaf(
    default: Any = MISSING, limits: Limits | None = None, *, flat: str = "", differs: bool = False, off: Any = None
) -> Any:
    """A setting of a part. ``flat`` is its flat name, where it has another; where it ``differs``, layers may differ.

    A layer with the value ``off`` has not got what the setting is of.
    """
    metadata = {"limits": limits or Limits(), "flat": flat, "differs": differs, "off": off}
    return dataclasses.field(default=default, metadata=metadata)


def choice(*words: str, default: str = "", **settings: Any) -> Any:
    """A setting that is one of some words, by default the first; further ``settings`` as of ``leaf``."""
    return leaf(default or words[0], Limits(choices=words), **settings)


class Leaf(NamedTuple):
    """A setting in a tree of parts: the attributes on the way to it, and what it may hold, under its flat name."""

    path: tuple[str, ...]
    field: Field
    differs: bool
    off: Any


@dataclass(frozen=True, kw_only=True)
class Part:
    """The base of all parts: each setting is checked against its limits, and then those that go together.

    ``called`` is the word for a part where a field may hold one of several kinds. Raises ConfigError, with the numbers.
    Where a part says nothing else, 0 switches a setting off, or leaves a width to the usual one.
    """

    called: ClassVar[str] = ""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for found in leaves(kind).values():
            if len(found.path) == 1:
                found.field.require(getattr(self, found.path[0]), ConfigError)
        self.require()

    def require(self) -> None:
        """Raise ConfigError for settings that do not go together."""

    def words(self, causal: bool) -> dict[str, str]:
        """What ``info`` says of the part, by row; of a part that only holds others, what it says of them."""
        held = (getattr(self, one.name) for one in dataclasses.fields(self) if kinds_of(one.type))
        return merged(*(part.words(causal) for part in held))

    def fit(self, d_model: int, causal: bool) -> None:
        """Raise ConfigError for settings that do not go with the width and the kind of the model."""
        for one in dataclasses.fields(self):
            if kinds_of(one.type):
                getattr(self, one.name).fit(d_model, causal)


def listed(*phrases: str | bool) -> str:
    """The phrases that apply: ``gated and "gated"`` is left out where it is false."""
    return ", ".join(phrase for phrase in phrases if isinstance(phrase, str) and phrase)


def merged(*parts: Mapping[str, str]) -> dict[str, str]:
    """What several parts say, row by row."""
    rows = dict.fromkeys(row for part in parts for row in part)
    return {row: listed(*(part.get(row, "") for part in parts)) for row in rows}


Made = TypeVar("Made", bound=Part)


def kinds_of(annotation: Any) -> tuple[Any, ...]:
    """The parts that a field may hold, by its annotation: one, or one of several; none where it is a setting."""
    kinds = get_args(annotation) or (annotation,)
    return kinds if all(isinstance(kind, type) and issubclass(kind, Part) for kind in kinds) else ()


@cache
def leaves(part: Any) -> dict[str, Leaf]:
    """The settings of a part and of those in it, by their flat names."""
    found: dict[str, Leaf] = {}
    for one in dataclasses.fields(part):
        kinds = kinds_of(one.type)
        for kind in reversed(kinds):  # a setting that several kinds have is that of the first
            found |= {name: below._replace(path=(one.name, *below.path)) for name, below in leaves(kind).items()}
        if len(kinds) > 1:
            words = Limits(choices=tuple(kind.called for kind in kinds))
            found[one.name] = Leaf((one.name, "called"), Field(one.name, str, kinds[0].called, words), True, None)
        if "limits" in one.metadata:
            said, flat = one.metadata, one.metadata["flat"] or one.name
            found[flat] = Leaf((one.name,), field_of(one, said["limits"], flat), said["differs"], said["off"])
    return found


def build(part: type[Made], values: Mapping[str, Any]) -> Made:
    """A part, and those in it, from values by flat name; what is left out has its default.

    Where a field may hold one of several kinds, the value of the field's own name says which.
    """
    made: dict[str, Any] = {}
    for one in dataclasses.fields(part):
        if kinds := kinds_of(one.type):
            called = values.get(one.name, kinds[0].called) if len(kinds) > 1 else kinds[0].called
            made[one.name] = build(next(kind for kind in kinds if kind.called == called), values)
        elif "limits" in one.metadata and (flat := one.metadata["flat"] or one.name) in values:
            made[one.name] = values[flat]
    return part(**made)


LACKS: Any = object()
"""The value of a setting that a part has not got."""


def value_at(part: Any, path: tuple[str, ...]) -> Any:
    """The setting at a path, LACKS where there is another kind of part on the way."""
    for name in path:
        part = getattr(part, name, LACKS)
    return part
