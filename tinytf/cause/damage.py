"""How far the predictions of one text are from a reference model's: measured run by run, and predicted by a gradient.

Shapes: R runs, N texts, T tokens, P positions, C width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.cause.swaps import Swapping, Values
from tinytf.model.transformer import Transformer

_NUMBERS = 2**23  # logits that are in memory at a time
_POSITIONS = 64  # positions whose reference is in memory at a time


@dataclass(frozen=True)
class MeasuredText:
    """A text, (1, T), and the ``positions`` at which its predictions are measured, in order.

    ``targets`` are the ids that follow them, empty for a model that does not predict the next token. ``pair`` are two
    outcomes whose logits are compared at the last position; by default the two that the reference finds most likely.
    """

    ids: Tensor
    positions: tuple[int, ...]
    targets: tuple[int, ...]
    pair: tuple[int, int] | None = None

    @classmethod
    def of(cls, model: Transformer, ids: Sequence[int], pair: tuple[int, int] | None) -> "MeasuredText":
        config = model.config
        positions = (0,) if config.head.row_read == 0 else tuple(range(len(ids)))
        device = next(model.parameters()).device
        return cls(
            torch.tensor([ids], device=device), positions, tuple(ids[1:]) if config.head.kind == "lm" else (), pair
        )


class Damage:
    """The predictions of a reference model for one text, against which runs are measured."""

    def __init__(self, reference: Swapping, streams: Sequence[Tensor], asked: MeasuredText) -> None:
        self.reference, self.asked = reference, asked
        self.last = streams[-1][:, list(asked.positions)]  # (1, P, C)

    def of(self, runs: Swapping, streams: Sequence[Tensor], swaps: Sequence[Values]) -> Tensor:
        """Measure runs, (R, 3) in float64: KL(reference ‖ run) and the increase of the loss, each summed over the
        positions, and the increase of the difference of the pair's logits.
        """
        sums = torch.zeros(len(swaps), 3, dtype=torch.float64)
        for numbers, x in runs.runs(self.asked.ids, streams, swaps):
            x = x[:, list(self.asked.positions)]
            for first in range(0, x.shape[1], _POSITIONS):
                rows = slice(first, first + _POSITIONS)
                logits = self.reference.logits(self.last[:, rows], [{}])[0]  # (P, V)
                batch_size = max(1, _NUMBERS // logits.numel())
                for start in range(0, len(numbers), batch_size):
                    batch = numbers[start : start + batch_size]
                    theirs = runs.logits(x[start : start + batch_size, rows], [swaps[number] for number in batch])
                    sums[batch] += self._measure(logits, theirs, first).to(sums)
        return sums

    def _measure(self, logits: Tensor, theirs: Tensor, first: int) -> Tensor:
        """The three numbers of some runs (R, P, V) at the positions from ``first`` on.

        With d the difference of the logits less its mean under p, KL(p ‖ q) is ln Σ p·eᵈ. Unlike a difference of two
        logarithms, this does not lose small values to rounding.
        """
        targets = self.asked.targets[first : first + len(logits)]
        log_p = logits.log_softmax(-1)
        p = log_p.exp()
        change = theirs - logits
        change -= torch.linalg.vecdot(change, p)[..., None]
        growth = torch.linalg.vecdot(change.expm1(), p)
        kl = growth.log1p()
        if not bool((growth < 1).all()):
            kl = torch.where(growth < 1, kl, (change + log_p).logsumexp(-1))
        kl = kl.clamp(min=0)
        loss = kl.new_zeros(len(theirs))
        if targets:
            target_ids = torch.tensor(targets, device=change.device)
            loss = (kl[:, : len(target_ids)] - change[:, range(len(target_ids)), target_ids]).double().sum(-1)
        pair = kl.new_zeros(len(theirs))
        if first + len(logits) == len(self.asked.positions):
            first_id, second_id = self.asked.pair or logits[-1].topk(2).indices.tolist()
            pair = change[:, -1, first_id] - change[:, -1, second_id]
        return torch.stack((kl.double().sum(-1), loss.double(), pair.double()), dim=-1)


def expected(
    model: Transformer, asked: MeasuredText, differences: Values, draws: int, generator: torch.Generator
) -> Tensor:
    """The expected KL of each tensor's difference, summed over the positions of a text; float64.

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
