"""How many threads a step takes best: on a machine that others use too, several can be slower than one by far."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_ROUNDS, _LONG = 3, 1.0
"""Measurements of each number, and the seconds of a step from which one is enough."""
_BETTER = 0.9
"""One thread is taken where its step takes less than this share of the others'."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    """A stretch with so many threads; 0 leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def best_threads(step: Callable[[], object]) -> tuple[int, str]:
    """One thread or all that torch has, whichever computes ``step`` faster, and a sentence that says so.

    They take turns, after one step of each that is not counted; the random state stays as it was.
    """
    several, random = torch.get_num_threads(), torch.get_rng_state()
    seconds: dict[int, list[float]] = {several: [], 1: []}
    rounds = -1
    while rounds < _ROUNDS:
        for count, found in seconds.items():
            with threads(count):
                begun = time.perf_counter()
                step()
                found.append(time.perf_counter() - begun)
        rounds = _ROUNDS if max(map(max, seconds.values())) > _LONG else rounds + 1
    torch.set_rng_state(random)
    took = {count: min(found[1:] or found) for count, found in seconds.items()}
    best = 1 if took[1] < _BETTER * took[several] else several
    said = ", ".join(f"{count} {1000 * took[count]:,.0f} ms" for count in sorted(took))
    return best, f"a step takes, by threads: {said}; the run takes {best}"
