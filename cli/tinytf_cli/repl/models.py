"""The open models and recorded traces of a session: the present ones, and the ones before."""

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tinytf_cli.repl.state import Run, Spec

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.trace.trace import Trace

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_KEPT = 2
"""How many models and traces are kept: the present one, and the one before."""


class Models:
    """Models by spec and traces by run; each is made when it is first asked for."""

    def __init__(self) -> None:
        self._whole: OrderedDict[Spec, Model] = OrderedDict()
        self._ablated: OrderedDict[Spec, Model] = OrderedDict()
        self._traces: OrderedDict[Run, Trace] = OrderedDict()

    def model(self, spec: Spec) -> "Model":
        """The model of a spec, opened if it is not open."""
        from tinytf_cli.repl.opening import open_model  # which imports torch

        kept, whole = self._whole, None
        if spec.without is not None:
            kept, whole = self._ablated, self.model(replace(spec, without=None))  # whose weights it shares
        if spec not in kept:
            self.keep(spec, open_model(spec, whole, self.trace))
        _use(kept, spec)
        for other in [other for other in self._ablated if replace(other, without=None) not in self._whole]:
            del self._ablated[other]
        return kept[spec]

    def keep(self, spec: Spec, model: "Model") -> None:
        """Keep a model that was opened."""
        (self._whole if spec.without is None else self._ablated)[spec] = model

    def is_open(self, spec: Spec) -> bool:
        """Whether a model is open."""
        return spec in self._whole or spec in self._ablated

    def trace(self, run: Run) -> "Trace":
        """The trace of a run, recorded if it is not kept."""
        from tinytf.loading import Model

        if run not in self._traces:
            model = self.model(run.spec)
            self._traces[run] = Model.trace(model, run.text, truncate=run.truncate, force=run.force)
        _use(self._traces, run)
        return self._traces[run]

    def recorded(self, run: Run | None) -> "Trace | None":
        """The trace of a run if it is kept."""
        return None if run is None else self._traces.get(run)

    @property
    def nbytes(self) -> int:
        """Bytes of the open weights and recorded traces."""
        weights = sum(one.nbytes for model in self._whole.values() for one in model.transformer.parameters())
        return weights + sum(trace.recorded_bytes for trace in self._traces.values())


def _use(kept: OrderedDict[_Key, _Value], key: _Key) -> None:
    """Mark an entry as the last used one, and drop those used longest ago."""
    kept.move_to_end(key)
    while len(kept) > _KEPT:
        kept.popitem(last=False)
