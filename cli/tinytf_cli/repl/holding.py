"""What a session keeps warm: its open models and its recorded traces, the present ones and those before."""

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from tinytf.errors import UsageError
from tinytf_cli.host import Host
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Run, Spec, State

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.steps.table import StepTable
    from tinytf.trace.trace import Trace

_KEPT = 2
"""Models and traces that stay at hand: the present one, and the one before."""


class Holding(Host):
    """A state, and the model and trace that it is about; each is made when it is first asked for."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.place: int | None = None
        self._models: OrderedDict[Spec, Model] = OrderedDict()
        self._ablated: OrderedDict[Spec, Model] = OrderedDict()
        self._traces: OrderedDict[Run, Trace] = OrderedDict()

    @property
    def model(self) -> "Model":
        """The open model; opened when it is first asked for."""
        return self.model_of(self.state.spec)

    def model_of(self, spec: Spec) -> "Model":
        """The model of a spec, from those that are open or opened now."""
        from tinytf_cli.repl.opening import open_for

        kept = self._models if spec.without is None else self._ablated
        if spec.without is not None:
            self.model_of(replace(spec, without=None))  # whose weights it shares
        if spec not in kept:
            kept[spec] = open_for(self, spec)
        kept.move_to_end(spec)
        while len(kept) > _KEPT:
            kept.popitem(last=False)
        for other in [other for other in self._ablated if replace(other, without=None) not in self._models]:
            del self._ablated[other]
        return kept[spec]

    @property
    def is_open(self) -> bool:
        """Whether the present model is open, so that ``table`` takes no time."""
        return self.state.spec in self._models or self.state.spec in self._ablated

    @property
    def table(self) -> "StepTable":
        """The steps of the open model."""
        from tinytf.steps.table import StepTable

        run = self.run
        return self._traces[run].steps if run is not None and run in self._traces else StepTable(self.model.config)

    @property
    def run(self) -> Run | None:
        """The text that was run last, on the present model."""
        return self.state.runs[-1] if self.state.runs else None

    @property
    def trace(self) -> "Trace":
        """The recorded trace of the present run; UsageError before any."""
        return self.trace_of(self.require_run())

    def trace_of(self, run: Run) -> "Trace":
        """The trace of a run, from those that were recorded or recorded now."""
        from tinytf.loading import Model

        if run not in self._traces:
            model = self.model_of(run.spec)
            self._traces[run] = Model.trace(model, run.text, truncate=run.truncate, force=run.force)
        self._traces.move_to_end(run)
        while len(self._traces) > _KEPT:
            self._traces.popitem(last=False)
        return self._traces[run]

    def require_run(self) -> Run:
        """The present run; UsageError before any."""
        run = self.run
        if run is None:
            raise UsageError("nothing has been run yet", "run a text first, such as: run The cat sat")
        return run

    def require_text(self) -> str:
        """The text of the session."""
        if self.run is None:
            raise UsageError("there is no text", "give one, or run it first, such as: run The cat sat")
        return self.run.text

    @property
    def settings(self) -> Settings:
        return self.state.settings

    @property
    def tokens(self) -> tuple[str, ...]:
        """The printable tokens of the present text."""
        run = self.run
        return (
            tuple(token.shown for token in self._traces[run].tokens) if run is not None and run in self._traces else ()
        )

    @property
    def place_words(self) -> str:
        """Where the session stands: ``L3.weights 17/96``."""
        if self.place is None or self.run not in self._traces:
            return ""
        rows = self.table.rows
        step, layer = rows[self.place]
        return f"{step.full_name(layer)} {self.place + 1}/{len(rows)}"

    @property
    def model_words(self) -> str:
        """The model as it was asked for, and what it runs without."""
        gone = self.state.spec.without
        return self.state.spec.name + (f" without {gone.words}" if gone else "")

    @property
    def held_bytes(self) -> int:
        """Bytes of the weights and traces that are held."""
        weights = sum(
            parameter.nbytes for model in self._models.values() for parameter in model.transformer.parameters()
        )
        return weights + sum(trace.recorded_bytes for trace in self._traces.values())
