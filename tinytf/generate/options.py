"""The settings of a generation: declared once as a frozen object, passed as keywords."""

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from tinytf.generate.decoder import PLAIN, Kind

P = ParamSpec("P")
First = TypeVar("First")
Second = TypeVar("Second")
OptionsT = TypeVar("OptionsT")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings that every generation has.

    Generation ends at a token of ``ends``, after ``max_tokens``, or where the context is full; ``on_overflow`` "error"
    raises GenerationError there instead. ``use_cache`` keeps keys and values. The prompt is computed ``chunk`` tokens
    at a time (0: all at once). ``kind`` selects compiled kernels or int8 weights.
    """

    max_tokens: int = 50
    ends: Collection[int] = ()
    on_overflow: str = "stop"
    use_cache: bool = True
    chunk: int = 0
    kind: Kind = PLAIN


def by_keyword(
    options: Callable[P, OptionsT],
) -> Callable[[Callable[[First, Second, OptionsT], Result]], Callable[Concatenate[First, Second, P], Result]]:
    """Let a function of two arguments and an options object take the options as keywords."""

    def decorate(
        function: Callable[[First, Second, OptionsT], Result],
    ) -> Callable[Concatenate[First, Second, P], Result]:
        @functools.wraps(function)
        def wrapped(first: First, second: Second, /, *args: P.args, **kwargs: P.kwargs) -> Result:
            return function(first, second, options(*args, **kwargs))

        *leading, _ = inspect.signature(function).parameters.values()
        described: Any = wrapped
        described.__signature__ = inspect.Signature([*leading, *inspect.signature(options).parameters.values()])
        return wrapped

    return decorate
