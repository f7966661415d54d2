"""A learned bias of scores by the distance between key and query, in buckets that widen with distance.

Raffel et al. 2020, section 2.1: half of the buckets are for keys after the query, where it sees any. Of those of each
direction, the first half hold one distance each; the others widen up to the farthest.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Series, Value, Working


@lru_cache(maxsize=8)
def distance_buckets(
    queries: int, keys: int, buckets: int, device: torch.device, both_ways: bool = True, farthest: int = 128
) -> Tensor:
    """The bucket of every query and key, (Q, K); the queries are the last of the K tokens.

    The logarithm is in float32, as in the training of the checkpoints.
    """
    with torch.inference_mode(False):
        position = torch.arange(keys, device=device)
        distance = position - position[keys - queries :, None]  # (Q, K), of the key from the query
        half = buckets // 2 if both_ways else buckets
        exact = half // 2
        magnitude = distance.abs() if both_ways else (-distance).clamp(min=0)
        share = torch.log(magnitude.clamp(min=1).float() / exact) / math.log(farthest / exact)
        far = (exact + (share * (half - exact)).long()).clamp(max=half - 1)
        bucket = torch.where(magnitude < exact, magnitude, far)
        return bucket + half * (distance > 0) if both_ways else bucket


@dataclass(frozen=True)
class RelativeBias(Operation):
    """Adds to each score the learned number of its head and of the one of ``buckets`` that the distance falls into.

    Without ``both_ways`` all buckets are for keys before the query. All distances from ``farthest`` on share one.
    """

    buckets: int
    both_ways: bool = True
    farthest: int = 128

    words = "a sum"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("bucket", "head")),)

    def _buckets(self, x: Tensor) -> Tensor:
        return distance_buckets(*x.shape[-2:], self.buckets, x.device, self.both_ways, self.farthest)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return inputs[0] + module.weight[self._buckets(inputs[0])].permute(2, 0, 1)  # (Q, K, H) -> (H, Q, K)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        x, table = site.input(0, heads), site.module.weight
        bias = table if heads is None else table[:, list(heads)]
        return x + bias[self._buckets(x)].permute(2, 0, 1)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g,)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        table, cell_buckets = site.module.weight, self._buckets(g).flatten()
        gradient = (
            wide(g).new_zeros(table.shape).index_add_(0, cell_buckets, wide(g).flatten(1).T)
        )  # (Q·K, H) -> (buckets, H)
        yield f"{site.path}.weight", gradient.to(table.dtype)

    def code(self, site: Site) -> str:
        half = self.buckets // 2 if self.both_ways else self.buckets
        exact = half // 2
        magnitude, ahead = ("abs()", f" + {half} * (distance > 0)") if self.both_ways else ("neg().clamp(min=0)", "")
        (table,) = self.operands(site)
        return (
            "distance = torch.arange(T)[None, :] - torch.arange(T)[:, None]\n"
            f"magnitude = distance.{magnitude}\n"
            f"share = torch.log(magnitude.clamp(min=1) / {exact}) / {math.log(self.farthest / exact)}\n"
            f"far = ({exact} + (share * {half - exact}).long()).clamp(max={half - 1})\n"
            f"bucket = torch.where(magnitude < {exact}, magnitude, far){ahead}\n"
            f"{site.variable} = {site.names[0]} + {table}[bucket].permute(2, 0, 1)"
        )

    def arithmetic(self, cell: Cell) -> Working:
        (query, key), source = cell.index, cell.source(0, *cell.index)
        length = len(cell.site.ids)
        bucket = int(self._buckets(torch.empty(length, length))[query, key])
        bias = float(cell.site.module.weight[bucket, cell.head or 0])
        names, values = (source.step.name, f"B[{bucket}]"), torch.tensor([source.value, bias], dtype=torch.float64)
        before = (
            Value("distance", key - query, f"key {key} − query {query}"),
            Value("bucket", bucket, f"of {self.buckets} for distances"),
        )
        series = Series(values, lambda i: names[i], lambda i: () if i else (source,))
        return Working(((source, 2),), series, before=before, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        return Summand(to.symbol, to.incoming.values, inputs=(to.incoming,))
