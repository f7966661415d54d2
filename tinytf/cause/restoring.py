"""The few tensors that explain most of the difference between two models: restored one after the other, greedily.

Shapes: N texts, R runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tinytf.cause.damage import Damage, MeasuredText
from tinytf.cause.model_pair import ModelPair, Texts
from tinytf.cause.swaps import Values, swapped
from tinytf.estimate import Estimate, estimates
from tinytf.model.transformer import evaluating
from tinytf.report import Data, Progress, ignore_progress
from tinytf.resume_log import ResumeLog, checksum
from tinytf.text.chat import Written
from tinytf.text_model import TextModel

SHARES = (0.5, 0.9)
"""The shares of the damage that a set should explain."""
_CHOSEN_ON = 32  # at most this many texts choose the tensors; the shares are measured on all texts
_CANDIDATES = 12
"""Tensors measured again in each round: those that recovered most when last measured."""
_SINGLY = 8


@dataclass(frozen=True)
class Restored(Data):
    """The second model with more tensors of the first: the addresses ``added``, ``count`` in all.

    ``share`` is the share of KL(first model ‖ second) that this removes, on ``texts`` texts.
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
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> tuple[Restored, ...]:
    """Growing sets of tensors, until one explains a ``share`` of the KL.

    ``gains`` are the KLs that tensors are known to recover alone, by path. Each round measures the most promising ones
    on top of those restored, and adds the best: one, and one more for every eight already restored. An interrupt ends
    with the sets so far, on the texts measured; the file ``resume`` keeps each measurement, to continue from.
    """
    models = ModelPair(model, versus)
    asked = (texts if isinstance(texts, Texts) else Texts(texts)).asked(model)
    log = ResumeLog(resume, "restoring", models.first.model, models.second.model, asked)
    with evaluating(model.transformer), evaluating(versus.transformer):
        sets: list[list[str]] = []
        chosen, measured = [], []
        with suppress(KeyboardInterrupt):
            for paths, left in _chosen(models, asked[:_CHOSEN_ON], log, dict(gains), share, on_progress):
                sets.append(paths)
                chosen.append(left)
            for number, text in enumerate(asked[_CHOSEN_ON:], _CHOSEN_ON):
                name = f"text {number} with each of {len(sets)} sets, {checksum(sets)}"
                if name not in log.found:
                    log.add({name: _left(models, text, {}, [_values(models, paths) for paths in sets])})
                measured.append(torch.tensor(log.found[name], dtype=torch.float64))
    if len(sets) < 2:
        return ()
    of_texts = torch.cat((torch.stack(chosen, dim=1), *(text[None] for text in measured)))  # (N, sets)
    shares = estimates(of_texts[:, 0:1] - of_texts[:, 1:], of_texts[:, 0], seed)
    restored = []
    for previous, paths, estimate in zip(sets, sets[1:], shares, strict=False):
        added = tuple(str(models.places[path][0]) for path in paths[len(previous) :])
        restored.append(Restored(added, len(paths), estimate, len(of_texts)))
    found = {f"set of {each.count} on {each.texts} texts": each for each in restored}
    log.add({name: each for name, each in found.items() if name not in log.found})
    return tuple(restored)


def _chosen(
    models: ModelPair,
    asked: Sequence[MeasuredText],
    log: ResumeLog,
    gains: dict[str, float],
    share: float,
    on_progress: Progress,
) -> Iterator[tuple[list[str], Tensor]]:
    """Yield the sets of paths, the empty one first, each with the KL that it leaves on every text, (N,)."""
    restored: list[str] = []
    total = 0.0
    while True:
        waiting = (path for path in models.changed if path not in restored)
        candidates = sorted(waiting, key=lambda path: -gains.get(path, 0.0))[:_CANDIDATES]
        rows = [{}, *(models.ours[path] for path in candidates)]
        names = [f"text {number} with {restored}, and with each of {candidates}" for number in range(len(asked))]
        for name, text in zip(names, asked, strict=True):
            if name not in log.found:
                log.add({name: _left(models, text, _values(models, restored), rows)})
        of_texts = torch.tensor([log.found[name] for name in names], dtype=torch.float64)  # (N, rows)
        yield list(restored), of_texts[:, 0]
        remaining, *kls = of_texts.sum(0).tolist()
        total = total or remaining
        if not candidates or remaining <= (1 - share) * total:
            return
        gains |= {path: remaining - kl for path, kl in zip(candidates, kls, strict=True)}
        restored += sorted(candidates, key=lambda path: -gains[path])[: 1 + len(restored) // _SINGLY]
        on_progress(len(restored), len(models.changed))


def _values(models: ModelPair, paths: Sequence[str]) -> Values:
    return {path: models.ours[path][path] for path in paths}


def _left(models: ModelPair, asked: MeasuredText, restored: Values, rows: Sequence[Values]) -> Tensor:
    """The KL left on a text in the second model with the ``restored`` values and those of each row: (R,)."""
    damage = Damage(models.first, models.first.streams(asked.ids), asked)
    with swapped(models.second.model, restored):
        return damage.of(models.second, models.second.streams(asked.ids), rows)[:, 0]
