"""The activation of a feed-forward, beside the others that models use, and where the numbers of a text lie on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.look.neurons import require_units
from tinytf.parts.feed_forward import ACTIVATION_NAMES
from tinytf.report import About, Data, Report
from tinytf.steps.operations.activate import ACTIVATIONS
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.trace import Text

REACH = 5.0
"""The curves go from −REACH to REACH."""
_STEPS = 201
_USUAL = ("relu", "gelu", "gelu_tanh", "silu")
GATED_NAMES = {"relu": "ReGLU", "gelu": "GEGLU", "gelu_tanh": "GEGLU", "silu": "SwiGLU", "relu2": "gated ReLU²"}
"""What an activation that multiplies another unit is called (Shazeer 2020)."""
QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)


@dataclass(frozen=True)
class Place(Data):
    """How the numbers of one ``token`` lie: the share of them ``below`` 0, and the share that comes out ``silent``.

    Silent is an output within a hundredth of 0.
    """

    token: int
    below: float
    silent: float
    largest: float


@dataclass(frozen=True, eq=False)
class Activations(Report):
    """The activation ``name`` of a layer: what goes in (``inputs``) and what comes out (``outputs``), (T, F) each.

    Where it is ``gated``, an output is the activation of the gate times the ``hidden`` unit. ``curves`` has the usual
    activations and the layer's own at ``grid`` (N,), by its name. ``quantiles`` are those of QUANTILES, of all inputs.
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
        """How many inputs the curves do not reach."""
        return int((self.inputs.abs() > REACH).sum())

    def fields(self) -> dict[str, Any]:
        quantiles = [{"share": q, "value": value} for q, value in zip(QUANTILES, self.quantiles, strict=True)]
        return {
            **self.members("layer", "name", "gated", "formula"),
            "quantiles": quantiles,
            "places": [one.to_dict() for one in self.places],
            **self.members("grid", "curves"),
        }

    def stored(self) -> list[Array]:
        units = {"inputs": self.inputs, "hidden": self.hidden, "outputs": self.outputs}
        found = [Array.of(name, ["token", "d_ff"], one) for name, one in units.items() if one is not None]
        return found + [Array.of(name, ["grid"], one) for name, one in {"grid": self.grid, **self.curves}.items()]


def activations(model: TextModel, text: Text, layer: int = 0) -> Activations:
    """The activation of one layer's feed-forward, and where the numbers of a text, or of its trace, lie on it.

    Raises AddressError for a layer that is not there, UsageError for a mixture of experts.
    """
    require_units(model.config)
    trace = model.trace(text)
    trace.address(f"L{layer}")
    step = trace.steps.by_name[trace.steps.activated]
    inputs, *gated = (trace.step(name, layer).float().cpu() for name in step.inputs)
    outputs = trace.step(step.name, layer).float().cpu()
    grid = torch.linspace(-REACH, REACH, _STEPS)
    places = [
        Place(place, float((x < 0).float().mean()), float((y.abs() < 0.01).float().mean()), float(y.abs().max()))
        for place, (x, y) in enumerate(zip(inputs, outputs, strict=True))
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
        {ACTIVATION_NAMES[word]: ACTIVATIONS[word](grid) for word in dict.fromkeys((*_USUAL, trace.config.activation))},
        tuple(places),
        tuple(quantiles.tolist()),
        about=About(model, trace.encoding),
    )


def _rank(share: float, count: int) -> int:
    return 1 + round(share * (count - 1))
