"""Fields of a mapping: the name, type, range and default of each, checked here whatever file they were read from."""

import dataclasses
import sys
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tinytf.errors import CheckpointError, ConfigError, TinytfError
from tinytf.nearest import did_you_mean

REQUIRED: Any = object()
"""The default of a field that has to be given."""

_KINDS: Mapping[type, tuple[tuple[type, ...], str, str]] = {
    int: ((int,), "a whole number", "whole numbers"),
    float: ((float, int), "a number", "numbers"),
    bool: ((bool,), "true or false", "true and false"),
    str: ((str,), "a string", "strings"),
    list: ((list, tuple), "an array", "arrays"),
    dict: ((Mapping,), "an object", "objects"),
}
"""Of each type: what is accepted, and what one and several are called."""

_LONGEST = 80
_MOST_WHOLE = 2**63 - 1
"""Where a number is meant a whole one may stand, which torch takes up to here."""


def quoted(name: str) -> str:
    """A string from a file as an error message can hold it: escaped, and short."""
    return repr(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}…")


def shown(value: object) -> str:
    """Any value from a file as an error message can hold it."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (list, tuple)):
        return f"an array of {len(value):,}"
    if isinstance(value, int) and not isinstance(value, bool):  # a number of thousands of digits cannot be written
        return f"{value:,}" if abs(value) < 10**_LONGEST else "a number of more than 80 digits"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}…"


class Limits(NamedTuple):
    """``least`` ≤ value ≤ ``most``, ``above`` < value < ``below``; or one of ``choices``. Of an array, each entry."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Collection[str] = ()


ANY = Limits()


@dataclass(frozen=True)
class Field:
    """What a field may hold; ``of`` is the type of an array's or object's entries, ``count`` how many an array has."""

    name: str
    kind: type
    default: Any = REQUIRED
    limits: Limits = ANY
    of: type | None = None
    count: int | None = None
    optional: bool = False

    def require(self, value: Any, error: type[TinytfError], source: Path | str = "") -> None:
        """Raise ``error``, with the name, the value and what is allowed, for a value that does not fit."""
        message, hint = self._fault(value) or ("", "")
        if message:
            raise error(f"{source}: {message}" if source else message, hint)

    def _fault(self, value: Any) -> tuple[str, str] | None:
        if value is None and self.optional:
            return None
        entries = value.values() if isinstance(value, Mapping) else value
        if not _is(value, self.kind) or (self.of is not None and not _are(entries, self.of)):
            words = _KINDS[self.kind][1] + (f" of {_KINDS[self.of][2]}" if self.of is not None else "")
            return f"{self.name} is {shown(value)}, and has to be {words}", ""
        if self.kind is not list:
            return self._outside(self.name, value, self.kind)
        if self.count is not None and len(value) != self.count:
            return f"{self.name} has {len(value):,} entries, and has to have {self.count:,}", ""
        if self.limits is ANY or self.of is None:
            return None
        of = self.of
        found = (self._outside(f"{self.name}[{place}]", entry, of) for place, entry in enumerate(value))
        return next((fault for fault in found if fault is not None), None)

    def _outside(self, name: str, value: Any, kind: type) -> tuple[str, str] | None:
        least, most, above, below, choices = self.limits
        if choices and value not in choices:
            return f"{name} {shown(value)} is not one of {', '.join(choices)}", did_you_mean(value, choices)
        if kind not in (int, float):
            return None
        said = f"{name} {shown(value)}"
        if above is not None and value <= above:
            return f"{said} is not above {above:g}", ""
        if kind is float and not abs(value) <= sys.float_info.max:
            return f"{said} is not a finite number", ""
        if kind is float and isinstance(value, int) and abs(value) > _MOST_WHOLE:
            return f"{said} is too large a whole number", ""
        if least is not None and below is not None and not least <= value < below:
            return f"{said} is outside [{least:g}, {below:g})", ""
        if least is not None and value < least:
            return f"{said} is below {least:,}", ""
        if most is not None and value > most:
            return f"{said} is above {most:,}", ""
        return None


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, _KINDS[kind][0]) and (kind is bool or not isinstance(value, bool))


def _are(entries: Iterable[Any], kind: type) -> bool:
    """Whether all entries are of a kind; a vocabulary has hundreds of thousands, of one type."""
    accepted = _KINDS[kind][0]
    return all(issubclass(one, accepted) and (kind is bool or one is not bool) for one in set(map(type, entries)))


def fields_of(cls: type, limits: Mapping[str, Limits] | None = None) -> dict[str, Field]:
    """The fields of a dataclass, by their annotations: numbers, strings, booleans, tuples and mappings, or None."""
    return {field.name: field_of(field, (limits or {}).get(field.name, ANY)) for field in dataclasses.fields(cls)}


def field_of(field: "dataclasses.Field[Any]", limits: Limits, name: str = "") -> Field:
    """What one field of a dataclass may hold, by its annotation; it may be called by another name."""
    annotation: Any = field.type
    optional = isinstance(annotation, types.UnionType)
    kind = _kind(typing.get_args(annotation)[0] if optional else annotation)
    entries = [one for one in typing.get_args(annotation) if one is not Ellipsis][-1:] if kind in (list, dict) else []
    of = None if not entries or entries[0] is Any else _kind(entries[0])
    missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    return Field(name or field.name, kind, REQUIRED if missing else field.default, limits, of, optional=optional)


def _kind(annotation: Any) -> type:
    kind = typing.get_origin(annotation) or annotation
    assert isinstance(kind, type)
    return list if issubclass(kind, tuple) else dict if issubclass(kind, Mapping) else kind


def require_fields(
    data: Mapping[str, Any],
    known: Mapping[str, Field],
    what: str,
    error: type[TinytfError] = ConfigError,
    source: Path | str = "",
) -> dict[str, Any]:
    """The fields of ``what``, arrays as tuples. ``error`` for an unknown, a missing and a wrong one, in this order."""
    before = f"{source}: " if source else ""
    for name in data:
        if name not in known:
            raise error(f"{before}{what} has no field {quoted(name)}", did_you_mean(name, known))
    missing = [name for name, field in known.items() if field.default is REQUIRED and name not in data]
    if missing:
        raise error(f"{before}{what} lacks {', '.join(missing)}")
    for name, value in data.items():
        known[name].require(value, error, source)
    return {name: tuple(value) if known[name].kind is list else value for name, value in data.items()}


@contextmanager
def faults_of(source: Path | str) -> Iterator[None]:
    """Turn a ConfigError into a CheckpointError that names ``source``."""
    try:
        yield
    except ConfigError as error:
        raise CheckpointError(f"{source}: {error.message}", error.hint) from None


class Fields:
    """Typed access to a mapping that was read from ``source``; it remembers every name that was asked for.

    All names begin with ``prefix``, which callers leave out. A name that is missing or null has its default. A value
    that does not fit raises ``error`` with source, name and value, and with ``hint``.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        source: Path | str,
        error: type[TinytfError] = CheckpointError,
        hint: str = "",
        prefix: str = "",
    ) -> None:
        self.data, self.source, self.error, self.hint, self.prefix = data, source, error, hint, prefix
        self.asked: set[str] = set()

    def fault(self, message: str, hint: str = "") -> TinytfError:
        """An error about this source."""
        return self.error(f"{self.source}: {message}", hint or self.hint)

    def get(self, field: Field) -> Any:
        """The value of a field, or its default."""
        field = dataclasses.replace(field, name=f"{self.prefix}{field.name}")
        self.asked.add(field.name)
        value = self.data.get(field.name)
        if value is None:
            if field.default is REQUIRED:
                raise self.error(f"{self.source} lacks {field.name}", self.hint)
            return field.default
        field.require(value, self.error, self.source)
        return value

    def whole(self, name: str, default: Any = REQUIRED, *, least: int | None = None, most: int | None = None) -> Any:
        """A whole number."""
        return self.get(Field(name, int, default, Limits(least, most)))

    def number(self, name: str, default: Any = REQUIRED) -> float:
        """A finite number."""
        return float(self.get(Field(name, float, default)))

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """True or false."""
        return bool(self.get(Field(name, bool, default)))

    def text(self, name: str, default: Any = REQUIRED) -> str:
        """A string."""
        return str(self.get(Field(name, str, default)))

    def word(self, name: str, meanings: Mapping[str, Any], default: Any = REQUIRED) -> Any:
        """The meaning of a word; an unknown one is refused by name."""
        return self.meaning(name, self.text(name, default), meanings)

    def meaning(self, name: str, word: str, meanings: Mapping[str, Any]) -> Any:
        """The meaning of a word that was read."""
        if word not in meanings:
            raise self.fault(f"{name} {quoted(word)} is not implemented", did_you_mean(word, meanings))
        return meanings[word]

    def array(self, name: str, of: type, default: Any = REQUIRED, count: int | None = None) -> Any:
        """An array of entries of one type, of ``count`` of them where that is given."""
        return self.get(Field(name, list, default, of=of, count=count))

    def index(self, name: str, count: int) -> int | None:
        """The number of one of ``count`` things, such as a token id, or None."""
        found: int | None = self.whole(name, None, least=0, most=count - 1)
        return found

    def object(self, name: str) -> "Fields | None":
        """A nested object, or None."""
        value = self.get(Field(name, dict, None))
        return None if value is None else Fields(value, self.source, self.error, self.hint)

    def require(self, name: str, only: Collection[Any]) -> None:
        """Refuse any value but those in ``only``: the others change the numbers, and are not implemented."""
        name = f"{self.prefix}{name}"
        self.asked.add(name)
        value = self.data.get(name)
        if value is not None and value not in only:
            raise self.fault(f"{name} {shown(value)} is not implemented")

    def unknown(self, harmless: Collection[str], endings: tuple[str, ...] = ()) -> Iterator[str]:
        """The names that were not asked for, are not ``harmless`` and have none of the ``endings``."""
        for name in self.data:
            rest = name.removeprefix(self.prefix)
            known = name in self.asked or rest in harmless or (endings and rest.endswith(endings))
            if name.startswith(self.prefix) and not known:
                yield name

    def refuse_unknown(self, harmless: Collection[str], endings: tuple[str, ...] = ()) -> None:
        """Raise the error for the first of the ``unknown`` names."""
        for name in self.unknown(harmless, endings):
            said = f"the key {quoted(name)} is not known, and could change the numbers"
            raise self.fault(said, "a newer tinytf may know it")
