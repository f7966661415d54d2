"""A model beside what llama-eval-callback printed: the numbers that there are, the sums, and the first that differs."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tinytf.compare.diff import of_dump
from tinytf.compare.dumps.fit import ways
from tinytf.compare.dumps.layouts import Meaning
from tinytf.compare.dumps.names import resolve_all
from tinytf.compare.dumps.printed import Node, PrintedLog
from tinytf.compare.measures import NotFinite
from tinytf.errors import DumpError
from tinytf.nearest import did_you_mean
from tinytf.report import About, Data, Report
from tinytf.steps.operations import HeadNorm, Linear, Mask, Norm, Operation, Rotate
from tinytf.steps.table import StepKey, StepTable
from tinytf.tables import ColumnStyle
from tinytf.text.chat import Written
from tinytf.text.printable import printable
from tinytf.text_model import TextModel
from tinytf.tolerance import RUN, allowed
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

_MODULE = {"MUL_MAT": re.compile(r"^(blk\.\S+)\.weight\{"), "ADD": re.compile(r", (blk\.\S+)\.bias\{")}
"""The module of a node, by the weight or the bias that it was computed with."""
_ROOM = 256
"""llama.cpp makes room for keys in steps of at most 256, so that a map may be so many times as large as ours."""


@dataclass(frozen=True)
class PrintedStep(Data):
    """A step beside what was printed of it as ``node``: ``printed`` of its ``numbers``.

    ``relative`` is the largest difference of a printed number, less half a unit of its last digit, divided by the
    largest number of its token; it is at the cell ``at``, where ``values`` are ours and theirs. ``sums`` are of all
    numbers, ours and theirs, and ``sum_relative`` is their difference divided by the sum of our magnitudes; None where
    none was printed. ``differs`` if either is beyond the tolerance.
    """

    COLUMNS: ClassVar = {
        "name": ColumnStyle("step", role="strong"),
        "node": ColumnStyle("in llama.cpp", shrink=8),
        "printed": ColumnStyle("printed", "{:,}".format, align="right"),
        "numbers": ColumnStyle("of", "{:,}".format, align="right"),
        "relative": ColumnStyle("difference", "%.1e"),
        "sum_relative": ColumnStyle("of sums", "%.1e"),
        "differs": ColumnStyle("", lambda differs: "differs" if differs else "", role="bad"),
    }

    name: str
    node: str
    printed: int
    numbers: int
    relative: float
    at: tuple[int, ...]
    values: tuple[float, float]
    sums: tuple[float, float] | None
    sum_relative: float | None
    differs: bool
    not_finite: NotFinite | None = None


@dataclass(frozen=True)
class PrintedDifference(Report):
    """The ``steps`` of which numbers were printed, in order; ``unmatched`` are names that are no step.

    ``tolerance`` is relative to a token's largest number; ``fail_over`` is the largest difference that passes.
    """

    KIND = "diff_printed"
    ROWS = "steps"
    EVENTS: ClassVar = {"steps": "step"}
    ALWAYS_SAID = True

    file: str
    steps: tuple[PrintedStep, ...]
    tolerance: float
    unmatched: tuple[str, ...] = ()
    fail_over: float | None = None

    @property
    def first(self) -> PrintedStep | None:
        """The first step that differs."""
        return next((step for step in self.steps if step.differs), None)

    @property
    def not_finite(self) -> NotFinite | None:
        """The first step with NaN or ∞ in the model (A), the log (B) or both; None where all is finite."""
        return next((step.not_finite for step in self.steps if step.not_finite is not None), None)

    @property
    def holds(self) -> bool:
        if self.fail_over is not None and self.not_finite is not None:
            return False
        return self.fail_over is None or all(step.relative <= self.fail_over for step in self.steps)

    def in_a_sentence(self) -> str:
        """From which step on they differ, by which number, and how few numbers say so."""
        printed, numbers = (sum(counts) for counts in zip(*((s.printed, s.numbers) for s in self.steps), strict=True))
        n_sums = sum(step.sums is not None for step in self.steps)
        known = f"{printed:,} of {numbers:,} numbers were printed" + (f", and {n_sums:,} sums" if n_sums else "")
        first, bad = self.first, self.not_finite
        if bad is not None:
            who = bad.who("the model", "the log")
            at = f"at [{', '.join(map(str, bad.at))}]" if bad.at else "in a sum"
            return f"{who[0].upper()}{who[1:]} not finite from {bad.name} on: {bad.why} {at}; {known}."
        if first is None:
            return f"Nothing printed differs, in {len(self.steps):,} steps: {known}."
        ours, theirs = first.values
        what = f"{theirs:.4g} instead of {ours:.4g} at [{', '.join(map(str, first.at))}]"
        if first.relative <= self.tolerance and first.sums is not None:
            what = f"its numbers sum to {first.sums[1]:.4g} instead of {first.sums[0]:.4g}"
        return f"They differ from {first.name} ({first.node}) on: {what}; {known}."

    def fields(self) -> dict[str, Any]:
        first = self.first and self.first.name
        return {**self.members("file", "tolerance", "fail_over", "not_finite"), "first_difference": first,
                **self.members("steps", "unmatched", "holds")}  # fmt: skip


@torch.no_grad()
def diff_printed(
    model: TextModel,
    text: Written | None,
    log: PrintedLog,
    *,
    names: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    fail_over: float | None = None,
    truncate: bool = False,
    force: bool = False,
) -> PrintedDifference:
    """Compare a model with a log of llama-eval-callback, on ``text`` or the log's own ids.

    ``tolerance`` is by default that of float16, in which llama.cpp keeps keys and values; it also rounds the inputs of
    quantised matrices. Raises DumpError for a log without a known step, and as ``diff`` does for one of another text.
    """
    encoding = of_dump(model, text, log.as_dump(), truncate)
    trace = record(model.transformer, encoding, force=force)
    limit = allowed(RUN, torch.float16) if tolerance is None else tolerance
    weights, biases = (
        {match[1] for node in log.nodes if (match := pattern.search(node.sources))} for pattern in _MODULE.values()
    )
    every = dict.fromkeys([*(node.name for node in log.nodes), *sorted(weights | biases)])
    named = resolve_all(every, trace.steps, names, model.table)
    found: dict[StepKey, PrintedStep] = {}
    for node in log.nodes:  # of several of one name, the last is whole
        meanings = _meant(named.found.get(_called(node, named.found, biases), ()), node, trace.steps)
        compared = [(one.place, _compared(trace, node, one, log.sums_all, limit)) for one in meanings if node.values]
        fitting = [(place, step) for place, step in compared if step is not None]
        near = [(place, step) for place, step in fitting if step.relative <= limit]
        found.update((near or fitting)[-1:])
    steps = [found[step.name, layer] for step, layer in trace.steps.rows if (step.name, layer) in found]
    known = {step.node for step in steps}
    others = (printable(node.name, spaces=False) for node in log.nodes if not node.name.endswith(")"))  # no views
    unmatched = dict.fromkeys(name for name in others if name not in known)
    if not steps:
        first = next(iter(unmatched), log.nodes[0].name)
        raise DumpError(
            f"{log.path}: no tensor has the name and size of a step of this model; the first is {first}",
            did_you_mean(first, named.known, otherwise="--names TABLE.toml says what they mean"),
        )
    about = About(model, encoding)
    return PrintedDifference(log.as_dump().name, tuple(steps), limit, tuple(unmatched), fail_over, about=about)


def _called(node: Node, known: Collection[str], biases: Collection[str]) -> str:
    """The name under which a node is looked up: its own or, if that is no step, the module whose output it is.

    Empty for a product to which a bias is added later.
    """
    pattern = _MODULE.get(node.op)
    module = None if pattern is None else pattern.search(node.sources)
    if node.op == "MUL_MAT" and module is not None and module[1] in biases:
        return ""
    return node.name if node.name in known or module is None else module[1]


def _meant(meanings: Sequence[Meaning], node: Node, steps: StepTable) -> Sequence[Meaning]:
    """The steps that a node may be by the operation that computed it, the likeliest last; one where that tells."""

    def of(*kinds: type[Operation]) -> list[Meaning]:
        return [one for one in meanings if isinstance(steps.at(*one.place).operation, kinds)]

    if node.op in ("ROPE", "MUL") and (found := of(Rotate) if node.op == "ROPE" else of(HeadNorm, Norm)):
        return found
    others = [one for one in meanings if one not in of(Rotate, HeadNorm)]
    if node.op not in _MODULE and (moved := [one for one in others if one not in of(Linear)]):
        return moved  # kqv_out was in older versions that of the output matrix, and is now what goes into it
    return others or meanings


def _compared(trace: Trace, node: Node, meaning: Meaning, sums_all: bool, tolerance: float) -> PrintedStep | None:
    """A step beside a node, in the order of axes that is nearest; None if none has its size."""
    place = meaning.place
    step, count = trace.steps.at(*place), len(trace.tokens)
    size = count * trace.config.vocab_size if step.is_vocabulary else trace.step(*place).numel()
    if node.numbers > _ROOM * size or node.ne[3] != 1:
        return None
    values, known = torch.zeros(node.numbers, dtype=torch.float64), torch.zeros(node.numbers, dtype=torch.bool)
    values[node.places], known[node.places] = torch.tensor(node.values, dtype=torch.float64), True
    best: PrintedStep | None = None
    for ours, index, factor in _aligned(trace, node, meaning):
        a, b, mask = ours.double(), values[index] * factor, known[index]
        apart = ((a - b).abs() - node.half * factor).clamp(min=0).nan_to_num(nan=math.inf, posinf=math.inf)
        apart = torch.where(a == b, 0.0, apart)
        scale = torch.where(a.isfinite(), a.abs(), 0.0)
        others = [axis for axis in range(a.dim()) if axis != step.token_axis]
        scale = scale.amax(dim=others, keepdim=True) if step.token_axis is not None and others else scale.amax()
        relative = torch.where(mask & (apart > 0), apart / scale.clamp(min=1e-30), 0.0)
        worst = int(relative.argmax())
        at = tuple(int(i) for i in np.unravel_index(worst, a.shape))
        shift = count - a.shape[step.token_axis] if step.token_axis is not None else 0
        cell = tuple(i + shift * (axis == step.token_axis) for axis, i in enumerate(at))
        sums = _sums(a, node, factor) if sums_all else None
        gap = None if sums is None else abs(sums[0] - sums[1]) / (float(a.abs().sum()) or 1.0)
        slack = 2.0**-24 * math.sqrt(a.numel())  # of adding in float32
        largest = float(relative.flatten()[worst])
        hides = isinstance(step.operation, Mask)
        bad = NotFinite.of(step.full_name(place[1]), a, torch.where(mask, b, 0.0), step.token_axis, hides)
        bad = bad or _lost_sum(step.full_name(place[1]), a, node)
        differs = bad is not None or largest > tolerance or (gap is not None and gap > tolerance + slack)
        name = step.full_name(place[1])
        found = PrintedStep(name, printable(node.name, spaces=False), int(mask.sum()), a.numel(), largest, cell,
                            (float(a[at]), float(b[at])), sums, gap, differs, bad)  # fmt: skip
        if best is None or found.relative < best.relative:
            best = found
    return best


def _aligned(trace: Trace, node: Node, meaning: Meaning) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Our numbers of the tokens that a node has, the flat places of its numbers beside them, and their factor."""
    name, layer = meaning.place
    step, count = trace.steps.at(name, layer), len(trace.tokens)
    flat = torch.arange(node.numbers, dtype=torch.float64).reshape(node.ne[::-1])[0]
    if step.is_map:
        flat = flat[..., :count]  # llama.cpp makes room for more keys
    axis = step.token_axis
    sizes = (node.ne[1],) if step.is_vocabulary else (count, node.ne[1], node.ne[2])
    for rows in dict.fromkeys(rows for rows in sizes if rows <= count):  # the last layer has only what is asked for
        if step.is_vocabulary:
            ours = trace.vocabulary(name, range(count - rows, count))
        else:
            ours = trace.step(name, layer)
            ours = ours if axis is None else ours.narrow(axis, count - rows, rows)
        for way in ways(flat, meaning, step, trace.config.at(layer), tuple(ours.shape)):
            yield ours, (way.tensor / way.factor).round().long(), way.factor


def _lost_sum(name: str, ours: Tensor, node: Node) -> NotFinite | None:
    """A sum of all numbers that is not finite, where none of those printed is."""
    lost = [total for total in node.sums if not math.isfinite(total)]
    is_whole = node.numbers == ours.numel() and bool(ours.isfinite().all())
    return NotFinite(name, "B", (), None, (float(ours.sum()), lost[0])) if lost and is_whole else None


def _sums(ours: Tensor, node: Node, factor: float) -> tuple[float, float] | None:
    """The sums of all numbers, ours and theirs; None for scores beside which there is room for other keys."""
    if len(node.sums) != 1 or not math.isfinite(node.sums[0]) or not ours.isfinite().all():
        return None
    if node.numbers != ours.numel() and node.op != "SOFT_MAX":  # shares of other keys are 0
        return None
    return float(ours.sum()), node.sums[0] * factor
