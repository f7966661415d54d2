"""The open models and recorded traces of a session: the present ones, and the ones before. Imports torch."""

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

from tinytf.loading import Model, load
from tinytf.text.chat import Written
from tinytf.trace.trace import Text, Trace
from tinytf_cli.options import SMALL
from tinytf_cli.repl.state import Run, Spec

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_KEPT = 2
"""How many models and traces are kept: the present one, and the one before."""
_THREADS = torch.get_num_threads()


@dataclass(frozen=True)
class SessionModel(Model):
    """A model whose traces are kept by the session: ``recorded`` gives the one of a text, truncate and force."""

    recorded: Callable[[Written, bool, bool], Trace] | None = None

    def trace(
        self,
        text: Text | None = None,
        *,
        ids: Any = None,
        truncate: bool = False,
        layers: Collection[int] | None = None,
        force: bool = False,
    ) -> Trace:
        """The kept trace of a text; one of some ``layers`` only is recorded anew. Raises what ``Model.trace`` does."""
        if text is None or isinstance(text, Trace) or layers is not None or self.recorded is None:
            return super().trace(text, ids=ids, truncate=truncate, layers=layers, force=force)
        return self.recorded(text, truncate, force)


class Models:
    """Models by spec and traces by run; each is made when it is first asked for."""

    def __init__(self) -> None:
        self._whole: OrderedDict[Spec, Model] = OrderedDict()
        self._ablated: OrderedDict[Spec, Model] = OrderedDict()
        self._traces: OrderedDict[Run, Trace] = OrderedDict()

    def model(self, spec: Spec) -> Model:
        """The model of a spec, opened if it is not open. Raises what ``load`` and ``Model.without`` do."""
        kept, gone = self._whole, spec.without
        if gone is not None:
            kept, whole = self._ablated, self.model(replace(spec, without=None))  # whose weights it shares
            if spec not in kept:
                self.keep(spec, whole.without(gone.at, how=gone.how, reference=gone.reference))
        elif spec not in kept:
            opened = load(spec.name, device=spec.device, dtype=spec.dtype, seed=spec.seed, adapter=spec.adapter)
            self.keep(spec, opened)
        _use(kept, spec)
        for other in [other for other in self._ablated if replace(other, without=None) not in self._whole]:
            del self._ablated[other]
        return kept[spec]

    def keep(self, spec: Spec, opened: Model) -> None:
        """Keep an open model."""

        def recorded(text: Written, truncate: bool, force: bool) -> Trace:
            return self.trace(Run(spec, text, truncate, force))

        torch.set_num_threads(1 if opened.n_parameters < SMALL else _THREADS)
        kept = SessionModel(**{one.name: getattr(opened, one.name) for one in fields(Model)}, recorded=recorded)
        (self._whole if spec.without is None else self._ablated)[spec] = kept

    def is_open(self, spec: Spec) -> bool:
        """Whether a model is open."""
        return spec in self._whole or spec in self._ablated

    def trace(self, run: Run) -> Trace:
        """The trace of a run, recorded if it is not kept."""
        if run not in self._traces:
            model = self.model(run.spec)
            self._traces[run] = Model.trace(model, run.text, truncate=run.truncate, force=run.force)
        return self.keep_trace(run, self._traces[run])

    def keep_trace(self, run: Run, trace: Trace) -> Trace:
        """Keep the trace of a run, and answer with it."""
        self._traces[run] = trace
        _use(self._traces, run)
        return trace

    def recorded(self, run: Run) -> Trace | None:
        """The trace of a run, if it is kept."""
        return self._traces.get(run)

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
