"""Choose the number of threads for a step: on a shared machine, several can be far slower than one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_ROUNDS, _LONG = 3, 1.0
"""Measurements of each number of threads; where a step takes more than these seconds, one is enough."""
_BETTER = 0.9
"""One thread is chosen if its step takes less than this share of the time with all threads."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use ``count`` threads in this context; 0 leaves their number as it is."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count or previous)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def best_threads(step: Callable[[], object]) -> tuple[int, str]:
    """One thread or all of torch's, whichever runs ``step`` faster, and a sentence with the times.

    They take turns, after an uncounted step of each; the random state stays as it was.
    """
    several, random = torch.get_num_threads(), torch.get_rng_state()
    seconds: dict[int, list[float]] = {several: [], 1: []}
    rounds = -1
    while rounds < _ROUNDS:
        for count, times in seconds.items():
            with threads(count):
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
        rounds = _ROUNDS if max(map(max, seconds.values())) > _LONG else rounds + 1
    torch.set_rng_state(random)
    fastest = {count: min(times[1:] or times) for count, times in seconds.items()}
    best = 1 if fastest[1] < _BETTER * fastest[several] else several
    summary = ", ".join(f"{count} {1000 * fastest[count]:,.0f} ms" for count in sorted(fastest))
    return best, f"a step takes, by threads: {summary}; the run takes {best}"
