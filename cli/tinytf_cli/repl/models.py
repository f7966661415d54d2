"""What a session keeps warm: its open models and its recorded traces, the present ones and those before."""

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from tinytf_cli.repl.state import Run, Spec

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.trace.trace import Trace

_KEPT = 2
"""Models and traces that stay at hand: the present one, and the one before."""


class Models:
    """Models by their specs and traces by their runs; each is made when it is first asked for."""

    def __init__(self) -> None:
        self._whole: OrderedDict[Spec, Model] = OrderedDict()
        self._ablated: OrderedDict[Spec, Model] = OrderedDict()
        self._traces: OrderedDict[Run, Trace] = OrderedDict()

    def model(self, spec: Spec) -> "Model":
        """The model of a spec, from those that are open or opened now."""
        from tinytf_cli.repl.opening import open_model  # torch comes with it

        kept, whole = self._whole, None
        if spec.without is not None:
            kept, whole = self._ablated, self.model(replace(spec, without=None))  # whose weights it shares
        if spec not in kept:
            self.keep(spec, open_model(spec, whole, self.trace))
        kept.move_to_end(spec)
        while len(kept) > _KEPT:
            kept.popitem(last=False)
        for other in [other for other in self._ablated if replace(other, without=None) not in self._whole]:
            del self._ablated[other]
        return kept[spec]

    def keep(self, spec: Spec, model: "Model") -> None:
        """Keep a model that was opened."""
        (self._whole if spec.without is None else self._ablated)[spec] = model

    def is_open(self, spec: Spec) -> bool:
        """Whether a model is at hand."""
        return spec in self._whole or spec in self._ablated

    def trace(self, run: Run) -> "Trace":
        """The trace of a run, from those that were recorded or recorded now."""
        from tinytf.loading import Model

        if run not in self._traces:
            model = self.model(run.spec)
            self._traces[run] = Model.trace(model, run.text, truncate=run.truncate, force=run.force)
        self._traces.move_to_end(run)
        while len(self._traces) > _KEPT:
            self._traces.popitem(last=False)
        return self._traces[run]

    def recorded(self, run: Run | None) -> "Trace | None":
        """The trace of a run where it is at hand."""
        return None if run is None else self._traces.get(run)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and traces that are held."""
        weights = sum(
            parameter.nbytes for model in self._whole.values() for parameter in model.transformer.parameters()
        )
        return weights + sum(trace.recorded_bytes for trace in self._traces.values())
