"""What the screen is about: one run with the one before it, and how they are being looked at."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from tinytf.loading import Model
from tinytf.look.heads import measure_heads
from tinytf.look.prediction import Prediction, predictions
from tinytf.trace.trace import Trace
from tinytf_cli.explore.place import Place
from tinytf_cli.repl.state import Run
from tinytf_cli.views.pipeline import row_at

TOP = 12
"""How many predictions are known."""


@dataclass(frozen=True, eq=False)
class Scene:
    """One run on the screen: the model, its trace, and the run before, if there was one; and both as the session's."""

    model: Model
    trace: Trace
    run: Run
    before: Trace | None = None
    earlier: Run | None = None

    def earlier_scene(self, model: Model) -> "Scene":
        """The run before, alone."""
        assert self.before is not None
        assert self.earlier is not None
        return Scene(model, self.before, self.earlier)

    @cached_property
    def predicted(self) -> tuple[Prediction, ...]:
        return predictions(self.trace, self.model, TOP)

    @cached_property
    def _histograms(self) -> dict[int, tuple[int, ...]]:
        return {}

    def histogram(self, row: int) -> tuple[int, ...]:
        """The histogram of a step; empty where it has no numbers."""
        if row not in self._histograms:
            found = row_at(self.trace, row).statistics
            self._histograms[row] = found.histogram if found else ()
        return self._histograms[row]

    @cached_property
    def _changes(self) -> dict[int, float]:
        return {}

    def change(self, row: int) -> float:
        """How far a step is from the run before, in units of its largest number; NaN where they do not compare."""
        if row not in self._changes:
            step, layer = self.trace.steps.rows[row]
            now, before = (_whole(trace, step.name, layer) for trace in (self.trace, self.before))
            same = now is not None and before is not None and now.shape == before.shape
            self._changes[row] = math.nan
            if same and now is not None and before is not None:
                apart = (now - before).abs().nan_to_num(0.0)  # −∞ is masked in both
                finite = before[before.isfinite()].abs()
                self._changes[row] = float(apart.max()) / (float(finite.max()) or 1.0) if finite.numel() else 0.0
        return self._changes[row]

    @cached_property
    def _measured(self) -> dict[tuple[str, int], list[float]]:
        return {}

    def measured(self, by: str, layer: int) -> list[float]:
        """A measure of every head of a layer."""
        if (by, layer) not in self._measured:
            self._measured[by, layer] = measure_heads(self.trace, by, [layer])[0].tolist()
        return self._measured[by, layer]


def _whole(trace: Trace | None, name: str, layer: int | None) -> Tensor | None:
    """All numbers of a step; None where the model has no such step, or it has no numbers."""
    if trace is None or not trace.steps.has(name, layer) or not trace.steps.at(name, layer).is_tensor:
        return None
    step = trace.steps.at(name, layer)
    return (trace.at_logit_rows(step) if step.is_vocabulary else trace.step(name, layer)).float()


@dataclass(frozen=True)
class Look:
    """What is looked at: a scene from a place, its map in ``small`` cells, all ``against`` the run before.

    ``by`` is the measure that sorts the heads, ``stops`` are the rows at which the session stops, ``marks`` are places.
    """

    scene: Scene
    place: Place
    small: bool = False
    against: bool = False
    by: str = "entropy"
    stops: frozenset[int] = frozenset()
    marks: Mapping[str, Place] = field(default_factory=dict)
