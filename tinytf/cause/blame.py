"""Which tensors make one model predict otherwise than another: each is put into the other model alone, and measured.

Shapes: N texts, S tensors, T tokens, C width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.damage import Asked, Damage, Estimate, estimates, expected
from tinytf.cause.model_pair import ModelPair, Texts
from tinytf.cause.restoring import Restored
from tinytf.cause.step_errors import StepError
from tinytf.compare.measures import moved_weights
from tinytf.model.transformer import evaluating
from tinytf.report import About, Data, Progress, Report, plain, unheard
from tinytf.resume_log import ResumeLog, checksum
from tinytf.text.chat import Conversation, Written
from tinytf.text_model import TextModel

_DRAWS = 64
"""Backward passes for the expected damage: one each of so many texts, or several of fewer."""


@dataclass(frozen=True)
class Effect(Data):
    """What a change does to the predictions: means over the positions, in nats, with intervals over the texts.

    ``kl`` is KL(first model ‖ changed one), ``loss`` how much more the loss is (None where no next token is predicted),
    ``margin`` how much further apart the two logits are at the end of a text.
    """

    kl: Estimate
    loss: Estimate | None
    margin: Estimate


@dataclass(frozen=True)
class Blamed(Data):
    """One tensor: its address, the layer (None outside the blocks) and its name in any of them, and how many numbers.

    ``moved`` is ‖Δ‖ ÷ ‖W‖, ``expected`` the KL that a gradient expects. ``damage`` is that of the first model with
    this tensor of the second; ``recovered`` is how much of the second model's damage goes with this tensor of the first
    in it. Both are None where not measured.
    """

    address: str
    path: str
    layer: int | None
    kind: str
    numbers: int
    moved: float
    expected: float
    damage: Effect | None = None
    recovered: Effect | None = None


@dataclass(frozen=True)
class Blame(Report):
    """Every tensor in which two models differ, the one that does most damage first; ``whole`` is the second model.

    ``same`` tensors are equal in both. ``texts`` of the ``asked`` were measured, at ``positions`` in all; ``pair`` are
    the two outcomes of the margins, None for the two that the first model finds most likely. ``sets`` are what
    ``restoring`` found, and ``steps`` what ``step_errors`` did, where they were asked.
    """

    KIND = "blame"
    EVENTS: ClassVar = {"tensors": "tensor", "sets": "set", "steps": "step"}

    blamed: tuple[Blamed, ...]
    whole: Effect
    same: int
    texts: int
    asked: int
    positions: int
    pair: tuple[int, int] | None
    seed: int
    sets: tuple[Restored, ...] = ()
    steps: tuple[StepError, ...] = ()
    versus: About | None = field(default=None, repr=False, compare=False)

    @property
    def measured(self) -> tuple[Blamed, ...]:
        return tuple(one for one in self.blamed if one.damage is not None)

    @property
    def gains(self) -> dict[str, float]:
        """The KL that each tensor recovers alone, by its path; what it does alone, where only that was measured."""
        return {one.path: found.kl.value for one in self.blamed if (found := one.recovered or one.damage)}

    def explaining(self, share: float) -> Restored | None:
        """The first of ``sets`` that explains a share of the damage."""
        return next((one for one in self.sets if one.share.value >= share), None)

    @property
    def interrupted(self) -> bool:
        return self.texts < self.asked

    def correlation(self, by: str) -> float | None:
        """Spearman's rank correlation of ``moved`` or ``expected`` with the damage; None for fewer than 3 tensors."""
        pairs = [(getattr(one, by), one.damage.kl.value) for one in self.blamed if one.damage is not None]
        if len(pairs) < 3:
            return None
        ranks = torch.tensor(pairs, dtype=torch.float64).argsort(0).argsort(0).double()
        return float(torch.corrcoef(ranks.T)[0, 1])

    def fields(self) -> dict[str, Any]:
        return {
            "versus": self.versus and self.versus.to_dict(),
            **self.members("texts", "asked", "positions", "interrupted", "seed", "same"),
            "pair": self.pair and [self.named(one) for one in self.pair],
            **self.members("whole"),
            "rank_correlation": {by: self.correlation(by) for by in ("moved", "expected")},
            "tensors": plain(self.blamed),
            **self.members("sets", "steps"),
        }


@torch.no_grad()
def blame(
    model: TextModel,
    texts: Written | Sequence[Written] | Texts,
    versus: TextModel,
    *,
    top: int | None = None,
    restore: int = 32,
    seed: int = 0,
    resume: Path | None = None,
    on_progress: Progress = unheard,
) -> Blame:
    """Which tensors of ``versus`` make it predict otherwise than the model does, on a text or on many.

    Each is put into the model alone; with ``top`` only those that are expected to do most damage. The ``restore`` that
    do most are put from the model into ``versus``. An interrupt ends it after the last whole text; with ``resume`` what
    was measured is kept in this file and continued from it. Raises UsageError as ``ModelPair`` and ``Texts`` do.
    """
    texts = texts if isinstance(texts, Texts) else Texts(texts)
    both, asked = ModelPair(model, versus), texts.asked(model)
    about = About(model, texts.encoded(model)[0]) if isinstance(texts.texts, str | Conversation) else About(model)
    with evaluating(model.transformer), evaluating(versus.transformer):
        found = _Blaming(both, asked, seed, resume).run(top, restore, on_progress)
    return replace(found, versus=About(versus), about=about)


class _Blaming:
    """What is measured of two models, text by text."""

    def __init__(self, both: ModelPair, asked: Sequence[Asked], seed: int, resume: Path | None) -> None:
        self.both, self.asked, self.seed = both, asked, seed
        texts = [(one.ids.tolist(), one.positions, one.targets, one.pair) for one in asked]
        self.kept = ResumeLog(resume, "blame", both.first.model, both.second.model, seed, texts)

    def run(self, top: int | None, restore: int, on_progress: Progress) -> Blame:
        if "expected" not in self.kept.found:
            self.kept.add({"expected": self._expected()})
        costs: dict[str, float] = self.kept.found["expected"]
        order = sorted(costs, key=costs.__getitem__, reverse=True)[:top]
        of = 2 * len(self.asked)
        alone = self._each(self._alone, order, lambda done: on_progress(done, of))
        *damages, whole = self._effects(torch.stack(alone))
        damage = dict(zip(order, damages, strict=True))
        worst = sorted(order, key=lambda path: -damage[path].kl.value)[:restore]
        recovered: dict[str, Effect] = {}
        if len(alone) == len(self.asked):
            restored = self._each(self._recovered, worst, lambda done: on_progress(len(alone) + done, of))
            recovered = dict(zip(worst, self._effects(torch.stack(restored)), strict=True))
        moved = {one.name: one.ratio for one in moved_weights(self.both.first.model, self.both.second.model)}
        blamed = []
        for path in self.both.changed:
            (where, layer), size = self.both.places[path], self.both.theirs[path][path].numel()
            known = (str(where), path, layer, where.parameter.name, size, moved[path], costs[path])
            blamed.append(Blamed(*known, damage.get(path), recovered.get(path)))
        blamed.sort(key=lambda one: (one.damage is None, -(one.damage.kl.value if one.damage else one.expected)))
        return Blame(
            tuple(blamed),
            whole=whole,
            same=self.both.same,
            texts=len(alone),
            asked=len(self.asked),
            positions=sum(len(one.positions) for one in self.asked[: len(alone)]),
            pair=self.asked[0].pair,
            seed=self.seed,
        )

    def _each(
        self, measured: Callable[[Asked, Sequence[str]], Tensor], paths: Sequence[str], done: Callable[[int], None]
    ) -> list[Tensor]:
        """What is measured of each text, up to an interrupt; the first is always measured whole."""
        found: list[Tensor] = []
        try:
            for number, text in enumerate(self.asked):
                name = f"text {number}{measured.__name__} {checksum(paths)}"
                if name not in self.kept.found:
                    self.kept.add({name: measured(text, paths)})
                found.append(torch.tensor(self.kept.found[name], dtype=torch.float64).view(-1, 3))
                done(len(found))
        except KeyboardInterrupt:
            if not found:
                raise
        return found

    def _alone(self, asked: Asked, paths: Sequence[str]) -> Tensor:
        """Each tensor of the second model alone in the first; at last the second model as it is: (S + 1, 3)."""
        first, second = self.both.first, self.both.second
        streams = first.streams(asked.ids)
        damage = Damage(first, streams, asked)
        alone = damage.of(first, streams, [self.both.theirs[path] for path in paths])
        return torch.cat((alone, damage.of(second, second.streams(asked.ids), [{}])))

    def _recovered(self, asked: Asked, paths: Sequence[str]) -> Tensor:
        """What each tensor of the first model takes away alone in the second, (S, 3)."""
        damage, second = Damage(self.both.first, self.both.first.streams(asked.ids), asked), self.both.second
        left = damage.of(second, second.streams(asked.ids), [*(self.both.ours[path] for path in paths), {}])
        return left[-1] - left[:-1]

    def _effects(self, found: Tensor) -> list[Effect]:
        """From what was measured of each text, (N, R, 3), to an effect for each row."""
        asked = self.asked[: len(found)]
        positions, targets = ([float(len(getattr(one, of))) for one in asked] for of in ("positions", "targets"))
        counts = [torch.tensor(each, dtype=torch.float64) for each in (positions, targets, [1.0] * len(asked))]
        kl, loss, margin = (
            estimates(found[..., i], count, self.seed) if count.sum() else [None] * found.shape[1]
            for i, count in enumerate(counts)
        )
        return [Effect(*row) for row in zip(kl, loss, margin, strict=True)]  # type: ignore[arg-type]

    def _expected(self) -> dict[str, float]:
        """The damage of each tensor that a gradient expects, KL a position."""
        own = dict(self.both.first.model.named_parameters())
        differences = {path: values[path] - own[path].data for path, values in self.both.theirs.items()}
        some = self.asked[:_DRAWS]
        generator, draws = torch.Generator().manual_seed(self.seed), -(-_DRAWS // len(some))
        total = torch.zeros(len(differences), dtype=torch.float64)
        for asked in some if differences else ():
            total += expected(self.both.first.model, asked, differences, draws, generator)
        return dict(zip(differences, (total / sum(len(one.positions) for one in some)).tolist(), strict=True))
