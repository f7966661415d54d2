"""The settings of a generation: declared once in a frozen object, given as keywords."""

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from tinytf.generate.decoder import PLAIN, Kind

P = ParamSpec("P")
First = TypeVar("First")
Second = TypeVar("Second")
Made = TypeVar("Made")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings that every generation has.

    It ends at a token of ``ends``, after ``max_tokens``, or where the context is full: ``on_overflow`` "error" raises
    GenerationError then. ``use_cache`` keeps keys and values. The prompt is computed ``chunk`` tokens at a time (0: all
    at once). ``kind`` is how to compute: compiled, or with weights in int8.
    """

    max_tokens: int = 50
    ends: Collection[int] = ()
    on_overflow: str = "stop"
    use_cache: bool = True
    chunk: int = 0
    kind: Kind = PLAIN


def by_keyword(
    options: Callable[P, Made],
) -> Callable[[Callable[[First, Second, Made], Result]], Callable[Concatenate[First, Second, P], Result]]:
    """Let a function of two arguments and an options object take the fields of that object as keywords."""

    def decorate(function: Callable[[First, Second, Made], Result]) -> Callable[Concatenate[First, Second, P], Result]:
        @functools.wraps(function)
        def wrapped(first: First, second: Second, /, *args: P.args, **kwargs: P.kwargs) -> Result:
            return function(first, second, options(*args, **kwargs))

        *leading, _ = inspect.signature(function).parameters.values()
        told: Any = wrapped
        told.__signature__ = inspect.Signature([*leading, *inspect.signature(options).parameters.values()])
        return wrapped

    return decorate
