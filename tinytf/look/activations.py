"""The activation of a feed-forward beside the usual ones, and the part of the curve that a text uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.look.neurons import require_units
from tinytf.parts.feed_forward import ACTIVATION_NAMES
from tinytf.report import About, Data, Report
from tinytf.sentences import percent
from tinytf.steps.operations.activate import ACTIVATIONS
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.site import Site
from tinytf.trace.trace import Text, Trace

REACH = 5.0
"""The curves go from −REACH to REACH."""
_STEPS = 201
_USUAL = ("relu", "gelu", "gelu_tanh", "silu")
GATED_NAMES = {"relu": "ReGLU", "gelu": "GEGLU", "gelu_tanh": "GEGLU", "silu": "SwiGLU", "relu2": "gated ReLU²"}
"""The names of activations that multiply another unit (Shazeer 2020)."""
QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)


@dataclass(frozen=True)
class Place(Data):
    """The units of one ``token``: the share of inputs ``below`` 0, and the share of outputs that are ``silent``.

    Silent is an output within 0.01 of 0; ``largest`` is the largest absolute output.
    """

    token: int
    below: float
    silent: float
    largest: float


@dataclass(frozen=True, eq=False)
class Activations(Report):
    """The activation ``name`` of a layer: its ``inputs`` and ``outputs``, (T, F) each.

    If it is ``gated``, an output is the activation of the gate times the ``hidden`` unit. ``curves`` has the usual
    activations and the layer's own at ``grid`` (N,), by name. ``quantiles`` of all inputs are taken at QUANTILES.
    """

    KIND = "activations"
    EVENTS: ClassVar = {"places": "place"}

    layer: int
    name: str
    gated: str
    formula: str
    inputs: Tensor
    hidden: Tensor | None
    outputs: Tensor
    grid: Tensor
    curves: Mapping[str, Tensor]
    places: tuple[Place, ...]
    quantiles: tuple[float, ...]

    @property
    def below(self) -> float:
        """The share of all inputs below 0."""
        return float((self.inputs < 0).float().mean())

    @property
    def beyond(self) -> int:
        """The number of inputs outside the curves."""
        return int((self.inputs.abs() > REACH).sum())

    def in_a_sentence(self) -> str:
        """Which shares of the inputs are below 0, and of the outputs within 0.01 of it."""
        silent = sum(place.silent for place in self.places) / len(self.places)
        below = f"{percent(self.below)} of the {self.inputs.numel():,} inputs to the units of L{self.layer} are below 0"
        return f"{below}; {percent(silent)} of the outputs are within 0.01 of 0."

    def fields(self) -> dict[str, Any]:
        quantiles = [{"share": q, "value": value} for q, value in zip(QUANTILES, self.quantiles, strict=True)]
        return {
            **self.members("layer", "name", "gated", "formula"),
            "quantiles": quantiles,
            "places": [place.to_dict() for place in self.places],
            **self.members("grid", "curves"),
        }

    def stored(self) -> list[Array]:
        units = {"inputs": self.inputs, "hidden": self.hidden, "outputs": self.outputs}
        arrays = [Array.of(name, ["token", "d_ff"], tensor) for name, tensor in units.items() if tensor is not None]
        return arrays + [
            Array.of(name, ["grid"], tensor) for name, tensor in {"grid": self.grid, **self.curves}.items()
        ]


def _curves(trace: Trace, layer: int, grid: Tensor) -> dict[str, Tensor]:
    """The usual activations on the ``grid``, and the layer's own, which may have learned its slopes."""
    curves = {ACTIVATION_NAMES[word]: ACTIVATIONS[word](grid) for word in _USUAL}
    word = trace.config.activation
    if word in ACTIVATIONS:
        return curves | {ACTIVATION_NAMES[word]: ACTIVATIONS[word](grid)}
    step = trace.steps.at(trace.steps.ffn_activation, layer)
    parameters = [parameter.detach().float().cpu() for parameter in Site(trace, step, layer).module.parameters()]
    return curves | {ACTIVATION_NAMES[word]: step.operation.forward(grid, *parameters)}


def activations(model: TextModel, text: Text, layer: int = 0) -> Activations:
    """The activation of one layer's feed-forward, and the part of its curve that a text, or its trace, uses.

    Raises AddressError for a layer that does not exist, UsageError for a mixture of experts.
    """
    require_units(model.config)
    trace = model.trace(text)
    trace.address(f"L{layer}")
    step = trace.steps.by_name[trace.steps.ffn_activation]
    inputs, *gated = (trace.step(name, layer).float().cpu() for name in step.inputs)
    outputs = trace.step(step.name, layer).float().cpu()
    grid = torch.linspace(-REACH, REACH, _STEPS)
    places = [
        Place(position, float((x < 0).float().mean()), float((y.abs() < 0.01).float().mean()), float(y.abs().max()))
        for position, (x, y) in enumerate(zip(inputs, outputs, strict=True))
    ]
    quantiles = torch.tensor([inputs.flatten().kthvalue(_rank(q, inputs.numel())).values for q in QUANTILES])
    return Activations(
        layer,
        ACTIVATION_NAMES[trace.config.activation],
        GATED_NAMES[trace.config.activation] if gated else "",
        step.formula,
        inputs,
        gated[0] if gated else None,
        outputs,
        grid,
        _curves(trace, layer, grid),
        tuple(places),
        tuple(quantiles.tolist()),
        about=About(model, trace.encoding),
    )


def _rank(share: float, count: int) -> int:
    return 1 + round(share * (count - 1))
