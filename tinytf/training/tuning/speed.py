"""Choose how to compute a step by measuring: the threads, and the kernel of long products.

On a shared machine several threads can be far slower than one; which kernel is faster depends on processor and sizes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tinytf.steps.linear import KERNELS, has_onednn, kernel

_ROUNDS, _LONG = 3, 1.0
"""Measurements of each setting; where a step takes more than these seconds, one is enough."""
_BETTER = 0.95
"""A setting replaces the first one if its step takes less than this share of the time."""


@dataclass(frozen=True)
class Speed:
    """How a step is computed: the number of threads (0: as it is), and one of KERNELS (or ``auto``: as it is)."""

    threads: int = 0
    kernel: str = "auto"

    @contextmanager
    def used(self) -> Iterator[None]:
        """Compute so in this context."""
        previous = torch.get_num_threads()
        torch.set_num_threads(self.threads or previous)
        try:
            with kernel("" if self.kernel == "auto" else self.kernel):
                yield
        finally:
            torch.set_num_threads(previous)

    @property
    def words(self) -> str:
        return f"{self.threads} thread{'s' * (self.threads > 1)}, {self.kernel}"


def candidates(wanted: Speed, dtype: str) -> list[Speed]:
    """The settings to measure, the default first; what ``wanted`` already says is not tried."""
    several = torch.get_num_threads()
    threads = [wanted.threads] if wanted.threads else list(dict.fromkeys([several, 1]))
    is_open = wanted.kernel == "auto" and dtype == "float32" and has_onednn()
    return [Speed(count, name) for count in threads for name in (KERNELS if is_open else [wanted.kernel])]


def fastest(step: Callable[[], object], settings: Sequence[Speed]) -> tuple[Speed, str]:
    """The setting that runs ``step`` fastest, and a sentence with the times.

    It is the first one, unless another is clearly faster. They take turns, after an uncounted step of each; the random
    state stays as it was.
    """
    random = torch.get_rng_state()
    seconds: dict[Speed, list[float]] = {setting: [] for setting in settings}
    rounds = -1
    while rounds < _ROUNDS:
        for setting, times in seconds.items():
            with setting.used():
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
        rounds = _ROUNDS if max(map(max, seconds.values())) > _LONG else rounds + 1
    torch.set_rng_state(random)
    least = {setting: min(times[1:] or times) for setting, times in seconds.items()}
    best = min(least, key=least.__getitem__)
    best = best if least[best] < _BETTER * least[settings[0]] else settings[0]
    times_in_words = "; ".join(f"{setting.words} {1000 * least[setting]:,.0f} ms" for setting in settings)
    return best, f"a step takes: {times_in_words}. The run uses {best.words}"
