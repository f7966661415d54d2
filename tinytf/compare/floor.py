"""Rounding or a bug? The error that another run makes at each step, beside the model's own error there.

The error of a step is how far it is from what follows, in float32, from the run's own numbers before it; so errors do
not add up, and every step is judged by itself. The model makes its own with rounded numbers, fused and step by step. An
error many times as large is no rounding, nor is one that leans where the model's own does not. The error of a step is
that of its tokens, each relative to the length of its vector, as a root mean square over the tokens.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tinytf.compare.attempts import FORMATS
from tinytf.compare.leans import Lean, Leaning, OwnLeans, leaning
from tinytf.compare.measures import token_error
from tinytf.compare.mistakes.wrong_trace import WrongTrace
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.report import Data
from tinytf.steps.operations.lookup import Embedding
from tinytf.steps.table import StepKey
from tinytf.text.tokenizer import Encoding
from tinytf.tolerance import MARGIN
from tinytf.trace.record import record
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
WORDS = (*DTYPES, "q8_0")
"""What the model's own error can be measured in."""
LIMIT = 6.0
"""The most times the model's own error that still counts as rounding: programs round in more places than the model."""
_SINGLE = MARGIN * torch.finfo(torch.float32).eps
"""What any program may be off by at a step that the model does not round, such as logits by 8-bit weights."""
Numbers = Callable[[StepKey, Trace], Tensor | None]
"""Gives a run's numbers of a step, in the axes of a trace of ours; None where it has none."""


@dataclass(frozen=True)
class Share(Data):
    """A step: the other run's error, and the model's own, at least the rounding of float32; the test that it fails.

    ``lean`` is None where the errors fall to both sides, whatever the value.
    """

    name: str
    error: float
    own: float
    lean: Lean | None = None

    @property
    def times(self) -> float:
        """The error in units of the model's own; infinite where the other run is not finite."""
        return self.error / self.own if math.isfinite(self.error) else math.inf

    @property
    def is_rounding(self) -> bool:
        return self.times <= LIMIT and self.lean is None

    def in_words(self, dtype: str) -> str:
        """Why the error is no rounding."""
        if self.times > LIMIT or self.lean is None:
            return f"{self.name} is {self.times:.3g} × as far off as the model's own in {dtype}"
        return self.lean.in_words(self.name, dtype)


@dataclass(frozen=True)
class Floor(Data):
    """The error of every step, and the model's own in ``dtype``.

    ``flips`` of the ``positions`` have another most probable token; in the model's own runs at most ``own_flips``.
    """

    dtype: str
    steps: tuple[Share, ...]
    flips: int = 0
    own_flips: int = 0
    positions: int = 0

    @property
    def bug(self) -> Share | None:
        """The first step whose error is no rounding."""
        return next((step for step in self.steps if not step.is_rounding), None)

    @property
    def worst(self) -> Share | None:
        """The step whose error is the largest in units of the model's own."""
        return max(self.steps, key=lambda step: step.times, default=None)

    def most_in_words(self, joined: str) -> str:
        """The worst step, ``joined`` to the words about the first bug; empty if that is the same step."""
        worst = self.worst
        return (
            ""
            if worst is None or worst is self.bug or math.isinf(worst.error) or worst.is_rounding
            else f"{joined}the worst is {worst.name}, {worst.times:.3g} ×"
        )

    def in_words(self) -> str:
        """The verdict."""
        bug, worst = self.bug, self.worst
        if bug is not None and math.isinf(bug.error):
            return f"bug: {bug.name} is not finite"
        if bug is not None:
            return f"bug: {bug.in_words(self.dtype)}{self.most_in_words('; ')}"
        most = (
            f"at most {worst.times:.2g} × the model's own error in {self.dtype}, at {worst.name}" if worst else "none"
        )
        flips = f"; the most probable token is another at {self.flips} of {self.positions:,} positions"
        own = f", and in the model's own runs at {self.own_flips}"
        return f"rounding: {most}{(flips + own) * bool(self.positions)}"


def require_floor(word: str) -> None:
    """Raise UsageError for a type of numbers that the model's own error is not measured in."""
    if word not in WORDS:
        raise UsageError(f"the floor {word!r} is not one of {', '.join(WORDS)}")


@torch.no_grad()
def floor_of(model: Transformer, encoding: Encoding, places: Sequence[StepKey], theirs: Numbers, word: str) -> Floor:
    """The errors that another run makes at these steps, in order, and the model's own in ``word``.

    Raises UsageError for another word and for one in which the model itself is not finite, and MemoryShortage.
    """
    require_floor(word)
    exact = record(copy.deepcopy(model).float(), encoding)
    theirs_of: dict[StepKey, Tensor] = {}
    for place in places:
        numbers = theirs(place, exact)
        if numbers is not None and numbers.shape == exact.step(*place).shape:
            theirs_of[place] = numbers.float()
    judged = dict(_errors(exact, theirs_of))
    errors = {place: error for place, (error, _) in judged.items()}
    own: dict[StepKey, float] = {}
    leans: dict[StepKey, list[Leaning]] = {place: [] for place in judged}
    best = exact.step("logits").argmax(-1) if ("logits", None) in theirs_of and exact.config.predicts_tokens else None
    flips = own_flips = 0
    for run in _own_runs(model, encoding, word):
        numbers_of = {place: run.step(*place).float() for place in theirs_of}
        for place, (error, lean) in _errors(exact, numbers_of):
            own[place] = max(error, own.get(place, 0.0))
            leans[place] += [lean] if lean is not None else []
        if (lost := next((at for at in own if math.isinf(own[at]) and math.isfinite(errors[at])), None)) is not None:
            name = exact.steps.at(*lost).full_name(lost[1])
            raise UsageError(
                f"the model's own run in {word} is not finite from {name} on, so it is no measure of rounding",
                "take another type of numbers, such as bf16",
            )
        if best is not None:
            own_flips = max(own_flips, int((numbers_of["logits", None].argmax(-1) != best).sum()))
    if best is not None:
        flips = int((theirs_of["logits", None].argmax(-1) != best).sum())
    shares = []
    for place, (error, lean) in judged.items():
        name, rounds = exact.steps.at(*place).full_name(place[1]), own[place] > _SINGLE
        alike = OwnLeans.of(one for (step, _), runs in leans.items() if step == place[0] for one in runs)
        failed = alike.failed(lean, leans[place]) if rounds and lean is not None else None
        shares.append(Share(name, error, max(own[place], _SINGLE), failed))
    return Floor(word, tuple(shares), flips, own_flips, 0 if best is None else len(best))


def _errors(exact: Trace, numbers: Mapping[StepKey, Tensor]) -> Iterator[tuple[StepKey, tuple[float, Leaning | None]]]:
    """The error of every step and how it leans, given the numbers of those before it."""
    before: dict[StepKey, Callable[[Site], Tensor]] = {}
    for place, value in numbers.items():
        step = exact.steps.at(*place)
        if not (step.from_stream and step.in_layer):  # that is the output of the layer below
            right = WrongTrace(exact, before).step(*place)
            yield place, (token_error(right, value, step), leaning(right, value, step))
        before[place] = partial(_constant, value)


def _constant(value: Tensor, site: Site) -> Tensor:
    return value


def _own_runs(model: Transformer, encoding: Encoding, word: str) -> Iterator[Trace]:
    """The model's own runs: fused, and step by step."""
    for fused in (True, False):
        rounded = copy.deepcopy(model).float()
        if word in DTYPES:
            rounded = rounded.to(DTYPES[word])
            for table in rounded.modules() if fused else ():  # programs keep such a constant as a tensor
                if isinstance(table, Embedding):
                    table.scale = float(torch.tensor(table.scale, dtype=DTYPES[word]))
        else:
            for module in rounded.blocks.modules():
                if isinstance(module, nn.Linear) and not module.in_features % 32:  # GGML leaves others as they are
                    module.weight.data = FORMATS["Q8_0"](module.weight.data)
        rounded.fuse(fused)
        yield record(rounded, encoding)
