"""Attention sinks: a learned logit per head that takes part in the softmax over the keys and is then dropped.

Its share is the step ``sink``; the weights of the keys sum to the rest (Xiao et al. 2023; gpt-oss, OpenAI 2025).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.softmax import Softmax, attention_weights, sees_none, shares, softmax_gradient
from tinytf.steps.operations.working import Value, Working


def log_sum(scores: Tensor) -> Tensor:
    """ln Σ e^x over the keys; −∞ without a gradient for a query that sees none."""
    blind = torch.isneginf(scores).all(dim=-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).logsumexp(dim=-1).masked_fill(blind.squeeze(-1), -torch.inf)


class Sink(Operation):
    """The share of the sink: e^s / (e^s + Σ e^x) over the scores x of a query's keys, (…, H, Q, 1).

    Where other keys have a map of their own, their Σ e^o is added to e^s: the share is of both.
    """

    words = "a softmax"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("head",)),)

    def forward(self, *inputs: Tensor) -> Tensor:
        scores, *others, logit = inputs
        rest = logit.to(scores.dtype)[:, None]
        for other in others:
            rest = torch.logaddexp(rest, log_sum(other))
        return (rest - log_sum(scores)).sigmoid().unsqueeze(-1)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        logit = site.module.weight
        return self.forward(*site.inputs(heads), logit if heads is None else logit[list(heads)])

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """−g·share·(1 − share)·p of each key, where p is its share of Σ e^x; of another, its share of e^s + Σ e^o."""
        scores, *others = site.inputs()
        through = g * site.value * (1 - site.value)
        return -through * attention_weights(scores), *(through * self._of_others(site, other) for other in others)

    def _of_others(self, site: Site, other: Tensor) -> Tensor:
        """The share of each other key in e^s + Σ e^o."""
        logit = site.module.weight.detach().to(other.dtype)[:, None]
        return attention_weights(other) * (log_sum(other) - logit).sigmoid().unsqueeze(-1)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        share = wide(site.value)
        through = wide(g) * share * (1 - share)
        for other in site.inputs()[1:]:
            through = through * (1 - self._of_others(site, wide(other)).sum(dim=-1, keepdim=True))
        gradient = through.sum(dim=(-2, -1))  # (H, Q, 1) -> (H,)
        yield f"{site.path}.weight", gradient.to(site.module.weight.dtype)

    def code(self, site: Site) -> str:
        (logit,) = self.operands(site)
        scores, *others = (f"{name}.logsumexp(-1, keepdim=True)" for name in site.names)
        rest = f"{logit}[:, None, None]"
        for other in others:
            rest = f"torch.logaddexp({rest}, {other})"
        return f"{site.variable} = torch.sigmoid({rest} - {scores})"

    def arithmetic(self, cell: Cell) -> Working:
        scores = cell.source(0, cell.index[0], 0).row()
        source = cell.source(0, cell.index[0], int(scores.argmax()))
        logit = torch.tensor([float(cell.site.module.weight[cell.head or 0])], dtype=torch.float64)

        others = [cell.source(number, cell.index[0], 0) for number in range(1, len(cell.site.source_steps))]
        for other in others:
            logit = torch.logaddexp(logit, other.row().logsumexp(dim=-1))

        def label(index: int) -> str:
            return (
                f"the sink{' and the others' * len(others)}" if index == len(scores) else f"{index} {cell.token(index)}"
            )

        working = shares(source, source.step.name, torch.cat((scores, logit)), label, len(scores))
        return replace(working, inputs=(*working.inputs, *((other, 1) for other in others)))

    def summand(self, to: Consumer) -> Summand:
        others_too = len(to.site.source_steps) > 1
        share = Quantity(f"σ of {to.site.step.name}" if others_too else "share", to.at_row(to.site.value))
        if to.number:
            rest = Quantity("rest", to.at_row(self._of_others(to.site, to.site.input(to.number))))
            line = "rest: the share of each key in e^s + Σ e^x"
            result = to.incoming.values * share.values * (1 - share.values) * rest.values
            return Summand(
                f"{to.symbol}·{share.name}·(1 − {share.name})·rest", result, (line,), (to.incoming, share), (rest,)
            )
        others = Quantity("others", (1 - share.values) * attention_weights(to.input_at_row(0).values))
        lines = (f"share = {to.site.step.name}", f"others = (1 − {share.name})·softmax({to.site.source_steps[0].name})")
        result = -to.incoming.values * share.values * others.values
        return Summand(f"−{to.symbol}·{share.name}·others", result, lines, (to.incoming, share), (others,))


class SunkSoftmax(Softmax):
    """The softmax over the keys of each query, times 1 − the share of the sink."""

    fused = False

    def forward(self, *inputs: Tensor) -> Tensor:
        scores, sink = inputs
        return attention_weights(scores) * (1 - sink)

    def whole(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return 1 - site.input(1, heads).squeeze(-1)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        scores, sink = site.inputs()
        p = attention_weights(scores)
        return softmax_gradient(g * (1 - sink), p), -(g * p).sum(dim=-1, keepdim=True)

    def code(self, site: Site) -> str:
        scores, sink = site.names
        zeros = ".nan_to_num(0.0)" * bool(sees_none(site.input()).any())
        return f"{site.variable} = F.softmax({scores}, dim=-1){zeros} * (1 - {sink})"

    def arithmetic(self, cell: Cell) -> Working:
        source, sink = cell.source(0, *cell.index), cell.source(1, cell.index[0], 0)
        working = super().arithmetic(cell)
        share = working.after[-1]
        weight = Value("weight", share.value * (1 - sink.value), f"{share.name} · (1 − sink)")
        after = (*working.after, Value("sink", sink.value, "the share of the sink"), weight)
        return Working(
            ((source, 1), (sink, 2)), working.series, before=working.before, after=after, leads=(source, sink)
        )

    def summand(self, to: Consumer) -> Summand:
        g, (scores, sink) = to.incoming, (to.input_at_row(0), to.input_at_row(1))
        p = Quantity("p", attention_weights(scores.values))
        lines = (f"p = softmax({scores.name})", f"g = {to.symbol}")
        along = (wide(g.values) * p.values).sum()
        if to.number == 1:
            result = -along[None].to(g.values.dtype)
            return Summand("−Σ g⊙p", result, lines, (Quantity("g", g.values),), (p,))
        result = ((1 - sink.values) * p.values * (g.values - along)).to(g.values.dtype)
        steps = (p, Quantity("Σ g⊙p", along))
        return Summand("(1 − sink)·p ⊙ (g − Σ g⊙p)", result, lines, (Quantity("g", g.values), sink), steps)
