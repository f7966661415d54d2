"""The sites of a sweep: every head, every feed-forward unit, or every position of a step, in each layer."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.cause.interventions.hooks import HookPoint, Intervention
from tinytf.errors import UsageError
from tinytf.look.neurons import require_units
from tinytf.nearest import did_you_mean
from tinytf.steps.table import StepTable
from tinytf.trace.trace import Trace

PROJECTED = {"queries": "q", "keys": "k", "values": "v"}
"""Sweeps over what heads compute from the stream, and the step of each."""
COLUMNS = {"heads": "head", "neurons": "unit", **dict.fromkeys(PROJECTED, "head")}
"""What the columns of a sweep's map are; positions for any other sweep."""


@dataclass(frozen=True)
class Grid:
    """The sites of a sweep ``over`` heads, neurons, or the positions of a step; a row of the map is a layer.

    ``steps`` are the short names, empty for a layer without sites; ``widths`` count the columns of each layer, of which
    those before ``first`` are not run. ``shared`` query heads of a layer have one key or value head, which stands in
    the column of the first of them. ``positions`` limit the sites of heads and neurons; None for the whole text.
    ``whole``: a site is a step at all positions together, the only column of its layer. The ``stack`` is what the
    addresses begin with.
    """

    over: str
    steps: tuple[str, ...]
    widths: tuple[int, ...]
    shared: tuple[int, ...]
    first: int = 0
    positions: tuple[int, ...] | None = None
    whole: bool = False
    stack: str = ""

    @classmethod
    def of(
        cls,
        over: str,
        table: StepTable,
        length: int | None,
        first: int = 0,
        positions: Sequence[int] | None = None,
        stack: str = "",
    ) -> "Grid":
        """The sites of a text of ``length`` tokens, or of whole steps of any text (None).

        Raises UsageError for another ``over``, for positions beside positions, and for a model without units.
        """
        config, layers = table.config, range(table.config.n_layers)
        by_position = {"residual": table.input, **{step.name: step.name for step in table.added}}
        if over not in (*by_position, *COLUMNS):
            raise UsageError(f"there is no sweep over {over!r}", did_you_mean(over, [*by_position, *COLUMNS]))
        if positions is not None and over not in COLUMNS:
            raise UsageError(f"a sweep over {over} is over every position", "sweep heads or neurons at one position")
        names, shared = [by_position.get(over, table.ffn_activation)] * config.n_layers, [1] * config.n_layers
        counts = [length or 1] * config.n_layers
        if over == "neurons":
            require_units(config)
            counts = [config.at(layer).d_ff for layer in layers]
        elif over == "heads":
            outputs = [table.head_output(layer) for layer in layers]
            names = ["" if output is None else output.name for output in outputs]
            counts = [config.at(layer).n_heads for layer in layers]
        elif over in PROJECTED:
            of = [table.by_key.get((PROJECTED[over], layer)) for layer in layers]
            names = ["" if step is None or not step.has_heads else step.name for step in of]
            counts = [config.at(layer).n_heads for layer in layers]
            shared = [
                config.at(layer).heads_per_kv if step is not None and "kv head" in step.axes else 1
                for layer, step in enumerate(of)
            ]
        steps = tuple(
            table.summand(table.at(name, layer), layer).name if table.has(name, layer) else ""
            for layer, name in enumerate(names)
        )
        widths = tuple(count if step else 0 for step, count in zip(steps, counts, strict=True))
        if not any(widths):
            raise UsageError(f"no layer of this model has the step {over}", "tinytf info shows its layers")
        chosen = None if positions is None else tuple(positions)
        return cls(over, steps, widths, tuple(shared), 0 if over in COLUMNS else first, chosen, length is None, stack)

    @property
    def axis(self) -> str:
        """What a column of the map is."""
        return COLUMNS.get(self.over, "position")

    @property
    def width(self) -> int:
        return max(self.widths)

    @property
    def sites(self) -> int:
        """How many sites the map shows, those before ``first`` included."""
        return sum(len(self.columns(layer)) for layer in range(len(self.widths)))

    def columns(self, layer: int) -> range:
        """The columns of a layer that are sites."""
        return range(0, self.widths[layer], self.shared[layer])

    def filled(self, number: float) -> Tensor:
        """A map (layers, columns), float64: ``number`` where a layer has the sites, else NaN."""
        filled = torch.full((len(self.widths), self.width), math.nan, dtype=torch.float64)
        for layer in range(len(self.widths)):
            filled[layer, list(self.columns(layer))] = number
        return filled

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the layer and column of every site that is run."""
        for layer in range(len(self.widths)):
            yield from ((layer, column) for column in self.columns(layer) if column >= self.first)

    def point(self, layer: int, column: int) -> HookPoint:
        """The hook point of a site; for a position, the whole step."""
        step, at = self.steps[layer], self.stack
        if self.over == "heads":
            return HookPoint(step, layer, column, stack=at)
        if self.over in PROJECTED:
            return HookPoint(step, layer, column, shared=self.shared[layer], short=False, stack=at)
        return HookPoint(step, layer, columns=(column,) if self.over == "neurons" else (), stack=at)

    def name(self, layer: int, column: int) -> str:
        """``L3H5``, ``L3.17``, or ``L3.attn at position 4``; without the position for a whole step."""
        position = "" if self.over in COLUMNS or self.whole else f" at position {column}"
        return f"{self.point(layer, column)}{position}"

    def intervention(self, source: Trace, layer: int, column: int) -> Intervention:
        """The intervention that puts the value of the ``source`` trace into a site."""
        value = source.stacks[self.stack].step(self.steps[layer], layer)  # (H, T, D), or (T, C)
        positions = self.positions if self.over in COLUMNS or self.whole else (column,)
        of_heads = self.over == "heads" or self.over in PROJECTED
        return Intervention(
            self.point(layer, column), value[column // self.shared[layer]] if of_heads else value, positions
        )

    def summed(self, effects: Tensor) -> Tensor:
        """Effects of single numbers, (H, T, D) for heads, else (T, C), added up for each site of a layer."""
        if self.positions is not None:
            effects = effects[..., list(self.positions), :]
        if self.whole and self.over not in COLUMNS:
            return effects.sum()[None]
        return effects.sum(0 if self.over == "neurons" else (1, 2) if self.over in COLUMNS else 1)
