"""The code of each step: lines of PyTorch that make it from the steps before, run and compared with the recording."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.parts.row import Step
from tinytf.report import About, Data, Report
from tinytf.text_model import TextModel
from tinytf.tolerance import Coarse, Compared, Ways, compare, telling
from tinytf.trace.address import Address
from tinytf.trace.faults import first_not_finite
from tinytf.trace.site import Site
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class CodeLine(Data):
    """The ``code`` of a step, which gives its ``shape``, ``compared`` with the recorded step.

    That is None for a step that an intervention replaced. ``parameters`` are those in the code, with their shapes.
    """

    LESS: ClassVar = ("compared",)
    ALSO: ClassVar = ("difference", "of", "allowed", "holds")

    step: str
    formula: str
    code: str
    parameters: dict[str, tuple[int, ...]]
    shape: tuple[int, ...]
    compared: Compared | None

    @property
    def difference(self) -> float | None:
        return None if self.compared is None else self.compared.difference

    @property
    def of(self) -> float | None:
        return None if self.compared is None else self.compared.scale

    @property
    def allowed(self) -> float | None:
        return None if self.compared is None else self.compared.allowed

    @property
    def holds(self) -> bool:
        return self.compared is None or self.compared.holds


@dataclass(frozen=True)
class Code(Report):
    """The lines of the steps of some layers, and of those outside; ``rows`` are the positions that have logits.

    Where a line gives NaN, ``first_not_finite`` names the first step of the pass with NaN or infinity.
    """

    KIND = "code"
    EVENTS: ClassVar = {"lines": "line"}

    lines: tuple[CodeLine, ...]
    rows: tuple[int, ...]
    first_not_finite: str | None = None

    @property
    def holds(self) -> bool:
        return all(line.holds for line in self.lines)

    @property
    def telling(self) -> Compared | None:
        """The first line that does not hold, or the largest difference; None where all were replaced."""
        return telling(found) if (found := [one.compared for one in self.lines if one.compared]) else None

    def fields(self) -> dict[str, Any]:
        told = self.telling
        check = {"holds": self.holds, "difference": told and told.difference, "at": told and told.step}
        broken = {"first_not_finite": self.first_not_finite} if self.first_not_finite else {}
        return {**self.members("rows", "lines"), "check": {**check, **broken}}


@torch.no_grad()
def code(model: TextModel, text: Text, layers: Collection[int] = (0,), at: Sequence[str | Address] = ()) -> Code:
    """The code of every step of a text outside the layers and in ``layers``, or of those ``at`` some addresses.

    Each is run on the recorded steps before it. Raises AddressError for an address that is not there, UsageError for
    steps that nothing computes, such as tokens.
    """
    trace = model.trace(text)
    coarse = Coarse(trace.model.parameters())
    found = [trace.address(one) if isinstance(one, str) else one for one in at]
    named = {(one.step and one.step.name, layer) for one in found for layer in one.layers or (None,)}
    lines = tuple(
        code_line(trace, step, layer, coarse)
        for step, layer in trace.steps.rows
        if step.operation is not None
        and ((step.name, layer) in named or (None, layer) in named if at else layer is None or layer in layers)
    )
    if not lines:
        raise UsageError(f"no line of code makes {', '.join(map(str, found))}", "such as --at L0.weights")
    broken = None if all(one.compared is None or one.compared.is_finite for one in lines) else first_not_finite(trace)
    return Code(lines, trace.recording.logit_rows, broken, about=About(model, trace.encoding))


@torch.no_grad()
def code_line(trace: Trace, step: Step, layer: int | None, coarse: Coarse) -> CodeLine:
    """One step as code, run."""
    site = Site(trace, step, layer)
    lines, operands = site.operation.code(site), site.operation.operands(site)
    used = {name: tensor for name, tensor in operands.items() if re.search(rf"\b{name}\b", lines)}
    recorded = _value(trace, site)

    def ways() -> Ways:
        found = _run(trace, site, lines, used)
        hidden = (found == recorded) & recorded.isinf()  # by a mask, in both
        found, expected = (one.masked_fill(hidden, 0.0) for one in (found, recorded))
        return Ways(site.name, "its code", found, expected, step.token_axis)

    heads = range(trace.config.at(layer).n_heads)
    replaced = any(trace.is_exchanged(step.name, layer, head) for head in (None, *heads))
    return CodeLine(
        site.name,
        step.formula,
        lines,
        {name: tuple(tensor.shape) for name, tensor in used.items()},
        tuple(recorded.shape),
        None if replaced else compare(ways(), trace.last_hidden.dtype, coarse, ways),
    )


def _run(trace: Trace, site: Site, lines: str, parameters: dict[str, Tensor]) -> Tensor:
    """What the lines give: torch, the recorded inputs and the parameters are all that they know."""
    given: dict[str, Any] = {name: tensor.detach().cpu() for name, tensor in parameters.items()}
    for name, (source, layer) in zip(site.names, site.sources, strict=True):
        given[name] = _value(trace, Site(trace, trace.steps.at(source, layer), layer))
    given |= {"ids": torch.tensor(list(site.ids)), "T": len(site.ids), "rows": list(trace.recording.logit_rows)}
    names = {"torch": torch, "F": F, **given}
    exec(lines, names)
    result = names[site.variable]
    assert isinstance(result, Tensor)
    return result


def _value(trace: Trace, site: Site) -> Tensor:
    """A step as it was recorded; of one over the vocabulary the rows that were computed."""
    step = site.step
    return (trace.at_logit_rows(step) if step.is_vocabulary else site.value).detach().cpu()
