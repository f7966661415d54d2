"""The choice of the keys that a query may look at: those with the largest scores of an indexer."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.steps.operations.mask import Sight, first_real, mask_scores
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
        queries, keys = scores.shape[-2:]
        seen = self.sight.allowed(queries, padding_mask, scores.device, keys - queries)
        if self.sight.block:
            chosen = self._in_blocks(scores, seen, padding_mask)
            return chosen if seen is None else chosen.masked_fill(~seen, 0.0)
        if seen is not None and padding_mask is not None:
            seen = seen.squeeze(1)  # (B, 1, Q, K) -> (B, Q, K)
        chosen = torch.ones_like(scores)
        if self.sight.chosen < keys:
            order = mask_scores(scores, seen).argsort(dim=-1, descending=True, stable=True)
            chosen = torch.zeros_like(scores).scatter(-1, order[..., : self.sight.chosen], 1.0)
        return chosen if seen is None else chosen.masked_fill(~seen, 0.0)

    def _in_blocks(self, scores: Tensor, seen: Tensor | None, padding_mask: Tensor | None) -> Tensor:
        """1 for every key of a chosen block: (…, G, Q, K) -> (…, G, Q, K)."""
        best, number = self._best(scores, seen, padding_mask)
        order = best.argsort(dim=-1, descending=True, stable=True)[..., : self.sight.chosen // self.sight.block]
        return torch.zeros_like(best).scatter(-1, order, 1.0).gather(-1, number)

    def _best(self, scores: Tensor, seen: Tensor | None, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The largest score of each block, (…, G, Q, blocks), and the number of each key's block, (…, G, Q, K).

        Blocks begin with the first token that is not padding. The nearest are infinitely good.
        """
        queries, keys = scores.shape[-2:]
        at = torch.arange(keys, device=scores.device)
        if padding_mask is not None:
            at = at - first_real(padding_mask)[:, None, None]  # (B, 1, K)
        number = (at // self.sight.block).clamp(min=0)
        own = number[..., keys - queries :, None]  # (…, Q, 1)
        near = (own - torch.arange(self.sight.near, device=scores.device)).clamp(min=0)  # (…, Q, near)
        each = number.unsqueeze(-2).expand(scores.shape)
        best = scores.new_full((*scores.shape[:-1], -(-keys // self.sight.block)), -math.inf)
        best = best.scatter_reduce(-1, each, mask_scores(scores, seen), "amax")
        return best.scatter(-1, near.expand(*scores.shape[:-1], -1), math.inf), each

    def code(self, site: Site) -> str:
        (scores,) = site.names
        hidden = "torch.ones(T, T).triu(1).bool()" if self.sight.causal else "torch.zeros(T, T).bool()"
        if self.sight.block:
            return self._code_of_blocks(site, hidden)
        if self.sight.every:
            hidden += f" | ((torch.arange(T) + 1) % {self.sight.every} != 0)"
        return (
            f"hidden = {hidden}\n"
            f"order = {scores}.masked_fill(hidden, -torch.inf).argsort(dim=-1, descending=True, stable=True)\n"
            f"{site.variable} = torch.zeros_like({scores}).scatter(-1, order[:, :{self.sight.chosen}], 1.0)"
            ".masked_fill(hidden, 0.0)"
        )

    def _code_of_blocks(self, site: Site, hidden: str) -> str:
        (scores,), block = site.names, self.sight.block
        groups, blocks = len(site.value), -(-len(site.ids) // block)
        return "\n".join(
            (
                f"hidden, number = {hidden}, torch.arange(T) // {block}",
                f"near = (number[:, None] - torch.arange({self.sight.near})).clamp(min=0)",
                f"each = number.expand({groups}, T, T)",
                f"best = torch.full(({groups}, T, {blocks}), -torch.inf).to({scores})",
                f'best = best.scatter_reduce(-1, each, {scores}.masked_fill(hidden, -torch.inf), "amax")',
                f"best = best.scatter(-1, near.expand({groups}, -1, -1), torch.inf)",
                f"order = best.argsort(dim=-1, descending=True, stable=True)[..., : {self.sight.chosen // block}]",
                "chosen = torch.zeros_like(best).scatter(-1, order, 1.0).gather(-1, each)",
                f"{site.variable} = chosen.masked_fill(hidden, 0.0)",
            )
        )

    def _of_block(self, cell: Cell) -> Working:
        (query, key), size = cell.index, self.sight.block
        source, block, count = cell.source(0, query, key), key // size, self.sight.chosen // size
        scores = cell.site.input(0, (cell.head or 0,))  # (1, Q, K)
        seen = self.sight.allowed(scores.shape[1], None, scores.device)
        best = self._best(scores, seen, None)[0][0, query, : query // size + 1]
        rank = 1 + int((best > best[block]).sum()) + int((best[:block] == best[block]).sum())
        least = float(best.sort(descending=True).values[min(count, len(best)) - 1])
        why = "one of the nearest" if float(best[block]) == math.inf else f"the largest of block {block}"
        before = (
            Value(source.step.name, source.value),
            Value("its block", float(best[block]), why),
            Value("least of the chosen", least, f"{min(count, len(best))} blocks are chosen"),
        )
        after = (Value("chosen", float(rank <= count), f"block {rank} of {len(best)}"),)
        return Working(((source, 1),), before=before, after=after, leads=(source,))

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.index
        source = cell.source(0, query, key)
        if self.sight.causal and key > query:
            hidden = (Value("chosen", 0.0, "hidden by the mask"),)
            note = f"key {key} {cell.token(key)} comes after query {query} {cell.token(query)}"
            return Working(((source, 1),), after=hidden, leads=(source,), note=note)
        if self.sight.block:
            return self._of_block(cell)
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
