"""Which step is made of which, by what operation and with which parameters: the step table as a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tinytf.trace.steps import Step, StepTable
from tinytf.trace.trace import Trace

Place = tuple[str, int | None]
"""A step of the table by its short name, and the layer where it is inside one."""

OPERATIONS: dict[str, str] = {
    "embed.tokens": "lookup",
    "embed.positions": "positions",
    "embed.types": "types",
    "embed.sum": "sum",
    "embed.norm": "norm",
    "embed.out": "sum",
    "in": "sum",
    "norm1": "norm",
    "q": "project",
    "k": "project",
    "v": "project",
    "q_norm": "norm",
    "k_norm": "norm",
    "q_rot": "rotate",
    "k_rot": "rotate",
    "scores": "scores",
    "scaled": "scale",
    "masked": "mask",
    "weights": "softmax",
    "heads": "mix",
    "concat": "concat",
    "attn": "linear",
    "mid": "sum",
    "norm2": "norm",
    "ffn.hidden": "linear",
    "ffn.gate": "linear",
    "ffn.act": "activate",
    "ffn": "linear",
    "out": "sum",
    "sum": "sum",
    "final.norm": "norm",
    "head.dense": "linear",
    "head.act": "activate",
    "head.norm": "norm",
    "logits": "linear",
}
"""What makes each step out of its inputs (a sum may be of one). Pooled and probs are not on the way to the loss."""

_MODULES: dict[str, str] = {
    "embed.tokens": "embed.tokens",
    "embed.positions": "embed.positions",
    "embed.types": "embed.types",
    "embed.norm": "embed.norm",
    "norm1": "norm1",
    "q": "attention.q",
    "k": "attention.k",
    "v": "attention.v",
    "q_norm": "attention.q_norm",
    "k_norm": "attention.k_norm",
    "attn": "attention.o",
    "norm2": "norm2",
    "ffn.hidden": "ffn.up",
    "ffn.gate": "ffn.gate",
    "ffn": "ffn.down",
    "final.norm": "final_norm",
    "pooled": "pooler",
    "head.dense": "head.dense",
    "head.norm": "head.norm",
    "logits": "head.decoder",
}


def sources(table: StepTable, step: Step, layer: int | None) -> tuple[Place, ...]:
    """The steps that ``step`` is computed from, those of the layer below included, in the order of its formula."""
    config = table.config
    last = "out" if config.norm_order == "pre" else "norm2"
    if step.name == "in":
        if layer:
            return ((last, layer - 1),)
        return (("embed.norm" if config.embed_norm else "embed.out", None),)
    if step.name == "final.norm":
        return ((last, config.n_layers - 1),)
    found = (table.by_name[name] for name in step.inputs)
    inside = config.n_layers - 1 if layer is None else layer
    return tuple((source.name, inside if source.in_layer else None) for source in found if source.is_tensor)


def consumers(table: StepTable, place: Place) -> tuple[tuple[Step, int | None, int], ...]:
    """The steps that are computed from ``place`` on the way to the loss, each with its layer and which input it is."""
    return tuple(
        (step, layer, number)
        for step, layer in table.rows
        if step.name in OPERATIONS
        for number, source in enumerate(sources(table, step, layer))
        if source == place
    )


@dataclass(frozen=True)
class Site:
    """One step of a recorded forward pass, with all that it and its gradient are computed from."""

    trace: Trace
    step: Step
    layer: int | None

    @property
    def name(self) -> str:
        return self.step.full_name(self.layer)

    @property
    def sources(self) -> tuple[Place, ...]:
        return sources(self.trace.steps, self.step, self.layer)

    def input(self, number: int = 0) -> Tensor:
        """What the step was computed from."""
        return self.trace.step(*self.sources[number])

    @property
    def value(self) -> Tensor:
        """What the step gave."""
        return self.trace.step(self.step.name, self.layer)

    @property
    def path(self) -> str:
        """The name of the module whose parameters the step has; empty where it has none."""
        path = _MODULES.get(self.step.name, "")
        return f"blocks.{self.layer}.{path}" if path and self.layer is not None else path

    @property
    def module(self) -> Any:
        return self.trace.model.get_submodule(self.path)

    @property
    def activation(self) -> str:
        config = self.trace.config
        return config.head_activation if self.step.name == "head.act" else config.activation
