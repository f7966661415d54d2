"""The code of each step: PyTorch lines that compute it from the steps before, run and compared with the recording."""

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
from tinytf.tolerance import Coarse, Comparison, TwoResults, compare, worst_or_first_failure
from tinytf.trace.address import Address
from tinytf.trace.faults import first_not_finite
from tinytf.trace.site import Site
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class CodeLine(Data):
    """The ``code`` of a step of some ``shape``, with its result ``compared`` to the recorded step.

    ``compared`` is None for a step that an intervention replaced. ``parameters`` are those in the code, with shapes.
    """

    LESS: ClassVar = ("compared",)
    ALSO: ClassVar = ("difference", "of", "allowed", "holds")

    step: str
    formula: str
    code: str
    parameters: dict[str, tuple[int, ...]]
    shape: tuple[int, ...]
    compared: Comparison | None

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
    """The lines of the steps outside layers and of some layers; ``rows`` are the positions that have logits.

    If a line gives NaN or infinity, ``first_not_finite`` names the first such step of the pass.
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
    def telling(self) -> Comparison | None:
        """The first line that does not hold, else the largest difference; None if all steps were replaced."""
        return (
            worst_or_first_failure(compared)
            if (compared := [line.compared for line in self.lines if line.compared])
            else None
        )

    def fields(self) -> dict[str, Any]:
        worst = self.telling
        check = {"holds": self.holds, "difference": worst and worst.difference, "at": worst and worst.step}
        fault = {"first_not_finite": self.first_not_finite} if self.first_not_finite else {}
        return {**self.members("rows", "lines"), "check": {**check, **fault}}


@torch.no_grad()
def code(model: TextModel, text: Text, layers: Collection[int] = (0,), at: Sequence[str | Address] = ()) -> Code:
    """The code of every step outside the layers and in ``layers``, or of the steps ``at`` some addresses.

    Each is run on the recorded steps of the text before it. Raises AddressError for an address that does not exist,
    UsageError for steps that are not computed, such as tokens.
    """
    trace = model.trace(text)
    coarse = Coarse(trace.model.parameters())
    addresses = [trace.address(text) if isinstance(text, str) else text for text in at]
    requested = {(where.step and where.step.name, layer) for where in addresses for layer in where.layers or (None,)}
    lines = tuple(
        code_line(trace, step, layer, coarse)
        for step, layer in trace.steps.rows
        if step.operation is not None
        and ((step.name, layer) in requested or (None, layer) in requested if at else layer is None or layer in layers)
    )
    if not lines:
        raise UsageError(f"no line of code computes {', '.join(map(str, addresses))}", "such as --at L0.weights")
    fault = None if all(line.compared is None or line.compared.is_finite for line in lines) else first_not_finite(trace)
    return Code(lines, trace.recording.logit_rows, fault, about=About(model, trace.encoding))


@torch.no_grad()
def code_line(trace: Trace, step: Step, layer: int | None, coarse: Coarse) -> CodeLine:
    """The code line of one step, run and compared."""
    site = Site(trace, step, layer)
    lines, operands = site.operation.code(site), site.operation.operands(site)
    used = {name: tensor for name, tensor in operands.items() if re.search(rf"\b{name}\b", lines)}
    recorded = _value(trace, site)

    def ways() -> TwoResults:
        result = _run(trace, site, lines, used)
        hidden = (result == recorded) & recorded.isinf()  # masked in both
        result, expected = (tensor.masked_fill(hidden, 0.0) for tensor in (result, recorded))
        return TwoResults(site.name, "its code", result, expected, step.token_axis)

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
    """The result of the lines, run with torch, the recorded inputs and the parameters alone."""
    known: dict[str, Any] = {name: tensor.detach().cpu() for name, tensor in parameters.items()}
    for name, (source, layer) in zip(site.names, site.sources, strict=True):
        known[name] = _value(trace, Site(trace, trace.steps.at(source, layer), layer))
    known |= {"ids": torch.tensor(list(site.ids)), "T": len(site.ids), "rows": list(trace.recording.logit_rows)}
    names = {"torch": torch, "F": F, **known}
    exec(lines, names)
    result = names[site.variable]
    assert isinstance(result, Tensor)
    return result


def _value(trace: Trace, site: Site) -> Tensor:
    """A recorded step; only the computed rows of a step over the vocabulary."""
    step = site.step
    return (trace.at_logit_rows(step) if step.is_vocabulary else site.value).detach().cpu()
