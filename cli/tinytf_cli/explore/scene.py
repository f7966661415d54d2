"""What the screen shows: a run, the run before it, and the way of looking at them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from tinytf.loading import Model
from tinytf.look.heads.measures import measure_heads
from tinytf.look.overview import Overview, overview
from tinytf.look.prediction import Prediction, prediction_at, predictions
from tinytf.trace.trace import Trace
from tinytf_cli.explore.cursor import Cursor, chosen_tokens, first_row, matrix
from tinytf_cli.repl.state import Run
from tinytf_cli.views.pipeline import row_at

TOP_PREDICTIONS = 20
"""How many predictions are computed."""


@dataclass(frozen=True, eq=False)
class Scene:
    """A run on the screen: its model, its trace, and the trace and run of the session before it, if any."""

    model: Model
    trace: Trace
    run: Run
    previous: Trace | None = None
    previous_run: Run | None = None

    def previous_scene(self, model: Model) -> "Scene":
        """A scene of the run before alone."""
        assert self.previous is not None
        assert self.previous_run is not None
        return Scene(model, self.previous, self.previous_run)

    @cached_property
    def predicted(self) -> tuple[Prediction, ...]:
        return predictions(self.trace, self.model, TOP_PREDICTIONS)

    def at_token(self, position: int) -> int:
        """The position that is read when a token is chosen: its own in a decoder, else that of the first prediction."""
        first = self.predicted[0] if self.predicted else None
        return position if first is None or first.what == "next" else first.position

    def predicted_at(self, position: int) -> tuple[Prediction, ...]:
        """The prediction after a token of a decoder; all predictions of another model."""
        if self.predicted and position != self.predicted[0].position:
            if position not in self._predicted_at:
                self._predicted_at[position] = prediction_at(self.trace, self.model, position, TOP_PREDICTIONS)
            return (self._predicted_at[position],)
        return self.predicted

    @cached_property
    def _predicted_at(self) -> dict[int, Prediction]:
        return {}

    @cached_property
    def overviews(self) -> dict[int, Overview | None]:
        """The overviews by the position that they read; None for one that is being computed."""
        return {}

    def overview(self, position: int) -> Overview:
        """Compute the overview of the prediction at a position, unless it is known."""
        known = self.overviews.get(position)
        if known is None:
            known = self.overviews[position] = overview(self.trace, self.predicted_at(position), self.model.shown)
        return known

    @cached_property
    def _histograms(self) -> dict[int, tuple[int, ...]]:
        return {}

    def histogram(self, row: int) -> tuple[int, ...]:
        """The histogram of a step; empty where it has no numbers."""
        if row not in self._histograms:
            statistics = row_at(self.trace, row).statistics
            self._histograms[row] = statistics.histogram if statistics else ()
        return self._histograms[row]

    @cached_property
    def _changes(self) -> dict[int, float]:
        return {}

    def change(self, row: int) -> float:
        """The largest change of a step since the run before, relative to its largest number; NaN if not comparable."""
        if row not in self._changes:
            step, layer = self.trace.steps.rows[row]
            current, previous = (_step_numbers(trace, step.name, layer) for trace in (self.trace, self.previous))
            comparable = current is not None and previous is not None and current.shape == previous.shape
            self._changes[row] = math.nan
            if comparable and current is not None and previous is not None:
                difference = (current - previous).abs().nan_to_num(0.0)  # −∞ is masked in both
                finite = previous[previous.isfinite()].abs()
                self._changes[row] = float(difference.max()) / (float(finite.max()) or 1.0) if finite.numel() else 0.0
        return self._changes[row]

    @cached_property
    def _measures(self) -> dict[tuple[str, int], list[float]]:
        return {}

    def head_measures(self, measure: str, layer: int) -> list[float]:
        """A measure of every head of a layer, as in ``MEASURES``."""
        if (measure, layer) not in self._measures:
            self._measures[measure, layer] = measure_heads(self.trace, measure, [layer])[0].tolist()
        return self._measures[measure, layer]


def first_cursor(scene: Scene) -> Cursor:
    """The first cursor: the head that ``trace`` draws, from the token that predicts to the one that it sees most."""
    position = scene.at_token(len(scene.trace.tokens) - 1)
    layer, head, _ = scene.overview(position).ranked[0]
    cursor = Cursor(first_row(scene.trace, layer), head, (position, 0))
    numbers = matrix(scene.trace, cursor) if cursor.at(scene.trace)[0].is_map else None
    return cursor if numbers is None else replace(cursor, cell=(position, int(numbers[position].abs().argmax())))


def _step_numbers(trace: Trace | None, name: str, layer: int | None) -> Tensor | None:
    """All numbers of a step; None if the model lacks the step, or it has no numbers."""
    if trace is None or not trace.steps.has(name, layer) or not trace.steps.at(name, layer).is_tensor:
        return None
    step = trace.steps.at(name, layer)
    return (trace.at_logit_rows(step) if step.is_vocabulary else trace.step(name, layer)).float()


@dataclass(frozen=True)
class Look:
    """A view of a scene at a cursor, with ``small`` map cells, or ``comparing`` it with the run before.

    ``measure`` sorts the heads, ``stops`` are the rows at which the session stops, ``marks`` are marked cursors.
    """

    scene: Scene
    cursor: Cursor
    small: bool = False
    comparing: bool = False
    measure: str = "entropy"
    stops: frozenset[int] = frozenset()
    marks: Mapping[str, Cursor] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """The position of the chosen token; for a step without a row a token, of the last."""
        row, _ = chosen_tokens(self.scene.trace, self.cursor)
        return row if row >= 0 else len(self.scene.trace.tokens) - 1

    @property
    def predicted(self) -> tuple[Prediction, ...]:
        """The predictions at the chosen token."""
        return self.scene.predicted_at(self.scene.at_token(self.position))

    @property
    def overview(self) -> Overview | None:
        """The overview of the prediction at the chosen token; None until it is computed."""
        return self.scene.overviews.get(self.scene.at_token(self.position))
