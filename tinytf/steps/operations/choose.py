"""The choice of the experts that a token is sent to: the largest outputs of the router (Shazeer et al. 2017)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Operation
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


@dataclass(frozen=True)
class Choose(Operation):
    """1 for the ``count`` largest numbers of each token, 0 for the others; a choice has no gradient."""

    count: int

    words = "a choice"
    deciding = (0,)

    def forward(self, *inputs: Tensor) -> Tensor:
        scores = inputs[0].detach()
        return torch.zeros_like(scores).scatter(-1, scores.topk(self.count).indices, 1.0)

    def code(self, site: Site) -> str:
        (scores,) = site.names
        return f"{site.variable} = torch.zeros_like({scores}).scatter(-1, {scores}.topk({self.count}).indices, 1.0)"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        scores = source.row()
        rank = 1 + int((scores > source.value).sum())
        least = float(scores.sort(descending=True).values[self.count - 1])
        before = (
            Value(source.step.name, source.value),
            Value("least of the chosen", least, f"{self.count} are chosen"),
        )
        after = (Value("chosen", float(source.value >= least), f"number {rank} of {len(scores)}"),)
        return Working(((source, 1),), before=before, after=after, leads=(source,))
