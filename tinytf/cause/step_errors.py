"""The error of each step of one model relative to another: from its own tensors, and with all that came before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.cause.model_pair import ModelPair, Texts
from tinytf.cause.swaps import swapped
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.steps.table import StepTable, table_of
from tinytf.text.chat import Written
from tinytf.text_model import TextModel
from tinytf.trace.record import walk
from tinytf.trace.site import Site

_TEXTS = 64
"""The steps are compared on at most this many texts."""


@dataclass(frozen=True)
class StepError(Data):
    """A step with parameters: ‖error‖ ÷ ‖step of the first model‖ of a token, averaged over the tokens.

    ``own`` is the error of the second model's parameters on the first model's inputs. ``actual`` is the error on the
    second model's own inputs, so it includes the inherited error.
    """

    name: str
    step: str
    layer: int | None
    own: float
    actual: float


@torch.no_grad()
def step_errors(
    model: TextModel, texts: Written | Sequence[Written] | Texts, versus: TextModel
) -> tuple[StepError, ...]:
    """The errors of every step with parameters between the tokens and the logits, in order."""
    models = ModelPair(model, versus)
    encoded = (texts if isinstance(texts, Texts) else Texts(texts)).encoded(model)[:_TEXTS]
    sums: dict[tuple[str, int | None], Tensor] = {}
    table = table_of(model.config)
    for encoding in encoded:
        parts = zip(walk(model.transformer, encoding), walk(versus.transformer, encoding), strict=True)
        for part, (first, second) in enumerate(parts):
            for step, layer in _steps(table, part):
                errors = torch.stack(list(_errors(models, Site(first, step, layer), Site(second, step, layer))))
                key = step.name, layer
                sums[key] = sums.get(key, torch.zeros(2, dtype=torch.float64)) + errors
    tokens = sum(len(encoding.tokens) for encoding in encoded)
    return tuple(
        StepError(table.at(name, layer).full_name(layer), name, layer, *(total / tokens).tolist())
        for (name, layer), total in sums.items()
    )


def _steps(table: StepTable, part: int) -> Iterator[tuple[Step, int | None]]:
    """The steps with parameters of one part of a walk: before the blocks, a layer each, after the blocks."""
    layer = part - 1 if 0 < part <= table.config.n_layers else None
    steps = table.before if not part else table.after if layer is None else table.in_layer(layer)
    for step in steps:
        if step.module and not step.is_vocabulary and {"token", "query"} & {*step.axes}:
            yield step, layer


def _errors(models: ModelPair, first: Site, second: Site) -> Iterator[Tensor]:
    """Own and actual error of one step, summed over the tokens."""
    true = _rows(first, first.value)
    first.inputs()  # with the parameters of the first model
    own = {path: models.theirs[path][path] for path in models.changed if path.rpartition(".")[0] == first.path}
    with swapped(models.first.model, own):
        with_own = _rows(first, first.derive())
    size = torch.linalg.vector_norm(true, dim=-1).clamp(min=torch.finfo(true.dtype).tiny)
    for actual in (with_own, _rows(second, second.value)):
        yield (torch.linalg.vector_norm(actual - true, dim=-1) / size).sum()


def _rows(site: Site, value: Tensor) -> Tensor:
    """The numbers of each token, (T, N)."""
    axis = next(i for i, axis in enumerate(site.step.axes) if axis in ("token", "query"))
    return value.double().movedim(axis, 0).flatten(1)
