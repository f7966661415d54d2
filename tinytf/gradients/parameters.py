"""The weights in a backward pass: how large their gradients are, and which get none."""

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
    ``head`` and ``shape`` are None where they differ within the group, ``dead_rows`` and ``rows`` where there is no
    matrix. ``zeros`` of the ``entries`` of the gradient are exactly 0, and ``dead_rows`` of the ``rows`` are zeros
    throughout. A key-value head that query heads share counts an equal part for each of them.
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
    counted. The matrix of a tied head is that of the embeddings, and comes once. Raises UsageError for another word.
    """
    if by not in GROUPINGS:
        raise UsageError(f"weights are not grouped by {by!r}", did_you_mean(by, GROUPINGS))
    if by == "head":
        return tuple(_by_head(trace, lr))
    each = list(_each(trace, lr))
    if by == "parameter":
        return tuple(each)
    groups: dict[Any, list[ParameterRow]] = {}
    for one in each:
        groups.setdefault(getattr(one, by), []).append(one)
    if by == "kind":
        return tuple(_together(kind, group, kind=kind) for kind, group in groups.items())
    return tuple(
        _together("outside the layers" if layer is None else f"L{layer}", group, layer=layer)
        for layer, group in groups.items()
    )


def _each(trace: GradientTrace, lr: float) -> Iterator[ParameterRow]:
    for name, gradient in trace.parameters.items():
        found = _IN_LAYER.fullmatch(name)
        layer, kind = (int(found[1]), found[2]) if found else (None, name)
        zeros = gradient == 0
        is_matrix = gradient.dim() >= 2 and not name.endswith("bias")  # biases of experts have an axis of them
        yield ParameterRow(
            name, layer, kind, None, tuple(gradient.shape), norm(gradient), norm(trace.model.get_parameter(name)), lr,
            gradient.numel(), int(zeros.sum()),
            int(zeros.all(dim=-1).sum()) if is_matrix else None, math.prod(gradient.shape[:-1]) if is_matrix else None,
        )  # fmt: skip


def _by_head(trace: GradientTrace, lr: float) -> Iterator[ParameterRow]:
    places = [(where, layer) for where, layer in addresses_of(trace.steps) if where.path(layer) in trace.parameters]
    for layer in range(trace.config.n_layers):
        if trace.config.first_of(layer) != layer:
            continue  # its weights are those of a layer before
        own = [where for where, within in places if within == layer and any(map(is_split, where.parameter.axes))]
        config = trace.config.at(layer)
        for head in range(config.n_heads):
            parts = [_part(trace, where, lr, config, head) for where in own]
            yield _together(f"L{layer}H{head}", parts, layer=layer, head=head)


def _part(trace: GradientTrace, where: ParameterAddress, lr: float, config: ModelConfig, head: int) -> ParameterRow:
    """The rows or columns of a query head; of one that it shares, its share of their squares and entries."""
    axes, (layer,) = where.parameter.axes, where.layers or (None,)
    axis = next(number for number, one in enumerate(axes) if is_split(one))
    shared = config.heads_per_kv if axes[axis].startswith("n_kv_heads") else 1
    width, name = config.sizes[axes[axis].partition("·")[2]], where.path(layer)
    stored = len(axes) - 1 - axis if where.parameter.transposed else axis
    gradient, weight = (
        tensor.narrow(stored, head // shared * width, width)
        for tensor in (trace.parameters[name], trace.model.get_parameter(name))
    )
    norms = [norm(tensor) / math.sqrt(shared) for tensor in (gradient, weight)]
    entries, zeros = gradient.numel() / shared, int((gradient == 0).sum()) / shared
    return ParameterRow(name, None, None, head, None, norms[0], norms[1], lr, entries, zeros, None, None)


def _together(
    name: str, group: list[ParameterRow], *, layer: int | None = None, kind: str | None = None, head: int | None = None
) -> ParameterRow:
    rows = [(one.dead_rows, one.rows) for one in group if one.dead_rows is not None and one.rows is not None]
    return ParameterRow(
        name, layer, kind, head, None,
        math.hypot(*(one.gradient_norm for one in group)), math.hypot(*(one.weight_norm for one in group)),
        group[0].learning_rate, sum(one.entries for one in group), sum(one.zeros for one in group),
        sum(dead for dead, _ in rows) if rows else None, sum(count for _, count in rows) if rows else None,
    )  # fmt: skip
