"""What dividing scores by √d does to the softmax of one head: its own live scores, divided and as they are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.model.without import lacking, removable
from tinytf.report import Data
from tinytf.steps.table import StepTable, table_of
from tinytf.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Sharpness(Data):
    """The scores of a head (Q, K), and the softmax of each row in two ways: ``scaled`` and ``unscaled``, (Q, K).

    Scores are divided by ``divisor``, which is ``expression``; a cap and the mask are in both.
    """

    layer: int
    head: int
    divisor: float
    expression: str
    scores: Tensor
    scaled: Tensor
    unscaled: Tensor


def sharpness(trace: Trace, layer: int, head: int) -> Sharpness | None:
    """Both softmaxes of the scores that a head has in ``trace``; None where the model does not divide them."""
    config = trace.config
    if "scaling" not in removable(config):
        return None
    scores = next(step for step in trace.steps.layer_steps if step.core)
    live, tables = trace.step(scores.name, layer, (head,)), (trace.steps, table_of(lacking(config, "scaling")))
    scaled, unscaled = (_weights(live, table, layer)[0] for table in tables)
    return Sharpness(layer, head, config.score_divisor, config.score_divisor_words, live[0], scaled, unscaled)


def _weights(x: Tensor, table: StepTable, layer: int) -> Tensor:
    """From scores (H, Q, K) to weights, by the rows of a table."""
    for step, within in table.rows:
        if within == layer and step.core and step.is_map and len(step.inputs) == 1:
            assert step.operation is not None, "a step of the core has an operation"
            x = step.operation.forward(x)
    return x


def entropies(weights: Tensor) -> Tensor:
    """The entropy of each row, in nats: (…, Q, K) -> (…, Q)."""
    return torch.special.entr(weights).sum(dim=-1)


def slopes(weights: Tensor) -> Tensor:
    """w·(1 − w) of each row's largest weight, its slope in its own score: (…, Q, K) -> (…, Q)."""
    most = weights.amax(dim=-1)
    return most * (1 - most)
