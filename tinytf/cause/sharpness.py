"""The effect of dividing scores by √d on the softmax of one head: its own live scores, divided and undivided."""

from dataclasses import dataclass

from torch import Tensor

from tinytf.look.heads.measures import entropies
from tinytf.model.without import removable, without_part
from tinytf.report import Data
from tinytf.steps.operations.operation import ALONE
from tinytf.steps.table import StepTable, table_of
from tinytf.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Sharpness(Data):
    """The scores of a head (Q, K), and the softmax of each row, ``scaled`` and ``unscaled`` (Q, K).

    Scores are divided by ``divisor``, in words ``expression``; both have the cap and the mask.
    """

    layer: int
    head: int
    divisor: float
    expression: str
    scores: Tensor
    scaled: Tensor
    unscaled: Tensor


def sharpness(trace: Trace, layer: int, head: int) -> Sharpness | None:
    """Both softmaxes of a head's scores in ``trace``; None if the model does not divide them."""
    config = trace.config
    if "scaling" not in removable(config):
        return None
    unscaled_table = table_of(without_part(config, "scaling"))
    divided_step = next(step for step in trace.steps.layer_steps if step.name not in unscaled_table.by_name).inputs[0]
    live = trace.step(divided_step, layer)
    scaled, unscaled = (
        _weights(trace, divided_step, live, table, layer)[head] for table in (trace.steps, unscaled_table)
    )
    return Sharpness(layer, head, config.score_divisor, config.score_divisor_words, live[head], scaled, unscaled)


def _weights(trace: Trace, name: str, scores: Tensor, table: StepTable, layer: int) -> Tensor:
    """The weights from the scores (H, Q, K) of step ``name``, by the rows of a table."""
    rows, values = [step for step in table.in_layer(layer) if step.core], {name: scores}
    first = next(index for index, step in enumerate(rows, 1) if step.name == name)
    for step in rows[first : next(index for index, step in enumerate(rows, 1) if step.holds_shares)]:
        assert step.operation is not None, "a step of the core has an operation"
        module = trace.model.get_submodule(f"blocks.{layer}.{step.module}") if step.module else None
        values[step.name] = step.operation.run(module, ALONE, *(values[name] for name in step.inputs))
    return values[table.weights]


@dataclass(frozen=True)
class Peak:
    """The largest weight of a query: its ``key``, its ``share``, and its ``slope`` w·(1 − w) in its own score.

    ``entropy`` is the entropy of the query's weights, in nats.
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
