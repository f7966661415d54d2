"""Parameters by their addresses: the numbers, their figures, how they are spread, the spectrum, and norms of rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import AddressError, UsageError
from tinytf.nearest import did_you_mean
from tinytf.report import About, Report, plain
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.address import Address
from tinytf.trace.parameters import ParameterAddress, parse_any
from tinytf.trace.summary import Statistics, norm, statistics

BINS = 20
"""Bars of a histogram."""
ENERGY = 0.9
"""The share of the energy, the sum of squared singular values, that few of them may carry."""


@dataclass(frozen=True, eq=False)
class ParameterValues:
    """One parameter, or a part of it, with the axes of formulas, shown in a ``way`` of WAYS.

    ``name`` is what the model calls the whole parameter, ``makes`` are the steps that are computed with it, by their
    full names. ``row`` is the row of a matrix that a single number stands in, ``tokens`` are the words of the cell that
    are tokens, with their ids; ``places`` are the places of the parameter that ``values`` has on each of its axes.
    """

    where: ParameterAddress
    name: str
    values: Tensor
    makes: tuple[str, ...]
    way: str
    places: tuple[Sequence[int], ...]
    row: Tensor | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def statistics(self) -> Statistics:
        return statistics(self.values)

    @property
    def norm(self) -> float:
        """The L2 norm of all numbers, in float64."""
        return norm(self.values)

    @property
    def row_norm(self) -> float | None:
        """The norm of the row that a single number of a matrix stands in."""
        return None if self.row is None else norm(self.row)

    @cached_property
    def histogram(self) -> tuple[Tensor, Tensor]:
        """Edges (BINS + 1,) and how many finite numbers lie in each bin (BINS,); the last has its upper edge too."""
        values = self.values.double().flatten()
        values = values[values.isfinite()].cpu()
        counts, edges = torch.histogram(values, BINS) if len(values) else (torch.zeros(BINS), torch.zeros(BINS + 1))
        return edges, counts.long()

    @cached_property
    def singular_values(self) -> Tensor:
        """Those of a matrix in float64, the largest first."""
        return torch.linalg.svdvals(self.values.double())

    @property
    def carrying(self) -> int:
        """How many of the largest singular values have ENERGY of the sum of all squares."""
        energy = self.singular_values.square().cumsum(0)
        return int((energy < ENERGY * energy[-1]).sum()) + 1

    @property
    def by_axis(self) -> dict[str, Sequence[int]]:
        """The places by the name of their axis."""
        return dict(zip(self.where.axes, self.places, strict=True))

    @property
    def row_axis(self) -> int:
        """The axis of which there is a norm each: the tokens where it has them, else the first."""
        axes = self.where.axes
        return axes.index("vocab") if "vocab" in axes else 0

    @cached_property
    def row_norms(self) -> Tensor:
        """The L2 norm of each row of a matrix, in float64; of each token's column where tokens stand in columns."""
        return torch.linalg.vector_norm(self.values, dim=1 - self.row_axis, dtype=torch.float64)

    def to_dict(self) -> dict[str, Any]:
        """What it is, and what its way shows of it."""
        axes = self.where.axes
        return {
            "address": str(self.where),
            "name": self.name,
            "axes": list(axes),
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
        return [
            Array(str(one.where), one.where.axes, partial(getattr, one, "values"), one.by_axis) for one in self.found
        ]


def _spectrum(one: ParameterValues) -> dict[str, Any]:
    return {"singular_values": one.singular_values.tolist(), "energy": ENERGY, "carrying": one.carrying}


def _histogram(one: ParameterValues) -> dict[str, Any]:
    edges, counts = one.histogram
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _values(one: ParameterValues) -> dict[str, Any]:
    return {"values": one.values.tolist()}


_DATA: dict[str, Callable[[ParameterValues], dict[str, Any]]] = {
    "table": _values,
    "map": _values,
    "histogram": _histogram,
    "spectrum": _spectrum,
    "norms": lambda one: {"row_axis": one.where.axes[one.row_axis], "row_norms": one.row_norms.tolist()},
}
WAYS = tuple(_DATA)
_OF_MATRICES = ("map", "spectrum", "norms")


def parameters(
    model: TextModel, at: str | ParameterAddress | Sequence[str | ParameterAddress], *, way: str | None = None
) -> Parameters:
    """The parameters at addresses such as ``L0.W_Q``, ``L0H1.W_Q[3,7]`` and ``E[cat]``, one for each layer and head.

    ``way`` says how they are shown; without it a matrix is a map, but one of the vocabulary and anything else a table.
    Raises AddressError for what is not a parameter of this model, UsageError for an unknown way, for one of matrices
    where there is none, for a spectrum of numbers that are not finite, and for what is not one token in a cell.
    """
    if way is not None and way not in WAYS:
        raise UsageError(f"parameters are not shown as {way!r}", did_you_mean(way, WAYS))
    addresses = [at] if isinstance(at, str | ParameterAddress) else at
    found = tuple(one for address in addresses for one in _found(model, address, way))
    for one in found if way in _OF_MATRICES else ():
        if one.values.dim() != 2:
            what = "one number" if not one.values.dim() else "a vector"
            raise UsageError(f"no {way} of {one.where}, which is {what}", "leave out --as, or name a matrix")
        if way == "spectrum" and not one.values.isfinite().all():
            raise UsageError(f"{one.where} has numbers that are not finite, so it has no singular values")
    return Parameters(found, about=About(model))


def _found(model: TextModel, address: str | ParameterAddress, way: str | None) -> Iterator[ParameterValues]:
    table = table_of(model.config)
    where = parse_any(address, table) if isinstance(address, str) else address
    if not isinstance(where, ParameterAddress):
        raise AddressError(f"{where} is a step, and not a parameter", "a parameter is L0.W_Q, L0.norm1.gain or E")
    if where.step.of_experts and "expert" in where.axes:
        raise AddressError(
            f"{where} is of each of {model.config.experts} experts", f"name one: {replace(where, heads=(0,))}"
        )
    tokens: dict[str, int] = {}

    def find(word: str) -> int:
        return tokens.setdefault(word, model.find_token(word, "token"))

    for one in where.singles():
        layer = one.layers[0] if one.layers else None
        makes = [str(Address(one.step, one.layers, one.heads if one.step.is_split else None))]
        if one.parameter.name == "E" and model.transformer.head is not None and model.config.tied_head:
            makes.append(table.unembedded.name)
        values = one.tensor(model.transformer, find)
        in_row = len(one.cell) == 2 and not values.dim()
        row = replace(one, cell=one.cell[:1]).tensor(model.transformer, find) if in_row else None
        shown = way or ("map" if values.dim() == 2 and "vocab" not in one.axes else "table")
        yield ParameterValues(
            one, one.path(layer), values, tuple(makes), shown, one.places(model.transformer), row, tokens
        )
