"""A short ``repr`` for reports and their parts, to read at a Python prompt."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

_MAX_LENGTH = 300
"""The most characters of a ``repr``."""
_TEXT = 40
_LISTED = 4
"""Lists of up to this many numbers or words are written out; longer ones are given by their length."""


def brief(value: Any) -> str:
    """A value in a few words: a tensor by its shape, a list by its length, an object by its class."""
    if isinstance(value, str):
        return repr(value if len(value) <= _TEXT else value[: _TEXT - 1] + "…")
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None or isinstance(value, int):
        return repr(value)
    if isinstance(name := getattr(value, "name", None), str):
        return f"{type(value).__name__} {brief(name)}"
    if hasattr(value, "shape"):
        return f"{type(value).__name__} {tuple(value.shape)}"
    if isinstance(value, tuple | list) and value:
        simple = len(value) <= _LISTED and all(isinstance(item, str | int | float) for item in value)
        return f"({', '.join(map(brief, value))})" if simple else f"{len(value):,} × {type(value[0]).__name__}"
    if isinstance(value, Mapping):
        return f"{len(value):,} of {type(value).__name__}"
    return type(value).__name__


def shown(thing: Any, members: Mapping[str, Any]) -> str:
    """The ``repr`` of an object with these members, leaving out those that are None or empty."""
    members_shown = (f"{name}={brief(value)}" for name, value in members.items() if not _is_empty(value))
    text = f"{type(thing).__name__}({', '.join(members_shown)})"
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 2] + "…)"


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | tuple | list | Mapping) and not value)


class ShortRepr:
    """A dataclass with a short ``repr``: the properties named in ``REPR_FIRST``, then its fields."""

    REPR_FIRST: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]  # in the class body, so that a dataclass keeps it

    def __repr__(self) -> str:
        field_names = (field.name for field in fields(self) if field.repr)  # type: ignore[arg-type]
        return shown(
            self, self.repr_members() | {name: getattr(self, name) for name in (*self.REPR_FIRST, *field_names)}
        )

    def repr_members(self) -> dict[str, Any]:
        """Members that come before all others."""
        return {}
