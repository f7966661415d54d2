"""One block as a drawing needs it: its steps in order, what makes each of them, and where they leave and join the
residual stream. Shapes are those of the text; no tensor is looked at.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tinytf.parts.row import Step
from tinytf.report import Data, plain
from tinytf.steps.table import StepTable
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Weight(Data):
    """A parameter under the name that formulas have for it; a matrix as in x·W, (in, out)."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class FlowStep:
    """One step of a block. ``inputs`` are the steps it is made of, each with its shape.

    ``branch`` is empty on the residual stream; elsewhere it names the step that the branch ends with, which ``joins``
    the stream further down.
    """

    step: Step
    shape: tuple[int, ...]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    weights: tuple[Weight, ...]
    branch: str
    joins: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def has_matrix(self) -> bool:
        return bool(self.weights) and _multiplies(self.step)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "formula": self.step.formula,
            "axes": list(self.step.axes),
            "shape": list(self.shape),
            "inputs": [{"name": name, "shape": list(shape)} for name, shape in self.inputs],
            "weights": plain(self.weights),
            "branch": self.branch or None,
            "joins": list(self.joins),
        }


@dataclass(frozen=True)
class Flow(Data):
    """The steps of one layer, in their order."""

    layer: int
    steps: tuple[FlowStep, ...]

    def branch(self, name: str) -> tuple[FlowStep, ...]:
        """The steps of the branch that a step is on, and the sum where it joins the stream."""
        (end,) = (one.branch for one in self.steps if one.name == name)
        return tuple(one for one in self.steps if one.branch == end or end in one.joins)


def flow(trace: Trace, layer: int) -> Flow:
    """The block of ``layer``: every step with its shape, its inputs, its weights, and the branch it is on."""
    table, tokens = trace.steps, len(trace.tokens)
    sizes = {**dict.fromkeys(("token", "query", "key"), tokens), **trace.config.at(layer).sizes}
    stream = set(_stream(table, layer))

    def shape(step: Step) -> tuple[int, ...]:
        return tuple(sizes[axis] for axis in step.axes)

    def made(step: Step) -> FlowStep:
        sources = [table.at(*place) for place in table.sources(step, layer)]
        on_stream = step.name in stream
        return FlowStep(
            step,
            shape(step),
            tuple((one.name, shape(one)) for one in sources),
            tuple(_weights(Site(trace, step, layer))),
            "" if on_stream else _end(table, step, layer, stream),
            tuple(one.name for one in sources if one.name not in stream) if on_stream and not step.from_stream else (),
        )

    return Flow(layer, tuple(made(step) for step, within in table.rows if within == layer))


def _multiplies(step: Step) -> bool:
    """Whether it multiplies by its matrix; rows of a table are taken from it."""
    return bool(step.matrix) and f"·{step.matrix}" in step.formula


def _stream(table: StepTable, layer: int) -> Iterator[str]:
    """The steps of the residual stream, from the output of a block up to its input."""
    step = table.at(table.output, layer)
    while not step.from_stream:
        yield step.name
        step = next(one for place in table.sources(step, layer) if (one := table.at(*place)).role == "residual")
    yield step.name


def _end(table: StepTable, step: Step, layer: int, stream: set[str]) -> str:
    """The last step of the branch of a step: what the stream takes of it."""
    later = next(one for one in table.in_layer(layer) if (step.name, layer) in table.sources(one, layer))
    return step.name if later.name in stream else _end(table, later, layer, stream)


def _weights(site: Site) -> Iterator[Weight]:
    if site.path:
        for name, parameter in site.module.named_parameters():
            yield _weight(site.step, name, parameter)


def _weight(step: Step, name: str, parameter: Tensor) -> Weight:
    if parameter.dim() >= 2 and name != "bias":
        *experts, out, into = parameter.shape  # of experts one for each
        return Weight(step.matrix, (*experts, into, out) if _multiplies(step) else tuple(parameter.shape))
    return Weight("gain" if name == "weight" else name, tuple(parameter.shape))
