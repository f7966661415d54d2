"""How much the heads of later layers read what one head writes, by their weights alone.

‖W₁·W₂‖ / (‖W₁‖·‖W₂‖) of the OV circuit of the earlier head and the QK or OV circuit of the later one (Elhage et al.
2021). Random matrices of the same shapes do not compose at 0 either, so their mean is the baseline.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.look.weights.copying import left_out
from tinytf.look.weights.factors import Circuits, HeadKey, Product, circuit_heads, circuits, find_head
from tinytf.report import About, Data, Report
from tinytf.sentences import plural, several
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text_model import TextModel

WAYS = {"q": "queries", "k": "keys", "v": "values"}
"""The ways in which a later head can read an earlier one."""
_DRAWN = 32  # pairs of random heads of the baseline
ABOVE = 4.0
"""Standard deviations of the random baseline above which two heads compose more than chance."""


@dataclass(frozen=True)
class Composed(Data):
    """Two heads that compose ``way`` q, k or v, with the ``score`` and how much it is above the random mean."""

    head: str
    way: str
    score: float
    above: float


@dataclass(frozen=True, eq=False)
class Composition(Report):
    """The composition of ``head`` with every head of a later layer, or with ``into`` of an earlier one.

    ``scores`` are maps (layers, heads) by way, NaN where there is no such head or a matrix is 0; ``baseline`` is the
    mean score of random heads of the same shapes, drawn with ``seed``, and ``deviation`` their standard deviation.
    """

    KIND = "composition"
    EVENTS: ClassVar = {"heads": "head"}

    head: HeadKey
    into: bool
    scores: Mapping[str, Tensor]
    baseline: float
    deviation: float
    seed: int
    left_out: tuple[str, ...]

    @property
    def composed(self) -> list[Composed]:
        """Every pair in every way, the strongest first."""
        rows = [
            Composed(f"L{layer}H{head}", way, score, score - self.baseline)
            for way, scores in self.scores.items()
            for layer, values in enumerate(scores.tolist())
            for head, score in enumerate(values)
            if score == score
        ]
        return sorted(rows, key=lambda row: -row.score)

    def beyond(self, row: Composed) -> bool:
        """Whether a pair composes more than ABOVE standard deviations above random heads."""
        return row.above > ABOVE * self.deviation

    def in_a_sentence(self) -> str:
        """The strongest pair, and how many are above chance."""
        rows = self.composed
        most, count = rows[0], sum(map(self.beyond, rows))
        how = f"score {most.score:.3f}; random heads have {self.baseline:.3f}"
        if not self.beyond(most):
            others = "earlier" if self.into else "later"
            return f"No {others} head composes with {self.head} more than random heads do ({how})."
        if self.into:
            told = f"The {WAYS[most.way]} of {self.head} read {most.head} most"
        else:
            told = f"{self.head} is read most by the {WAYS[most.way]} of {most.head}"
        return f"{told} ({how}); {several(count, 'score')} above chance, of {plural(len(rows), 'pair')}."

    def fields(self) -> dict[str, Any]:
        return {
            "head": str(self.head),
            **self.members("into", "baseline", "deviation", "seed", "left_out"),
            "heads": [row.to_dict() for row in self.composed],
        }

    def stored(self) -> list[Array]:
        return [Array.of(way, ["layer", "head"], scores) for way, scores in self.scores.items()]


def composition_score(first: Product, second: Product) -> float:
    """‖first·second‖ / (‖first‖·‖second‖), from matrices as narrow as the heads."""
    left, right = torch.linalg.qr(first.left).R, torch.linalg.qr(second.right.T).R
    both = (left @ (first.right @ second.left) @ right.T).norm()
    return float(both / (first.norm * second.norm))


def scores_of(earlier: Circuits, later: Circuits) -> dict[str, float]:
    """The composition of two heads in each of WAYS: the later head's queries, keys and values read the earlier one."""
    second = {"q": later.qk, "k": later.qk.transposed, "v": later.ov}
    return {way: composition_score(earlier.ov, product) for way, product in second.items()}


@torch.no_grad()
def composition(model: TextModel, head: str, *, into: bool = False, seed: int = 0) -> Composition:
    """The Q-, K- and V-composition of ``head``, such as ``L0H1``, with every head of a later layer; with ``into``, of
    every head of an earlier layer with it.

    ``seed`` draws the random heads of the baseline. Raises AddressError for anything but one head, UsageError for one
    without circuits, and where no layer above or below has heads, or none but of zeros.
    """
    table = table_of(model.config)
    keys, key = circuit_heads(table), find_head(head, table)
    others = [other for other in keys if (other.layer < key.layer if into else other.layer > key.layer)]
    if not others:
        where, hint = ("before", "--compose") if into else ("after", "--into")
        raise UsageError(f"no layer {where} layer {key.layer} has heads that compose with {key}", f"try {hint} {key}")

    own = circuits(model.transformer, key)
    shape = model.config.n_layers, 1 + max(other.head for other in keys)
    maps = {way: torch.full(shape, torch.nan, dtype=torch.float64) for way in WAYS}
    for other in others:
        theirs = circuits(model.transformer, other)
        for way, score in scores_of(*((theirs, own) if into else (own, theirs))).items():
            maps[way][other.layer, other.head] = score
    if all(scores.isnan().all() for scores in maps.values()):
        raise UsageError(f"{key} composes with no head: the weights of one side are 0")
    baseline, deviation = random_composition(own.ov, seed)
    return Composition(key, into, maps, baseline, deviation, seed, left_out(table, tokens=False), about=About(model))


def random_composition(like: Product, seed: int) -> tuple[float, float]:
    """Mean and standard deviation of the composition of random heads of these shapes, with normal weights."""
    generator = torch.Generator().manual_seed(seed)

    def drawn() -> Product:
        left, right = (
            torch.randn(part.shape, generator=generator, dtype=part.dtype) for part in (like.left, like.right)
        )
        return Product(left, right)

    scores = torch.tensor([composition_score(drawn(), drawn()) for _ in range(_DRAWN)], dtype=torch.float64)
    return float(scores.mean()), float(scores.std())
