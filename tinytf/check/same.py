"""``tinytf same --module FILE.py:NAME``: the ways of running a text, tried on a user's own module."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.check.invariances import CACHES, cache_of
from tinytf.check.opened import open_student, split_target, student_error
from tinytf.check.process import SECONDS, Ended, run_in_subprocess
from tinytf.check.running import STARTS, Runner
from tinytf.check.seen import find_logits
from tinytf.check.weights import copy_weights, guess_pairs
from tinytf.errors import TinytfError, UsageError
from tinytf.loading import Model
from tinytf.report import About, Data
from tinytf.through.same import TEXT, Same
from tinytf.through.trial import Trial, Way

_MASKS, _POSITIONS = ("attention_mask", "padding_mask"), ("position_ids", "positions")
"""Names of arguments that say, for each token, whether it is one of the text, and where it stands: (B, T)."""


@dataclass(frozen=True)
class _Tried(Data):
    ways: tuple[Way, ...]
    steps: int
    tolerance: float


class _Own:
    """A user's module, whose logits have ``width`` numbers a token."""

    padding, right_alone = 0, ""

    def __init__(self, run: Runner, causal: bool, width: int) -> None:
        self.run, self.causal, self.width = run, causal, width
        self.mask, self.positions = (
            next((name for name in names if name in run.takes), "") for names in (_MASKS, _POSITIONS)
        )

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        return {name: module for name, module in self.run.module.named_modules() if name}

    def seed(self, number: int) -> None:
        self.run.calls = number

    def whole(self, rows: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor | None:
        given = {} if mask is None or not self.mask else {self.mask: mask}
        given |= {} if positions is None else {self.positions: positions}
        return find_logits(self.run.at_all_positions(rows, **given), self.width)

    def pieces(self, pieces: Sequence[Tensor], positions: bool) -> Iterator[Tensor | None]:
        cache = next((one for one in CACHES if one in self.run.takes), None)
        start = next((one for one in STARTS if one in self.run.takes), None)
        if cache is None and start is None:
            raise UsageError("forward takes no cache")
        given: dict[str, Any] = {"use_cache": True} if "use_cache" in self.run.takes else {}
        done = 0
        for piece in pieces:
            if positions:
                given[self.positions] = torch.arange(done, done + piece.shape[1])[None]
            result = self.run(piece, **given, **({start: done} if start else {}))
            done += piece.shape[1]
            if cache is not None:
                given[cache] = cache_of(result, self.width)
                if given[cache] is None:
                    raise UsageError(f"forward takes {cache}, but returns none to continue from")
            logits = find_logits(result, self.width)
            yield logits if logits is not None and logits.shape[1:2] == piece.shape[1:] else None


def same_of_module(
    model: Model,
    target: str,
    text: str = TEXT,
    other: str | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    truncate: bool = False,
    seconds: float = SECONDS,
) -> Same:
    """Compare a text alone with the same text padded, in a batch, with a cache …, run by FILE:NAME ``target``.

    It is built for the sizes and the vocabulary of ``model``, and gets its weights as far as they fit. This runs the
    code of the file, in a process of its own, each call at most ``seconds`` long. Raises UsageError for a target that
    does not exist or cannot be built, StudentError where the code itself fails.
    """
    encoding = model.encode(text, truncate=truncate)
    beside = None if other is None else model.encode(other, truncate=truncate).ids

    def work() -> _Tried:
        student = open_student(target, model.config, args or {})
        with suppress(TinytfError):
            copy_weights(student.module, model.transformer, guess_pairs(student.module, model.config))
        own = _Own(Runner(student), not model.config.looks_ahead, model.config.vocab_size)
        trial = Trial(model, encoding, beside, own)
        return _Tried(trial.ways(), trial.steps, trial.tolerance)

    try:
        tried = run_in_subprocess(work, seconds)
    except Ended as end:
        raise student_error(split_target(target)[0], end.message, end.frames) from None
    return Same(tried.ways, tried.steps, tried.tolerance, target, about=About(model, encoding))
