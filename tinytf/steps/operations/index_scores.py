"""The scores of a lightning indexer: Σ over its heads of weight / √H · max(0, q·k / √D) (DeepSeek-V3.2, 2025).

The published code multiplies queries and keys by a Hadamard matrix, which leaves their products as they are, and
rounds both to FP8; as in transformers, neither is done here.
"""

from typing import ClassVar

from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Operation, in_float32, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, product


class IndexScores(Operation):
    """Queries (…, Q, H·D), one key for each token (…, K, D) and weights (…, Q, H) -> (…, Q, K).

    Without weights q·k of each head: queries (…, H, Q, D) -> (…, H, Q, K) (MiniMax M3).
    """

    words = "a weighted sum of fits"
    remembers: ClassVar[tuple[tuple[int, str], ...]] = ((1, "index_keys"),)

    def forward(self, *inputs: Tensor) -> Tensor:
        q, k, *weighed = (wide(x) for x in inputs)
        if not weighed:
            return q @ k.mT.unsqueeze(-3)
        (weights,) = weighed
        heads, width = weights.shape[-1], k.shape[-1]
        fits = (q.unflatten(-1, (heads, width)) @ k.mT.unsqueeze(-3) * width**-0.5).relu()  # (…, Q, H, K)
        return ((weights * heads**-0.5).unsqueeze(-2) @ fits).squeeze(-2)

    def code(self, site: Site) -> str:
        q, k, *weighed = map(in_float32, site.names, site.inputs())
        if not weighed:
            return f"{site.variable} = {q} @ {k}.mT"
        (weights,) = weighed
        heads, width = site.config.index_heads, site.config.index_width
        fits = f"fits = F.relu({q}.unflatten(-1, ({heads}, {width})) @ {k}.mT * {width}**-0.5)"
        return f"{fits}\n{site.variable} = (({weights} * {heads}**-0.5).unsqueeze(-2) @ fits).squeeze(-2)"

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.index
        q, k = cell.source(0, query, 0), cell.source(1, key, 0)
        if len(cell.site.source_steps) == 2:
            labels, rows = (q.step.name, k.step.name), (q.row(), k.row())
            cells = lambda i: (cell.source(0, query, i), cell.source(1, key, i))  # noqa: E731
            return Working(((q, 1), (k, 1)), product(labels, rows, lambda i: f"d{i}", cells))
        weights = cell.source(2, query, 0)
        width, of_heads = len(k.row()), weights.row()
        fits = (q.row().unflatten(-1, (-1, width)) @ k.row() * width**-0.5).relu()
        series = product(
            (f"{weights.step.name} / √{len(of_heads)}", "max(0, q·k / √d)"),
            (of_heads * len(of_heads) ** -0.5, fits),
            lambda i: f"index head {i}",
            lambda i: (cell.source(2, query, i), cell.source(0, query, i * width), k),
        )
        return Working(((q, 1), (k, 1), (weights, 1)), series)

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return tokens * keys * config.index_heads * (config.index_width + (not config.index_by_head))


class BlockIndexScores(IndexScores):
    """Scores of blocks, of which a cache stores the tokens instead."""

    remembers = ()
