"""What built-in functions give, of which there is no code to read."""

import dataclasses
import itertools
import typing
from collections.abc import Callable
from typing import Any

from read_hints import kinds_of
from read_values import (
    ANYTHING,
    NONE,
    Either,
    Fixed,
    Items,
    Known,
    Of,
    Record,
    Starred,
    either,
    options,
    put,
    typed,
    without_none,
)  # fmt: skip


def _fields_record(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """``vars`` and ``asdict`` of a dataclass."""
    made = []
    for option in options(without_none(arguments[0])):
        kinds = kinds_of(option.kind) if isinstance(option, Of) and isinstance(option.kind, type) else ()
        for kind in kinds:
            if dataclasses.is_dataclass(kind):
                made.append(Record({f.name: (reader.member(Of(kind), f.name), True) for f in dataclasses.fields(kind)}))
    return either(made) if made else Record(rest=ANYTHING)


def _getattr(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    names = [name.value for name in options(arguments[1]) if isinstance(name, Known) and isinstance(name.value, str)]
    found = [reader.member(arguments[0], name) for name in names]
    return either([*found, *arguments[2:]]) if found else ANYTHING


def _zip(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    listed = [reader.entries(argument) for argument in arguments]
    count = min((len(each) for each in listed if each is not None), default=None)
    if count is None or any(isinstance(argument, Starred) for argument in arguments):
        return Items(
            Fixed(tuple(reader.entry(getattr(a, "of", a) if isinstance(a, Starred) else a) for a in arguments))
        )
    rows = [
        [each[i] if each is not None else reader.entry(a) for each, a in zip(listed, arguments, strict=True)]
        for i in range(count)
    ]
    return Fixed(tuple(Fixed(tuple(row)) for row in rows))


def _enumerate(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    entries = reader.entries(arguments[0])
    if entries is not None:
        return Fixed(tuple(Fixed((Of(int), each)) for each in entries))
    return Items(Fixed((Of(int), reader.entry(arguments[0]))))


def _listed(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    if not arguments:
        return Fixed(())
    entries = reader.entries(arguments[0])
    return Fixed(entries) if entries is not None else Items(reader.entry(arguments[0]))


def _any_order(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    return Items(reader.entry(arguments[0])) if arguments else Fixed(())


def _dict(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    made = Record({name: (value, True) for name, value in keywords.items()})
    if not arguments:
        return made
    pairs = reader.entries(arguments[0]) if not isinstance(arguments[0], Record | Either) else None
    if isinstance(arguments[0], Record | Either | Known):
        reader.spread(made, arguments[0])
        return made
    if pairs is not None:
        for pair in pairs:
            put(made, *reader.unpack(pair, 2))
        return made
    key, value = reader.unpack(reader.entry(arguments[0]), 2)
    return Record(rest=value, key=key)


def _map(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    function, *iterated = arguments
    return Items(reader.call(function, [reader.entry(each) for each in iterated]))


def _extreme(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    values = [reader.entry(arguments[0])] if len(arguments) == 1 else arguments
    return either([*values, *([keywords["default"]] if "default" in keywords else [])])


def _next(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    return either([reader.entry(arguments[0]), *arguments[1:]])


def _same(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    return arguments[0]


def always(value: Any) -> Callable[..., Any]:
    return lambda reader, arguments, keywords: value


def _abs(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    value = arguments[0]
    return Of(type(value.value)) if isinstance(value, Known) else value


def _round(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    return Of(int) if len(arguments) == 1 else Of(float)


def _sum(reader: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    found = reader.entry(arguments[0])
    return Of(int) if typed(found) in (int, bool) else found if typed(found) not in (int, bool, object) else Of(float)


SPECIAL: dict[Any, Callable[[Any, list[Any], dict[str, Any]], Any]] = {
    vars: _fields_record, dataclasses.asdict: _fields_record, getattr: _getattr, zip: _zip, enumerate: _enumerate,
    list: _listed, tuple: _listed, sorted: _any_order, reversed: _any_order, set: _any_order, iter: _any_order,
    frozenset: _any_order, dict: _dict, map: _map, max: _extreme, min: _extreme, next: _next, abs: _abs, sum: _sum,
    round: _round, dataclasses.replace: _same, range: always(Items(Of(int))),
    **{kind: always(Of(kind)) for kind in (str, int, float, bool)},
    len: always(Of(int)), repr: always(Of(str)), any: always(Of(bool)), all: always(Of(bool)),
    isinstance: always(Of(bool)), hasattr: always(Of(bool)), typing.cast: lambda r, a, k: a[1],
    itertools.islice: _any_order, print: always(NONE),
    dict.fromkeys: lambda r, a, k: Record(rest=a[1] if len(a) > 1 else NONE, key=r.entry(a[0])),
}  # fmt: skip
"""What some functions give that have no code or no annotations to read."""
