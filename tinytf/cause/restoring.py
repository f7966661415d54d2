"""The few tensors that explain most of what two models predict otherwise: restored one after the other, greedily.

Shapes: N texts, R runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.cause.damage import Asked, Damage, Estimate, estimates
from tinytf.cause.model_pair import ModelPair, Texts
from tinytf.cause.swaps import Values, swapped
from tinytf.model.transformer import evaluating
from tinytf.report import Data, Progress, unheard
from tinytf.text.chat import Written
from tinytf.text_model import TextModel

SHARES = (0.5, 0.9)
"""The shares of the damage that a set is asked to explain."""
_CHOSEN_ON = 32  # texts at most that the tensors are chosen on; the shares are measured on all of them
_CANDIDATES = 12
"""Tensors that are measured again in each round: those that did most when they were last measured."""
_SINGLY = 8


@dataclass(frozen=True)
class Restored(Data):
    """The second model with some more tensors of the first: the addresses ``added``, and ``count`` in all.

    ``share`` is how much of KL(first model ‖ second) is gone, on ``texts`` texts.
    """

    added: tuple[str, ...]
    count: int
    share: Estimate
    texts: int


@torch.no_grad()
def restoring(
    model: TextModel,
    texts: Written | Sequence[Written] | Texts,
    versus: TextModel,
    gains: Mapping[str, float],
    *,
    share: float = SHARES[-1],
    seed: int = 0,
    on_progress: Progress = unheard,
) -> tuple[Restored, ...]:
    """Sets of tensors, each with those of the one before, until one explains a ``share`` of the KL.

    ``gains`` are what each tensor recovers alone, by its path, as far as that is known. Each round measures those that
    promise most, given those that are restored, and adds the best: one, and one more for every eight that are there.
    An interrupt ends it with the sets that are there, on the texts that were measured.
    """
    both = ModelPair(model, versus)
    asked = (texts if isinstance(texts, Texts) else Texts(texts)).asked(model)
    with evaluating(model.transformer), evaluating(versus.transformer):
        sets: list[list[str]] = []
        chosen, others = [], []
        with suppress(KeyboardInterrupt):
            for paths, left in _chosen(both, asked[:_CHOSEN_ON], dict(gains), share, on_progress):
                sets.append(paths)
                chosen.append(left)
            for one in asked[_CHOSEN_ON:]:
                others.append(_left(both, one, {}, [_values(both, paths) for paths in sets]))
    if len(sets) < 2:
        return ()
    of_texts = torch.cat((torch.stack(chosen, dim=1), *(one[None] for one in others)))  # (N, sets)
    shares = estimates(of_texts[:, 0:1] - of_texts[:, 1:], of_texts[:, 0], seed)
    found = []
    for before, paths, estimate in zip(sets, sets[1:], shares, strict=False):
        added = tuple(str(both.places[path][0]) for path in paths[len(before) :])
        found.append(Restored(added, len(paths), estimate, len(of_texts)))
    return tuple(found)


def _chosen(
    both: ModelPair, asked: Sequence[Asked], gains: dict[str, float], share: float, on_progress: Progress
) -> Iterator[tuple[list[str], Tensor]]:
    """The sets by their paths, the empty one first, each with the KL that it leaves on every text, (N,)."""
    here: list[str] = []
    whole = 0.0
    while True:
        waiting = (path for path in both.changed if path not in here)
        some = sorted(waiting, key=lambda path: -gains.get(path, 0.0))[:_CANDIDATES]
        rows = [{}, *(both.ours[path] for path in some)]
        of_texts = torch.stack([_left(both, one, _values(both, here), rows) for one in asked])  # (N, rows)
        yield list(here), of_texts[:, 0]
        plain, *others = of_texts.sum(0).tolist()
        whole = whole or plain
        if not some or plain <= (1 - share) * whole:
            return
        gains |= {path: plain - kl for path, kl in zip(some, others, strict=True)}
        here += sorted(some, key=lambda path: -gains[path])[: 1 + len(here) // _SINGLY]
        on_progress(len(here), len(both.changed))


def _values(both: ModelPair, paths: Sequence[str]) -> Values:
    return {path: both.ours[path][path] for path in paths}


def _left(both: ModelPair, asked: Asked, here: Values, rows: Sequence[Values]) -> Tensor:
    """The KL that is left on a text, in the second model with the values ``here`` and those of each row: (R,)."""
    damage = Damage(both.first, both.first.streams(asked.ids), asked)
    with swapped(both.second.model, here):
        return damage.of(both.second, both.second.streams(asked.ids), rows)[:, 0]
