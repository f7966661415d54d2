"""The open models and recorded traces of a session, present and previous. Imports torch."""

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch

from tinytf.cause.interventions.numbers import is_divisor
from tinytf.errors import AddressError
from tinytf.loading import Model, load
from tinytf.model.transformer import Transformer
from tinytf.outputs import fenced
from tinytf.text.chat import Written
from tinytf.through.model import ThroughModel
from tinytf.through.traced import ThroughTrace, trace_through
from tinytf.trace.trace import Text, Trace
from tinytf_cli.host import with_steps
from tinytf_cli.options import SMALL, ModelOptions
from tinytf_cli.repl.state import Run, Spec

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_CACHE_SIZE = 2
"""How many models and traces are cached: the present one and the previous one."""
_THREADS = torch.get_num_threads()


@dataclass(frozen=True)
class SessionModel(Model):
    """A model whose traces the session caches.

    ``session_trace`` takes the transformer, a text, truncate and force, and gives None for a transformer that Python in
    the session has changed.
    """

    session_trace: Callable[[Transformer, Written, bool, bool], Trace | None] | None = None

    def trace(
        self,
        text: Text | None = None,
        *,
        ids: Any = None,
        truncate: bool = False,
        layers: Collection[int] | None = None,
        force: bool = False,
        grad: bool = False,
    ) -> Trace:
        """The cached trace of a text; with ``layers`` or ``grad``, a new one. Raises what ``Model.trace`` does."""
        cached = None
        if not (text is None or isinstance(text, Trace) or layers is not None or grad or self.session_trace is None):
            cached = self.session_trace(self.transformer, text, truncate, force)
        if cached is not None:
            return cached
        return super().trace(text, ids=ids, truncate=truncate, layers=layers, force=force, grad=grad)


class Models:
    """Models by spec and traces by run, each made on first access and then cached."""

    def __init__(self) -> None:
        self._whole: OrderedDict[Spec, Model] = OrderedDict()
        self._changed: OrderedDict[Spec, Model] = OrderedDict()
        self._through: OrderedDict[Spec, ThroughModel] = OrderedDict()
        self._traces: OrderedDict[Run, Trace] = OrderedDict()
        self._through_traces: OrderedDict[Run, ThroughTrace] = OrderedDict()

    def model(self, spec: Spec) -> Model:
        """As ``opened``. Raises UsageError for a model that runs through transformers."""
        return with_steps(self.opened(spec))

    def opened(self, spec: Spec) -> Model | ThroughModel:
        """The model of a spec, opened if it is not cached: through transformers, if asked for or without a table.

        Raises what ``load``, ``open_through``, ``Model.without`` and ``Model.with_numbers`` do.
        """
        with fenced(spec.fence):
            return self._opened(spec)

    def _opened(self, spec: Spec) -> Model | ThroughModel:
        if spec.whole not in self._whole and (through := self._opened_through(spec.whole)) is not None:
            if spec.changes:
                raise AddressError(
                    "this model runs through transformers, which has no steps to ablate or numbers to set",
                    "ablate --at PATH runs it without a module",
                )
            return through
        cache = self._whole
        if spec.changes:
            cache, model = self._changed, self.model(spec.whole)  # they share weights
            if spec not in cache:
                divisors = {at: number for at, number in spec.numbers if is_divisor(at)}
                others = {at: number for at, number in spec.numbers if at not in divisors}
                model = model.reading(spec.reads, truncate=True) if spec.reads else model  # fits, or was to be cut
                model = model.with_numbers(divisors) if divisors else model
                if (ablation := spec.without) is not None:
                    model = model.without(ablation.at, how=ablation.how, reference=ablation.reference)
                self.add(spec, model.with_numbers(others) if others else model)
        elif spec not in cache:
            options = {name: value for name, value in spec.options.items() if name != "through"}
            self.add(spec, load(spec.name, **options))
        _touch(cache, spec)
        for orphan in [changed for changed in self._changed if changed.whole not in self._whole]:
            del self._changed[orphan]
        return cache[spec]

    def _opened_through(self, spec: Spec) -> ThroughModel | None:
        """The model of a spec, if it runs through transformers."""
        if spec not in self._through:
            options = ModelOptions(model=spec.name, **spec.options, trust_remote_code=False, stack=None)
            opened = options.opened_through(lambda note: None)
            if opened is None:
                return None
            self._through[spec] = opened
        _touch(self._through, spec)
        return self._through[spec]

    def add(self, spec: Spec, model: Model) -> None:
        """Cache an open model, with its traces cached by the session."""
        own = model.transformer, model.transformer.exchanged

        def session_trace(transformer: Transformer, text: Written, truncate: bool, force: bool) -> Trace | None:
            is_own = own == (transformer, transformer.exchanged)
            return self.trace(Run(spec, text, truncate, force)) if is_own else None

        torch.set_num_threads(1 if model.n_parameters < SMALL else _THREADS)
        wrapped = SessionModel(
            **{field.name: getattr(model, field.name) for field in fields(Model)}, session_trace=session_trace
        )
        (self._changed if spec.changes else self._whole)[spec] = wrapped

    def is_open(self, spec: Spec) -> bool:
        """Whether the model of a spec is open."""
        return spec in self._whole or spec in self._changed or spec in self._through

    def trace(self, run: Run) -> Trace:
        """The trace of a run, recorded if it is not cached."""
        if run not in self._traces:
            model = self.model(run.spec)
            with fenced(run.fence):
                self._traces[run] = Model.trace(model, run.text, truncate=run.truncate, force=run.force)
        return self.add_trace(run, self._traces[run])

    def add_trace(self, run: Run, trace: Trace) -> Trace:
        """Cache the trace of a run, and return it."""
        self._traces[run] = trace
        _touch(self._traces, run)
        return trace

    def cached_trace(self, run: Run) -> Trace | None:
        """The trace of a run, if it is cached."""
        return self._traces.get(run)

    def through_trace(self, run: Run) -> ThroughTrace:
        """The trace of a run through transformers, recorded if it is not cached. The model has to be such a one."""
        if run not in self._through_traces:
            model = self.opened(run.spec)
            assert isinstance(model, ThroughModel)
            with fenced(run.fence):
                self._through_traces[run] = trace_through(model, run.text, truncate=run.truncate)
        _touch(self._through_traces, run)
        return self._through_traces[run]

    def cached_through(self, run: Run) -> ThroughTrace | None:
        """The trace of a run through transformers, if it is cached."""
        return self._through_traces.get(run)

    @property
    def nbytes(self) -> int:
        """Bytes of the open weights and recorded traces."""
        models = (*self._whole.values(), *self._through.values())
        weights = sum(p.nbytes for model in models for p in model.transformer.parameters())
        outputs = sum(call.output.nbytes for trace in self._through_traces.values() for call in trace.recording.calls)
        return weights + outputs + sum(trace.recorded_bytes for trace in self._traces.values())


def _touch(cache: OrderedDict[_Key, _Value], key: _Key) -> None:
    """Mark an entry as used last, and drop those used longest ago."""
    cache.move_to_end(key)
    while len(cache) > _CACHE_SIZE:
        cache.popitem(last=False)
