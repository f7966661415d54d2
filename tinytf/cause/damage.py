"""How far the predictions of one text are from those of a reference model: run by run, and as a gradient expects.

Shapes: R runs, N texts, T tokens, P positions, C width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.cause.swaps import Swapping, Values
from tinytf.model.transformer import Transformer
from tinytf.report import Data

_NUMBERS = 2**23  # logits that are in memory at a time
_POSITIONS = 64  # positions whose reference is in memory at a time
_RESAMPLED = 1000


@dataclass(frozen=True)
class Estimate(Data):
    """A mean over the texts; ``low`` and ``high`` are its 95 % interval over texts drawn again, None of one text."""

    value: float
    low: float | None = None
    high: float | None = None


def estimates(sums: Tensor, counts: Tensor, seed: int) -> list[Estimate]:
    """The mean of each run over all that its texts count: sums (N, R), counts (N,).

    Texts are drawn again with replacement, as many as there are (the percentile bootstrap, Efron 1979).
    """
    means = (sums.sum(0) / counts.sum()).tolist()
    if len(sums) < 2 or not means:
        return [Estimate(mean) for mean in means]
    drawn = torch.randint(len(sums), (_RESAMPLED, len(sums)), generator=torch.Generator().manual_seed(seed))
    weights = torch.zeros(_RESAMPLED, len(sums), dtype=sums.dtype)
    weights.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=sums.dtype))
    again = (weights @ sums) / (weights @ counts)[:, None]  # (resampled, R)
    ends = torch.quantile(again, torch.tensor([0.025, 0.975], dtype=sums.dtype), dim=0).T.tolist()
    return [Estimate(mean, low, high) for mean, (low, high) in zip(means, ends, strict=True)]


@dataclass(frozen=True)
class Asked:
    """A text, (1, T), and what is measured of it: the ``positions`` that are predicted at, in order.

    ``targets`` are the ids that follow them, none where no token is predicted from those before it. ``pair`` are two
    outcomes whose logits are compared at the last position; without it the two that the reference finds most likely.
    """

    ids: Tensor
    positions: tuple[int, ...]
    targets: tuple[int, ...]
    pair: tuple[int, int] | None = None

    @classmethod
    def of(cls, model: Transformer, ids: Sequence[int], pair: tuple[int, int] | None) -> "Asked":
        config = model.config
        positions = (0,) if config.head_reads == "first" else tuple(range(len(ids)))
        device = next(model.parameters()).device
        return cls(
            torch.tensor([ids], device=device), positions, tuple(ids[1:]) if config.head.kind == "lm" else (), pair
        )


class Damage:
    """The predictions of a reference model for one text, which those of runs are measured against."""

    def __init__(self, reference: Swapping, streams: Sequence[Tensor], asked: Asked) -> None:
        self.reference, self.asked = reference, asked
        self.last = streams[-1][:, list(asked.positions)]  # (1, P, C)

    def of(self, runs: Swapping, streams: Sequence[Tensor], swaps: Sequence[Values]) -> Tensor:
        """KL(reference ‖ run) and the loss more than the reference's, summed over the positions, and how much further
        apart the two logits of the pair are: (R, 3), float64.
        """
        found = torch.zeros(len(swaps), 3, dtype=torch.float64)
        for numbers, x in runs.runs(self.asked.ids, streams, swaps):
            x = x[:, list(self.asked.positions)]
            for first in range(0, x.shape[1], _POSITIONS):
                rows = slice(first, first + _POSITIONS)
                logits = self.reference.logits(self.last[:, rows], [{}])[0]  # (P, V)
                most = max(1, _NUMBERS // logits.numel())
                for start in range(0, len(numbers), most):
                    some = numbers[start : start + most]
                    theirs = runs.logits(x[start : start + most, rows], [swaps[number] for number in some])
                    found[some] += self._apart(logits, theirs, first).to(found)
        return found

    def _apart(self, logits: Tensor, theirs: Tensor, first: int) -> Tensor:
        """The three numbers of some runs (R, P, V) at the positions from ``first`` on.

        With d the difference of the logits less its mean under p, KL(p ‖ q) is ln Σ p·eᵈ: small ones are not lost to
        rounding, as they are between two logarithms.
        """
        targets = self.asked.targets[first : first + len(logits)]
        log_p = logits.log_softmax(-1)
        p = log_p.exp()
        apart = theirs - logits
        apart -= torch.linalg.vecdot(apart, p)[..., None]
        grown = torch.linalg.vecdot(apart.expm1(), p)
        kl = grown.log1p()
        if not bool((grown < 1).all()):
            kl = torch.where(grown < 1, kl, (apart + log_p).logsumexp(-1))
        kl = kl.clamp(min=0)
        loss = kl.new_zeros(len(theirs))
        if targets:
            at = torch.tensor(targets, device=apart.device)
            loss = (kl[:, : len(at)] - apart[:, range(len(at)), at]).double().sum(-1)
        pair = kl.new_zeros(len(theirs))
        if first + len(logits) == len(self.asked.positions):
            one, other = self.asked.pair or logits[-1].topk(2).indices.tolist()
            pair = apart[:, -1, one] - apart[:, -1, other]
        return torch.stack((kl.double().sum(-1), loss.double(), pair.double()), dim=-1)


def expected(model: Transformer, asked: Asked, differences: Values, draws: int, generator: torch.Generator) -> Tensor:
    """What each difference of a tensor is expected to cost in KL, summed over the positions of a text, float64.

    To second order KL(p ‖ q) is half the variance under p of the change of the logits. A backward pass from
    z = √p·e − p·Σ√p·e, with e drawn from a normal distribution, gives each tensor its change of z·logits to first
    order, whose mean square is that variance (the Fisher information, with Hutchinson's estimate of the trace).
    """
    parameters = [model.get_parameter(path) for path in differences]
    total = torch.zeros(len(parameters), dtype=torch.float64)
    with torch.enable_grad():
        logits = model.unembed(model.hidden(asked.ids)[0, list(asked.positions)])  # (P, V)
    root = logits.detach().softmax(-1).sqrt()
    for draw in range(draws):
        e = torch.randn(root.shape, generator=generator, dtype=root.dtype).to(root)
        z = root * e - root.square() * torch.linalg.vecdot(root, e)[:, None]
        gradients = torch.autograd.grad(logits, parameters, z, retain_graph=draw + 1 < draws, allow_unused=True)
        for number, (gradient, difference) in enumerate(zip(gradients, differences.values(), strict=True)):
            if gradient is not None:
                total[number] += (gradient * difference).sum(dtype=torch.float64).square() / (2 * draws)
    return total
