"""Annotations of the library, and the classes that inherit from one."""

import ast
import collections.abc
import functools
import inspect
import sys
import types
import typing
from typing import Any, TypeVar

LIBRARY: tuple[str, ...] = ("tinytf",)
"""The modules whose code is read begin with one of these."""


@functools.cache
def _names_for_types(module: str) -> dict[str, Any]:
    """The names that a module imports for its annotations alone."""
    names: dict[str, Any] = {}
    if not module.startswith("tinytf"):
        return names
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for line in node.body:
                try:
                    exec(compile(ast.Module([line], []), module, "exec"), names)
                except ImportError:
                    continue
    return names


def resolved(annotation: Any, module: str) -> Any:
    """An annotation without names in quotes."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        names = {**_names_for_types(module), **vars(sys.modules[module])}
        return typing.get_type_hints(holder, names, {})["it"]
    except (NameError, AttributeError, TypeError, KeyError):  # of another program
        return object


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """The annotation of each field of a class and its bases."""
    return {
        name: resolved(annotation, base.__module__)
        for base in reversed(cls.__mro__)
        if base.__module__ != "builtins"
        for name, annotation in inspect.get_annotations(base).items()
    }


def kinds_of(cls: type) -> tuple[type, ...]:
    """A class and all that inherit from it; without itself where it is abstract."""
    found = [cls]
    for sub in type.__subclasses__(cls):
        found += [each for each in kinds_of(sub) if each not in found]
    return tuple(found)


def is_of_library(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith(LIBRARY)


def is_vague(hint: Any) -> bool:
    """Whether an annotation leaves open what it holds."""
    if hint in (Any, object, dict, list, inspect.Parameter.empty) or isinstance(hint, TypeVar):
        return True
    return any(is_vague(argument) for argument in typing.get_args(hint) if argument is not Ellipsis) and (
        typing.get_origin(hint) is not collections.abc.Callable
    )
