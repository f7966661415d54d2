"""Write docs/schemas, what the JSON of each kind of report looks like: ``python samples/make_schemas.py``

They are read from the code that makes the JSON, ``fields`` and ``to_dict``, and the annotations that it meets
(``read_code.py``); no report has to be printed, so that whatever a report can say is in its schema.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from read_builtins import SPECIAL, always
from read_code import Reader
from read_hints import is_of_library, kinds_of
from read_values import ANYTHING, Code, Either, Fixed, Items, Known, Listed, Of, Record, either, options

import tinytf
import tinytf_cli
from tinytf.config import FIELDS, ModelConfig
from tinytf.fields import Field
from tinytf.report import Data, Described, Report, plain, text_data
from tinytf.text_model import TextModel
from tinytf_cli.output import Output
from tinytf_cli.repl.state import Spec
from tinytf_cli.repl.verbs import Answer, answer
from tinytf_cli.text_options import TextOptions, TraceOptions

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
NUMBER = {"type": ["number", "string", "null"], "pattern": "^(NaN|Infinity)$"}
"""A float: of those that JSON lacks, NaN and ∞ are strings, and −∞ is null. A pattern is asked of strings alone."""
_WORDS = ("shown", "at", "after")


# What plain makes of a value


def _plain(reader: Reader, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    return plained(reader, arguments[0])


def plained(reader: Reader, value: Any) -> Any:
    if isinstance(value, Either):
        return either([plained(reader, option) for option in value.options])
    if isinstance(value, Items):
        return Items(plained(reader, value.of))
    if isinstance(value, Fixed):
        return Fixed(tuple(plained(reader, entry) for entry in value.entries))
    if isinstance(value, Record):
        members = {name: (plained(reader, member), always) for name, (member, always) in value.members.items()}
        return Record(members, None if value.rest is None else plained(reader, value.rest), value.key)
    if isinstance(value, Known):
        if isinstance(value.value, Mapping):
            return Record({name: (plained(reader, Known(each)), True) for name, each in value.value.items()})
        return plained(reader, Of(type(value.value))) if is_of_library(type(value.value)) else value
    if not isinstance(value, Of) or not isinstance(value.kind, type):
        return value
    if issubclass(value.kind, torch.Tensor | np.ndarray):
        return Listed()
    if not is_of_library(value.kind):
        return value
    if value.kind is Described:
        return value
    made = []
    if value in reader.reading:
        return ANYTHING
    reader.reading.append(value)
    for kind in kinds_of(value.kind):
        if inspect.isabstract(kind):
            continue
        if hasattr(kind, "to_dict"):
            made.append(reader.call(reader.member(Of(kind), "to_dict")))
        elif dataclasses.is_dataclass(kind):
            members = {
                each.name: (plained(reader, reader.member(Of(kind), each.name)), True)
                for each in dataclasses.fields(kind)
            }
            made.append(Record(members))
        elif issubclass(kind, tuple):
            made.append(Fixed(tuple(plained(reader, reader.member(Of(kind), name)) for name in kind._fields)))  # type: ignore[attr-defined]
        elif issubclass(kind, str):
            made.append(Of(str))
    reader.reading.pop()
    return either(made) if made else value


def _data(reader: Reader, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """``Data.to_dict``."""
    made = []
    for owner in options(arguments[0]):
        names = [each.name for each in dataclasses.fields(owner.kind) if each.name not in owner.kind.LESS]
        made.append(
            Record({name: (plained(reader, reader.member(owner, name)), True) for name in (*names, *owner.kind.ALSO)})
        )
    return either(made)


SPECIAL |= {
    plain: _plain, Data.to_dict: _data, ModelConfig.to_dict: always(Of(ModelConfig)),
    Described.to_dict: always(Of(Described)), Report.to_dict: lambda reader, arguments, keywords: arguments[0],
}  # fmt: skip


# Schemas


UNREADABLE = {"$comment": "unreadable"}


def schema(value: Any) -> Any:
    """The JSON Schema of a value."""
    if isinstance(value, Either):
        return any_of([schema(option) for option in value.options])
    if isinstance(value, Items):
        return {"type": "array", "items": schema(value.of)}
    if isinstance(value, Fixed):
        return {
            "type": "array",
            **({"items": any_of([schema(entry) for entry in value.entries])} if value.entries else {}),
        }
    if isinstance(value, Listed):
        return {"$ref": "#/$defs/numbers"}
    if isinstance(value, Record):
        rest: Any = False if value.rest is None else schema(value.rest)
        return {
            "type": "object",
            **(
                {"properties": {name: schema(member) for name, (member, _) in value.members.items()}}
                if value.members
                else {}
            ),
            **(
                {"required": required}
                if (required := sorted(n for n, (_, always) in value.members.items() if always))
                else {}
            ),
            "additionalProperties": rest,
        }
    if isinstance(value, Known):
        return of_known(value.value)
    return of_kind(value.kind) if isinstance(value, Of) else UNREADABLE


def of_known(value: Any) -> Any:
    if isinstance(value, Mapping):
        return schema(Record({str(name): (Known(each), True) for name, each in value.items()}))
    if isinstance(value, tuple | list):
        return schema(Fixed(tuple(Known(each) for each in value)))
    return of_kind(type(value))


_TYPES: dict[type, Any] = {
    bool: {"type": "boolean"}, int: {"type": "integer"}, float: NUMBER, str: {"type": "string"},
    type(None): {"type": "null"}, Fraction: {"type": "string"},
}  # fmt: skip


def of_kind(kind: Any) -> Any:
    if kind is ModelConfig:
        return {"$ref": "shared/config.json"}
    if kind is Described or (isinstance(kind, type) and issubclass(kind, TextModel)):
        return {"$ref": "shared/model.json"}
    if isinstance(kind, type) and issubclass(kind, Report):
        return any_of([{"$ref": f"{each.KIND}.json"} for each in reports(kind)])
    if kind in _TYPES:
        return _TYPES[kind]
    if isinstance(kind, type) and issubclass(kind, PurePath | str):
        return {"type": "string"}
    if isinstance(kind, type) and issubclass(kind, torch.Tensor | np.ndarray):
        return {"$ref": "#/$defs/numbers"}
    if isinstance(kind, type) and issubclass(kind, np.generic):
        return NUMBER
    if isinstance(kind, type) and is_of_library(kind):
        found = plained(Reader(), Of(kind))
        return UNREADABLE if found == Of(kind) else schema(found)
    return {} if kind is Any else UNREADABLE


def any_of(schemas: list[Any]) -> Any:
    """A schema that takes what any of some takes: types beside each other where they say no more."""
    each = list({json.dumps(one, sort_keys=True): one for one in schemas}.values())
    if {} in each or UNREADABLE in each or not each:
        return {} if {} in each else UNREADABLE
    simple = [one for one in each if one.keys() <= {"type", "pattern"}]
    other = [one for one in each if one not in simple]
    if simple:
        types = list(
            dict.fromkeys(t for one in simple for t in ([one["type"]] if isinstance(one["type"], str) else one["type"]))
        )
        if "number" in types and "integer" in types:
            types.remove("integer")
        has_any_text = any(
            one["type"] == "string" or ("string" in one["type"] and "pattern" not in one) for one in simple
        )
        pattern = {} if has_any_text or "string" not in types else {"pattern": NUMBER["pattern"]}
        simple = [{"type": types[0] if len(types) == 1 else types, **pattern}]
    each = [*simple, *other]
    return each[0] if len(each) == 1 else {"anyOf": each}


def of_field(field: Field) -> Any:
    """The schema of a setting."""
    of = {list: {"type": "array"}, dict: {"type": "object"}, **_TYPES}
    made = dict(of[field.kind])
    if field.of is not None and field.kind is list:
        made["items"] = of[field.of]
    if field.limits.choices and field.kind is str:
        made = {"enum": [*field.limits.choices, *([None] if field.optional else [])]}
    return any_of([made, {"type": "null"}]) if field.optional and "enum" not in made else made


def numbers(depth: int = 6) -> Any:
    """Nested lists of numbers, or words."""
    of = {"type": ["array", "number", "string", "boolean", "null"]}
    return {**of, "items": numbers(depth - 1)} if depth else of


def with_words(made: Any, *, in_list: bool = False) -> Any:
    """A schema with the member ``shown`` that ``Report.with_tokens`` adds to records with a position of the text."""
    if isinstance(made, list):
        return [with_words(each, in_list=in_list) for each in made]
    if not isinstance(made, dict):
        return made
    made = {
        name: {key: with_words(each) for key, each in part.items()}
        if name == "properties"
        else with_words(part, in_list=name == "items" or (name == "anyOf" and in_list))
        for name, part in made.items()
    }
    members = made.get("properties", {})
    if in_list and {"position", "query"} & members.keys() and not {*_WORDS} & {*made.get("required", ())}:
        made["properties"] = {"shown": {"type": "string"}, **members}
    return made


# Reports


def modules() -> Iterator[ModuleType]:
    for package in (tinytf, tinytf_cli):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)


def reports(base: type[Report] = Report) -> Iterator[type[Report]]:
    """The kinds of reports that are or inherit from one."""
    if "KIND" in vars(base) and is_of_library(base):
        yield base
    for kind in base.__subclasses__():
        yield from reports(kind)


ABOUT = (
    ("sentence", {"type": "string"}),
    ("model", {"$ref": "shared/model.json"}), ("text", {"type": "string"}), ("added", {"type": "string"}),
    ("tokens", {"$ref": "shared/tokens.json"}),
)  # fmt: skip


def of_report(cls: type[Report]) -> Any:
    """The schema of a kind of report."""
    reader = Reader()
    reader.bind_variables(cls)
    made = reader.result(cls.fields, Of(cls))
    (record,) = (
        [reader.record(option) for option in options(made)] if not isinstance(made, Either) else [merged(reader, made)]
    )
    return whole(cls.KIND, with_words(schema(record)), dict(ABOUT))


def merged(reader: Reader, value: Any) -> Record:
    made = Record()
    reader.spread(made, value)
    return made


def shared() -> dict[str, Any]:
    """The schemas that others refer to: configurations, models and tokens."""
    reader = Reader()
    config = {name: of_field(field) for name, field in FIELDS.items()}
    required, config = [*config], {**config, "encoder": {"$ref": "config.json"}}
    encoding = reader.result(text_data)
    return {
        "shared/config": {"type": "object", "properties": config, "required": required, "additionalProperties": False},
        "shared/model": json.loads(json.dumps(schema(plained(reader, Of(TextModel)))).replace('"shared/', '"')),
        "shared/tokens": schema(encoding.members["tokens"][0]),
    }


def of_calls(loaded: list[ModuleType]) -> Iterator[tuple[str, Any]]:
    """The schemas of the answers of verbs, and of several reports under their plural, from the calls that make them."""
    found: list[tuple[str, Any]] = []

    def several(plural: Any, value: Any) -> None:
        items = schema(value)
        items = {"type": "object", "required": ["schema_version", "kind"]} if items == UNREADABLE else items
        for name in (option.value for option in options(plural) if isinstance(option, Known)):
            found.append((name, {"properties": {name: {"type": "array", "items": items}}, "required": [name]}))

    def seen(function: Any, arguments: list[Any], keywords: dict[str, Any]) -> None:
        given = dict(zip(_parameters(function), arguments, strict=False)) | keywords if function in _ANSWERING else {}
        if function in (answer, Answer) and isinstance(given.get("kind"), Known):
            body = schema(reader.record(given["data"]))
            found.append((given["kind"].value, {**body, "properties": body.get("properties", {})}))
        elif function is TextOptions.answer:
            several(given["plural"], reader.entry(reader.call(given["answer"], [Items(Of(str))])))
        elif function is TraceOptions.show:
            several(given["plural"], reader.call(given["question"], [ANYTHING]))
        elif function is Output.draw_all:
            several(given["kind"], reader.entry(given["reports"]))
        elif function is Output.show_all:
            several(given["kind"], ANYTHING)

    reader = Reader(seen)
    for module in loaded:
        if module.__name__.startswith(("tinytf_cli.commands.", "tinytf_cli.repl.")):
            for node in ast.walk(ast.parse(inspect.getsource(module))):
                if isinstance(node, ast.FunctionDef) and re.search(
                    r"[aA]nswer\(|draw_all\(|show_all\(|\.show\(", ast.unparse(node)
                ):
                    reader.body(Code(node, globals=vars(module)), [], {}, is_called=False)
    yield from found


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


_ANSWERING = (answer, Answer, TextOptions.answer, TraceOptions.show, Output.draw_all, Output.show_all)
CHANGES = Reader().record(Reader().member(Of(Spec), "changes_data"))
"""What an answer about a changed model says beside."""


def made() -> dict[str, Any]:
    """Every schema by the name of its file."""
    loaded = list(modules())
    found: dict[str, list[Any]] = {}
    for cls in reports():
        if cls.fields is not Report.fields:
            found.setdefault(cls.KIND, []).append(of_report(cls))
    for kind, body in of_calls(loaded):
        found.setdefault(kind, []).append(whole(kind, body))
    schemas = {kind: {"$schema": DRAFT, "title": kind, **any_of(each)} for kind, each in found.items()}
    return {name: with_numbers(each) for name, each in {**shared(), **schemas}.items()}


def whole(kind: str, body: Any, about: Mapping[str, Any] | None = None) -> Any:
    """The schema of an answer with what all say beside its own members."""
    head = {"schema_version": {"type": "integer"}, "kind": {"const": kind}}
    changes = schema(CHANGES).get("properties", {})
    return {
        "type": "object", **body, "additionalProperties": body.get("additionalProperties", False),
        "properties": {**head, **changes, **(about or {}), **body["properties"]},
        "required": [*head, *body.get("required", [])],
    }  # fmt: skip


def with_numbers(one: Any) -> Any:
    return {**one, "$defs": {"numbers": numbers()}} if "#/$defs/numbers" in json.dumps(one) else one


def unreadable(one: Any, path: str) -> Iterator[str]:
    """The places of a schema whose type could not be read."""
    if one == UNREADABLE:
        yield path
    for name, part in one.items() if isinstance(one, dict) else ():
        inner = part.items() if name == "properties" else [("", each) for each in (part if name == "anyOf" else [part])]
        for key, each in inner:
            yield from unreadable(each, f"{path}.{key}" if key else path)


def files() -> dict[Path, str]:
    """Every schema as the text of its file. Raises TypeError where the code does not say what a member is."""
    schemas = made()
    if places := [place for name, one in schemas.items() for place in unreadable(one, name)]:
        raise TypeError(f"annotate what the code makes here, so that its schema can be read: {', '.join(places)}")
    return {
        FOLDER / f"{name}.json": json.dumps(one, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        for name, one in schemas.items()
    }


if __name__ == "__main__":
    for file, text in files().items():
        file.write_text(text, "utf-8")
