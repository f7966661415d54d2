"""The choice of the next token: pure functions of the logits (V,) of one position.

A warper sets the logits of excluded tokens to −∞. ``warp`` applies the warpers in the order of transformers, so that
the same settings mean the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.errors import UsageError

_HOTTEST = 3.4e38
"""The largest temperature: that of float32."""


@dataclass(frozen=True)
class Sampling:
    """The settings of sampling; ``temperature`` 0 takes the most probable token. The other defaults change nothing.

    ``top_k`` 0 is no limit. Raises UsageError, with the number, for a value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= _HOTTEST:
            raise UsageError(f"a temperature of {self.temperature} is not a number of at least 0", "use 0 for greedy")
        if self.top_k < 0:
            raise UsageError(f"top-k {self.top_k} is below 1", "leave it out for no limit")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p {self.top_p} is outside (0, 1]", "use 1 to disable top-p")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min-p {self.min_p} is outside [0, 1]", "use 0 to disable min-p")
        if not 0.01 <= self.repetition_penalty <= 100:
            raise UsageError(
                f"a repetition penalty of {self.repetition_penalty} is not between 0.01 and 100", "use 1 for no penalty"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def changes(self) -> bool:
        """Whether tokens are drawn from another distribution than the model's own."""
        return self != Sampling(temperature=1.0)


def with_temperature(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature, for a temperature above 0: below 1 sharper, above 1 flatter.

    Where the quotient overflows, the result is the limit: 0 for the largest logits and −∞ for all others.
    """
    divided = logits / float(temperature)
    if math.isfinite(float(divided.max())):
        return divided
    return torch.where(logits == logits.max(), 0.0, -math.inf)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest logits and all that tie with the k-th (Fan et al. 2018)."""
    if k >= len(logits):
        return logits
    return logits.masked_fill(logits < logits.topk(k).values[-1], -math.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most probable tokens with a mass of at least p (Holtzman et al. 2020)."""
    if p >= 1:
        return logits
    ordered, ids = logits.sort(descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    mass_above = probabilities.cumsum(-1) - probabilities  # of all tokens that are more probable
    dropped = mass_above >= p
    dropped[0] = False
    return logits.masked_fill(torch.zeros_like(dropped).scatter(0, ids, dropped), -math.inf)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens at least p times as probable as the most probable one (Nguyen et al. 2024)."""
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < p * probabilities.max(), -math.inf)


def penalise_repetition(logits: Tensor, seen: Sequence[int], penalty: float) -> Tensor:
    """Divide positive logits of the ids in ``seen`` by the penalty, multiply negative ones by it (Keskar 2019)."""
    if penalty == 1 or not seen:
        return logits
    ids = torch.tensor(sorted(set(seen)), device=logits.device)
    penalised = logits[ids]
    return logits.scatter(0, ids, torch.where(penalised < 0, penalised * penalty, penalised / penalty))


def warp(logits: Tensor, sampling: Sampling, seen: Sequence[int] = ()) -> Tensor:
    """The logits (V,) that a token is drawn from; for a greedy choice, 0 for the first largest and −∞ for the rest."""
    logits = penalise_repetition(logits, seen, sampling.repetition_penalty)
    if sampling.greedy:
        return torch.full_like(logits, -math.inf).index_fill(0, logits.argmax(), 0.0)
    logits = with_temperature(logits, sampling.temperature)
    if sampling.top_k:
        logits = keep_top_k(logits, sampling.top_k)
    logits = keep_top_p(logits, sampling.top_p)
    return keep_min_p(logits, sampling.min_p) if sampling.min_p else logits


def choose(warped: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """An id from warped logits (V,) on the processor: the first largest when greedy, else a random draw."""
    if sampling.greedy:
        return int(warped.numpy().argmax())
    return int(torch.multinomial(warped.softmax(-1), 1, generator=generator))
