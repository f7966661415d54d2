"""Which tensors make one model predict otherwise than another: each is put into the other model alone, and measured.

Shapes: N texts, S tensors, T tokens, C width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.analysis.alignment import same_vocabulary
from tinytf.analysis.compared import moved_weights
from tinytf.analysis.damage import Asked, Damage, Estimate, estimates, expected
from tinytf.analysis.swaps import Swapping, Values
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer, evaluating
from tinytf.report import About, Data, Progress, Report, plain, unheard
from tinytf.steps.table import table_of
from tinytf.text_model import TextModel
from tinytf.trace.parameters import ParameterAddress

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
    the two outcomes of the margins, None for the two that the first model finds most likely.
    """

    KIND = "blame"
    EVENTS: ClassVar = {"tensors": "tensor"}

    blamed: tuple[Blamed, ...]
    whole: Effect
    same: int
    texts: int
    asked: int
    positions: int
    pair: tuple[int, int] | None
    seed: int
    versus: About | None = field(default=None, repr=False, compare=False)

    @property
    def measured(self) -> tuple[Blamed, ...]:
        return tuple(one for one in self.blamed if one.damage is not None)

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
        }


def blame(
    model: TextModel,
    texts: str | Sequence[str],
    versus: TextModel,
    *,
    top: int | None = None,
    token: str | int | None = None,
    versus_token: str | int | None = None,
    tokens: int | None = None,
    truncate: bool = False,
    seed: int = 0,
    on_progress: Progress = unheard,
) -> Blame:
    """Which tensors of ``versus`` make it predict otherwise than the model does, on a text or on many.

    Each is put into the model alone, and each of the model's into ``versus``; with ``top`` only those that are expected
    to do most damage. ``token`` and ``versus_token`` are the two whose logits are compared at the end of each text.
    Of each text the first ``tokens`` are taken. An interrupt ends it after the last whole text. Raises UsageError for
    models that differ in more than the numbers of their tensors, and for a model that does not choose one outcome.
    """
    model.transformer.require_choice("there are no predictions to compare")
    _require_alike(model, versus)
    if (token is None) != (versus_token is None):
        raise UsageError("a logit difference is of two tokens, and one is named", "give --token and --versus-token")
    pair = None
    if token is not None and versus_token is not None:
        pair = model.find_outcome(token, "--token"), model.find_outcome(versus_token, "--versus-token")
    given = [texts] if isinstance(texts, str) else texts
    encoded = [model.encode(text, truncate=truncate or tokens is not None) for text in given]
    asked = [Asked.of(model.transformer, one.ids[:tokens], pair) for one in encoded]
    about = About(model, encoded[0]) if isinstance(texts, str) else About(model)
    with evaluating(model.transformer), evaluating(versus.transformer), torch.no_grad():
        found = _Blaming(model.transformer, versus.transformer, asked, seed)
        return replace(found.run(top, on_progress), versus=About(versus), about=about)


def _require_alike(model: TextModel, versus: TextModel) -> None:
    """UsageError unless the two differ in the numbers of their tensors alone."""
    first, second = model.config, versus.config
    other = [one.name for one in fields(first) if getattr(first, one.name) != getattr(second, one.name)]
    if other:
        values = " and ".join(f"{getattr(config, other[0])}" for config in (first, second))
        raise UsageError(
            f"the models differ in more than their tensors: {other[0]} is {values}",
            "tinytf diff compares models of two kinds",
        )
    if not same_vocabulary(model.tokenizer, versus.tokenizer):
        raise UsageError("the models have different vocabularies", "tinytf diff compares what they predict")


class _Blaming:
    """Two models that differ in some tensors, and what was measured so far."""

    def __init__(self, first: Transformer, second: Transformer, asked: Sequence[Asked], seed: int) -> None:
        self.first, self.second, self.asked, self.seed = Swapping(first), Swapping(second), asked, seed
        own, others = dict(first.named_parameters()), dict(second.named_parameters())
        self.changed = [
            path
            for path, one in own.items()
            if self.first.used[path] and not torch.equal(one, others[path].to(one.device))
        ]
        self.same = len(own) - len(self.changed)
        self.theirs: list[Values] = [{path: others[path].data.to(own[path])} for path in self.changed]
        self.ours: list[Values] = [{path: own[path].data.to(others[path])} for path in self.changed]

    def run(self, top: int | None, on_progress: Progress) -> Blame:
        expectations = self._expected()
        order = expectations.argsort(descending=True).tolist()[:top]
        found: list[tuple[Tensor, Tensor]] = []
        try:
            for text in self.asked:
                found.append(self._measured(text, order))
                on_progress(len(found), len(self.asked))
        except KeyboardInterrupt:
            if not found:
                raise
        asked = self.asked[: len(found)]
        effects = [self._effects(torch.stack(side), asked) for side in zip(*found, strict=True)]
        damage, recovered = (dict(zip(order, effect, strict=False)) for effect in effects)
        blamed = [
            replace(one, expected=float(expectations[i]), damage=damage.get(i), recovered=recovered.get(i))
            for i, one in enumerate(self._tensors())
        ]
        blamed.sort(key=lambda one: (one.damage is None, -(one.damage.kl.value if one.damage else one.expected)))
        positions = sum(len(one.positions) for one in asked)
        return Blame(
            tuple(blamed),
            effects[0][-1],
            self.same,
            len(asked),
            len(self.asked),
            positions,
            self.asked[0].pair,
            self.seed,
        )

    def _measured(self, asked: Asked, order: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of one text, (S + 1, 3) each: what the tensors do one by one in the first model, and undo in the second.

        The last rows are of the second model as it is.
        """
        streams = [side.streams(asked.ids) for side in (self.first, self.second)]
        damage = Damage(self.first, streams[0], asked)
        alone = damage.of(self.first, streams[0], [self.theirs[i] for i in order])
        restored = damage.of(self.second, streams[1], [*(self.ours[i] for i in order), {}])
        return torch.cat((alone, restored[-1:])), restored[-1] - restored

    def _effects(self, found: Tensor, asked: Sequence[Asked]) -> list[Effect]:
        """From what was measured of each text, (N, S + 1, 3), to an effect for each row."""
        positions, targets = ([float(len(getattr(one, of))) for one in asked] for of in ("positions", "targets"))
        counts = [torch.tensor(each, dtype=torch.float64) for each in (positions, targets, [1.0] * len(asked))]
        kl, loss, margin = (
            estimates(found[..., i], count, self.seed) if count.sum() else [None] * found.shape[1]
            for i, count in enumerate(counts)
        )
        return [Effect(*row) for row in zip(kl, loss, margin, strict=True)]  # type: ignore[arg-type]

    def _expected(self) -> Tensor:
        """The damage of each tensor that a gradient expects, KL a position; float64."""
        generator = torch.Generator().manual_seed(self.seed)
        own = dict(self.first.model.named_parameters())
        differences = {path: values[path] - own[path].data for values in self.theirs for path in values}
        some = self.asked[:_DRAWS]
        draws = -(-_DRAWS // len(some))
        total = torch.zeros(len(differences), dtype=torch.float64)
        for asked in some if differences else ():
            total += expected(self.first.model, asked, differences, draws, generator)
        return total / sum(len(asked.positions) for asked in some)

    def _tensors(self) -> Iterator[Blamed]:
        """The tensors without what was measured of them."""
        names = _addresses(self.first.model)
        moved = {one.name: one.ratio for one in moved_weights(self.first.model, self.second.model)}
        for path in self.changed:
            where, layer = names[path]
            kind, size = where.parameter.name, self.first.model.get_parameter(path).numel()
            yield Blamed(str(where), path, layer, kind, size, moved[path], 0.0)


def _addresses(model: Transformer) -> dict[str, tuple[ParameterAddress, int | None]]:
    """The address of each parameter by its path, with its layer."""
    found: dict[str, tuple[ParameterAddress, int | None]] = {}
    table = table_of(model.config)
    for name, (step, one) in table.parameters.items():
        for layer in range(model.config.n_layers) if step.in_layer else (None,):
            if one.absent or (layer is not None and not table.has_parameter(name, layer)):
                continue
            where = ParameterAddress(step, one, None if layer is None else (layer,))
            found.setdefault(where.path(layer), (where, layer))
    return found
