"""Where two runs through transformers differ, module by module: two models, two texts, or a file of activations."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.compare.dumps.read import Dump
from tinytf.compare.measures import NotFinite
from tinytf.errors import DumpError, UsageError
from tinytf.report import About, Data, Report
from tinytf.tables import ColumnStyle
from tinytf.text.chat import Written
from tinytf.text.printable import printable
from tinytf.text_model import in_turn_of_all
from tinytf.through.model import ThroughModel
from tinytf.through.recording import unbatched
from tinytf.tolerance import RUN, allowed


@dataclass(frozen=True)
class ModuleDifference(Data):
    """The largest difference of a module's outputs, and ``relative`` to the largest number of the first one."""

    COLUMNS: ClassVar = {
        "module": ColumnStyle("module", shrink=40),
        "difference": ColumnStyle("largest difference", "%.1e"),
        "relative": ColumnStyle("relative", "%.1e", role="strong"),
    }

    module: str
    difference: float
    relative: float
    not_finite: NotFinite | None = None


@dataclass(frozen=True)
class ModuleDifferences(Report):
    """The modules that two runs have in common, in the order of the pass; ``versus`` names the other run.

    A ``relative`` difference of more than ``tolerance`` counts. ``unmatched`` outputs of this run are not in the other.
    """

    KIND = "diff_modules"
    ALWAYS_SAID = True
    EVENTS: ClassVar = {"tokens": "token", "modules": "module"}

    versus: str
    modules: tuple[ModuleDifference, ...]
    unmatched: int
    tolerance: float
    fail_over: float | None

    @property
    def holds(self) -> bool:
        if self.fail_over is not None and self.not_finite is not None:
            return False
        return self.fail_over is None or all(row.relative <= self.fail_over for row in self.modules)

    @property
    def first(self) -> ModuleDifference | None:
        """The first module that differs by more than the tolerance."""
        return next((row for row in self.modules if not row.relative <= self.tolerance), None)

    @property
    def not_finite(self) -> NotFinite | None:
        """The first module that is not finite in a run; None where all are."""
        return next((row.not_finite for row in self.modules if row.not_finite is not None), None)

    def in_a_sentence(self) -> str:
        """The first module that differs, and the one that differs most."""
        if (bad := self.not_finite) is not None:
            who = bad.who("This run", printable(self.versus, spaces=False))
            return f"{who} not finite from {bad.name} on: {bad.why}."
        first, worst = self.first, max(self.modules, key=lambda row: row.relative)
        if first is None:
            closely = f", to {worst.relative:.1e} of their largest number" if worst.relative else " exactly"
            return f"All {len(self.modules):,} modules agree{closely}."
        start = f"The first module that differs is {first.module}, by {first.relative:.2g} of its largest number"
        return f"{start}." if worst is first else f"{start}; {worst.module} differs most, by {worst.relative:.2g}."

    def fields(self) -> dict[str, Any]:
        return self.members("versus", "tolerance", "unmatched", "first", "not_finite", "modules")


@in_turn_of_all
def diff_through(
    model: ThroughModel,
    text: Written | None,
    other: "ThroughModel | Dump | Written",
    *,
    tolerance: float | None = None,
    fail_over: float | None = None,
    truncate: bool = False,
) -> ModuleDifferences:
    """Compare every module of a run with that of another model, of another text, or with a file of activations.

    Without a text, that of the file is read. Raises UsageError for texts of different lengths, DumpError for a file
    without a tensor that is named and shaped like a module's output.
    """
    if text is None:
        ids = other.ids if isinstance(other, Dump) else None
        if ids is None:
            raise UsageError("there is no text, and the file has no ids", "give TEXT")
        encoding = model.encode_ids(ids)
    else:
        encoding = model.encode(text, truncate=truncate)
    recording, _ = model.record(encoding)
    ours = {call.path: unbatched(call.output) for call in recording.made() if call.path}
    if isinstance(other, Dump):
        theirs, versus = {name: other.read(name) for name in other.shapes if name in ours}, other.name
    else:
        runner = other if isinstance(other, ThroughModel) else model
        written = text if isinstance(other, ThroughModel) else other
        second = encoding if written is None else runner.encode(written, truncate=truncate)
        if len(second.tokens) != len(encoding.tokens):
            counts = f"{len(encoding.tokens):,} and {len(second.tokens):,}"
            raise UsageError(f"the two runs have {counts} tokens", "give texts of equal length")
        versus = other.name if isinstance(other, ThroughModel) else "the other text"
        theirs = {call.path: unbatched(call.output) for call in runner.record(second)[0].calls}
    rows = tuple(_rows(ours, theirs))
    if not rows:
        raise DumpError(f"{versus} has no output that is named and shaped like one of {model.name}", "try trace")
    limit = allowed(RUN, next(iter(ours.values())).dtype) if tolerance is None else tolerance
    return ModuleDifferences(versus, rows, len(ours) - len(rows), limit, fail_over, about=About(model, encoding))


def _rows(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> Iterator[ModuleDifference]:
    for path, own in ours.items():
        if path in theirs and theirs[path].numel() == own.numel() and theirs[path].shape[-1:] == own.shape[-1:]:
            first, second = own.double().cpu(), theirs[path].double().cpu().reshape(own.shape)
            sums = torch.where(first == second, 0.0, (first - second).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
            off, largest = float(sums.max()), first.abs()[first.isfinite()]
            size = max(float(largest.max()) if largest.numel() else 0.0, 1e-30)
            yield ModuleDifference(path, off, off / size, NotFinite.of(path, first, second))
