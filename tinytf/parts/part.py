"""Parts: frozen dataclasses in a tree, whose leaves have one flat name each in files, recipes and options."""

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

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

    Raises ConfigError, with the numbers. Where a part says nothing else, 0 switches a setting off, or leaves a width to
    the usual one.
    """

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
        return merged(*(getattr(self, one.name).words(causal) for one in dataclasses.fields(self) if is_part(one.type)))

    def fit(self, d_model: int, causal: bool) -> None:
        """Raise ConfigError for settings that do not go with the width and the kind of the model."""
        for one in dataclasses.fields(self):
            if is_part(one.type):
                getattr(self, one.name).fit(d_model, causal)


def listed(*phrases: str | bool) -> str:
    """The phrases that apply: ``gated and "gated"`` is left out where it is false."""
    return ", ".join(phrase for phrase in phrases if isinstance(phrase, str) and phrase)


def merged(*parts: Mapping[str, str]) -> dict[str, str]:
    """What several parts say, row by row."""
    rows = dict.fromkeys(row for part in parts for row in part)
    return {row: listed(*(part.get(row, "") for part in parts)) for row in rows}


Made = TypeVar("Made", bound=Part)


def is_part(kind: Any) -> bool:
    """Whether the annotation of a field is a part."""
    return isinstance(kind, type) and issubclass(kind, Part)


@cache
def leaves(part: Any) -> dict[str, Leaf]:
    """The settings of a part and of those in it, by their flat names."""
    found: dict[str, Leaf] = {}
    for one in dataclasses.fields(part):
        kind: Any = one.type
        if is_part(kind):
            found |= {name: below._replace(path=(one.name, *below.path)) for name, below in leaves(kind).items()}
        elif "limits" in one.metadata:
            said, flat = one.metadata, one.metadata["flat"] or one.name
            found[flat] = Leaf((one.name,), field_of(one, said["limits"], flat), said["differs"], said["off"])
    return found


def build(part: type[Made], values: Mapping[str, Any]) -> Made:
    """A part, and those in it, from values by flat name; what is left out has its default."""
    made: dict[str, Any] = {}
    for one in dataclasses.fields(part):
        if is_part(one.type):
            kind: Any = one.type
            made[one.name] = build(kind, values)
        elif "limits" in one.metadata and (flat := one.metadata["flat"] or one.name) in values:
            made[one.name] = values[flat]
    return part(**made)


def value_at(part: Any, path: tuple[str, ...]) -> Any:
    """The setting at a path."""
    for name in path:
        part = getattr(part, name)
    return part
