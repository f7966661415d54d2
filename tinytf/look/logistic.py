"""Logistic regression with an L2 penalty, as scikit-learn minimises it, and folds to measure it on rows left out.

Shapes: N rows, C features, K classes. Everything is float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ITERATIONS = 500
"""The most steps of LBFGS."""


@dataclass(frozen=True, eq=False)
class Classifier:
    """Scores x·Wᵀ + b of K classes: ``weights`` (K, C) and ``biases`` (K,), of the features as they came."""

    weights: Tensor
    biases: Tensor

    def predict(self, x: Tensor) -> Tensor:
        """The most probable class of each row, (N,)."""
        return (x.double() @ self.weights.T + self.biases).argmax(dim=-1)


def fitted(x: Tensor, classes: Tensor, count: int, *, standardised: bool = True, gradient: float = 1e-7) -> Classifier:
    """The classifier of rows (N, C) into ``count`` classes that minimises ½‖W‖² + Σ cross-entropy, as scikit-learn's.

    ``standardised`` features have mean 0 and variance 1 in these rows; the intercept has no penalty. With two classes
    there is one vector of weights, for the second. Where there are more features than rows, the weights lie in the span
    of the rows, so that the problem is solved there. LBFGS stops at this ``gradient`` of a loss that is a mean.
    """
    x = x.double()
    mean, scale = x.mean(dim=0), torch.ones_like(x[0])
    if standardised:
        scale = x.std(dim=0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)
    features, basis = (x - mean) / scale, None
    if features.shape[1] > len(features):
        basis, triangle = torch.linalg.qr(features.T)  # (C, N), (N, N)
        features = triangle.T
    outputs = 1 if count == 2 else count
    weights = torch.zeros(outputs, features.shape[1], dtype=torch.float64, requires_grad=True)
    biases = torch.zeros(outputs, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights, biases], max_iter=_ITERATIONS, tolerance_grad=gradient, tolerance_change=0.0, history_size=20,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        optimiser.zero_grad()
        scores = features @ weights.T + biases
        scores = torch.cat((torch.zeros_like(scores), scores), dim=-1) if count == 2 else scores
        value = torch.nn.functional.cross_entropy(scores, classes) + weights.square().sum() / (2 * len(features))
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(loss)
    w, b = weights.detach(), biases.detach()
    w = w if basis is None else w @ basis.T
    w = w / scale
    b = b - w @ mean
    if count == 2:
        w, b = torch.cat((torch.zeros_like(w), w)), torch.cat((torch.zeros_like(b), b))
    return Classifier(w, b)


def folds_of(classes: Sequence[int], count: int, seed: int) -> Tensor:
    """The fold of each row, (N,): ``count`` folds that share out every class as evenly as its number allows."""
    generator, labels = torch.Generator().manual_seed(seed), torch.tensor(classes)
    folds, dealt = torch.empty(len(labels), dtype=torch.int64), 0
    for label in labels.unique():
        rows = (labels == label).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=generator)]
        folds[rows] = (torch.arange(len(rows)) + dealt) % count
        dealt += len(rows)
    return folds


def right_when_left_out(x: Tensor, classes: Tensor, folds: Tensor, count: int, *, standardised: bool = True) -> Tensor:
    """Whether each row is classified rightly by the classifier of all folds but its own, (N,), 1 or 0."""
    right = torch.zeros(len(x), dtype=torch.float64)
    for fold in folds.unique():
        out = folds == fold
        classifier = fitted(x[~out], classes[~out], count, standardised=standardised)
        right[out] = (classifier.predict(x[out]) == classes[out]).double()
    return right
