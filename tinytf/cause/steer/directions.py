"""The direction that tells two sets of vectors apart, by three methods, and how well it does on pairs left out.

Shapes: N pairs, C the width of the vectors. All is computed in float64.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tinytf.cause.steer.contrasts import Activations
from tinytf.estimate import Estimate, mean_of
from tinytf.look.logistic import fitted

_FOLDS = 5


def _mean(positive: Tensor, negative: Tensor) -> Tensor:
    """The difference of the means (Marks and Tegmark 2023)."""
    return (positive - negative).mean(0)


def _pca(positive: Tensor, negative: Tensor) -> Tensor:
    """The first principal component of the differences, centred, as repeng computes it (Zou et al. 2023)."""
    differences = positive - negative
    return torch.linalg.svd(differences - differences.mean(0), full_matrices=False).Vh[0]


def _probe(positive: Tensor, negative: Tensor) -> Tensor:
    """The weights of a logistic regression that tells the sides apart.

    It minimises Σ −ln p + ‖w‖²/2 on vectors whose mean is 0 and whose mean square length is 1: there is one minimum.
    """
    x = torch.cat((positive, negative))
    x = x - x.mean(0)
    x = x / x.square().sum(-1).mean().sqrt().clamp_min(torch.finfo(x.dtype).tiny)
    sides = torch.arange(2, device=x.device).repeat_interleave(len(positive)).flip(0)
    return fitted(x, sides, 2, standardised=False, gradient=1e-10).weights[1]


METHODS: Mapping[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "mean": (_mean, 1), "pca": (_pca, 2), "probe": (_probe, 1),
}  # fmt: skip
"""How a direction is found, and the fewest pairs that it takes."""


def direction(method: str | Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """The unit vector (C,) of a method, toward the mean of the positive side; zeros if the sides do not differ.

    Instead of a method it takes a vector (C,), of which only the side is then chosen.
    """
    found = method if isinstance(method, Tensor) else METHODS[method][0](positive, negative)
    unit = found / found.norm().clamp_min(torch.finfo(found.dtype).tiny)
    return unit if float(unit @ (positive - negative).mean(0)) >= 0 else -unit


def vector_of(method: str, of: Activations) -> Tensor:
    """The direction, as long as the means are apart along it: the mean of one side plus it has the other's projection.

    With ``mean`` this is the difference of the means itself.
    """
    unit = direction(method, of.positive, of.negative)
    return unit * (unit @ (of.positive - of.negative).mean(0))


def held_out(method: str, of: Activations, seed: int) -> tuple[Estimate, float] | None:
    """How well directions tell apart pairs that they were not made from, in 5 folds of pairs drawn by ``seed``.

    First the accuracy: the share of texts on their own side of the middle between the two means, with its interval.
    Then d′: the distance of the two sides' means in standard deviations of a side. None for too few pairs.
    """
    count = len(of.positive)
    if count <= METHODS[method][1]:
        return None
    margins = _margins(method, of, seed)
    spread = margins.var(dim=1).mean().sqrt() if count > 1 else margins.new_zeros(())
    return mean_of(_right(margins), seed), float((margins[0].mean() - margins[1].mean()) / spread.clamp_min(1e-300))


def accuracies_of(vectors: Sequence[Tensor], of: Activations, seed: int) -> list[float]:
    """The accuracy of ``held_out`` of each of some vectors (C,), whose side and middle the other folds choose."""
    return [float(_right(_margins(vector, of, seed)).mean()) for vector in vectors]


def _right(margins: Tensor) -> Tensor:
    """The share of the two texts of each pair that are on their own side, (N,)."""
    return ((margins[0] > 0).double() + (margins[1] < 0).double()) / 2


def _margins(method: str | Tensor, of: Activations, seed: int) -> Tensor:
    """Where each text left out falls, (2, N) for both sides: 1 at the mean of the positive side, −1 at the other."""
    count = len(of.positive)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    margins = torch.empty(2, count, dtype=torch.float64)
    for fold in range(min(_FOLDS, count)):
        tested = order[fold::_FOLDS]
        rest = order[~torch.isin(order, tested)]
        unit = direction(method, of.positive[rest], of.negative[rest])
        above, below = float(of.positive[rest].mean(0) @ unit), float(of.negative[rest].mean(0) @ unit)
        for side, values in enumerate((of.positive, of.negative)):
            margins[side, tested] = (values[tested] @ unit - (above + below) / 2) / max((above - below) / 2, 1e-300)
    return margins
