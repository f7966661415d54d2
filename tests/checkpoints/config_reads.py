"""Which keys of a configuration transformers reads: its source, walked from a model's class to all that it uses."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import transformers

_SHARED = ("masking_utils", "modeling_rope_utils", "modeling_layers")
"""Modules of transformers that read configurations for all families."""


class Definitions(NamedTuple):
    """The classes and functions of a module by name, and the module of those that it imports from the shared ones."""

    own: dict[str, ast.ClassDef | ast.FunctionDef]
    shared: dict[str, str]


@cache
def definitions(module: str) -> Definitions:
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    own = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module in _SHARED]
    return Definitions(own, {alias.name: f"transformers.{node.module}" for node in imports for alias in node.names})


def _parts_of(node: ast.ClassDef | ast.FunctionDef) -> Iterator[ast.AST]:
    """Everything in a class or function but the method that draws weights, which names all classes of the module."""
    kept = [part for part in node.body if getattr(part, "name", "") != "_init_weights"]
    for part in (*kept, *(node.bases if isinstance(node, ast.ClassDef) else ())):
        yield from ast.walk(part)


def _reached(module: str, name: str, seen: set[tuple[str, str]]) -> Iterator[ast.AST]:
    """Everything in the class or function ``name``, and in all that its code names."""
    if (module, name) in seen:
        return
    seen.add((module, name))
    own, shared = definitions(module)
    if name in shared:
        yield from _reached(shared[name], name, seen)
    for part in _parts_of(own[name]) if name in own else ():
        yield part
        if isinstance(part, ast.Name):
            yield from _reached(module, part.id, seen)


def _is_config(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "self.decoder.config":  # of a stack with its own keys
        return False
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("config", "text_config")


def _key_read(node: ast.AST) -> str:
    """The key of ``config.X``, ``self.config.X``, ``getattr(config, "X")`` or ``hasattr(config, "X")``."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _is_config(node.value):
        return node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
        given, key = node.args[:2]
        return key.value if _is_config(given) and isinstance(key, ast.Constant) else ""
    return ""


def _taken(config: type[Any]) -> Iterator[str]:
    """Keys that a configuration takes beside its fields: ``kwargs.pop("X")`` and ``kwargs.get("X")``."""
    for node in ast.walk(definitions(config.__module__).own[config.__name__]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("pop", "get"):
            of, key = node.func.value, node.args[0]
            if isinstance(of, ast.Name) and of.id == "kwargs" and isinstance(key, ast.Constant):
                yield key.value


def keys_read(model: str, config: type[Any]) -> set[str]:
    """The keys of a ``config`` that the class ``model`` of transformers, and the configuration itself, read."""
    module = getattr(transformers, model).__module__
    read = {_key_read(node) for node in _reached(module, model, set())} - {""}
    methods = {key for key in read if callable(getattr(config, key, None))}
    made = {key for key in read if isinstance(inspect.getattr_static(config, key, None), property)}
    return (read | {*_taken(config), *config.attribute_map}) - methods - made
