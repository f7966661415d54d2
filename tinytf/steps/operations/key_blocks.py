"""Blocks of consecutive keys that an indexer scores and chooses as one (Qwen4-Exp, 2026)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.choose_keys import ChooseKeys
from tinytf.steps.operations.mask import mask_scores, real_tokens
from tinytf.steps.operations.operation import Operation, Pass, in_float32, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.rotate import Rotate, rotary_table, rotate
from tinytf.steps.operations.working import Series, Value, Working, product


def key_numbers(keys: int, padding_mask: Tensor | None, device: torch.device) -> Tensor:
    """The number of each key among the real tokens, from 0: (K,), or (B, K) with padding.

    Padding has the number of the token before it, and −1 before the first.
    """
    if padding_mask is None:
        return torch.arange(keys, device=device)
    return real_tokens(padding_mask, keys)[:, 0, :, 0].cumsum(-1) - 1


@dataclass(frozen=True)
class MeanOfBlock(Operation):
    """The mean of the keys (…, K, D) of its block, ``size`` long, for every key; padding belongs to no block."""

    size: int

    words = "a mean"
    over_tokens = True
    remembers = ((0, "index_keys"),)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self._means(inputs[0], now.padding_mask)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._means(inputs[0], None)

    def _means(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        blocks = key_numbers(x.shape[-2], padding_mask, x.device).clamp_min(0) // self.size
        blocks = blocks.unsqueeze(-1).expand(x.shape)
        real = torch.ones_like(x) if padding_mask is None else padding_mask.unsqueeze(-1).to(x.dtype).expand(x.shape)
        sums, counts = (torch.zeros_like(x).scatter_add(-2, blocks, values) for values in (x * real, real))
        return (sums / counts.clamp_min(1)).gather(-2, blocks)

    def code(self, site: Site) -> str:
        (x,) = site.names
        return (
            f"blocks = (torch.arange(T) // {self.size})[:, None].expand({x}.shape)\n"
            f'means = torch.zeros_like({x}).scatter_reduce(0, blocks, {x}, "mean", include_self=False)\n'
            f"{site.variable} = means.gather(0, blocks)"
        )

    def arithmetic(self, cell: Cell) -> Working:
        token, width = cell.index
        first = token - token % self.size
        source = cell.source(0, first, width)
        column = source.column()[first : first + self.size]
        series = product(
            (source.step.name, f"1 / {len(column)}"),
            (column, torch.full_like(column, 1 / len(column))),
            lambda i: f"{first + i} {cell.token(first + i)}",
            lambda i: (cell.source(0, first + i, width),),
        )
        return Working(((source, 0),), series)


@dataclass(frozen=True)
class RotateMeans(Rotate):
    """Rotates every key of a text by the position of the first key of its block, ``size`` long."""

    size: int = 1

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self._turned(inputs[0], now.padding_mask)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._turned(inputs[0], None)

    def _turned(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        numbers = key_numbers(x.shape[-2], padding_mask, x.device)
        firsts = torch.searchsorted(numbers, numbers // self.size * self.size)
        return rotate(x, *(wave[firsts] for wave in rotary_table(x.shape[-2], self.rope, x.device, x.dtype)))

    def _place(self, token: int) -> int:
        return token // self.size * self.size

    @property
    def _position_code(self) -> str:
        return f"(torch.arange(T) // {self.size} * {self.size})"


class BlockScores(Operation):
    """Σ over heads of max(0, q·k / √D): (…, Q, H·D) and, for each key, that of its block (…, K, D) -> (…, Q, K)."""

    words = "a sum of fits"

    def forward(self, *inputs: Tensor) -> Tensor:
        q, k = (wide(x) for x in inputs)
        width = k.shape[-1]
        return (q.unflatten(-1, (-1, width)) @ k.mT.unsqueeze(-3) * width**-0.5).relu().sum(dim=-2)

    def code(self, site: Site) -> str:
        q, k = map(in_float32, site.names, site.inputs())
        width = site.config.index_width
        fits = f"F.relu({q}.unflatten(-1, (-1, {width})) @ {k}.mT * {width}**-0.5)"
        return f"{site.variable} = {fits}.sum(-2)"

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.index
        q, k = cell.source(0, query, 0), cell.source(1, key, 0)
        width = len(k.row())
        fits = (q.row().unflatten(-1, (-1, width)) @ k.row() * width**-0.5).relu()
        series = Series(
            fits, lambda i: f"index head {i}", lambda i: (cell.source(0, query, i * width), k),
            ("max(0, q·k / √d)",), (fits,),
        )  # fmt: skip
        return Working(((q, 1), (k, 1)), series)

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return tokens * keys * config.index_heads * config.index_width


class ChooseBlocks(ChooseKeys):
    """1 for the keys of the best whole blocks and, with a tail, for those after the last whole block, else 0.

    As many blocks are chosen as there are in the chosen keys of the sight. A block is whole for a query that sees all
    its keys, and has the score of its last key.
    """

    def _chosen(self, scores: Tensor, padding_mask: Tensor | None) -> Tensor:
        seen = self._seen(scores, padding_mask)
        seen = torch.ones_like(scores, dtype=torch.bool) if seen is None else seen
        keys, size = scores.shape[-1], self.sight.whole
        numbers = key_numbers(keys, padding_mask, scores.device).unsqueeze(-2)
        blocks = numbers // size
        whole = seen & (blocks < seen.sum(dim=-1, keepdim=True) // size)
        lasts = torch.searchsorted(numbers, blocks * size + size - 1).clamp(max=keys - 1).expand(scores.shape)
        others = seen.to(scores.dtype) * self.sight.tail
        return torch.where(whole, self._best(scores.gather(-1, lasts), whole), others)

    def code(self, site: Site) -> str:
        (scores,) = site.names
        hidden, size = "torch.ones(T, T).triu(1)" if self.sight.causal else "torch.zeros(T, T)", self.sight.whole
        return (
            f"hidden, blocks = {hidden}.bool(), torch.arange(T) // {size}\n"
            f"part = blocks >= (~hidden).sum(-1, keepdim=True) // {size}\n"
            f"lasts = (blocks * {size} + {size - 1}).clamp(max=T - 1)\n"
            f"order = {scores}[:, lasts].masked_fill(hidden | part, -torch.inf)"
            ".argsort(dim=-1, descending=True, stable=True)\n"
            f"best = torch.zeros_like({scores}).scatter(-1, order[:, :{self.sight.chosen}], 1.0)\n"
            f"{site.variable} = best.masked_fill(part, {float(self.sight.tail)}).masked_fill(hidden, 0.0)"
        )

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.index
        seen = query + 1 if self.sight.causal else len(cell.source(0, query, key).row())
        size, tail = self.sight.whole, self.sight.tail
        first, whole = key - key % size, seen - seen % size
        if key >= whole:
            source, hidden = cell.source(0, query, key), key >= seen
            words = f"its block is not whole yet, and such keys are {'always' if tail else 'never'} seen"
            value = Value("chosen", float(tail and not hidden), "hidden by the mask" if hidden else words)
            return Working(((source, 1),), after=(value,), leads=(source,))
        source = cell.source(0, query, first + size - 1)
        scores = source.row()[size - 1 : whole : size]
        rank = 1 + int((scores > source.value).sum()) + int((scores[: first // size] == source.value).sum())
        count = self.sight.chosen // size
        before = (Value(source.step.name, source.value, f"of the block of {size} keys from key {first} on"),)
        after = (Value("chosen", float(rank <= count), f"number {rank} of {len(scores)} blocks, {count} are chosen"),)
        return Working(((source, 1),), before=before, after=after, leads=(source,))


class ChooseByHead(ChooseKeys):
    """1 for the keys of the best blocks of each key head, by the largest score of a key of theirs, else 0.

    Scores are (…, G, Q, K). Blocks begin with the first token that is not padding; the nearest of the sight are
    infinitely good (MiniMax M3).
    """

    def _chosen(self, scores: Tensor, padding_mask: Tensor | None) -> Tensor:
        queries, keys = scores.shape[-2:]
        seen = self.sight.allowed(queries, padding_mask, scores.device, keys - queries)
        best, number = self._of_blocks(scores, seen, padding_mask)
        order = best.argsort(dim=-1, descending=True, stable=True)[..., : self.sight.chosen // self.sight.block]
        chosen = torch.zeros_like(best).scatter(-1, order, 1.0).gather(-1, number)
        return chosen if seen is None else chosen.masked_fill(~seen, 0.0)

    def _of_blocks(self, scores: Tensor, seen: Tensor | None, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The largest score of each block, (…, G, Q, blocks), and the number of each key's block, (…, G, Q, K)."""
        queries, keys = scores.shape[-2:]
        numbers = key_numbers(keys, padding_mask, scores.device).clamp_min(0) // self.sight.block  # (K,) or (B, K)
        number = numbers if padding_mask is None else numbers[:, None]
        own = number[..., keys - queries :, None]  # (…, Q, 1)
        near = (own - torch.arange(self.sight.near, device=scores.device)).clamp(min=0)  # (…, Q, near)
        each = number.unsqueeze(-2).expand(scores.shape)
        best = scores.new_full((*scores.shape[:-1], -(-keys // self.sight.block)), -math.inf)
        best = best.scatter_reduce(-1, each, mask_scores(scores, seen), "amax")
        return best.scatter(-1, near.expand(*scores.shape[:-1], -1), math.inf), each

    def code(self, site: Site) -> str:
        (scores,), block = site.names, self.sight.block
        groups, blocks = len(site.value), -(-len(site.ids) // block)
        hidden = "torch.ones(T, T).triu(1).bool()" if self.sight.causal else "torch.zeros(T, T).bool()"
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

    def arithmetic(self, cell: Cell) -> Working:
        (query, key), size = cell.index, self.sight.block
        source, block, count = cell.source(0, query, key), key // size, self.sight.chosen // size
        if self.sight.causal and key > query:
            return Working(((source, 1),), after=(Value("chosen", 0.0, "hidden by the mask"),), leads=(source,))
        scores = cell.site.input(0, (cell.head or 0,))  # (1, Q, K)
        seen = self.sight.allowed(scores.shape[1], None, scores.device)
        best = self._of_blocks(scores, seen, None)[0][0, query, : query // size + 1]
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
