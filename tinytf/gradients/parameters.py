"""The weights in a backward pass: the sizes of their gradients, and which weights get none."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.gradients.trace import GradientTrace
from tinytf.nearest import did_you_mean
from tinytf.report import Data
from tinytf.trace.parameters import ParameterAddress, addresses_of, is_split
from tinytf.trace.summary import norm

_IN_LAYER = re.compile(r"blocks\.(\d+)\.(.+)")


@dataclass(frozen=True)
class ParameterRow(Data):
    """A parameter, or a group of them: squared norms, entries and rows add up.

    Norms are L2, in float64. ``kind`` is the name without the layer (``attention.q.weight``). ``layer``, ``kind``,
    ``head`` and ``shape`` are None if they differ within the group, ``dead_rows`` and ``rows`` if there is no matrix.
    ``zeros`` of the ``entries`` of the gradient are exactly 0, and ``dead_rows`` of the ``rows`` are all zeros. A
    key-value head that query heads share is divided equally among them.
    """

    LESS: ClassVar = ("learning_rate", "entries", "zeros", "rows")
    ALSO: ClassVar = ("ratio", "update_ratio", "zero_share", "dead_share")

    name: str
    layer: int | None
    kind: str | None
    head: int | None
    shape: tuple[int, ...] | None
    gradient_norm: float
    weight_norm: float
    learning_rate: float
    entries: float
    zeros: float
    dead_rows: int | None
    rows: int | None

    @property
    def ratio(self) -> float:
        """Gradient norm ÷ weight norm; 0 for a gradient of zeros, infinite for weights of zeros."""
        if not self.weight_norm:
            return math.inf if self.gradient_norm else 0.0
        return self.gradient_norm / self.weight_norm

    @property
    def update_ratio(self) -> float:
        """The relative change of the weights in one step of plain gradient descent (Adam's differs)."""
        return self.learning_rate * self.ratio

    @property
    def zero_share(self) -> float:
        return self.zeros / self.entries

    @property
    def dead_share(self) -> float | None:
        return None if self.dead_rows is None or not self.rows else self.dead_rows / self.rows


GROUPINGS = ("parameter", "layer", "kind", "head")


def table(trace: GradientTrace, lr: float = 1e-3, by: str = "parameter") -> tuple[ParameterRow, ...]:
    """Every parameter, or groups of them ``by`` layer, kind or head, in the order of the model.

    The learning rate ``lr`` only enters the update ratios. A head has its rows of W_Q, W_K and W_V with their biases
    and its columns of W_O; a shared key-value head is divided equally among its query heads, in squares. Parameters
    that belong to no single head (norms of queries and keys, the output's bias) are omitted there, and rows are not
    counted. The matrix of a tied head is that of the embeddings, and appears once. Raises UsageError for any other
    ``by``.
    """
    if by not in GROUPINGS:
        raise UsageError(f"weights are not grouped by {by!r}", did_you_mean(by, GROUPINGS))
    if by == "head":
        return tuple(_by_head(trace, lr))
    parameters = list(_parameter_rows(trace, lr))
    if by == "parameter":
        return tuple(parameters)
    groups: dict[Any, list[ParameterRow]] = {}
    for row in parameters:
        groups.setdefault(getattr(row, by), []).append(row)
    if by == "kind":
        return tuple(_merge(kind, group, kind=kind) for kind, group in groups.items())
    return tuple(
        _merge("outside the layers" if layer is None else f"L{layer}", group, layer=layer)
        for layer, group in groups.items()
    )


def _parameter_rows(trace: GradientTrace, lr: float) -> Iterator[ParameterRow]:
    for name, gradient in trace.parameters.items():
        match = _IN_LAYER.fullmatch(name)
        layer, kind = (int(match[1]), match[2]) if match else (None, name)
        zeros = gradient == 0
        is_matrix = gradient.dim() >= 2 and not name.endswith("bias")  # biases of experts have an expert axis
        yield ParameterRow(
            name, layer, kind, None, tuple(gradient.shape), norm(gradient), norm(trace.model.get_parameter(name)), lr,
            gradient.numel(), int(zeros.sum()),
            int(zeros.all(dim=-1).sum()) if is_matrix else None, math.prod(gradient.shape[:-1]) if is_matrix else None,
        )  # fmt: skip


def _by_head(trace: GradientTrace, lr: float) -> Iterator[ParameterRow]:
    addresses = [
        (address, layer) for address, layer in addresses_of(trace.steps) if address.path(layer) in trace.parameters
    ]
    for layer in range(trace.config.n_layers):
        split = [
            address
            for address, address_layer in addresses
            if address_layer == layer and any(map(is_split, address.parameter.axes))
        ]
        if not split:
            continue  # it has the weights of an earlier layer
        config = trace.config.at(layer)
        for head in range(config.n_heads):
            parts = [_part(trace, address, lr, config, head) for address in split]
            yield _merge(f"L{layer}H{head}", parts, layer=layer, head=head)


def _part(trace: GradientTrace, address: ParameterAddress, lr: float, config: ModelConfig, head: int) -> ParameterRow:
    """The rows or columns of a query head; of a shared key-value head, its share of the squares and entries."""
    axes, (layer,) = address.parameter.axes, address.layers or (None,)
    axis = next(number for number, label in enumerate(axes) if is_split(label))
    group = config.heads_per_kv if axes[axis].startswith("n_kv_heads") else 1
    width, name = config.sizes[axes[axis].partition("·")[2]], address.path(layer)
    stored_axis = len(axes) - 1 - axis if address.parameter.transposed else axis
    gradient, weight = (
        tensor.narrow(stored_axis, head // group * width, width)
        for tensor in (trace.parameters[name], trace.model.get_parameter(name))
    )
    norms = [norm(tensor) / math.sqrt(group) for tensor in (gradient, weight)]
    entries, zeros = gradient.numel() / group, int((gradient == 0).sum()) / group
    return ParameterRow(name, None, None, head, None, norms[0], norms[1], lr, entries, zeros, None, None)


def _merge(
    name: str, group: list[ParameterRow], *, layer: int | None = None, kind: str | None = None, head: int | None = None
) -> ParameterRow:
    matrix_rows = [(row.dead_rows, row.rows) for row in group if row.dead_rows is not None and row.rows is not None]
    return ParameterRow(
        name, layer, kind, head, None,
        math.hypot(*(row.gradient_norm for row in group)), math.hypot(*(row.weight_norm for row in group)),
        group[0].learning_rate, sum(row.entries for row in group), sum(row.zeros for row in group),
        sum(dead for dead, _ in matrix_rows) if matrix_rows else None,
        sum(count for _, count in matrix_rows) if matrix_rows else None,
    )  # fmt: skip
