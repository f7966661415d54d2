"""Which lines a drawing of attention has, from the tokens that look to those that they look at."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # whatever paints imports this, and a run is looked at without torch
    from torch import Tensor

CLASSES = (0.5, 0.2, 0.05)
"""The least weight of each class that a drawing tells apart, the strongest class first."""


def class_of(weight: float) -> int:
    """The index in ``CLASSES`` of a weight that is drawn."""
    return next((index for index, least in enumerate(CLASSES) if weight >= least), len(CLASSES) - 1)


def links(
    weights: "Tensor", queries: Sequence[int], most: int | None = None, *, strong: bool = False
) -> list[tuple[int, int, float]]:
    """The lines of some queries, (query, key, weight), strongest first: weights of a class, and each query's largest.

    ``weights`` is (Q, K), −∞ where a key is masked. ``strong`` lines alone leave out the weakest class, unless it is
    the largest of its query; lines to more than ``most`` keys are left out, the weakest first.
    """
    least, found = CLASSES[-2 if strong else -1], list[tuple[int, int, float]]()
    for query in queries:
        row = weights[query]
        keys = {int(row.argmax()), *(row >= least).nonzero().flatten().tolist()}
        found += [(query, key, float(row[key])) for key in sorted(keys) if row[key] > 0]
    found.sort(key=lambda link: -link[2])
    if most is not None:
        kept = list(dict.fromkeys(key for _, key, _ in found))[:most]
        found = [link for link in found if link[1] in kept]
    return found
