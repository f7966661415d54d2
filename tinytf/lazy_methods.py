"""Methods of a class that are functions of other files, each imported when it is first called."""

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class LazyMethod:
    """A function of a module, as a method of the class whose attribute it is."""

    def __init__(self, module: str, name: str, asked: Wrapper) -> None:
        self._module, self._name, self._asked = module, name, asked
        self._plain: Any = None
        self._wrapped: Any = None

    @property
    def _function(self) -> Any:
        plain = getattr(import_module(self._module), self._name)
        if plain is not self._plain:  # the first call, or the function was replaced
            self._plain, self._wrapped = plain, self._asked(plain)
        return self._wrapped

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._function if instance is None else self._function.__get__(instance, owner)


@contextmanager
def imported_when_called(importer: str, asked: Wrapper) -> Iterator[None]:
    """Inside, ``from … import name`` in the module ``importer`` gives LazyMethods, without importing anything.

    A method is what ``asked`` makes of its function. To whatever reads the source these are plain imports, so an editor
    and a type checker see plain methods.
    """
    import_now = builtins.__import__

    def import_lazily(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if globals is None or globals.get("__name__") != importer or not fromlist:
            return import_now(name, globals, locals, fromlist, level)
        return SimpleNamespace(**{each: LazyMethod(name, each, asked) for each in fromlist})

    builtins.__import__ = import_lazily
    try:
        yield
    finally:
        builtins.__import__ = import_now
