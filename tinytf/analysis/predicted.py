"""What two runs predict: at every position, after their texts or at their masks, and their loss on a text.

Shapes: P positions, C width, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.analysis.alignment import Alignment, Side
from tinytf.analysis.compared import Compared, Sums
from tinytf.steps.operations.softmax import probabilities
from tinytf.steps.table import StepTable

_ROWS = 16  # positions whose logits are held at a time


@dataclass(frozen=True)
class Position:
    """What both predict at one position: KL(first ‖ second) in nats, and the most probable id of each."""

    index: int
    kl: float
    first: tuple[int, float]
    second: tuple[int, float]


@dataclass(frozen=True)
class PairOfPredictions:
    """The most probable ids of either run after its text, or at a mask, with their probabilities in both runs.

    ``kl`` is KL(first ‖ second) in nats.
    """

    position: int
    other_position: int
    kl: float
    ids: tuple[int, ...]
    first: tuple[float, ...]
    second: tuple[float, ...]


@dataclass(frozen=True)
class Ends:
    """Two sides with their last hidden states (P, C), which one vocabulary reads."""

    sides: tuple[Side, Side]
    hidden: tuple[Tensor, Tensor]
    alignment: Alignment

    def compare(self) -> tuple[tuple[Compared, ...], tuple[Position, ...]]:
        """The steps over the vocabulary that both have, and every position; some positions at a time."""
        first, second = (StepTable(side.model.config) for side in self.sides)
        sums = {step.name: Sums(step) for step in first.over_vocabulary if step.name in second.by_name}
        probs, total = Sums(first.by_name["probs"]), 0.0
        positions: list[Position] = []
        for start in range(0, self.alignment.positions, _ROWS):
            rows = slice(start, min(start + _ROWS, self.alignment.positions))
            found, other = (
                side.model.over_vocabulary(hidden[rows]) for side, hidden in zip(self.sides, self.hidden, strict=True)
            )
            for name, one in sums.items():
                one.add(found[name], other[name], start)
            a, b = found["logits"], other["logits"]  # (rows, V)
            log_p, log_q = (one.log_softmax(dim=-1, dtype=torch.float64) for one in (a, b.to(a.device)))
            p, q = (one.exp() for one in (log_p, log_q))
            kl = _divergence(p, log_p, log_q)
            p, q = p.float(), q.float()
            probs.add(p, q, start)
            total += float(kl.sum())
            best = [one.max(dim=-1) for one in (p, q)]
            for row in range(len(a)):
                tops = [(int(one.indices[row]), float(one.values[row])) for one in best]
                positions.append(Position(start + row, float(kl[row]), tops[0], tops[1]))
        mean = total / self.alignment.positions
        sums["probs"] = probs
        ends = (one.compared(name, None, mean if name in ("logits", "probs") else None) for name, one in sums.items())
        return tuple(ends), tuple(positions)

    def predictions(self, top: int) -> Iterator[PairOfPredictions]:
        """What comes after either text, or fills the masks that both have."""
        for places in self.alignment.asked:
            read = zip(self.sides, self.hidden, places, strict=True)
            logits = [side.model.unembed(hidden[at]) for side, hidden, at in read]
            p, q = (probabilities(one) for one in logits)
            kl = float(divergence(*logits))
            best = [one.topk(min(top, len(one))).indices.tolist() for one in (p, q)]
            ids = sorted({*best[0], *best[1]}, key=lambda i: -max(float(p[i]), float(q[i])))
            yield PairOfPredictions(
                *places, kl, tuple(ids), tuple(float(p[i]) for i in ids), tuple(float(q[i]) for i in ids)
            )


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(first ‖ second) in nats of two rows of logits (…, V) -> (…), in float64."""
    a, b = (one.to(first.device).log_softmax(dim=-1, dtype=torch.float64) for one in (first, second))
    return _divergence(a.exp(), a, b)


def _divergence(p: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    return (p * log_p.sub(log_q)).sum(dim=-1).clamp(min=0)


def loss(side: Side, hidden: Tensor) -> float | None:
    """The mean of −log p of each next token, of a decoder and a text of two tokens at least."""
    if side.model.head is None or not side.model.config.causal or len(side.encoding.ids) < 2:
        return None
    ids = torch.tensor(side.encoding.ids, device=hidden.device)
    total = 0.0
    for start in range(0, len(ids) - 1, _ROWS):
        targets = ids[start + 1 : start + 1 + _ROWS]
        log_p = side.model.unembed(hidden[start : start + len(targets)]).double().log_softmax(dim=-1)
        total -= float(log_p.gather(1, targets[:, None]).sum())
    return total / (len(ids) - 1)
