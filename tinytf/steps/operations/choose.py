"""The choice of the experts that a token is sent to: the largest outputs of the router (Shazeer et al. 2017).

Where the experts are in groups, they are chosen from the best groups alone (DeepSeek-V2 2024, section 2.1.3).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.steps.operations.operation import Operation
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


@dataclass(frozen=True)
class Choose(Operation):
    """1 for the ``count`` largest numbers of each token, 0 for the others; a choice has no gradient.

    Of ``groups`` of neighbours only those count that are among the ``kept`` best; how good a group is, is the sum of
    its ``best`` largest numbers. The last experts, as many as ``always``, are chosen whatever their numbers, as part of
    ``count``.
    """

    count: int
    groups: int = 1
    kept: int = 1
    best: int = 1
    always: int = 0

    words = "a choice"
    deciding = (0,)

    @property
    def _grouped(self) -> bool:
        return self.kept < self.groups

    def forward(self, *inputs: Tensor) -> Tensor:
        scores = inputs[0].detach()
        if self.always:
            scores = F.pad(scores[..., : -self.always], (0, self.always), value=torch.inf)
        candidates = scores.masked_fill(~self._open(scores), -torch.inf) if self._grouped else scores
        return torch.zeros_like(scores).scatter(-1, candidates.topk(self.count).indices, 1.0)

    def _open(self, scores: Tensor) -> Tensor:
        """Which experts are in one of the best groups: (…, E) -> (…, E)."""
        groups = scores.unflatten(-1, (self.groups, -1))  # (…, G, E / G)
        worth = groups.topk(self.best).values.sum(dim=-1)  # (…, G)
        kept = torch.zeros_like(worth).scatter(-1, worth.topk(self.kept).indices, 1.0)
        return (kept != 0).unsqueeze(-1).expand_as(groups).flatten(-2)

    def code(self, site: Site) -> str:
        (scores,) = site.names
        chosen = f"{site.variable} = torch.zeros_like({scores}).scatter(-1, {{}}.topk({self.count}).indices, 1.0)"
        if self.always:
            every = f"F.pad({scores}[:, :-{self.always}], (0, {self.always}), value=torch.inf)"
            return chosen.format(every)
        if not self._grouped:
            return chosen.format(scores)
        lines = (
            f"groups = {scores}.unflatten(-1, ({self.groups}, -1))",
            f"worth = groups.topk({self.best}).values.sum(-1)",
            f"kept = torch.zeros_like(worth).scatter(-1, worth.topk({self.kept}).indices, 1.0)",
            "candidates = groups.masked_fill(kept[..., None] == 0, -torch.inf).flatten(-2)",
        )
        return "\n".join((*lines, chosen.format("candidates")))

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        scores, before = source.row(), [Value(source.step.name, source.value)]
        if self.always:
            if cell.index[-1] >= len(scores) - self.always:
                always = Value("chosen", 1.0, f"the last {self.always} experts take every token")
                return Working(((source, 1),), before=tuple(before), after=(always,), leads=(source,))
            scores = scores[: -self.always]
        within = self._open(scores) if self._grouped else torch.ones_like(scores, dtype=torch.bool)
        if self._grouped:
            group = cell.index[-1] // (len(scores) // self.groups)
            worth = scores.unflatten(-1, (self.groups, -1)).topk(self.best).values.sum(dim=-1)
            least_worth = float(worth.sort(descending=True).values[self.kept - 1])
            before += [
                Value(
                    "its group",
                    float(worth[group]),
                    f"the sum of its {self.best} largest" if self.best > 1 else "its largest",
                ),
                Value("least of the groups", least_worth, f"{self.kept} of {self.groups} groups are open"),
            ]
        candidates = scores[within]
        count = self.count - self.always
        least = float(candidates.sort(descending=True).values[count - 1])
        before.append(Value("least of the chosen", least, f"{count} are chosen"))
        rank = f"number {1 + int((candidates > source.value).sum())} of {len(candidates)}"
        is_open = bool(within[cell.index[-1]])
        chosen = Value("chosen", float(is_open and source.value >= least), rank if is_open else "its group is closed")
        return Working(((source, 1),), before=tuple(before), after=(chosen,), leads=(source,))
