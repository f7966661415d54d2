"""Import the modules of a package on first use."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def modules(package: str) -> Callable[[str], ModuleType]:
    """The ``__getattr__`` of a package whose modules are its attributes."""

    def import_attribute(name: str) -> ModuleType:
        if find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return import_attribute
