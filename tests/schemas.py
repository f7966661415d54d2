"""Hold the JSON of reports against docs/schemas, which ``samples/make_schemas.py`` reads from the reports' code."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.exceptions import best_match
from referencing import Registry
from referencing.jsonschema import DRAFT202012

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"


def hold(data: Mapping[str, Any]) -> None:
    """Hold a report's data against the schema of its kind. Raises AssertionError, with the place, if it differs."""
    plain = json.loads(json.dumps(data, default=str))
    error = best_match(_validator(plain["kind"]).iter_errors(plain))
    place = "" if error is None else f"{plain['kind']}{error.json_path[1:]}"
    assert error is None, f"{place}: {error.message[:300]}"
    parts = plain.get(plain["kind"])
    for part in parts if isinstance(parts, list) else ():  # several reports under their plural
        if isinstance(part, dict) and "schema_version" in part:
            hold(part)


@cache
def _validator(kind: str) -> Any:
    schema = _read(f"{kind}.json")
    jsonschema.Draft202012Validator.check_schema(schema)
    return _Validator(schema, registry=_REGISTRY)


@cache
def _read(file: str) -> Any:
    return json.loads((FOLDER / file).read_text("utf-8"))


def _items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """The keyword ``items``; long lists of plain numbers are told by the types of their entries."""
    if isinstance(instance, list) and isinstance(items, dict) and items.keys() <= {"type", "pattern", "items"}:
        types = items.get("type", ())
        if "number" in types and {*map(type, instance)} <= {int, float}:
            return iter(())
    return jsonschema.Draft202012Validator.VALIDATORS["items"](validator, items, instance, schema)


_Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"items": _items})
_REGISTRY: Registry[Any] = Registry(retrieve=lambda file: DRAFT202012.create_resource(_read(file)))
