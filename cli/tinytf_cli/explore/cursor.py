"""The cursor of the explorer: a step, a head and a cell; and its movements. Free of drawing."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tinytf.errors import AddressError
from tinytf.look.values import tensor_at
from tinytf.parts.row import Step
from tinytf.trace.address import Address
from tinytf.trace.parameters import ParameterAddress, parse_any
from tinytf.trace.trace import Trace
from tinytf_cli.repl.state import find_row
from tinytf_cli.views.steps import axis_labels, row_labels


@dataclass(frozen=True)
class Cursor:
    """The ``row`` of a step in ``trace.steps.rows``, the head or expert ``part``, and the ``cell`` (row, column).

    The part is remembered on steps without heads or experts, and the cell on smaller steps.
    """

    row: int = 0
    part: int = 0
    cell: tuple[int, int] = (0, 0)

    def at(self, trace: Trace) -> tuple[Step, int | None]:
        """The step and its layer."""
        return trace.steps.rows[min(self.row, len(trace.steps.rows) - 1)]

    def address(self, trace: Trace) -> Address:
        """The address of the step, with its head or expert if it is split."""
        step, layer = self.at(trace)
        parts = (self._part(trace, step),) if step.is_split else None
        return Address(step, None if layer is None else (layer,), parts)

    def cell_address(self, trace: Trace) -> Address:
        """The address of the cell; for a step without numbers, of the step."""
        step, _ = self.at(trace)
        if not step.is_tensor:
            return self.address(trace)
        row, column = self.inside(*shape(trace, self))
        if step.is_vocabulary:
            row = trace.recording.logit_rows[row]
        cell = (row, column) if len(step.axes[-2:]) == 2 else (column,)
        return replace(self.address(trace), cell=tuple(map(str, cell)))

    def inside(self, rows: int, columns: int) -> tuple[int, int]:
        """The cell, clamped to a matrix of this size."""
        return min(self.cell[0], max(rows - 1, 0)), min(self.cell[1], max(columns - 1, 0))

    def _part(self, trace: Trace, step: Step) -> int:
        return min(self.part, step.parts(trace.config.at(self.at(trace)[1])) - 1)

    def by_steps(self, trace: Trace, by: int) -> "Cursor":
        """Move by a number of steps, no further than the first or last."""
        return replace(self, row=max(0, min(len(trace.steps.rows) - 1, self.row + by)))

    def by_layers(self, trace: Trace, by: int) -> "Cursor":
        """Move to this step in the next layer up or down that has it; from outside the layers, to the nearest one."""
        step, layer = self.at(trace)
        rows = trace.steps.rows
        search: Sequence[int] = range(self.row + 1, len(rows)) if by > 0 else range(self.row - 1, -1, -1)
        for row in search:
            candidate, of_layer = rows[row]
            if of_layer != layer and (candidate.name == step.name if layer is not None else of_layer is not None):
                return replace(self, row=row)
        return self

    def by_parts(self, trace: Trace, by: int) -> "Cursor":
        """Move by heads or experts, wrapping around; a step without them stays."""
        step, layer = self.at(trace)
        count = step.parts(trace.config.at(layer))
        return replace(self, part=(self._part(trace, step) + by) % count) if step.is_split else self

    def by_cells(self, trace: Trace, down: int, right: int) -> "Cursor":
        """Move by cells, no further than the edge."""
        rows, columns = shape(trace, self)
        row, column = self.inside(rows, columns)
        return replace(self, cell=(max(0, min(rows - 1, row + down)), max(0, min(columns - 1, column + right))))

    def to(self, trace: Trace, address: Address) -> "Cursor":
        """Move to an address: its first layer and head, and its cell if it names one. Raises AddressError."""
        layer = address.layers[0] if address.layers else None
        name = address.step.name if address.step else _first_step(trace, layer or 0)
        row = find_row(trace.steps.rows, name, layer)
        if row is None:
            raise AddressError(f"{address} is no step of this model")
        cursor = replace(self, row=row, part=address.heads[0] if address.heads else self.part)
        step, _ = cursor.at(trace)
        if address.cell:
            sizes = shape(trace, cursor)
            axes = step.axes[-2:]
            indices = [
                trace.index(word, axis, trace.lengths.get(axis, sizes[-1]))
                for word, axis in zip(address.cell, axes, strict=False)
            ]
            if step.is_vocabulary:
                indices[0] = trace.recording.logit_rows.index(indices[0])
            cell = (0, indices[0]) if len(axes) == 1 else (indices[0], *indices[1:], 0)[:2]
            cursor = replace(cursor, cell=(cell[0], cell[1]))
        return cursor


def shape(trace: Trace, cursor: Cursor) -> tuple[int, int]:
    """The shape of the matrix at the cursor; (0, 0) for a step without numbers."""
    numbers = matrix(trace, cursor)
    return (0, 0) if numbers is None else (numbers.shape[0], numbers.shape[1])


def matrix(trace: Trace, cursor: Cursor) -> Tensor | None:
    """The numbers at the cursor, (rows, columns): of one head or expert, or of the whole step; None without numbers."""
    step, _ = cursor.at(trace)
    return torch.atleast_2d(tensor_at(trace, cursor.address(trace))) if step.is_tensor else None


def chosen_tokens(trace: Trace, cursor: Cursor) -> tuple[int, int]:
    """The positions of the row and column tokens of the chosen cell; −1 for none."""
    numbers = matrix(trace, cursor)
    if numbers is None:
        return -1, -1
    step, _ = cursor.at(trace)
    row, column = cursor.inside(numbers.shape[0], numbers.shape[1])
    if step.is_vocabulary:
        row = trace.recording.logit_rows[row]
    return (row if len(step.axes[-2:]) == 2 else -1), (column if step.is_map else -1)


def labels(trace: Trace, cursor: Cursor, columns: int) -> tuple[list[str], list[str]]:
    """The labels of rows and columns: tokens, or indices of dimensions, experts or the vocabulary."""
    step, _ = cursor.at(trace)
    tokens = row_labels(trace, step)
    axes = step.axes[-2:]
    rows = [tokens[row] for row in trace.recording.logit_rows] if step.is_vocabulary else tokens
    return rows if len(axes) == 2 else [""], list(axis_labels(trace, axes[-1], range(columns)))


def window(count: int, center: int, size: int) -> slice:
    """A window of ``size`` of ``count`` items, around ``center`` where possible."""
    first = max(0, min(center - size // 2, count - size))
    return slice(first, min(count, first + size))


def _first_step(trace: Trace, layer: int) -> str:
    """The map of a layer; without one, the output of its heads, or of its feed-forward."""
    return (trace.steps.map_of(layer) or trace.steps.head_output(layer) or trace.steps.added_in(layer)[-1]).name


def first_row(trace: Trace, layer: int) -> int:
    """The row of the step of a layer that is shown first: its map."""
    return find_row(trace.steps.rows, _first_step(trace, layer), layer) or 0


def is_parameter(trace: Trace, word: str) -> bool:
    """Whether a word is the address of a parameter."""
    with suppress(AddressError):
        return isinstance(parse_any(word, trace.steps), ParameterAddress)
    return False


def find_cursor(trace: Trace, cursor: Cursor, word: str) -> Cursor:
    """The cursor at an address, a step of this layer, a token of the text, or the cell nearest to a number.

    Raises AddressError for a word that is none of these.
    """
    _, layer = cursor.at(trace)
    for candidate in (word, f"L{layer}.{word}"):
        with suppress(AddressError):
            return cursor.to(trace, trace.address(candidate))
    try:
        value = float(word)
    except ValueError:
        with suppress(AddressError):
            return replace(cursor, cell=(trace.index(word, "token", len(trace.tokens)), cursor.cell[1]))
        raise AddressError(f"{word} is no step, parameter, token of the text or number") from None
    numbers = matrix(trace, cursor)
    if numbers is None:
        raise AddressError("this step has no numbers")
    distance = (numbers.detach().float() - value).abs().nan_to_num(torch.inf)
    row, column = divmod(int(distance.argmin()), distance.shape[1])
    return replace(cursor, cell=(row, column))
