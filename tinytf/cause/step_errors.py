"""How far each step of one model is from that of another: by its own tensors, and with what came before."""

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
"""Texts at most that the steps are compared on."""


@dataclass(frozen=True)
class StepError(Data):
    """A step that is made with a tensor: ‖error‖ ÷ ‖step of the first model‖ of a token, the mean over the tokens.

    ``own`` is the error of the second model's tensor on what the first model puts into the step, ``actual`` that on
    what comes there in the second model: its own, and what it inherits.
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
    """The errors of every step between the tokens and the logits that has a parameter, in the order of the steps."""
    both = ModelPair(model, versus)
    encoded = (texts if isinstance(texts, Texts) else Texts(texts)).encoded(model)[:_TEXTS]
    sums: dict[tuple[str, int | None], Tensor] = {}
    table = table_of(model.config)
    for encoding in encoded:
        parts = zip(walk(model.transformer, encoding), walk(versus.transformer, encoding), strict=True)
        for part, (first, second) in enumerate(parts):
            for step, layer in _steps(table, part):
                errors = torch.stack(list(_errors(both, Site(first, step, layer), Site(second, step, layer))))
                key = step.name, layer
                sums[key] = sums.get(key, torch.zeros(2, dtype=torch.float64)) + errors
    tokens = sum(len(one.tokens) for one in encoded)
    return tuple(
        StepError(table.at(name, layer).full_name(layer), name, layer, *(total / tokens).tolist())
        for (name, layer), total in sums.items()
    )


def _steps(table: StepTable, part: int) -> Iterator[tuple[Step, int | None]]:
    """The steps with parameters of one part of a walk: before the blocks, a layer each, after the blocks."""
    layer = part - 1 if 0 < part <= table.config.n_layers else None
    within = table.before if not part else table.after if layer is None else table.in_layer(layer)
    for step in within:
        if step.module and not step.is_vocabulary and {"token", "query"} & {*step.axes}:
            yield step, layer


def _errors(both: ModelPair, first: Site, second: Site) -> Iterator[Tensor]:
    """Own and actual error of one step, summed over the tokens."""
    true = _rows(first, first.value)
    first.inputs()  # with the parameters of the first model
    own = {path: both.theirs[path][path] for path in both.changed if path.rpartition(".")[0] == first.path}
    with swapped(both.first.model, own):
        alone = _rows(first, first.derive())
    size = torch.linalg.vector_norm(true, dim=-1).clamp(min=torch.finfo(true.dtype).tiny)
    for other in (alone, _rows(second, second.value)):
        yield (torch.linalg.vector_norm(other - true, dim=-1) / size).sum()


def _rows(site: Site, value: Tensor) -> Tensor:
    """The numbers of each token, (T, N)."""
    axis = next(i for i, axis in enumerate(site.step.axes) if axis in ("token", "query"))
    return value.double().movedim(axis, 0).flatten(1)
