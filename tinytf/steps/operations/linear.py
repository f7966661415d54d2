"""Linear maps, y = x·Wᵀ + b with W (out, in): projections of attention, feed-forwards, model heads."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import TEXT_AXES, Step
from tinytf.steps import linear
from tinytf.steps.operations.lookup import TOKEN_TABLE
from tinytf.steps.operations.operation import (
    Consumer,
    Operation,
    Parameter,
    Pass,
    Quantity,
    Summand,
    dimension,
    into_heads,
    of_query_heads,
    side_by_side,
    summed,
    width_of,
)
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Value, Working, product


def weight_gradient(g: Tensor, x: Tensor) -> Tensor:
    """gᵀ·x, summed over the tokens: (T, out) and (T, in) -> (out, in)."""
    return g.transpose(0, 1) @ x


@dataclass(frozen=True)
class Linear(Operation):
    """The product with a matrix of the model, with an optional ``bias``; split into heads where the step has heads."""

    bias: bool

    words = "a sum of products"
    side_by_side = True

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        out = step.axes[-1]
        if step.has_heads:
            out = f"{'n_kv_heads' if 'kv head' in step.axes else 'n_heads'}·{out}"
        absent = "" if self.bias else f"{step.name} is computed without a bias"
        return (
            Parameter(step.parameter, "weight", (step.reads, out), transposed=True),
            Parameter(step.parameter.replace("W", "b"), "bias", (out,), absent=absent),
        )

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        sizes = config.sizes
        out = math.prod(sizes[axis] for axis in step.axes if axis in sizes and axis != "distance")
        return linear.Linear(sizes[step.reads], out, bias=self.bias)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        # the hooks on another step's module are not of this one
        output = (site.module if site.step.path == site.step.module else site.module.forward)(site.input())
        if not site.step.has_heads:
            return output
        return of_query_heads(into_heads(output, width_of(site)), site, heads)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """g·W: (T, out) -> (T, in)."""
        return (self._flat(site, g) @ site.weight,)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        g = self._flat(site, g)
        yield TOKEN_TABLE if site.module.weight is None else f"{site.path}.weight", weight_gradient(g, site.input())
        if site.module.bias is not None:
            yield f"{site.path}.bias", summed(g)

    @staticmethod
    def _flat(site: Site, g: Tensor) -> Tensor:
        return side_by_side(g) if site.step.has_heads else g

    def code(self, site: Site) -> str:
        product = self._product(site, site.names[0])
        if not site.step.has_heads:
            return f"{site.variable} = {product}"
        heads, width = len(site.weight) // width_of(site), width_of(site)
        return f"{site.variable} = ({product}).unflatten(-1, ({heads}, {width})).transpose(0, 1)"

    def _product(self, site: Site, x: str) -> str:
        matrix, *bias = self.operands(site)
        return " + ".join([f"{x} @ {matrix}.T", *bias])

    def arithmetic(self, cell: Cell) -> Working:
        site, config = cell.site, cell.site.config
        *tokens, out = self._place(cell)
        if cell.head is not None:
            head = cell.head // config.heads_per_kv if "kv head" in site.step.axes else cell.head
            out += head * width_of(site)
        first = cell.source(0, *tokens, 0)
        series = product(
            (first.step.name, site.step.matrix),
            (first.row(), site.weight[out].cpu().double()),
            lambda i: dimension(first.step.axes[-1], i, config),
            lambda i: (cell.source(0, *tokens, i),),
        )
        bias = site.module.bias
        return Working(((first, len(tokens)),), series, None if bias is None else Term("bias", (), float(bias[out])))

    def _place(self, cell: Cell) -> tuple[int, ...]:
        """The row of the input, if it has several, and the number of the output."""
        return cell.index

    def summand(self, to: Consumer) -> Summand:
        g = Quantity(to.symbol, self._flat(to.site, to.g)[to.row.place])
        transposed = "E" if to.site.step.matrix == "E" else f"{to.site.step.matrix}ᵀ"
        return Summand(f"{to.symbol}·{transposed}", g.values @ to.site.weight.detach(), inputs=(g,))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        if not set(TEXT_AXES) & set(step.axes):
            return 0  # computed once, independent of the text
        sizes = {**config.sizes, **dict.fromkeys(TEXT_AXES, tokens)}
        return sizes[step.reads] * math.prod(sizes[axis] for axis in step.axes)


class Unembedding(nn.Module):
    """Hidden states to logits of tokens or classes, by its ``own`` matrix or by the token embeddings."""

    def __init__(self, outcomes: int, width: int, *, own: bool, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outcomes, width)) if own else None
        self.bias = nn.Parameter(torch.empty(outcomes)) if bias else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return linear.linear(x, embedding if self.weight is None else self.weight, self.bias)


@dataclass(frozen=True)
class Unembed(Linear):
    """Hidden states to logits of tokens or classes, by the head's own matrix, or the token embeddings if ``tied``."""

    tied: bool

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        tied = "the head is tied to the embeddings, W_U = Eᵀ" if self.tied else ""
        absent = "" if self.bias else f"{step.name} is computed without a bias"
        axes, same_as = (step.reads, step.axes[-1]), "E" if self.tied else ""
        return (
            Parameter("W_U", "weight", axes, transposed=True, absent=tied, same_as=same_as),
            Parameter("b_U", "bias", step.axes[-1:], absent=absent),
        )

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        return Unembedding(config.n_outcomes, config.head_width, own=not self.tied, bias=self.bias)

    def arguments(self, now: Pass, *inputs: Tensor) -> tuple[Any, ...]:
        return *inputs, now.table

    def operands(self, site: Site) -> dict[str, Tensor]:
        return {**({"E": site.weight} if self.tied else {}), **super().operands(site)}

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.unembed(site, site.input())

    def code(self, site: Site) -> str:
        return f"{site.variable} = {self._product(site, f'{site.names[0]}[rows]')}"

    def unembed(self, site: Site, hidden: Tensor) -> Tensor:
        """The logits of hidden states (…, C)."""
        return site.module(hidden, site.weight)


class Pooled(Linear):
    """tanh(W·x + b) of the first token (Devlin et al. 2019)."""

    words = "tanh of a sum of products"

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return site.module(site.input()[0]).tanh()

    def code(self, site: Site) -> str:
        return f"{site.variable} = torch.tanh({self._product(site, f'{site.names[0]}[0]')})"

    def _place(self, cell: Cell) -> tuple[int, ...]:
        return (0, *cell.index)

    def arithmetic(self, cell: Cell) -> Working:
        working = super().arithmetic(cell)
        assert working.sum is not None
        after = Value("tanh", math.tanh(working.sum), "tanh(sum)")
        return Working(working.inputs, working.series, working.bias, after=(after,))
