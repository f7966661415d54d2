"""Modules of a package that are imported when they are first asked for."""

from collections.abc import Callable, Collection
from importlib import import_module
from types import ModuleType


def modules(package: str, names: Collection[str]) -> Callable[[str], ModuleType]:
    """The ``__getattr__`` of a package with these modules."""

    def found(name: str) -> ModuleType:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return found
