"""Items that a view shows while they are made, and keeps for the other forms of the result."""

import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tinytf_cli.interrupt import current

Item = TypeVar("Item")


class Streamed(Generic[Item]):
    """Iterates over the items as they are made; again, over the kept ones. Ctrl-C ends them, and keeps what there is.

    ``there`` are the items so far, ``times`` the seconds (of time.perf_counter) at which each was made.
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
        """Wait for the last item."""
        for _ in self:
            pass
        return self.there
