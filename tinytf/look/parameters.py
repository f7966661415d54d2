"""Parameters by their addresses: the numbers, their statistics, histogram, spectrum, and norms of rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import AddressError, UsageError
from tinytf.nearest import did_you_mean
from tinytf.report import About, Report, derived, plain
from tinytf.steps.operations.expert_linear import LEARNED
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.address import Address
from tinytf.trace.parameters import ParameterAddress, parse_any
from tinytf.trace.summary import Statistics, norm, statistics

BINS = 20
"""Bins of a histogram."""
ENERGY = 0.9
"""The share of the energy, the sum of squared singular values, that ``carrying`` counts."""


@dataclass(frozen=True, eq=False)
class ParameterValues:
    """One parameter, or a part of it, with the axes of formulas, shown in a ``way`` of WAYS.

    ``name`` is the model's name of the whole parameter, ``makes`` the full names of the steps computed with it. ``row``
    is the matrix row of a single number. ``tokens`` are the words of the cell that are tokens, with their ids.
    ``places`` are the indices of ``values`` in the parameter, for each axis.
    """

    where: ParameterAddress
    name: str
    values: Tensor
    makes: tuple[str, ...]
    way: str
    places: tuple[Sequence[int], ...]
    row: Tensor | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)

    @derived
    def statistics(self) -> Statistics:
        return statistics(self.values)

    @property
    def norm(self) -> float:
        """The L2 norm of all numbers, in float64."""
        return norm(self.values)

    @property
    def row_norm(self) -> float | None:
        """The norm of the matrix row of a single number."""
        return None if self.row is None else norm(self.row)

    @derived
    def histogram(self) -> tuple[Tensor, Tensor]:
        """Edges (BINS + 1,) and the count of finite numbers in each bin (BINS,); the last includes its upper edge."""
        values = self.values.double().flatten()
        values = values[values.isfinite()].cpu()
        counts, edges = torch.histogram(values, BINS) if len(values) else (torch.zeros(BINS), torch.zeros(BINS + 1))
        return edges, counts.long()

    @derived
    def singular_values(self) -> Tensor:
        """The singular values of a matrix in float64, largest first."""
        return torch.linalg.svdvals(self.values.double())

    @property
    def carrying(self) -> int:
        """The number of largest singular values that carry ENERGY of the sum of squares."""
        energy = self.singular_values.square().cumsum(0)
        return int((energy < ENERGY * energy[-1]).sum()) + 1

    @property
    def array(self) -> Array:
        """Its numbers with their axes, and the indices of each."""
        places = dict(zip(self.where.axes, self.places, strict=True))
        return Array(str(self.where), self.where.axes, lambda: self.values, places)

    @property
    def row_axis(self) -> int:
        """The axis whose entries have a norm each: the vocabulary if there is one, else the first."""
        axes = self.where.axes
        return axes.index("vocab") if "vocab" in axes else 0

    @derived
    def row_norms(self) -> Tensor:
        """The L2 norm of each row of a matrix, in float64; of each column if the columns are tokens."""
        return torch.linalg.vector_norm(self.values, dim=1 - self.row_axis, dtype=torch.float64)

    def to_dict(self) -> dict[str, Any]:
        """The parameter as JSON data, with the data of its ``way``."""
        axes = self.where.axes
        return {
            "address": str(self.where),
            "name": self.name,
            "axes": list(axes),
            "places": self.array.partial,
            "shape": list(self.values.shape),
            "makes": list(self.makes),
            "note": self.where.note,
            "statistics": plain(self.statistics),
            "norm": self.norm,
            "row_norm": self.row_norm,
            "tokens": dict(self.tokens),
            "way": self.way,
            **_DATA[self.way](self),
        }


@dataclass(frozen=True, eq=False)
class Parameters(Report):
    """The parameters at some addresses."""

    KIND = "parameters"
    EVENTS: ClassVar = {"parameters": "parameter"}

    found: tuple[ParameterValues, ...]

    def fields(self) -> dict[str, Any]:
        return {"parameters": plain(self.found)}

    def stored(self) -> list[Array]:
        return self.arrays()

    def arrays(self) -> list[Array]:
        return [parameter.array for parameter in self.found]


def _spectrum(parameter: ParameterValues) -> dict[str, Any]:
    return {"singular_values": parameter.singular_values.tolist(), "energy": ENERGY, "carrying": parameter.carrying}


def _histogram(parameter: ParameterValues) -> dict[str, Any]:
    edges, counts = parameter.histogram
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _values(parameter: ParameterValues) -> dict[str, Any]:
    return {"values": parameter.values.tolist()}


_DATA: dict[str, Callable[[ParameterValues], dict[str, Any]]] = {
    "table": _values,
    "map": _values,
    "histogram": _histogram,
    "spectrum": _spectrum,
    "norms": lambda p: {"row_axis": p.where.axes[p.row_axis], "row_norms": p.row_norms.tolist()},
}
WAYS = tuple(_DATA)
_OF_MATRICES = ("map", "spectrum", "norms")


def parameters(
    model: TextModel, at: str | ParameterAddress | Sequence[str | ParameterAddress], *, way: str | None = None
) -> Parameters:
    """The parameters at addresses such as ``L0.W_Q``, ``L0H1.W_Q[3,7]`` and ``E[cat]``, one for each layer and head.

    ``way`` says how they are shown; by default a matrix is a map unless an axis is the vocabulary, anything else a
    table. Raises AddressError for an address that is not a parameter of this model; UsageError for an unknown way, a
    way of matrices for anything else, a spectrum of numbers that are not finite, and a cell word that is not one token.
    """
    if way is not None and way not in WAYS:
        raise UsageError(f"parameters are not shown as {way!r}", did_you_mean(way, WAYS))
    addresses = [at] if isinstance(at, str | ParameterAddress) else at
    chosen = tuple(parameter for address in addresses for parameter in _find(model, address, way))
    for parameter in chosen if way in _OF_MATRICES else ():
        if parameter.values.dim() != 2:
            kind = "one number" if not parameter.values.dim() else "a vector"
            raise UsageError(f"no {way} of {parameter.where}, which is {kind}", "leave out --as, or name a matrix")
        if way == "spectrum" and not parameter.values.isfinite().all():
            raise UsageError(f"{parameter.where} has numbers that are not finite, so it has no singular values")
    return Parameters(chosen, about=About(model))


def _find(model: TextModel, named: str | ParameterAddress, way: str | None) -> Iterator[ParameterValues]:
    table = table_of(model.config)
    address = parse_any(named, table) if isinstance(named, str) else named
    if not isinstance(address, ParameterAddress):
        raise AddressError(f"{address} is a step, not a parameter", "a parameter is L0.W_Q, L0.norm1.gain or E")
    if address.step.of_experts and {*LEARNED} & {*address.axes}:
        raise AddressError(
            f"{address} exists for each of {model.config.sizes['learned expert']} experts",
            f"name one: {replace(address, heads=(0,))}",
        )
    tokens: dict[str, int] = {}

    def find(word: str) -> int:
        return tokens.setdefault(word, model.find_token(word, "token"))

    for single in address.singles():
        layer = single.layers[0] if single.layers else None
        steps = [str(Address(single.step, single.layers, single.heads if single.step.is_split else None))]
        if single.parameter.name in ("E", "W_U") and model.transformer.head is not None and model.config.tied_head:
            steps.append(table.unembedded.name)
        values = single.tensor(model.transformer, find)
        in_row = len(single.cell) == 2 and not values.dim()
        row = replace(single, cell=single.cell[:1]).tensor(model.transformer, find) if in_row else None
        shown_way = way or ("map" if values.dim() == 2 and "vocab" not in single.axes else "table")
        yield ParameterValues(
            single, single.path(layer), values, tuple(steps), shown_way, single.places(model.transformer), row, tokens
        )
