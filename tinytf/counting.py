"""How far a long loop is, told to whoever shows it, without a callback handed down to the loop; free of torch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Listener = Callable[[str, int, int], None]
"""Called with what is counted, such as "steps checked", the number done and the total."""

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def told_to(listener: Listener | None) -> Iterator[None]:
    """Within this context every counted loop tells ``listener`` how far it is; None silences them."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def tell(unit: str, done: int, total: int) -> None:
    """Tell the listener, if there is one, how far the work is."""
    if (listener := _LISTENER.get()) is not None:
        listener(unit, done, total)


def counted(unit: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items, and tell before each how many are done. Loops inside the loop are not told."""
    listener = _LISTENER.get()
    try:
        for done, item in enumerate(items):
            if listener is not None:
                listener(unit, done, len(items))
                _LISTENER.set(None)
            yield item
    finally:
        _LISTENER.set(listener)
