"""The choice of the keys that a query may look at: those with the largest scores of an indexer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.steps.operations.mask import Sight, mask_scores
from tinytf.steps.operations.operation import Operation, Pass
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


@dataclass(frozen=True)
class ChooseKeys(Operation):
    """1 for as many of the largest scores in ``sight`` as it says are chosen, else 0; a choice has no gradient.

    Of equal scores the earlier key is chosen, so that a growing text never changes a choice.
    """

    sight: Sight

    words = "a choice"
    deciding = (0,)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self._chosen(inputs[0].detach(), now.padding_mask)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._chosen(inputs[0].detach(), None)

    def _chosen(self, scores: Tensor, padding_mask: Tensor | None) -> Tensor:
        """(…, Q, K) -> (…, Q, K)."""
        return self._best(scores, self._seen(scores, padding_mask))

    def _seen(self, scores: Tensor, padding_mask: Tensor | None) -> Tensor | None:
        """True where a query may look, whatever is chosen, (Q, K) or (B, Q, K); None where nothing is hidden."""
        queries, keys = scores.shape[-2:]
        seen = self.sight.allowed(queries, padding_mask, scores.device, keys - queries)
        return seen if seen is None or padding_mask is None else seen.squeeze(1)  # (B, 1, Q, K) -> (B, Q, K)

    def _best(self, scores: Tensor, among: Tensor | None) -> Tensor:
        """1 for the largest scores of those ``among`` which to choose, else 0."""
        chosen = torch.ones_like(scores)
        if self.sight.chosen < scores.shape[-1]:
            order = mask_scores(scores, among).argsort(dim=-1, descending=True, stable=True)
            chosen = torch.zeros_like(scores).scatter(-1, order[..., : self.sight.chosen], 1.0)
        return chosen if among is None else chosen.masked_fill(~among, 0.0)

    def code(self, site: Site) -> str:
        (scores,) = site.names
        hidden = "torch.ones(T, T).triu(1).bool()" if self.sight.causal else "torch.zeros(T, T).bool()"
        if self.sight.every:
            hidden += f" | ((torch.arange(T) + 1) % {self.sight.every} != 0)"
        return (
            f"hidden = {hidden}\n"
            f"order = {scores}.masked_fill(hidden, -torch.inf).argsort(dim=-1, descending=True, stable=True)\n"
            f"{site.variable} = torch.zeros_like({scores}).scatter(-1, order[:, :{self.sight.chosen}], 1.0)"
            ".masked_fill(hidden, 0.0)"
        )

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.index
        source = cell.source(0, query, key)
        if self.sight.causal and key > query:
            hidden = (Value("chosen", 0.0, "hidden by the mask"),)
            note = f"key {key} {cell.token(key)} comes after query {query} {cell.token(query)}"
            return Working(((source, 1),), after=hidden, leads=(source,), note=note)
        every = self.sight.every or 1
        if (key + 1) % every:
            return Working(((source, 1),), after=(Value("chosen", 0.0, "no block ends there"),), leads=(source,))
        seen = (source.row()[: query + 1] if self.sight.causal else source.row())[every - 1 :: every]
        rank = 1 + int((seen > source.value).sum()) + int((seen[: key // every] == source.value).sum())
        least = float(seen.sort(descending=True).values[min(self.sight.chosen, len(seen)) - 1])
        before = (
            Value(source.step.name, source.value),
            Value("least of the chosen", least, f"{min(self.sight.chosen, len(seen))} are chosen"),
        )
        after = (Value("chosen", float(rank <= self.sight.chosen), f"number {rank} of {len(seen)}"),)
        return Working(((source, 1),), before=before, after=after, leads=(source,))
