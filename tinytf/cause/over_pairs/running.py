"""Ask one question of many pairs of prompts: their texts run in padded batches, and each pair gives a row of numbers.

What a text needs beyond its plain run, such as every head patched alone, is run in batches of its own.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from tinytf.cause.interventions.prediction import logits_at, predicted_at
from tinytf.cause.over_pairs.report import IN_ORDER, Example, OverPairs, Quantity, Row
from tinytf.config import ModelConfig
from tinytf.errors import UsageError, at_line
from tinytf.metric import Metric
from tinytf.pairs.pair import EncodedPair, PairSet
from tinytf.report import About, Progress, Verified
from tinytf.resume_log import ResumeLog, checksum
from tinytf.text_model import TextModel
from tinytf.tolerance import PADDED, allowed
from tinytf.trace.faults import require_finite
from tinytf.trace.record import record_all, recording_bytes
from tinytf.trace.trace import Trace

_ROOM = 2**28
"""Bytes of recorded steps that are in memory at once."""


@dataclass(frozen=True, eq=False)
class PairRun:
    """A pair, its plain runs, and the ``metric`` in them; the clean text predicts at ``position``."""

    model: TextModel
    pair: EncodedPair
    clean: Trace
    corrupt: Trace
    position: int
    corrupt_position: int
    metric: Metric

    def lead(self, logits: Tensor) -> Tensor:
        """The metric, by default the lead of the answer: logits (B, P, V) -> (B,), float64."""
        return self.metric.of(logits).cpu()

    @property
    def clean_lead(self) -> float:
        return float(self.lead(logits_at(self.clean, self.metric.positions)[None]))

    @property
    def corrupt_lead(self) -> float:
        shift = self.corrupt_position - self.position
        return float(self.lead(logits_at(self.corrupt, [at + shift for at in self.metric.positions])[None]))


@dataclass(frozen=True)
class Measured:
    """The answer for one pair: ``values`` (quantities, rows), float64; and a check of it, if there is one."""

    values: Tensor
    check: Verified | None = None


class Question(ABC):
    """A question that is asked of every pair; ``asked`` is its name.

    ``key`` is all that its answer depends on beside model and pairs, for a file to resume from.
    """

    asked: ClassVar[str]
    even: bool = False
    """Whether both texts of a pair must have the same number of tokens, since the answer reads both runs."""
    runs_again: bool = False
    """Whether a pair takes runs of its own, after those of its batch; if not, progress is that of whole batches."""

    key: tuple[object, ...] = ()
    words: str = ""
    """What is done or read, in words."""
    sweep: str | None = None
    """What each row is one of, where steps are changed one by one."""
    columns: tuple[str, ...] = ()
    """The names of the positions, if rows are at positions."""
    random_sets: str = ""
    """What the random controls of its only row are, whose numbers stand after those of the row."""

    @property
    @abstractmethod
    def quantities(self) -> tuple[Quantity, ...]:
        """What each row is measured by, without values."""

    @abstractmethod
    def rows(self, run: PairRun) -> tuple[Row, ...]:
        """What is measured; the rows are those of every pair."""

    @abstractmethod
    def measure(self, run: PairRun) -> Measured:
        """The numbers of one pair."""

    def alone(self, run: PairRun, row: int) -> float:
        """The first quantity of one row, computed by itself."""
        return float(self.measure(run).values[0, row])

    def layers(self, config: ModelConfig) -> Sequence[int]:
        """The layers that are recorded."""
        return range(config.n_layers)


@torch.no_grad()
def ask(
    model: TextModel,
    question: Question,
    pairs: PairSet,
    encoded: Sequence[EncodedPair],
    where: Sequence[str],
    on_progress: Progress,
    resume: Path | None = None,
) -> OverPairs:
    """Ask a question of every pair. An interrupt ends it with the pairs so far; ``resume`` keeps them in a file."""
    if model.config.encoder is not None:
        raise UsageError("pairs are asked of one stack, and this model has two", "patch two sources, one target")
    asked = [pair.asked for pair in encoded]
    if resume is not None and not isinstance(asked[0].metric, str):
        raise UsageError("measurements by a function of your own cannot be resumed", "leave out resume")
    names = [
        checksum([pair.clean.ids, pair.corrupt.ids, str(of.metric), list(of.answer or ()), list(of.versus or ())])
        for pair, of in zip(encoded, asked, strict=True)
    ]
    log = ResumeLog(resume, "over pairs", question.asked, *question.key, model.transformer)
    results = {number: log.found[name] for number, name in enumerate(names) if name in log.found}
    try:
        for batch in _batches(model, question, encoded, [i for i in range(len(encoded)) if i not in results]):
            for number, run in zip(batch, _runs(model, question, [encoded[i] for i in batch], pairs.name), strict=True):
                measured = question.measure(run)
                check = None if measured.check is None else vars(measured.check)
                result = {"leads": [run.clean_lead, run.corrupt_lead], "values": measured.values, "check": check}
                log.add({names[number]: result})
                results[number] = log.found[names[number]]
                if question.runs_again or number == batch[-1]:
                    on_progress(len(results), len(encoded))
    except KeyboardInterrupt:
        if not results:
            raise
    numbers = sorted(results)
    values = torch.tensor([results[number]["values"] for number in numbers], dtype=torch.float64)  # (P, Q, N)
    values, random = values.split([1, values.shape[2] - 1], 2) if question.random_sets else (values, values[:, :, :0])
    leads = torch.tensor([results[number]["leads"] for number in numbers], dtype=torch.float64)  # (P, 2)
    quantities = tuple(
        quantity.with_values(values[:, index], leads) for index, quantity in enumerate(question.quantities)
    )
    if not quantities[0].ranked:
        if quantities[0].ratio:
            raise UsageError(
                "on average the answers lead alike after the clean and the corrupt texts, so there is no share of it",
                "tinytf score --pairs FILE shows the leads",
            )
        raise UsageError(f"no text of {pairs.name} has a number for {quantities[0].name}", "give longer texts")
    measure = asked[0].measure()
    by = range(values.shape[2])[IN_ORDER.get(question.asked, quantities[0].ranked[0])]
    strongest = int(values[:, 0, by].abs().nan_to_num(-1.0).argmax())
    (run,) = _runs(model, question, [encoded[numbers[strongest]]], pairs.name)
    rows = question.rows(run)[: values.shape[2]]
    own = Verified(
        f"line {run.pair.pair.number:,}, run by itself, gives the same number for {rows[by].name}",
        abs(question.alone(run, by) - float(values[strongest, 0, by])),
        allowed(PADDED, run.clean.last_hidden.dtype) * max(1.0, float(run.clean.logits_at(run.position).abs().max())),
    )
    checks = [Verified(**results[number]["check"]) for number in numbers if results[number]["check"]]
    return OverPairs(
        asked=question.asked,
        metric=measure,
        words=question.words,
        sweep=question.sweep,
        pairs=pairs.name,
        where=tuple(where),
        n_pairs=len(encoded),
        uneven=pairs.left_out_of(encoded),
        examples=tuple(
            Example(encoded[i].pair, clean, corrupt, clean > 0 if measure.is_lead else None)
            for i, (clean, corrupt) in zip(numbers, leads.tolist(), strict=True)
        ),
        rows=rows,
        columns=question.columns,
        quantities=quantities,
        by=by,
        checks=(*([max(checks, key=_share)] if checks else []), own),
        random=random[:, 0],
        random_sets=question.random_sets,
        about=About(model),
    )


def _share(check: Verified) -> float:
    """The difference as a share of what is allowed."""
    if not math.isfinite(check.difference):
        return math.inf
    return check.difference / check.allowed if check.allowed else math.inf * (check.difference > 0) or 0.0


def _batches(
    model: TextModel, question: Question, encoded: Sequence[EncodedPair], remaining: Sequence[int]
) -> Iterator[list[int]]:
    """Yield the numbers of pairs whose recordings fit into memory together, in the order of the file.

    Their order is not by length, so that an interrupted measurement has no bias to short texts.
    """
    layers, itemsize = question.layers(model.config), next(model.transformer.parameters()).itemsize
    batch: list[int] = []
    taken = 0
    for number in remaining:
        length = len(encoded[number].clean.ids) + len(encoded[number].corrupt.ids)
        needed = recording_bytes(model.config, length, 1, itemsize, layers)
        if batch and taken + needed > _ROOM:
            yield batch
            batch, taken = [], 0
        batch.append(number)
        taken += needed
    if batch:
        yield batch


def _runs(model: TextModel, question: Question, pairs: Sequence[EncodedPair], name: str) -> list[PairRun]:
    """The plain runs of some pairs, in batches. Raises UsageError, with the line, where a text predicts nothing."""
    layers, mask = question.layers(model.config), model.tokenizer.mask_id
    clean = record_all(model.transformer, [pair.clean for pair in pairs], mask, layers=layers)
    corrupt_layers = layers if question.even else ()
    corrupt = record_all(model.transformer, [pair.corrupt for pair in pairs], mask, layers=corrupt_layers)
    runs = []
    for pair, *traces in zip(pairs, clean, corrupt, strict=True):
        with at_line(pair.pair.number, name):
            positions = [predicted_at(trace) for trace in traces]
            if question.even and positions[0] != positions[1]:
                raise UsageError(
                    f"[MASK] is at {positions[0]} in the clean text and at {positions[1]} in the corrupt one",
                    "put it at the same place in both",
                )
        for trace, position, text in zip(traces, positions, (pair.clean, pair.corrupt), strict=True):
            trace.about = About(model, text)
            require_finite(trace, trace.logits_at(position))
        metric = pair.asked.bind(traces[0], positions[0], shown=model.shown)
        first, other = (pair.asked.position(position) for position in positions)
        runs.append(PairRun(model, pair, traces[0], traces[1], first, other, metric))
    return runs
