"""Softmax: shares that sum to 1, over the keys of a query or the tokens of a vocabulary."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Series, Value, Working


def attention_weights(masked: Tensor) -> Tensor:
    """Softmax over the keys; a query that sees no key gets zeros instead of NaN."""
    blind = torch.isneginf(masked).all(dim=-1, keepdim=True)
    return masked.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)


def probabilities(logits: Tensor) -> Tensor:
    """Softmax over the vocabulary, summed in float64 and returned in float32 or wider.

    In float32 the sum over 50,000 tokens is off by about 1e-5; in half precision small probabilities round to 0.
    """
    return logits.softmax(dim=-1, dtype=torch.float64).to(torch.promote_types(logits.dtype, torch.float32))


def softmax_gradient(g: Tensor, weights: Tensor) -> Tensor:
    """w ⊙ (g − Σ g⊙w) in each row; w are the weights that the softmax returned."""
    w = wide(weights)
    return (w * (g - (g * w).sum(dim=-1, keepdim=True))).to(g.dtype)


def shares(source: Cell, name: str, scores: Tensor, label: Callable[[int], str], index: int | None = None) -> Working:
    """e^(x − max) of each of the ``scores`` in the row of ``source``, their sum, and the share of score ``index``.

    ``index`` defaults to the score of ``source``. Where all scores are −∞ every share is 0.
    """
    index, highest = source.index[-1] if index is None else index, scores.max()
    blind = bool(highest.isneginf())
    shifted = scores if blind else scores - highest
    powers = shifted.exp()
    total, power = float(powers.sum()), float(powers[index])
    before = (Value("max", float(highest), "the largest, subtracted from all"),)
    after = (
        Value("e^(x − max)", power, f"of {label(index)}"),
        Value("share", 0.0 if blind else power / total, "0: every score is −∞" if blind else "e^(x − max) / sum"),
    )
    series = Series(powers, label, names=(name, "− max"), factors=(scores, shifted), called="e^(x − max)")
    return Working(((source, 1),), series, before=before, after=after, leads=(source,))


class Softmax(Operation):
    """Softmax over the keys of each query."""

    words = "a softmax"
    fused = True
    distribution = True

    def forward(self, *inputs: Tensor) -> Tensor:
        return attention_weights(inputs[0])

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (softmax_gradient(g, site.value),)

    def code(self, site: Site) -> str:
        return f"{site.variable} = F.softmax({site.names[0]}, dim=-1)"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        return shares(source, source.step.name, source.row(), lambda i: f"{i} {cell.token(i)}")

    def summand(self, to: Consumer) -> Summand:
        weights, g = Quantity("w", to.at_row(to.site.value)), to.incoming
        along = (wide(g.values) * weights.values).sum()
        lines = (f"w = {to.site.step.name}", f"g = {to.symbol}")
        centred = g.values - along
        steps = (Quantity("Σ g⊙w", along), Quantity("g − Σ g⊙w", centred))
        quantities = (Quantity("g", g.values), weights)
        result = (weights.values * centred).to(g.values.dtype)
        return Summand("w ⊙ (g − Σ g⊙w)", result, lines, quantities, steps)


class VocabularySoftmax(Softmax):
    """Softmax over the vocabulary, in float64; a temperature may divide the logits first."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return probabilities(inputs[0])

    def code(self, site: Site) -> str:
        return f"{site.variable} = F.softmax({site.names[0]}, dim=-1, dtype=torch.float64)"

    def arithmetic(
        self, cell: Cell, temperature: float = 1.0, label: Callable[[int], str] = lambda i: f"#{i}"
    ) -> Working:
        source = cell.source(0, *cell.index)
        working = shares(
            source, "logits" if temperature == 1.0 else f"logits / {temperature:g}", source.row() / temperature, label
        )
        note = f"at a temperature of {temperature:g}; the trace's own probabilities are at 1"
        return working if temperature == 1.0 else replace(working, note=note)


class TokenSoftmax(Operation):
    """Softmax over the tokens of the text, for each class by itself: where an answer starts, and where it ends."""

    words = "a softmax over the tokens"
    over_tokens = True

    def forward(self, *inputs: Tensor) -> Tensor:
        return probabilities(inputs[0].transpose(-1, -2)).transpose(-1, -2)

    def code(self, site: Site) -> str:
        return f"{site.variable} = F.softmax({site.names[0]}, dim=0, dtype=torch.float64)"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        return shares(source, source.step.name, source.column(), lambda i: f"{i} {cell.token(i)}", cell.index[0])
