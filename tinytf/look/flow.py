"""One block as a drawing needs it: its steps in order, the inputs of each, and where branches leave and join the
residual stream. Shapes are those of the text; no tensor is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tinytf.parts.row import Step
from tinytf.report import Data, plain
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Weight(Data):
    """A parameter by its name in formulas; a matrix is (in, out), as in x·W."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class FlowStep:
    """One step of a block. ``inputs`` are its input steps, each with its shape.

    ``branch`` is empty on the residual stream; elsewhere it names the last step of the branch. ``joins`` names the
    branches that this step adds to the stream.
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
    """The steps of one layer, in order."""

    layer: int
    steps: tuple[FlowStep, ...]

    def branch(self, name: str) -> tuple[FlowStep, ...]:
        """The steps of the branch that has the step ``name``, and the sum where it joins the stream."""
        (end,) = (step.branch for step in self.steps if step.name == name)
        return tuple(step for step in self.steps if step.branch == end or end in step.joins)


def flow(trace: Trace, layer: int) -> Flow:
    """The block of ``layer``: every step with its shape, inputs, weights and branch."""
    table = trace.steps
    sizes = {**trace.lengths, **trace.config.at(layer).sizes}
    stream = table.stream(layer)

    def shape(step: Step) -> tuple[int, ...]:
        return tuple(sizes[axis] for axis in step.axes)

    def flow_step(step: Step) -> FlowStep:
        sources = [table.at(*place) for place in table.sources(step, layer)]
        on_stream = step.name in stream
        return FlowStep(
            step,
            shape(step),
            tuple((source.name, shape(source)) for source in sources),
            tuple(_weights(Site(trace, step, layer))),
            "" if on_stream else table.branch_ends(step, layer)[0],
            tuple(source.name for source in sources if source.name not in stream)
            if on_stream and not step.from_stream
            else (),
        )

    return Flow(layer, tuple(flow_step(step) for step, step_layer in table.rows if step_layer == layer))


def _multiplies(step: Step) -> bool:
    """Whether a step multiplies by its matrix; a lookup only takes rows from it."""
    return bool(step.matrix) and f"·{step.matrix}" in step.formula


def _weights(site: Site) -> Iterator[Weight]:
    if site.path:
        for name, parameter in site.module.named_parameters():
            yield _weight(site.step, name, parameter)


def _weight(step: Step, name: str, parameter: Tensor) -> Weight:
    addresses = {own.attribute: own.name.rpartition(".")[2] for own in step.operation.parameters(step)}
    called = addresses.get(name, name) if name == "weight" or not step.matrix else name
    if parameter.dim() >= 2 and name != "bias":
        *experts, out, into = parameter.shape  # (experts, out, in) for experts
        shape = (*experts, into, out) if _multiplies(step) else tuple(parameter.shape)
        return Weight(step.matrix or called, shape)
    return Weight(called, tuple(parameter.shape))
