"""Experts without matrices, which give what they are sent (LongCat-Flash, Meituan 2025)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single


@dataclass(frozen=True)
class PassOn(Operation):
    """The outputs (…, E, T, C) of the experts before ``first``; of the others x (…, T, C) where chosen (…, T, E)."""

    first: int

    words = "a copy"
    deciding = (2,)

    def forward(self, *inputs: Tensor) -> Tensor:
        out, x, chosen = inputs
        return torch.cat((out[..., : self.first, :, :], self._passed(x, chosen)), dim=-3)

    def _passed(self, x: Tensor, chosen: Tensor) -> Tensor:
        return torch.where(self._sent(chosen), x.unsqueeze(-3), 0.0)  # (…, E − first, T, C)

    def _sent(self, chosen: Tensor) -> Tensor:
        """Which tokens are sent to the last experts: (…, T, E) -> (…, E − first, T, 1)."""
        return (chosen[..., self.first :] != 0).transpose(-1, -2).unsqueeze(-1)

    def for_expert(self, module: object, number: int, *inputs: Tensor) -> Tensor:
        out, x, _ = inputs
        return out if number < self.first else x

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        if heads is None:
            return self.forward(*site.inputs())
        out, x, chosen = site.input(0, heads), site.input(1), site.input(2)
        given = [out[i] if n < self.first else x * (chosen[:, n, None] != 0) for i, n in enumerate(heads)]
        return torch.stack(given)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        chosen = site.input(2)
        of_out = g.clone()
        of_out[self.first :] = 0.0
        return of_out, (g[self.first :] * self._sent(chosen)).sum(dim=0), torch.zeros_like(chosen)

    def code(self, site: Site) -> str:
        out, x, chosen = site.names
        passed = f"{x} * {chosen}.T[{self.first}:, :, None]"
        return f"{site.variable} = torch.cat(({out}[:{self.first}], {passed}))"

    def arithmetic(self, cell: Cell) -> Working:
        number, (token, width) = cell.head or 0, cell.index
        choice = cell.source(2, token, number)
        if number >= self.first and not choice.value:
            zero = Value("zero", 0.0, f"{cell.token(token)} is not sent to expert {number}")
            return Working(((choice, 2),), after=(zero,), leads=(choice,))
        source = cell.source(1, token, width) if number >= self.first else cell.source(0, token, width)
        return Working(((source, 2),), single(source.step.name, [(source.step.name, source.value)], (source,)))

    def summand(self, to: Consumer) -> Summand:
        position = to.row.place
        if to.number == 0:
            has_matrices = (to.row.head or 0) < self.first
            words = to.symbol if has_matrices else "0: an expert without matrices"
            return Summand(words, to.incoming.values * has_matrices, inputs=(to.incoming,) * has_matrices)
        sent = to.site.input(2)[position, self.first :].nonzero().flatten() + self.first
        quantity = to.g[sent, position]
        words = " + ".join(f"{to.symbol} of E{number}" for number in sent.tolist())
        return Summand(words or "0: the token is sent to no expert without matrices", quantity.sum(dim=0))
