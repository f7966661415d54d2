"""What dividing scores by √d does to the softmax of one head: its own live scores, divided and as they are."""

from dataclasses import dataclass

from torch import Tensor

from tinytf.look.heads import entropies
from tinytf.model.without import lacking, removable
from tinytf.report import Data
from tinytf.steps.operations.operation import ALONE
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
    without = table_of(lacking(config, "scaling"))
    divided = next(step for step in trace.steps.layer_steps if step.name not in without.by_name).inputs[0]
    live = trace.step(divided, layer)
    scaled, unscaled = (_weights(trace, divided, live, table, layer)[head] for table in (trace.steps, without))
    return Sharpness(layer, head, config.score_divisor, config.score_divisor_words, live[head], scaled, unscaled)


def _weights(trace: Trace, name: str, scores: Tensor, table: StepTable, layer: int) -> Tensor:
    """From scores (H, Q, K), which are the step ``name``, to weights, by the rows of a table."""
    rows, values = [step for step in table.in_layer(layer) if step.core], {name: scores}
    first = next(place for place, step in enumerate(rows, 1) if step.name == name)
    for step in rows[first : next(place for place, step in enumerate(rows, 1) if step.is_distribution)]:
        assert step.operation is not None, "a step of the core has an operation"
        module = trace.model.get_submodule(f"blocks.{layer}.{step.module}") if step.module else None
        values[step.name] = step.operation.run(module, ALONE, *(values[name] for name in step.inputs))
    return values[table.weights]


@dataclass(frozen=True)
class Peak:
    """The largest weight of a query: its ``key``, its ``share``, and its ``slope`` w·(1 − w) in its own score.

    ``entropy`` is that of the query's weights, in nats.
    """

    key: int
    share: float
    slope: float
    entropy: float


def peaks(weights: Tensor) -> list[Peak]:
    """The peak of each query of a map (Q, K)."""
    most, keys = weights.max(dim=-1)
    columns = keys, most, most * (1 - most), entropies(weights)
    return [Peak(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
