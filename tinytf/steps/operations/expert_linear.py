"""A linear map of each expert for the tokens that are sent to it: W (E, out, in), 0 for the other tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.linear import weight_gradient
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, dimension, summed
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Value, Working, product

LEARNED = ("expert", "learned expert")
"""The axis of the experts that have matrices: all of them, or only some."""


def used_experts(chosen: Tensor, first: int | None = None) -> list[int]:
    """The experts, of all or the ``first``, that at least one token is sent to; ``chosen`` is (…, T, E)."""
    return [int(number) for number in (chosen[..., :first] != 0).flatten(0, -2).any(dim=0).nonzero()]


@dataclass(frozen=True)
class ExpertLinear(Operation):
    """A matrix for each expert, with an optional ``bias``. The inputs are x and the choice (…, T, E).

    x is (…, T, in), shared by all experts, or (…, E, T, in). Only the chosen tokens are computed. The last
    ``identities`` of the experts have no matrix, and give 0 here.
    """

    bias: bool
    identities: int = 0

    words = "a sum of products"
    deciding = (1,)

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        absent, of = "" if self.bias else f"{step.name} is computed without a bias", LEARNED[self.identities > 0]
        return (
            Parameter(step.parameter, "weight", (of, step.reads, step.axes[-1]), transposed=True),
            Parameter(step.parameter.replace("W", "b"), "bias", (of, step.axes[-1]), absent=absent),
        )

    def for_expert(self, module: Any, number: int, *inputs: Tensor) -> Tensor:
        if number >= len(module.weight):
            return inputs[0].new_zeros(len(inputs[0]), module.weight.shape[1])
        bias = None if module.bias is None else module.bias[number]
        return F.linear(inputs[0], module.weight[number], bias)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self._of(module, range(inputs[1].shape[-1]), *inputs)

    def _of(self, module: Any, numbers: Any, x: Tensor, chosen: Tensor) -> Tensor:
        """The outputs of the experts ``numbers``; where x has an axis of experts, it holds exactly these."""
        outputs = []
        for index, number in enumerate(numbers):
            inputs = x.select(-3, index) if x.dim() > chosen.dim() else x  # (…, T, in)
            sent = chosen[..., number] != 0  # (…, T)
            output = inputs.new_zeros(*inputs.shape[:-1], module.weight.shape[1])
            outputs.append(
                output.index_put((sent,), self.for_expert(module, number, inputs[sent])) if sent.any() else output
            )
        return torch.stack(outputs, dim=-3)  # (…, E, T, out)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        chosen = site.input(1)
        return self._of(site.module, range(chosen.shape[-1]) if heads is None else heads, site.input(0, heads), chosen)

    def _sent(self, site: Site, g: Tensor) -> Tensor:
        """The gradient where tokens are sent to an expert, else 0: nothing else reaches the loss."""
        return g * (site.input(1) != 0).T[..., None]  # (E, T, out)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """g·W of each expert: (E, T, out) -> (E, T, in), or their sum (T, in)."""
        x, chosen = site.inputs()
        g, of_x = self._sent(site, g), torch.zeros_like(x)
        for number in used_experts(chosen, len(site.module.weight)):
            part = of_x[number] if x.dim() == 3 else of_x
            part += g[number] @ site.module.weight[number]
        return of_x, torch.zeros_like(chosen)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        x, chosen = site.inputs()
        g, weight, bias = self._sent(site, g), torch.zeros_like(site.module.weight), site.module.bias
        for number in used_experts(chosen, len(weight)):
            weight[number] = weight_gradient(g[number], x[number] if x.dim() == 3 else x)
        yield f"{site.path}.weight", weight
        if bias is not None:
            yield f"{site.path}.bias", torch.stack([summed(expert_g) for expert_g in g[: len(bias)]])

    def code(self, site: Site) -> str:
        x, chosen = site.names
        matrix, *bias = self.operands(site)
        if self.identities:
            matrix = f"F.pad({matrix}, (0, 0, 0, 0, 0, {self.identities}))"
            bias = [f"F.pad({name}, (0, 0, 0, {self.identities}))" for name in bias]
        letters = "ti" if site.input(0).dim() == 2 else "eti"
        product = f'torch.einsum("{letters},eoi->eto", {x}, {matrix})'
        product = f"({product} + {bias[0]}[:, None])" if bias else product
        return f"{site.variable} = {product} * {chosen}.T[:, :, None]"

    def arithmetic(self, cell: Cell) -> Working:
        site, number, (token, out) = cell.site, cell.head or 0, cell.index
        choice = cell.source(1, token, number)
        if not choice.value:
            after = (Value("zero", 0.0, f"{cell.token(token)} is not sent to expert {number}"),)
            return Working(
                ((choice, 2),),
                after=after,
                leads=(choice,),
                note="an expert is computed only for the tokens sent to it",
            )
        first = cell.source(0, token, 0)
        if number >= len(site.module.weight):
            after = (Value("zero", 0.0, f"expert {number} has no matrix"),)
            return Working(((choice, 2),), after=after, leads=(choice,), note="it gives what it is sent")
        series = product(
            (first.step.name, site.step.matrix),
            (first.row(), site.module.weight[number, out].cpu().double()),
            lambda i: dimension(first.step.axes[-1], i, site.config),
            lambda i: (cell.source(0, token, i),),
        )
        bias = site.module.bias
        term = None if bias is None else Term("bias", (), float(bias[number, out]))
        return Working(((first, 1), (choice, 2)), series, term)

    def summand(self, to: Consumer) -> Summand:
        site, position, letter = to.site, to.row.place, f"{to.site.step.matrix}ᵀ"
        sent = used_experts(site.input(1)[position : position + 1], len(site.module.weight))
        if site.source_steps[0].is_split:
            sent = [number for number in sent if number == (to.row.head or 0)]
        quantities = [Quantity(f"{to.symbol} of E{number}", to.g[number, position]) for number in sent]
        result = to.g.new_zeros(site.module.weight.shape[-1])
        for number, quantity in zip(sent, quantities, strict=True):
            result = result + quantity.values @ site.module.weight[number].detach()
        words = " + ".join(f"{to.symbol}·{letter} of E{number}" for number in sent)
        return Summand(words or "0: the token is not sent there", result, inputs=tuple(quantities))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        sizes = config.sizes
        return tokens * config.experts_per_token * sizes[step.reads] * sizes[step.axes[-1]]
