"""Typed fields of a mapping: name, type, range and default of each, checked in one place for every kind of file."""

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
"""The default of a field that must be given."""

_KINDS: Mapping[type, tuple[tuple[type, ...], str, str]] = {
    int: ((int,), "a whole number", "whole numbers"),
    float: ((float, int), "a number", "numbers"),
    bool: ((bool,), "true or false", "true and false"),
    str: ((str,), "a string", "strings"),
    list: ((list, tuple), "an array", "arrays"),
    dict: ((Mapping,), "an object", "objects"),
}
"""For each type: the accepted Python types, and its name in the singular and plural."""

_MAX_LENGTH = 80
_MAX_INTEGER = 2**63 - 1
"""The largest whole number that torch takes in place of a float."""


def quoted(name: str) -> str:
    """A string from a file, escaped and shortened for an error message."""
    return repr(name if len(name) <= _MAX_LENGTH else f"{name[: _MAX_LENGTH - 3]}…")


def shown(value: object) -> str:
    """Any value from a file, shortened for an error message."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (list, tuple)):
        return f"an array of {len(value):,}"
    if isinstance(value, int) and not isinstance(value, bool):  # a number of thousands of digits cannot be written
        return f"{value:,}" if abs(value) < 10**_MAX_LENGTH else "a number of more than 80 digits"
    text = repr(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}…"


class Limits(NamedTuple):
    """``least`` ≤ value ≤ ``most``, ``above`` < value < ``below``, or one of ``choices``; in an array, each entry."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Collection[str] = ()


ANY = Limits()


@dataclass(frozen=True)
class Field:
    """The allowed values of a field; ``of`` is the type of an array's or object's entries, ``count`` their number."""

    name: str
    kind: type
    default: Any = REQUIRED
    limits: Limits = ANY
    of: type | None = None
    count: int | None = None
    optional: bool = False

    def require(self, value: Any, error: type[TinytfError], source: Path | str = "") -> None:
        """Raise ``error``, with the name, the value and the allowed values, if ``value`` does not fit."""
        if value is not self.default and (fault := self._fault(value)):
            message, hint = fault
            raise error(f"{source}: {message}" if source else message, hint)

    def _fault(self, value: Any) -> tuple[str, str] | None:
        if value is None and self.optional:
            return None
        if not _is(value, self.kind) or (self.of is not None and not _are(value, self.of)):
            words = _KINDS[self.kind][1] + (f" of {_KINDS[self.of][2]}" if self.of is not None else "")
            return f"{self.name} is {shown(value)}, and has to be {words}", ""
        if self.kind is not list:
            return self._outside(self.name, value, self.kind)
        if self.count is not None and len(value) != self.count:
            return f"{self.name} has {len(value):,} entries, and has to have {self.count:,}", ""
        if self.limits is ANY or self.of is None:
            return None
        entry_type = self.of
        faults = (self._outside(f"{self.name}[{i}]", entry, entry_type) for i, entry in enumerate(value))
        return next((fault for fault in faults if fault is not None), None)

    def _outside(self, name: str, value: Any, kind: type) -> tuple[str, str] | None:
        least, most, above, below, choices = self.limits
        if choices and value not in choices:
            return f"{name} {shown(value)} is not one of {', '.join(choices)}", did_you_mean(value, choices)
        if kind not in (int, float):
            return None
        fault = ""
        if above is not None and value <= above:
            fault = f"is not above {above:g}"
        elif kind is float and not abs(value) <= sys.float_info.max:
            fault = "is not a finite number"
        elif kind is float and isinstance(value, int) and abs(value) > _MAX_INTEGER:
            fault = "is too large a whole number"
        elif least is not None and below is not None and not least <= value < below:
            fault = f"is outside [{least:g}, {below:g})"
        elif least is not None and value < least:
            fault = f"is below {least:,}"
        elif most is not None and value > most:
            fault = f"is above {most:,}"
        return (f"{name} {shown(value)} {fault}", "") if fault else None


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, _KINDS[kind][0]) and (kind is bool or not isinstance(value, bool))


def _are(value: Iterable[Any], kind: type) -> bool:
    """Whether all entries are of one kind. Tests each type once: a vocabulary has hundreds of thousands of entries."""
    entries = value.values() if isinstance(value, Mapping) else value
    accepted = _KINDS[kind][0]
    return all(
        issubclass(entry_type, accepted) and (kind is bool or entry_type is not bool)
        for entry_type in set(map(type, entries))
    )


def fields_of(cls: type, limits: Mapping[str, Limits] | None = None) -> dict[str, Field]:
    """The fields of a dataclass, by their annotations: numbers, strings, booleans, tuples and mappings, or None."""
    return {field.name: field_of(field, (limits or {}).get(field.name, ANY)) for field in dataclasses.fields(cls)}


def field_of(field: "dataclasses.Field[Any]", limits: Limits, name: str = "") -> Field:
    """The Field for a field of a dataclass, from its annotation; ``name`` replaces its name."""
    annotation: Any = field.type
    optional = isinstance(annotation, types.UnionType)
    kind = _kind(typing.get_args(annotation)[0] if optional else annotation)
    entries = (
        [argument for argument in typing.get_args(annotation) if argument is not Ellipsis][-1:]
        if kind in (list, dict)
        else []
    )
    entry_type = None if not entries or entries[0] is Any else _kind(entries[0])
    missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    return Field(
        name or field.name, kind, REQUIRED if missing else field.default, limits, entry_type, optional=optional
    )


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
    """The fields of ``what``, arrays as tuples. Raises ``error`` for an unknown, missing or wrong one, in order."""
    prefix = f"{source}: " if source else ""
    for name in data:
        if name not in known:
            raise error(f"{prefix}{what} has no field {quoted(name)}", did_you_mean(name, known))
    missing = [name for name, field in known.items() if field.default is REQUIRED and name not in data]
    if missing:
        raise error(f"{prefix}{what} lacks {', '.join(missing)}")
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
    """Typed access to a mapping read from ``source``; it remembers every name that was read, in ``asked``.

    All names begin with ``prefix``, which callers leave out. A missing or null name has its default. A value that does
    not fit raises ``error`` with source, name and value, and with ``hint``.
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
        self.parts: dict[str, tuple[Fields, Any]] = {}  # nested objects with tables of their own, and those

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
        """The meaning of the word in a field. Raises the error, with the word, if it is unknown."""
        return self.meaning(name, self.text(name, default), meanings)

    def meaning(self, name: str, word: str, meanings: Mapping[str, Any]) -> Any:
        """The meaning of a word that was read from the field ``name``."""
        if word not in meanings:
            raise self.fault(f"{name} {quoted(word)} is not implemented", did_you_mean(word, meanings))
        return meanings[word]

    def array(self, name: str, of: type, default: Any = REQUIRED, count: int | None = None) -> Any:
        """An array of entries of one type, with ``count`` entries if given."""
        return self.get(Field(name, list, default, of=of, count=count))

    def index(self, name: str, count: int) -> int | None:
        """A number from 0 to ``count`` − 1, such as a token id, or None."""
        number: int | None = self.whole(name, None, least=0, most=count - 1)
        return number

    def object(self, name: str) -> "Fields | None":
        """A nested object, or None."""
        value = self.get(Field(name, dict, None))
        return None if value is None else Fields(value, self.source, self.error, self.hint)

    def require(self, name: str, only: Collection[Any]) -> None:
        """Raise the error for any value outside ``only``: other values change the numbers and are not implemented."""
        name = f"{self.prefix}{name}"
        self.asked.add(name)
        value = self.data.get(name)
        if value is not None and value not in only:
            raise self.fault(f"{name} {shown(value)} is not implemented")

    def unknown(self, harmless: Collection[str], endings: tuple[str, ...] = ()) -> Iterator[str]:
        """Yield the names that were not read, are not ``harmless`` and have none of the ``endings``."""
        for name in self.data:
            bare_name = name.removeprefix(self.prefix)
            is_known = name in self.asked or bare_name in harmless or (endings and bare_name.endswith(endings))
            if name.startswith(self.prefix) and not is_known:
                yield name

    def refuse_unknown(self, harmless: Collection[str], endings: tuple[str, ...] = ()) -> None:
        """Raise the error for the first of the ``unknown`` names."""
        for name in self.unknown(harmless, endings):
            message = f"the key {quoted(name)} is not known, and could change the numbers"
            raise self.fault(message, "a newer tinytf may know it")
