"""Things that a view shows as they come, and keeps, so that every form of a result can read them."""

import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tinytf_cli.interrupt import current

Item = TypeVar("Item")


class Coming(Generic[Item]):
    """Those that are there, then those that come; Ctrl-C ends them, and what was made stays.

    ``times`` are the seconds (of time.perf_counter) at which each came.
    """

    def __init__(self, start: Callable[[], Iterator[Item]]) -> None:
        self.there: list[Item] = []
        self.times: list[float] = []
        self.interrupted = False
        self._start = start
        self._over = False

    def __iter__(self) -> Iterator[Item]:
        if self._over:
            yield from self.there
            return
        items = self._start()
        while not self._over:
            try:
                with current().let_in():
                    item = next(items, None)
            except KeyboardInterrupt:
                self.interrupted, item = True, None
            self._over = item is None
            if item is not None:
                self.there.append(item)
                self.times.append(time.perf_counter())
                yield item

    def all(self) -> list[Item]:
        """Wait for the last one."""
        for _ in self:
            pass
        return self.there
