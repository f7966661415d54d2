"""The sites of a sweep: every head, every feed-forward unit, or every position of a step, in each layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from tinytf.cause.interventions.hooks import HookPoint, Intervention
from tinytf.errors import UsageError
from tinytf.look.neurons import require_units
from tinytf.nearest import did_you_mean
from tinytf.steps.table import StepTable
from tinytf.trace.trace import Trace

COLUMNS = {"heads": "head", "neurons": "unit"}
"""What the columns of a sweep's map are; positions for any other sweep."""


@dataclass(frozen=True)
class Grid:
    """The sites of a sweep ``over`` heads, neurons, or the positions of a step; a row of the map is a layer.

    ``steps`` are the short names, empty for a layer without sites; ``widths`` count the columns of each layer, with
    those before ``first`` left out. ``positions`` limit the sites of heads and neurons; None for the whole text.
    """

    over: str
    steps: tuple[str, ...]
    widths: tuple[int, ...]
    first: int = 0
    positions: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls, over: str, table: StepTable, length: int, first: int = 0, positions: Sequence[int] | None = None
    ) -> "Grid":
        """The sites of a text of ``length`` tokens. Raises UsageError for another ``over`` and for absent units."""
        config = table.config
        by_position = {"residual": table.input, **{step.name: step.name for step in table.added}}
        if over not in (*by_position, *COLUMNS):
            raise UsageError(f"there is no sweep over {over!r}", did_you_mean(over, [*by_position, *COLUMNS]))
        if positions is not None and over not in COLUMNS:
            raise UsageError(f"a sweep over {over} is over every position", "sweep heads or neurons at one position")
        if over == "neurons":
            require_units(config)
        outputs = [table.head_output(layer) for layer in range(config.n_layers)]
        names = {
            "heads": ["" if output is None else output.name for output in outputs],
            "neurons": [table.ffn_activation] * config.n_layers,
        }.get(over) or [by_position[over]] * config.n_layers
        steps = tuple(name if table.has(name, layer) else "" for layer, name in enumerate(names))
        widths = {"heads": "n_heads", "neurons": "d_ff"}
        counts = (
            getattr(config.at(layer), widths[over]) if over in widths else length for layer in range(config.n_layers)
        )
        present = tuple(count if step else 0 for step, count in zip(steps, counts, strict=True))
        return cls(
            over, steps, present, 0 if over in COLUMNS else first, None if positions is None else tuple(positions)
        )

    @property
    def axis(self) -> str:
        """What a column of the map is."""
        return COLUMNS.get(self.over, "position")

    @property
    def width(self) -> int:
        return max(self.widths)

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the layer and column of every site that is run."""
        for layer, width in enumerate(self.widths):
            yield from ((layer, column) for column in range(self.first, width))

    def point(self, layer: int, column: int) -> HookPoint:
        """The hook point of a site; for a position, the whole step."""
        if self.over == "heads":
            return HookPoint(self.steps[layer], layer, column)
        return HookPoint(self.steps[layer], layer, columns=(column,) if self.over == "neurons" else ())

    def name(self, layer: int, column: int) -> str:
        """``L3H5``, ``L3.17``, or ``L3.attn at position 4``."""
        position = "" if self.over in COLUMNS else f" at position {column}"
        return f"{self.point(layer, column)}{position}"

    def intervention(self, source: Trace, layer: int, column: int) -> Intervention:
        """The intervention that puts the value of the ``source`` trace into a site."""
        value = source.step(self.steps[layer], layer)  # (H, T, D), or (T, C)
        positions = self.positions if self.over in COLUMNS else (column,)
        return Intervention(self.point(layer, column), value[column] if self.over == "heads" else value, positions)

    def summed(self, effects: Tensor) -> Tensor:
        """Effects of single numbers, (H, T, D) for heads, else (T, C), added up for each site of a layer."""
        if self.positions is not None:
            effects = effects[..., list(self.positions), :]
        return effects.sum({"heads": (1, 2), "neurons": 0}.get(self.over, 1))
