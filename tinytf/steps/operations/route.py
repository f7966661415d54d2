"""The weights of the chosen experts, from the outputs of the router; 0 for the others."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Series, Value, Working


def score_of(name: str, x: Tensor) -> Tensor:
    """What a router's outputs are turned into: a softmax, or each by itself a sigmoid or √softplus."""
    if name == "softmax":
        return x.softmax(dim=-1)
    return x.sigmoid() if name == "sigmoid" else F.softplus(x).sqrt()


SCORE_CODE = {
    "softmax": "F.softmax({}, dim=-1)", "sigmoid": "torch.sigmoid({})", "sqrtsoftplus": "F.softplus({}).sqrt()",
}  # fmt: skip
"""The code of each score."""
SYMBOLS = {"softmax": "softmax", "sigmoid": "σ", "sqrtsoftplus": "√softplus"}


@dataclass(frozen=True)
class Route(Operation):
    """The ``score`` of every chosen expert, see ``score_of``, ``renormed`` to a sum of 1, times ``scale``.

    ``epsilon`` is added to the sum that divides them, unless they are of a softmax.
    """

    score: str
    renormed: bool
    scale: float
    epsilon: float

    words = "a share"
    deciding = (1,)

    def forward(self, *inputs: Tensor) -> Tensor:
        router, chosen = inputs
        return self._routes(wide(router), chosen != 0).to(router.dtype)

    def _routes(self, router: Tensor, chosen: Tensor) -> Tensor:
        if self.score == "softmax":
            candidates = router.masked_fill(~chosen, -torch.inf) if self.renormed else router
            return candidates.softmax(dim=-1).masked_fill(~chosen, 0.0) * self.scale
        scores = score_of(self.score, router).masked_fill(~chosen, 0.0)
        return (scores / (scores.sum(dim=-1, keepdim=True) + self.epsilon) if self.renormed else scores) * self.scale

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        router, chosen = site.inputs()
        return self._gradient(wide(g), wide(router), chosen != 0).to(g.dtype), torch.zeros_like(chosen)

    def _gradient(self, g: Tensor, x: Tensor, chosen: Tensor) -> Tensor:
        """The gradient of the router's outputs x; p is each expert's share, s its score."""
        g = g * chosen * self.scale
        if self.score == "softmax":
            p = torch.softmax(x.masked_fill(~chosen, -torch.inf) if self.renormed else x, dim=-1)
            return p * (g - (g * p).sum(dim=-1, keepdim=True))
        s = score_of(self.score, x)
        # s·(1 − s) in the order of autograd's rounding, or the two would differ by more than rounding
        slope = torch.sigmoid(x) / (2 * s) if self.score == "sqrtsoftplus" else s * (1 - s)
        if not self.renormed:
            return g * slope
        total = (s * chosen).sum(dim=-1, keepdim=True) + self.epsilon
        return chosen * slope * (g - (g * s).sum(dim=-1, keepdim=True) / total) / total

    def code(self, site: Site) -> str:
        router, chosen = site.names
        times = "" if self.scale == 1.0 else f" * {self.scale!r}"
        hidden = f"{chosen} == 0"
        if self.score == "softmax" and self.renormed:
            return f"{site.variable} = F.softmax({router}.masked_fill({hidden}, -torch.inf), dim=-1){times}"
        score = SCORE_CODE[self.score].format(router)
        if not self.renormed:
            return f"{site.variable} = {score}.masked_fill({hidden}, 0.0){times}"
        first = f"scores = {score}.masked_fill({hidden}, 0.0)"
        return f"{first}\n{site.variable} = scores / (scores.sum(-1, keepdim=True) + {self.epsilon!r}){times}"

    def arithmetic(self, cell: Cell) -> Working:
        source, choice = cell.source(0, *cell.index), cell.source(1, *cell.index)
        if not choice.value:
            nothing = (Value("weight", 0.0, "not chosen"),)
            return Working(
                ((source, 2), (choice, 2)), after=nothing, leads=(choice,), note="the token is not sent there"
            )
        scores, chosen = source.row(), choice.row() != 0
        candidates = [number for number in range(len(scores)) if chosen[number] or not self.renormed]
        x = scores[candidates]
        if self.score == "softmax":
            before: tuple[Value, ...] = (Value("max", float(x.max()), "the largest, subtracted from all"),)
            values, name = (x - x.max()).exp(), "e^(x − max)"
        else:
            before, values, name = (), score_of(self.score, x), f"{SYMBOLS[self.score]}(x)"
        index, total = candidates.index(cell.index[1]), float(values.sum())
        score = float(values[index])
        after = [Value(name, score, f"of expert {cell.index[1]}")]
        if self.renormed or self.score == "softmax":
            score /= total if self.score == "softmax" else total + self.epsilon
            after.append(Value("share", score, f"{name} / sum"))
        if self.scale != 1.0:
            after.append(Value("weight", score * self.scale, f"· {self.scale:g}"))
        series = Series(values, lambda i: f"expert {candidates[i]}", called=name)
        return Working(((source, 1), (choice, 2)), series, before=before, after=tuple(after), leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, x, chosen = to.incoming, to.input_at_row(0), to.input_at_row(1)
        result = self._gradient(wide(g.values), wide(x.values), chosen.values != 0).to(g.values.dtype)
        quantities = (Quantity("g", g.values), x, Quantity("c", chosen.values))
        scale = "" if self.scale == 1.0 else f"{self.scale:g}·"
        lines = (f"g = {scale}c ⊙ {g.name}", f"c = {to.site.source_steps[1].name}")
        if self.score == "softmax":
            softmax_words = "softmax over the chosen" if self.renormed else f"softmax({x.name})"
            return Summand("p ⊙ (g − Σ g⊙p)", result, (*lines, f"p = {softmax_words}"), quantities)
        slope = f"s = σ({x.name}), s′ = s·(1 − s)"
        if self.score == "sqrtsoftplus":
            slope = f"s = √softplus({x.name}), s′ = σ({x.name}) / 2s"
        if not self.renormed:
            return Summand("g ⊙ s′", result, (*lines, slope), quantities)
        return Summand("c ⊙ s′ ⊙ (g − Σ g⊙s / S) / S", result, (*lines, slope, "S = Σ c⊙s"), quantities)
