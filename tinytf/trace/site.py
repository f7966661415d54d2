"""One step of a recorded forward pass, with everything that it and its gradient are computed from."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.model.turn import using
from tinytf.parts.row import Step
from tinytf.steps.operations import Linear, Operation
from tinytf.steps.table import StepKey, StepTable

if TYPE_CHECKING:
    from tinytf.model.transformer import Transformer
    from tinytf.report import About
    from tinytf.text.tokenizer import Encoding


class Recorded(Protocol):
    """The members of a trace that a ``Site`` uses."""

    @property
    def model(self) -> Transformer: ...
    @property
    def about(self) -> About | None: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def encoding(self) -> Encoding: ...
    @property
    def steps(self) -> StepTable: ...
    def step(self, name: str, layer: int | None = None, heads: tuple[int, ...] | None = None) -> Tensor: ...
    def is_exchanged(self, name: str, layer: int | None, head: int | None = None) -> bool: ...


@dataclass(frozen=True)
class Site:
    """``step`` of a trace, in ``layer`` if it belongs to one."""

    trace: Recorded
    step: Step
    layer: int | None

    @property
    def name(self) -> str:
        return self.step.full_name(self.layer)

    @property
    def operation(self) -> Operation:
        assert self.step.operation is not None, f"{self.step.name} is no tensor"
        return self.step.operation

    @property
    def config(self) -> ModelConfig:
        """The configuration of the step's layer."""
        return self.trace.config.at(self.layer)

    @property
    def ids(self) -> Sequence[int]:
        return self.trace.encoding.ids

    @property
    def types(self) -> Sequence[int]:
        """The token type of each token."""
        return self.trace.encoding.types

    @property
    def sources(self) -> tuple[StepKey, ...]:
        return self.trace.steps.sources(self.step, self.layer)

    @property
    def variable(self) -> str:
        """The step's name in code."""
        return _variable(self.step.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the step's inputs in code; those of another layer begin with that layer."""
        return tuple(
            _variable(name) if layer in (None, self.layer) else f"L{layer}_{_variable(name)}"
            for name, layer in self.sources
        )

    @property
    def source_steps(self) -> tuple[Step, ...]:
        return tuple(self.trace.steps.at(*place) for place in self.sources)

    def input(self, number: int = 0, heads: tuple[int, ...] | None = None) -> Tensor:
        """One input of the step; for an input with heads, only ``heads`` (query heads) if given."""
        name, layer = self.sources[number]
        return self.trace.step(name, layer, heads if self.trace.steps.at(name, layer).is_split else None)

    def inputs(self, heads: tuple[int, ...] | None = None) -> tuple[Tensor, ...]:
        """All inputs of the step, in the order of the formula."""
        return tuple(self.input(number, heads) for number in range(len(self.sources)))

    @property
    def value(self) -> Tensor:
        """The tensor of the step itself."""
        return self.trace.step(self.step.name, self.layer)

    @property
    def path(self) -> str:
        """The name of the module with the step's parameters, in the first layer that has them; empty without any."""
        path = self.step.module
        if not path or self.layer is None:
            return path
        return f"blocks.{self.trace.steps.first_layer_with(path, self.layer)}.{path}"

    @property
    def module(self) -> Any:
        path = self.step.module
        return self.trace.model.get_submodule(path if self.layer is None else f"blocks.{self.layer}.{path}")

    @property
    def weight(self) -> Tensor:
        """The matrix of a linear map, (out, in); for a tied head, the token table."""
        weight: Tensor | None = self.operation.matrix(self.module)
        return self.trace.model.unembedding if weight is None else weight

    def derive(self, heads: tuple[int, ...] | None = None) -> Tensor:
        """The step recomputed from the steps before it."""
        with using(self.trace.model):
            return self.operation.derive(self, heads)


def heads_added(site: Site, positions: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """What each head adds to an output of attention at some positions, by default at all: (H, T, C).

    It is the head's part of the product, so that the heads and the bias sum to the output. Two matrices, of which the
    first compresses groups of heads, are one here.
    """
    weight = site.weight.detach().double()
    while isinstance(site.source_steps[0].operation, Linear):
        site = Site(site.trace, site.source_steps[0], site.layer)
        weight = weight @ site.weight.detach().double()
    joined = site.input() if positions is None else site.input()[list(positions)]
    heads = joined.to(dtype or joined.dtype).unflatten(-1, (site.config.n_heads, -1))  # (T, H·D) -> (T, H, D)
    return torch.einsum("thd,chd->htc", heads, weight.to(heads.dtype).unflatten(1, heads.shape[1:]))


def _variable(name: str) -> str:
    name = name.replace(".", "_")
    return "x" if keyword.iskeyword(name) else name
