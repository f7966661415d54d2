"""Which tensors make one model predict differently from another: put each alone into the other model and measure.

Shapes: N texts, S tensors, T tokens, C width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.damage import Damage, MeasuredText, expected
from tinytf.cause.importance import Importance
from tinytf.cause.model_pair import ModelPair, Texts, require_finite_on
from tinytf.cause.restoring import Restored
from tinytf.cause.step_errors import StepError
from tinytf.compare.measures import moved_weights
from tinytf.estimate import Estimate, estimates, rank_correlation
from tinytf.model.transformer import evaluating
from tinytf.report import About, Data, Progress, Report, ignore_progress, plain
from tinytf.resume_log import ResumeLog, checksum
from tinytf.sentences import percent, several
from tinytf.text.chat import Written
from tinytf.text_model import TextModel

_DRAWS = 64
"""The default number of backward passes for the expected damage: one a text, or several each for fewer texts."""


@dataclass(frozen=True)
class Effect(Data):
    """The effect of a change on the predictions: means over the positions, in nats, with intervals over the texts.

    ``kl`` is KL(first model ‖ changed model), ``loss`` the increase of the loss (None where no next token is
    predicted), ``margin`` the increase of the difference of two logits at the end of a text.
    """

    kl: Estimate
    loss: Estimate | None
    margin: Estimate


@dataclass(frozen=True)
class Blamed(Data):
    """One tensor: its address, its layer (None outside the blocks), its ``kind`` in any layer, and its size.

    ``moved`` is ‖Δ‖ ÷ ‖W‖, ``expected`` the KL that a gradient predicts. ``damage`` is measured on the first model with
    this tensor of the second. ``recovered`` is how much damage disappears from the second model with this tensor of the
    first. Both are None if not measured.
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
    """Every tensor in which two models differ, the most damaging first; ``whole`` is the effect of the second model.

    ``same`` tensors are equal in both. ``texts`` of the ``asked`` texts were measured, at ``positions`` in all.
    ``pair`` are the two outcomes of the margins, None for the two that the first model finds most likely. ``sets`` come
    from ``restoring``, ``steps`` from ``step_errors`` and ``importance`` from the function of that name, if requested.
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
    importance: Importance | None = None
    versus: About | None = field(default=None, repr=False, compare=False)

    @property
    def measured(self) -> tuple[Blamed, ...]:
        return tuple(tensor for tensor in self.blamed if tensor.damage is not None)

    @property
    def damages(self) -> dict[str, float]:
        """The KL that each tensor does alone, by its path, if it was measured."""
        return {tensor.path: tensor.damage.kl.value for tensor in self.blamed if tensor.damage is not None}

    @property
    def gains(self) -> dict[str, float]:
        """The KL that each tensor recovers alone, by its path; its damage alone, if only that was measured."""
        return {tensor.path: effect.kl.value for tensor in self.blamed if (effect := tensor.recovered or tensor.damage)}

    def explaining(self, share: float) -> Restored | None:
        """The first of ``sets`` that explains a share of the damage."""
        return next((restored for restored in self.sets if restored.share.value >= share), None)

    @property
    def interrupted(self) -> bool:
        return self.texts < self.asked

    def correlation(self, by: str) -> float | None:
        """Spearman's rank correlation of ``moved`` or ``expected`` with the damage; None for fewer than 3 tensors."""
        damages = self.damages
        return rank_correlation(
            [getattr(tensor, by) for tensor in self.blamed if tensor.path in damages], [*damages.values()]
        )

    def in_a_sentence(self) -> str:
        """Which tensor changes the predictions most alone, and how much of the whole change it takes back, restored.

        With an importance matrix, also whether it agrees with this ranking: ``Importance.verdict``.
        """
        if not self.blamed:
            return "No tensor differs: the models predict the same."
        worst, of = self.blamed[0], several(len(self.blamed), "differ")
        if worst.damage is None or self.whole.kl.value <= 0:
            return f"{of} between the models, and no prediction changes."
        found = f"{of} between the models, and {worst.address} alone changes the predictions most"
        verdict = self.importance and self.importance.verdict
        also = f", and the importance matrix {verdict} with this ranking" if verdict else ""
        if worst.recovered is None:
            return f"{found}: {percent(worst.damage.kl.value / self.whole.kl.value)} as much as all together{also}."
        share = worst.recovered.kl.value / self.whole.kl.value
        undoes = f"undoes {percent(share)} of the change" if share > 0 else "undoes nothing"
        return f"{found}; restoring it {undoes}{also}."

    def fields(self) -> dict[str, Any]:
        return {
            "versus": self.versus and self.versus.to_dict(),
            **self.members("texts", "asked", "positions", "interrupted", "seed", "same"),
            "pair": self.pair and [self.named(outcome) for outcome in self.pair],
            **self.members("whole"),
            "rank_correlation": {by: self.correlation(by) for by in ("moved", "expected")},
            "tensors": plain(self.blamed),
            **self.members("sets", "steps", "importance"),
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
    draws: int = _DRAWS,
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> Blame:
    """Find the tensors of ``versus`` that make it predict differently from the model, on a text or on many.

    Each is put into the model alone; with ``top`` only those with the most expected damage. Then the ``restore`` most
    damaging are put back from the model into ``versus``. The expected damage takes ``draws`` backward passes. An
    interrupt ends after the last complete text; the file ``resume`` keeps what was measured, to continue from. Raises
    the UsageErrors of ``ModelPair`` and ``Texts``, and TinytfError for a model whose numbers are not finite.
    """
    texts = texts if isinstance(texts, Texts) else Texts(texts)
    models, asked = ModelPair(model, versus), texts.asked(model)
    for side in (model, versus):
        require_finite_on(side, asked)
    about = About(model, texts.encoded(model)[0]) if isinstance(texts.texts, Written) else About(model)
    with evaluating(model.transformer), evaluating(versus.transformer):
        report = _Blaming(models, asked, seed, resume, draws).run(top, restore, on_progress)
    return replace(report, versus=About(versus), about=about)


class _Blaming:
    """The measurement of two models, text by text."""

    def __init__(
        self, models: ModelPair, asked: Sequence[MeasuredText], seed: int, resume: Path | None, draws: int
    ) -> None:
        self.models, self.asked, self.seed, self.draws = models, asked, seed, draws
        texts = [(text.ids.tolist(), text.positions, text.targets, text.pair) for text in asked]
        self.log = ResumeLog(resume, "blame", models.first.model, models.second.model, seed, texts)

    def run(self, top: int | None, restore: int, on_progress: Progress) -> Blame:
        if "expected" not in self.log.found:
            self.log.add({"expected": self._expected()})
        costs: dict[str, float] = self.log.found["expected"]
        order = sorted(costs, key=costs.__getitem__, reverse=True)[:top]
        total = 2 * len(self.asked)
        alone = self._each(self._alone, order, lambda done: on_progress(done, total))
        *damages, whole = self._effects(torch.stack(alone))
        damage = dict(zip(order, damages, strict=True))
        worst = sorted(order, key=lambda path: -damage[path].kl.value)[:restore]
        recovered: dict[str, Effect] = {}
        if len(alone) == len(self.asked):
            restored = self._each(self._recovered, worst, lambda done: on_progress(len(alone) + done, total))
            recovered = dict(zip(worst, self._effects(torch.stack(restored)), strict=True))
        moved = {m.name: m.ratio for m in moved_weights(self.models.first.model, self.models.second.model)}
        blamed = []
        for path in self.models.changed:
            (address, layer), size = self.models.places[path], self.models.theirs[path][path].numel()
            described = (str(address), path, layer, address.parameter.name, size, moved[path], costs[path])
            blamed.append(Blamed(*described, damage.get(path), recovered.get(path)))
        blamed.sort(key=lambda t: (t.damage is None, -(t.damage.kl.value if t.damage else t.expected)))
        return Blame(
            tuple(blamed),
            whole=whole,
            same=self.models.same,
            texts=len(alone),
            asked=len(self.asked),
            positions=sum(len(text.positions) for text in self.asked[: len(alone)]),
            pair=self.asked[0].pair,
            seed=self.seed,
        )

    def _each(
        self,
        measured: Callable[[MeasuredText, Sequence[str]], Tensor],
        paths: Sequence[str],
        done: Callable[[int], None],
    ) -> list[Tensor]:
        """Measure each text, up to an interrupt; the first text is always measured completely."""
        results: list[Tensor] = []
        try:
            for number, text in enumerate(self.asked):
                name = f"text {number}{measured.__name__} {checksum(paths)}"
                if name not in self.log.found:
                    self.log.add({name: measured(text, paths)})
                results.append(torch.tensor(self.log.found[name], dtype=torch.float64).view(-1, 3))
                done(len(results))
        except KeyboardInterrupt:
            if not results:
                raise
        return results

    def _alone(self, asked: MeasuredText, paths: Sequence[str]) -> Tensor:
        """Each tensor of the second model alone in the first, and last the second model itself: (S + 1, 3)."""
        first, second = self.models.first, self.models.second
        streams = first.streams(asked.ids)
        damage = Damage(first, streams, asked)
        alone = damage.of(first, streams, [self.models.theirs[path] for path in paths])
        return torch.cat((alone, damage.of(second, second.streams(asked.ids), [{}])))

    def _recovered(self, asked: MeasuredText, paths: Sequence[str]) -> Tensor:
        """The damage that each tensor of the first model removes alone from the second, (S, 3)."""
        damage, second = Damage(self.models.first, self.models.first.streams(asked.ids), asked), self.models.second
        remaining = damage.of(second, second.streams(asked.ids), [*(self.models.ours[path] for path in paths), {}])
        return remaining[-1] - remaining[:-1]

    def _effects(self, sums: Tensor) -> list[Effect]:
        """The effect of each row, from the sums of each text (N, R, 3)."""
        asked = self.asked[: len(sums)]
        positions, targets = (
            [float(len(getattr(text, counted))) for text in asked] for counted in ("positions", "targets")
        )
        counts = [torch.tensor(numbers, dtype=torch.float64) for numbers in (positions, targets, [1.0] * len(asked))]
        kl, loss, margin = (
            estimates(sums[..., i], count, self.seed) if count.sum() else [None] * sums.shape[1]
            for i, count in enumerate(counts)
        )
        return [Effect(*row) for row in zip(kl, loss, margin, strict=True)]  # type: ignore[arg-type]

    def _expected(self) -> dict[str, float]:
        """The damage of each tensor as a gradient predicts it: KL a position."""
        own = dict(self.models.first.model.named_parameters())
        differences = {path: values[path] - own[path].data for path, values in self.models.theirs.items()}
        sample = self.asked[: self.draws]
        generator, draws = torch.Generator().manual_seed(self.seed), -(-self.draws // len(sample))
        total = torch.zeros(len(differences), dtype=torch.float64)
        for asked in sample if differences else ():
            total += expected(self.models.first.model, asked, differences, draws, generator)
        return dict(zip(differences, (total / sum(len(text.positions) for text in sample)).tolist(), strict=True))
