"""Parts: a tree of frozen dataclasses. Each leaf is a setting with one flat name in files, recipes and options."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

from tinytf.errors import ConfigError
from tinytf.fields import REQUIRED, Field, Limits, field_of

_INT32_MAX = 2**31 - 1
POSITIVE, COUNT = Limits(least=1, most=_INT32_MAX), Limits(least=0, most=_INT32_MAX)
_FLOAT_MAX = 3.4e38  # of float32 and bfloat16
ABOVE_ZERO, NOT_NEGATIVE = Limits(above=0, most=_FLOAT_MAX), Limits(least=0, most=_FLOAT_MAX)
SHARE = Limits(least=0, below=1)
ROUNDED = 1e-12
"""The relative difference up to which two numbers are one: a file may store a divisor as a factor, or its square."""


def leaf(
    default: Any = MISSING,
    limits: Limits | None = None,
    *,
    flat: str = "",
    differs: bool = False,
    off: Any = None,
    zero: str = "",
    usual: tuple[Any, ...] = (),
    said: str = "",
    named: Mapping[Any, str] = {},
) -> Any:
    """A setting of a part. ``flat``: its flat name, by default the field's; ``differs``: layers may differ in it.

    ``off``: the value by which a layer lacks the feature altogether; ``zero``: what a 0 stands for, as an expression.
    ``usual``: values in other families; ``said``: the feature in words, with a place for the value, which may be
    ``named``.
    """
    metadata = {
        "limits": limits or Limits(), "flat": flat, "differs": differs, "off": off, "zero": zero, "usual": usual,
        "said": said, "named": named,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def choice(*words: str, default: str = "", **settings: Any) -> Any:
    """A setting that is one of ``words``, by default the first; further ``settings`` as for ``leaf``."""
    return leaf(default or words[0], Limits(choices=words), **settings)


class Leaf(NamedTuple):
    """A setting in a tree of parts: the attribute path to it, and what it may hold, under its flat name."""

    path: tuple[str, ...]
    field: Field
    differs: bool
    off: Any
    zero: str = ""
    usual: tuple[Any, ...] = ()
    said: str = ""
    named: Mapping[Any, str] = {}

    def others(self, *ours: Any) -> Iterator[Any]:
        """Values that somebody may take: of another layer, left out, the default, off by one, usual, twice, half."""
        field = self.field
        yield from ours
        yield from (False, True) if field.kind is bool else field.limits.choices
        yield from () if field.default is REQUIRED else (field.default,)
        yield from self.usual
        for value in ours if field.kind in (int, float) else ():
            yield from (0, value - 1, value + 1, value * 2, value // 2) if field.kind is int and value else (0,)
            if value and field.kind is float:
                yield from (value**2, 1 / value) if field.default == 1.0 else (value * 10, value / 10)

    def mistaken(self, value: Any, right: Any) -> str:
        """The mistake of taking ``value`` for what is ``right``, in words."""
        said = self.said or self.field.name.replace("_", " ") + " {}"
        if self.field.kind is bool and not self.named:
            return f"{said} {'added' if value else 'left out'}"
        digits = next(digits for digits in (6, 9, 17) if worded(value, digits) != worded(right, digits) or digits == 17)
        taken, due = (self._named(one, digits) for one in (value, right))
        if not (taken and due):
            return _singular(said.format(taken or due)) + (" added" if taken else " left out")
        return _singular(f"{said.format(taken)} instead of {due}")

    def _named(self, value: Any, digits: int) -> str:
        """A value in words; empty where it switches the feature off."""
        if isinstance(value, str | bool):
            return self.named.get(value, "" if value == "none" else str(value))
        return worded(value, digits) if value else self.zero


def _singular(words: str) -> str:
    """A phrase in which a single thing is counted as one."""
    return re.sub(r"(?<![\d.,])1 ((?:\w+ )?\w+?)s\b", r"1 \1", words)


def worded(value: Any, digits: int = 6) -> str:
    """A value in words: whole numbers with commas, others with as few digits as it has, at most ``digits``."""
    if isinstance(value, tuple):
        return f"{worded(value[0], digits)} … {worded(value[-1], digits)}" if value else "none"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,.0f}" if value == int(value) and abs(value) < 1e12 else f"{value:.{digits}g}"
    return str(value)


@dataclass(frozen=True, kw_only=True)
class Part:
    """The base of all parts: checks each setting against its limits, then their combination (``require``).

    ``called`` names the kind of part where a field may hold several kinds. Raises ConfigError, with the numbers.
    Unless a part says otherwise, 0 switches a setting off, or gives a width its usual value. Settings that compute the
    same numbers compare equal: an ``idle`` one takes its default.
    """

    called: ClassVar[str] = ""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, field in _own(kind):
            field.require(getattr(self, name), ConfigError)
        for name in self.idle():
            object.__setattr__(self, name, type(self).__dataclass_fields__[name].default)
        self.require()

    def require(self) -> None:
        """Raise ConfigError for settings of this part that exclude each other."""

    def idle(self) -> Collection[str]:
        """The settings of this part that another of its settings switches off."""
        return ()

    def words(self, causal: bool) -> dict[str, str]:
        """The description of the part for ``tinytf info``, by row; by default, that of the parts in it."""
        parts = (getattr(self, field.name) for field in dataclasses.fields(self) if kinds_of(field.type))
        return merged(*(part.words(causal) for part in parts))

    def fit(self, d_model: int, causal: bool) -> None:
        """Raise ConfigError for settings that do not fit the model's width or its direction."""
        for field in dataclasses.fields(self):
            if kinds_of(field.type):
                getattr(self, field.name).fit(d_model, causal)


def listed(*phrases: str | bool) -> str:
    """Join the phrases that apply with commas; ``gated and "gated"`` is dropped when false."""
    return ", ".join(phrase for phrase in phrases if isinstance(phrase, str) and phrase)


def merged(*parts: Mapping[str, str]) -> dict[str, str]:
    """Join the descriptions of several parts, row by row."""
    rows = dict.fromkeys(row for part in parts for row in part)
    return {row: listed(*(part.get(row, "") for part in parts)) for row in rows}


P = TypeVar("P", bound=Part)


def kinds_of(annotation: Any) -> tuple[Any, ...]:
    """The classes of parts that a field with this annotation may hold; empty for a setting."""
    return _kinds_of(annotation)


@cache
def _kinds_of(annotation: Any) -> tuple[Any, ...]:
    kinds = get_args(annotation) or (annotation,)
    return kinds if all(isinstance(kind, type) and issubclass(kind, Part) for kind in kinds) else ()


@cache
def leaves(part: Any) -> dict[str, Leaf]:
    """The settings of a part and of the parts in it, by flat name."""
    settings: dict[str, Leaf] = {}
    for field in dataclasses.fields(part):
        kinds = kinds_of(field.type)
        for kind in reversed(kinds):  # where several kinds share a setting, the first kind wins
            settings |= {name: inner._replace(path=(field.name, *inner.path)) for name, inner in leaves(kind).items()}
        if len(kinds) > 1:
            words = Limits(choices=tuple(kind.called for kind in kinds))
            settings[field.name] = Leaf(
                (field.name, "called"), Field(field.name, str, kinds[0].called, words), True, None
            )
        if "limits" in field.metadata:
            options, flat = field.metadata, field.metadata["flat"] or field.name
            settings[flat] = Leaf(
                (field.name,),
                field_of(field, options["limits"], flat),
                options["differs"],
                options["off"],
                options["zero"],
                options["usual"],
                options["said"],
                options["named"],
            )
    return settings


@cache
def _own(part: Any) -> tuple[tuple[str, Field], ...]:
    """What each setting of a part may hold, without those of the parts in it."""
    return tuple((setting.path[0], setting.field) for setting in leaves(part).values() if len(setting.path) == 1)


def build(part: type[P], values: Mapping[str, Any]) -> P:
    """Build a part and the parts in it from values by flat name; missing ones take their defaults.

    Where a field may hold several kinds of parts, the value under the field's name picks one.
    """
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        if kinds := kinds_of(field.type):
            name = values.get(field.name, kinds[0].called) if len(kinds) > 1 else kinds[0].called
            arguments[field.name] = build(next(kind for kind in kinds if kind.called == name), values)
        elif "limits" in field.metadata and (flat := field.metadata["flat"] or field.name) in values:
            arguments[field.name] = values[flat]
    return part(**arguments)


LACKS: Any = object()
"""The value of a setting that a part does not have, or that is idle in it."""


def value_at(part: Any, path: tuple[str, ...]) -> Any:
    """The setting at an attribute path; LACKS where it is idle, or the path leads through another kind of part."""
    for name in path:
        part = LACKS if isinstance(part, Part) and name in part.idle() else getattr(part, name, LACKS)
    return part
