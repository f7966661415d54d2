"""Where the explorer stands: a step, a head and a cell of it; and how it moves. Free of drawing."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tinytf.errors import AddressError
from tinytf.look.values import tensor_at
from tinytf.parts.row import Step
from tinytf.trace.address import Address
from tinytf.trace.trace import Trace
from tinytf_cli.views.steps import row_labels


@dataclass(frozen=True)
class Place:
    """The ``row`` of the step among those of the model, the head or expert ``part``, and the ``cell`` (row, column).

    The part is kept while it passes steps without one, and the cell while it passes smaller steps.
    """

    row: int = 0
    part: int = 0
    cell: tuple[int, int] = (0, 0)

    def at(self, trace: Trace) -> tuple[Step, int | None]:
        """The step and its layer."""
        return trace.steps.rows[min(self.row, len(trace.steps.rows) - 1)]

    def address(self, trace: Trace) -> Address:
        """The step, with its head where it has heads."""
        step, layer = self.at(trace)
        parts = (self._part(trace, step),) if step.is_split else None
        return Address(step, None if layer is None else (layer,), parts)

    def cell_address(self, trace: Trace) -> Address:
        """The cell; of a step without numbers, the step."""
        step, _ = self.at(trace)
        if not step.is_tensor:
            return self.address(trace)
        row, column = self.inside(*shape(trace, self))
        if step.is_vocabulary:
            row = trace.recording.logit_rows[row]
        cell = (row, column) if len(step.axes[-2:]) == 2 else (column,)
        return replace(self.address(trace), cell=tuple(map(str, cell)))

    def inside(self, rows: int, columns: int) -> tuple[int, int]:
        """The cell, or the nearest one that a matrix of this size has."""
        return min(self.cell[0], max(rows - 1, 0)), min(self.cell[1], max(columns - 1, 0))

    def _part(self, trace: Trace, step: Step) -> int:
        return min(self.part, step.parts(trace.config.at(self.at(trace)[1])) - 1)

    def stepped(self, trace: Trace, by: int) -> "Place":
        """So many steps further, or at the first or last one."""
        return replace(self, row=max(0, min(len(trace.steps.rows) - 1, self.row + by)))

    def in_layer(self, trace: Trace, by: int) -> "Place":
        """This step in the next layer up or down that has it; from outside the layers, in the nearest one."""
        step, layer = self.at(trace)
        rows = trace.steps.rows
        order: Sequence[int] = range(self.row + 1, len(rows)) if by > 0 else range(self.row - 1, -1, -1)
        for place in order:
            other, within = rows[place]
            if within != layer and (other.name == step.name if layer is not None else within is not None):
                return replace(self, row=place)
        return self

    def in_part(self, trace: Trace, by: int) -> "Place":
        """The next head or expert, round and round; the same place where the step has none."""
        step, layer = self.at(trace)
        count = step.parts(trace.config.at(layer))
        return replace(self, part=(self._part(trace, step) + by) % count) if step.is_split else self

    def moved(self, trace: Trace, down: int, right: int) -> "Place":
        """Another cell, no further than the edge."""
        rows, columns = shape(trace, self)
        row, column = self.inside(rows, columns)
        return replace(self, cell=(max(0, min(rows - 1, row + down)), max(0, min(columns - 1, column + right))))

    def to(self, trace: Trace, where: Address) -> "Place":
        """The place of an address: its first layer and head, and its cell where it names one."""
        layer = where.layers[0] if where.layers else None
        name = where.step.name if where.step else _first_step(trace, layer or 0)
        found = [row for row, (step, within) in enumerate(trace.steps.rows) if (step.name, within) == (name, layer)]
        if not found:
            raise AddressError(f"{where} is no step of this model")
        place = replace(self, row=found[0], part=where.heads[0] if where.heads else self.part)
        step, _ = place.at(trace)
        if where.cell:
            sizes = shape(trace, place)
            axes = step.axes[-2:]
            numbers = [
                trace.index(word, axis, len(trace.tokens) if axis in ("token", "query", "key") else sizes[-1])
                for word, axis in zip(where.cell, axes, strict=False)
            ]
            if step.is_vocabulary:
                numbers[0] = trace.recording.logit_rows.index(numbers[0])
            cell = (0, numbers[0]) if len(axes) == 1 else (numbers[0], *numbers[1:], 0)[:2]
            place = replace(place, cell=(cell[0], cell[1]))
        return place


def shape(trace: Trace, place: Place) -> tuple[int, int]:
    """Rows and columns of the matrix that is shown; (0, 0) for a step without numbers."""
    found = matrix(trace, place)
    return (0, 0) if found is None else (found.shape[0], found.shape[1])


def matrix(trace: Trace, place: Place) -> Tensor | None:
    """The numbers at a place, (rows, columns): of one head or expert, or of the whole step; None where it has none."""
    step, _ = place.at(trace)
    return torch.atleast_2d(tensor_at(trace, place.address(trace))) if step.is_tensor else None


def names(trace: Trace, place: Place, columns: int) -> tuple[list[str], list[str]]:
    """What the rows and columns are called: tokens, or the numbers of dimensions, experts, vocabulary."""
    step, _ = place.at(trace)
    tokens = row_labels(trace, step)
    axes = step.axes[-2:]
    rows = [tokens[row] for row in trace.recording.logit_rows] if step.is_vocabulary else tokens
    if axes[-1] == "key":
        return rows, tokens
    letter = {"expert": "E", "vocab": "#"}.get(axes[-1], "d")
    return rows if len(axes) == 2 else [""], [f"{letter}{number}" for number in range(columns)]


def window(count: int, at: int, room: int) -> slice:
    """The part of ``count`` that fits into ``room``, around ``at``."""
    first = max(0, min(at - room // 2, count - room))
    return slice(first, min(count, first + room))


def _first_step(trace: Trace, layer: int) -> str:
    """The map of a layer; without one, what its heads give."""
    return (trace.steps.map_of(layer) or trace.steps.head_given(layer)).name


def first_row(trace: Trace) -> int:
    """The step to begin with: the map of the last layer."""
    last = trace.config.n_layers - 1
    wanted = _first_step(trace, last), last
    return next(row for row, (step, layer) in enumerate(trace.steps.rows) if (step.name, layer) == wanted)


def found_place(trace: Trace, place: Place, word: str) -> Place:
    """The place of an address, of a step of this layer, of a token of the text, or of the cell nearest to a number.

    Raises AddressError for a word that is none of these.
    """
    _, layer = place.at(trace)
    for candidate in (word, f"L{layer}.{word}"):
        with suppress(AddressError):
            return place.to(trace, trace.address(candidate))
    try:
        value = float(word)
    except ValueError:
        with suppress(AddressError):
            return replace(place, cell=(trace.index(word, "token", len(trace.tokens)), place.cell[1]))
        raise AddressError(f"{word} is no step, no token of the text and no number") from None
    found = matrix(trace, place)
    if found is None:
        raise AddressError("this step has no numbers")
    apart = (found.detach().float() - value).abs().nan_to_num(torch.inf)
    row, column = divmod(int(apart.argmin()), apart.shape[1])
    return replace(place, cell=(row, column))
