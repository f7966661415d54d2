"""Opens a model for a session, which records each text once."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields

import torch

from tinytf.loading import Model, load
from tinytf.trace.trace import Text, Trace
from tinytf_cli.options import SMALL
from tinytf_cli.repl.state import Run, Spec

_THREADS = torch.get_num_threads()


@dataclass(frozen=True)
class SessionModel(Model):
    """A model whose traces are kept by the session."""

    recorded: Callable[[str, bool, bool], Trace] | None = None

    def trace(
        self, text: Text, *, truncate: bool = False, layers: Collection[int] | None = None, force: bool = False
    ) -> Trace:
        """The kept trace of a text; one of some ``layers`` only is recorded anew. Raises what ``Model.trace`` does."""
        if isinstance(text, Trace) or layers is not None or self.recorded is None:
            return super().trace(text, truncate=truncate, layers=layers, force=force)
        return self.recorded(text, truncate, force)


def open_model(spec: Spec, whole: Model | None, trace_of: Callable[[Run], Trace]) -> Model:
    """The model of a spec, or ``whole`` with the steps of the spec ablated; ``trace_of`` gives the kept traces.

    Raises what ``load`` and ``Model.without`` do.
    """
    if whole is None or spec.without is None:
        opened: Model = load(spec.name, device=spec.device, dtype=spec.dtype, seed=spec.seed)
    else:
        opened = whole.without(spec.without.at, how=spec.without.how, reference=spec.without.reference)

    def recorded(text: str, truncate: bool, force: bool) -> Trace:
        return trace_of(Run(spec, text, truncate, force))

    torch.set_num_threads(1 if opened.n_parameters < SMALL else _THREADS)
    return SessionModel(**{one.name: getattr(opened, one.name) for one in fields(Model)}, recorded=recorded)
