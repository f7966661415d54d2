"""The schemas of ``docs/schemas``: what the JSON of each kind of report looks like, learned from real reports.

``TINYTF_WRITE_SCHEMAS=1`` makes ``tests/test_docs.py``, ``tests/cli/test_every_output.py`` and
``tests/python/test_reports.py`` (with ``-n 0``) widen them by what they see; otherwise they hold reports against them.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from genson import SchemaBuilder
from referencing import Registry
from referencing.jsonschema import DRAFT202012

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"
MODEL = "shared/model.json"
"""What the reports say of a model, once for all of them."""
_MEMBER = re.compile(r"[a-z][a-z0-9_]*")
"""A member that a report declares; any other name is a key of a mapping: an address, a token, a path, a class."""
_OPEN = ("labels",)
"""Members whose objects have keys of the user's, such as the columns of a table."""
_OF_OBJECTS = ("properties", "patternProperties", "required")
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def hold(data: Mapping[str, Any]) -> None:
    """Hold a report's data against the schema of its kind, or with the variable widen that. Raises AssertionError."""
    plain = json.loads(json.dumps(data, default=str))
    file = FOLDER / f"{plain['kind']}.json"
    if not os.environ.get("TINYTF_WRITE_SCHEMAS"):
        assert file.is_file(), f"{file.name} is missing; see tests/schemas.py"
        _validator(file).validate(plain)
        return
    builder = SchemaBuilder(schema_uri=_DRAFT)
    if file.is_file():
        builder.add_schema(_loose(_with_models(_read(file), lambda _: _read(FOLDER / MODEL))))
    builder.add_object(plain)
    _write(file, {**_with_models(_strict(builder.to_schema()), _shared), "title": plain["kind"]})


@cache
def _validator(file: Path) -> jsonschema.Draft202012Validator:
    schema = _read(file)
    jsonschema.Draft202012Validator.check_schema(schema)
    shared = DRAFT202012.create_resource(_read(FOLDER / MODEL))
    return jsonschema.Draft202012Validator(schema, registry=Registry().with_resource(MODEL, shared))


@cache
def _read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


def _write(file: Path, schema: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n", "utf-8")
    _read.cache_clear()


def _with_models(schema: Any, put: Callable[[Any], Any]) -> Any:
    """A schema with what ``put`` makes of that of each model."""
    if isinstance(schema, list):
        return [_with_models(part, put) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: put(part)
        if name == "model" and ("config" in part.get("properties", {}) or "$ref" in part)
        else _with_models(part, put)
        for name, part in schema.items()
    }


def _shared(model: Any) -> Any:
    """Widen the schema of models by one, and refer to it."""
    builder = SchemaBuilder(schema_uri=None)
    for schema in ([_read(FOLDER / MODEL)] if (FOLDER / MODEL).is_file() else []) + [model]:
        builder.add_schema(_loose(schema))
    _write(FOLDER / MODEL, _strict(builder.to_schema()))
    return {"$ref": MODEL}


def _loose(schema: Any) -> Any:
    """A schema without what genson does not know, so that it can be widened."""
    if isinstance(schema, list):
        return [_loose(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        name: {member: _loose(each) for member, each in part.items()} if name == "properties" else _loose(part)
        for name, part in schema.items()
        if name not in ("additionalProperties", "title")
    }
    values = schema.get("additionalProperties")
    return {**made, "patternProperties": {".*": _loose(values)}} if isinstance(values, dict) else made


def _strict(schema: Any) -> Any:
    """A schema whose objects have declared members only, or are mappings of one type of value."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _strict(part) for name, part in schema.items() if name not in ("properties", "patternProperties")}
    members = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    if schema.get("type") != "object" and not members and not patterns:
        return made
    if patterns or any(not _MEMBER.fullmatch(name) for name in members):
        return _mapping(schema)
    return {
        **made,
        "properties": {
            name: _mapping(part) if name in _OPEN and part.get("type") == "object" else _strict(part)
            for name, part in members.items()
        },
        "additionalProperties": False,
    }


def _mapping(schema: Any) -> Any:
    """The schema of an object with any keys, whose values are of one type."""
    made = {name: _strict(part) for name, part in schema.items() if name not in _OF_OBJECTS}
    builder = SchemaBuilder(schema_uri=None)
    patterns = schema.get("patternProperties", {})
    for part in (*schema.get("properties", {}).values(), *map(_loose, patterns.values())):
        builder.add_schema(part)
    return {**made, "additionalProperties": _strict(builder.to_schema())}
