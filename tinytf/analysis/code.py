"""The code of each step: lines of PyTorch that make it from the steps before, run and compared with the recording."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.report import About, Data, Report
from tinytf.steps.table import Step
from tinytf.text_model import TextModel
from tinytf.tolerance import STEP, allowed
from tinytf.trace.address import Address
from tinytf.trace.site import Site
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class CodeLine(Data):
    """The ``code`` of a step, which gives its ``shape``; ``difference`` is the largest from the recorded step.

    ``relative`` is in units of the step's largest number, or of 1 if that is larger; both are None for a step that an
    intervention replaced. ``parameters`` are those in the code, with their shapes.
    """

    ALSO: ClassVar = ("holds",)

    step: str
    formula: str
    code: str
    parameters: dict[str, tuple[int, ...]]
    shape: tuple[int, ...]
    difference: float | None
    relative: float | None
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.relative is None or self.relative <= self.tolerance


@dataclass(frozen=True)
class Code(Report):
    """The lines of the steps of some layers, and of those outside; ``rows`` are the positions that have logits."""

    KIND = "code"
    EVENTS: ClassVar = {"lines": "line"}

    lines: tuple[CodeLine, ...]
    rows: tuple[int, ...]

    @property
    def holds(self) -> bool:
        return all(line.holds for line in self.lines)

    @property
    def worst(self) -> CodeLine:
        return max(self.lines, key=lambda line: line.relative or 0.0)

    def fields(self) -> dict[str, Any]:
        worst = self.worst
        check = {"holds": self.holds, "largest_difference": worst.difference, "at": worst.step}
        return {**self.members("rows", "lines"), "check": check}


@torch.no_grad()
def code(model: TextModel, text: Text, layers: Collection[int] = (0,), at: Sequence[str | Address] = ()) -> Code:
    """The code of every step of a text outside the layers and in ``layers``, or of those ``at`` some addresses.

    Each is run on the recorded steps before it. Raises AddressError for an address that is not there, UsageError for
    steps that nothing computes, such as tokens.
    """
    trace = model.trace(text)
    found = [trace.address(one) if isinstance(one, str) else one for one in at]
    named = {(one.step and one.step.name, layer) for one in found for layer in one.layers or (None,)}
    lines = tuple(
        code_line(trace, step, layer)
        for step, layer in trace.steps.rows
        if step.operation is not None
        and ((step.name, layer) in named or (None, layer) in named if at else layer is None or layer in layers)
    )
    if not lines:
        raise UsageError(f"no line of code makes {', '.join(map(str, found))}", "such as --code --at L0.weights")
    return Code(lines, trace.recording.logit_rows, about=About(model, trace.encoding))


def code_line(trace: Trace, step: Step, layer: int | None) -> CodeLine:
    """One step as code, run."""
    site = Site(trace, step, layer)
    lines, operands = site.operation.code(site), site.operation.operands(site)
    used = {name: tensor for name, tensor in operands.items() if re.search(rf"\b{name}\b", lines)}
    found, recorded = (x.double() for x in (_run(site, lines, used), _value(site)))
    difference = float((found - recorded).masked_fill(found == recorded, 0.0).abs().max())  # where both are −∞, too
    scale = float(recorded.masked_fill(recorded == -torch.inf, 0.0).abs().max())
    replaced = any(trace.is_exchanged(step.name, layer, head) for head in (None, *range(trace.config.n_heads)))
    return CodeLine(
        site.name,
        step.formula,
        lines,
        {name: tuple(tensor.shape) for name, tensor in used.items()},
        tuple(recorded.shape),
        None if replaced else difference,
        None if replaced else difference / max(1.0, scale),
        allowed(STEP, trace.last_hidden.dtype),
    )


def _run(site: Site, lines: str, parameters: dict[str, Tensor]) -> Tensor:
    """What the lines give: torch, the recorded inputs and the parameters are all that they know."""
    given: dict[str, Any] = {name: tensor.detach().cpu() for name, tensor in parameters.items()}
    for name, (source, layer) in zip(site.names, site.sources, strict=True):
        given[name] = _value(Site(site.trace, site.trace.steps.at(source, layer), layer))
    given |= {"ids": torch.tensor(list(site.ids)), "T": len(site.ids), "rows": list(site.trace.recording.logit_rows)}
    names = {"torch": torch, "F": F, **given}
    exec(lines, names)
    result = names[site.variable]
    assert isinstance(result, Tensor)
    return result


def _value(site: Site) -> Tensor:
    """A step as it was recorded; of one over the vocabulary the rows that were computed."""
    step = site.step
    return (site.trace.at_logit_rows(step) if step.is_vocabulary else site.value).detach().cpu()
