"""A learned bias of scores by how far the key is from the query, in buckets that widen with distance.

Raffel et al. 2020, section 2.1: half of the buckets are for keys after the query; of each half the first half are of
one distance each, the others widen up to 128 tokens.
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

_FARTHEST = 128
"""From this distance on there is one bucket."""


@lru_cache(maxsize=8)
def distance_buckets(queries: int, keys: int, buckets: int, device: torch.device) -> Tensor:
    """The bucket of every query and key, (Q, K); the queries are the last ones of the keys.

    The logarithm is in float32, as the checkpoints of these families were trained with.
    """
    with torch.inference_mode(False):
        place = torch.arange(keys, device=device)
        distance = place - place[keys - queries :, None]  # (Q, K), of the key from the query
        half, exact = buckets // 2, buckets // 4
        apart = distance.abs()
        share = torch.log(apart.clamp(min=1).float() / exact) / math.log(_FARTHEST / exact)
        far = (exact + (share * (half - exact)).long()).clamp(max=half - 1)
        return torch.where(apart < exact, apart, far) + half * (distance > 0)


@dataclass(frozen=True)
class RelativeBias(Operation):
    """Adds a number of the head for the ``buckets`` that the key's distance falls into."""

    buckets: int

    words = "a sum"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("bucket", "head")),)

    def _buckets(self, x: Tensor) -> Tensor:
        return distance_buckets(*x.shape[-2:], self.buckets, x.device)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return inputs[0] + module.weight[self._buckets(inputs[0])].permute(2, 0, 1)  # (Q, K, H) -> (H, Q, K)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        x, table = site.input(0, heads), site.module.weight
        bias = table if heads is None else table[:, list(heads)]
        return x + bias[self._buckets(x)].permute(2, 0, 1)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g,)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        table, places = site.module.weight, self._buckets(g).flatten()
        found = wide(g).new_zeros(table.shape).index_add_(0, places, wide(g).flatten(1).T)  # (Q·K, H) -> (buckets, H)
        yield f"{site.path}.weight", found.to(table.dtype)

    def code(self, site: Site) -> str:
        half, exact = self.buckets // 2, self.buckets // 4
        (table,) = self.operands(site)
        return (
            "distance = torch.arange(T)[None, :] - torch.arange(T)[:, None]\n"
            "apart = distance.abs()\n"
            f"share = torch.log(apart.clamp(min=1) / {exact}) / {math.log(_FARTHEST / exact)}\n"
            f"far = ({exact} + (share * {half - exact}).long()).clamp(max={half - 1})\n"
            f"bucket = torch.where(apart < {exact}, apart, far) + {half} * (distance > 0)\n"
            f"{site.variable} = {site.names[0]} + {table}[bucket].permute(2, 0, 1)"
        )

    def arithmetic(self, cell: Cell) -> Working:
        (query, key), own = cell.index, cell.source(0, *cell.index)
        length = len(cell.site.ids)
        bucket = int(distance_buckets(length, length, self.buckets, torch.device("cpu"))[query, key])
        bias = float(cell.site.module.weight[bucket, cell.head or 0])
        names, values = (own.step.name, f"B[{bucket}]"), torch.tensor([own.value, bias], dtype=torch.float64)
        before = (
            Value("distance", key - query, f"key {key} − query {query}"),
            Value("bucket", bucket, f"of {self.buckets} for distances"),
        )
        series = Series(values, lambda i: names[i], lambda i: () if i else (own,))
        return Working(((own, 2),), series, before=before, leads=(own,))

    def summand(self, to: Consumer) -> Summand:
        return Summand(to.symbol, to.incoming.values, inputs=(to.incoming,))
