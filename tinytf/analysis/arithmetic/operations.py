"""Each operation of the step table, done once more for one cell, in float64, by formulas of its own."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from tinytf.analysis.arithmetic import attention
from tinytf.analysis.arithmetic.cell import Cell
from tinytf.analysis.arithmetic.data import Term, Value
from tinytf.analysis.arithmetic.working import Series, Working, product, single
from tinytf.trace.graph import OPERATIONS

_MATRICES = {"q": "W_Q", "k": "W_K", "v": "W_V", "attn": "W_O", "ffn.gate": "W_gate", "logits": "W_U"}
_GATED, _PLAIN = {"ffn.hidden": "W_up", "ffn": "W_down"}, {"ffn.hidden": "W₁", "ffn": "W₂"}


def dimension(axis: str, number: int, d_head: int) -> str:
    """What one number of a row is called: ``d17``, ``unit 203`` of a feed-forward, ``head 2 d5`` of heads in a row."""
    if axis == "d_ff":
        return f"unit {number}"
    if axis == "n_heads·d_head":
        return f"head {number // d_head} d{number % d_head}"
    return f"d{number}"


def _mapped(cell: Cell) -> Working:
    config, name = cell.trace.config, cell.step.name
    token, out = (0, cell.index[0]) if name == "pooled" else cell.index
    if cell.head is not None:
        head = cell.head // config.heads_per_kv if name in ("k", "v") else cell.head
        out += head * config.d_head
    first = cell.source(0, token, 0)
    matrix = cell.trace.model.unembedding if name == "logits" else cell.module.weight
    bias = cell.module.bias
    names = {**_MATRICES, **(_GATED if config.gated else _PLAIN)}
    matrix_name = "E" if name == "logits" and config.tied_head else names.get(name, "W")
    series = product(
        (first.step.name, matrix_name),
        (first.row(), matrix[out].cpu().double()),
        lambda i: dimension(first.step.axes[-1], i, config.d_head),
        lambda i: (cell.source(0, token, i),),
    )
    added = None if bias is None else Term("bias", (), float(bias[out]))
    return Working(((first, 1),), series, added)


def _pooled(cell: Cell) -> Working:
    made = _mapped(cell)
    assert made.sum is not None
    after = Value("tanh", math.tanh(made.sum), "tanh(sum)")
    return Working(made.inputs, made.series, made.bias, after=(after,))


def _summed(cell: Cell) -> Working:
    parts = [cell.source(number, *cell.index) for number in range(len(cell.sources))]
    names = [part.step.full_name(part.layer) for part in parts]
    values = torch.tensor([part.value for part in parts], dtype=torch.float64)
    return Working(tuple((part, 2) for part in parts), Series(values, lambda i: names[i], lambda i: (parts[i],)))


def _normed(cell: Cell) -> Working:
    """x̂·gain + bias with x̂ = (x − mean) / √(variance + ε) (Ba et al. 2016), or x / √(mean of x² + ε) (Zhang 2019)."""
    module, config, width = cell.module, cell.trace.config, cell.index[1]
    own = cell.source(0, *cell.index)
    row, x = own.row(), own.value
    if config.norm == "layernorm":
        mean = float(row.mean())
        variance = float((row - mean).square().mean())
        sigma = math.sqrt(variance + config.norm_eps)
        found = [Value("mean", mean, "of the row"), Value("variance", variance, "mean of (x − mean)²")]
        normed = Value("x̂", (x - mean) / sigma, "(x − mean) / σ")
    else:
        square = float(row.square().mean())
        sigma = math.sqrt(square + config.norm_eps)
        found = [Value("mean square", square, "mean of x² over the row")]
        normed = Value("x̂", x / sigma, "x / σ")
    found.append(Value("ε", config.norm_eps))
    found.append(Value("σ", sigma, f"√({found[-2].name} + ε)"))
    series = single("x̂ · gain", [("x̂", normed.value), ("gain", float(module.weight[width]))], (own,))
    bias = getattr(module, "bias", None)
    added = None if bias is None else Term("bias", (), float(bias[width]))
    before = (Value("x", x, f"d{width} of the row"), *found, normed)
    return Working(((own, 1),), series, added, before=before)


def _cubic(x: float) -> float:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


_SHARES: dict[str, tuple[str, Callable[[float], float]]] = {
    "relu": ("[x > 0]", lambda x: 1.0 if x > 0 else 0.0),
    "gelu": ("Φ(x)", lambda x: (1 + math.erf(x / math.sqrt(2))) / 2),
    "gelu_tanh": ("½(1 + tanh u)", lambda x: (1 + math.tanh(_cubic(x))) / 2),
    "silu": ("σ(x)", lambda x: (1 + math.tanh(x / 2)) / 2),
}
"""Every activation here is x times a number that x decides: what that is called, and it."""


def _activated(cell: Cell) -> Working:
    config = cell.trace.config
    cells = [cell.source(number, *cell.index) for number in range(len(cell.sources))]  # x, and what it gates
    word = config.head_activation if cell.step.name == "head.act" else config.activation
    name, share_of = _SHARES[word]
    x = cells[0].value
    share = share_of(x)
    before = [Value("x", x, cells[0].step.name)]
    if word == "gelu_tanh":
        before.append(Value("u", _cubic(x), "√(2/π)·(x + 0.044715·x³)"))
    before += [Value(name, share), Value("activated", x * share, f"x · {name}")]
    factors = [("x", x), (name, share), *((gated.step.name, gated.value) for gated in cells[1:])]
    label = " · ".join(factor for factor, _ in factors)
    return Working(tuple((one, 2) for one in cells), single(label, factors, tuple(cells)), before=tuple(before))


def _looked_up(cell: Cell) -> Working:
    token, width = cell.index
    known, module = cell.trace.tokens[token], cell.module
    factors = [("E", float(module.weight[known.id, width]))]
    if module.scale != 1.0:
        factors.append(("scale", module.scale))
    before = (Value("id", known.id, f"of {known.shown}"),)
    return Working((), single(f"E[{known.id},{width}]", factors), before=before)


def _typed(cell: Cell) -> Working:
    width = cell.index[1]
    return Working((), single(f"S[0,{width}]", [("S", float(cell.module.weight[0, width]))]))


def _placed(cell: Cell) -> Working:
    """A learned row, or sin and cos of position · 10000^(−2i/d_model) (Vaswani et al. 2017, section 3.5)."""
    (token, width), config = cell.index, cell.trace.config
    if config.positions == "learned":
        row = config.position_offset + token
        return Working((), single(f"P[{row},{width}]", [("P", float(cell.module.weight[row, width]))]))
    frequency = 10_000 ** (-(width // 2 * 2) / config.d_model)
    angle, wave = token * frequency, ("sin", "cos")[width % 2]
    before = (
        Value("frequency", frequency, f"10000^(−{width // 2 * 2}/{config.d_model}), radians a token"),
        Value("angle", angle, f"position {token} × frequency"),
    )
    value = (math.sin, math.cos)[width % 2](angle)
    after = Value(wave, value, f"{wave}(angle), as d{width} is {('even', 'odd')[width % 2]}")
    return Working((), before=before, after=(after,))


def probable(cell: Cell, temperature: float, label: Callable[[int], str]) -> Working:
    """The softmax over the vocabulary, of the logits divided by a temperature."""
    own = cell.source(0, *cell.index)
    divided = own.row() / temperature
    name = "logits" if temperature == 1.0 else f"logits / {temperature:g}"
    made = attention.softmax(own, name, divided, label)
    note = f"at a temperature of {temperature:g}; the trace's own probabilities are at 1"
    return made if temperature == 1.0 else replace(made, note=note)


@dataclass(frozen=True)
class Operation:
    """What an operation is called in words, and how one of its numbers is made."""

    kind: str
    work: Callable[[Cell], Working]


_PRODUCTS = "a sum of products"

_OPERATIONS: dict[str, Operation] = {
    "lookup": Operation("a lookup", _looked_up),
    "positions": Operation("a position", _placed),
    "types": Operation("a lookup", _typed),
    "sum": Operation("a sum", _summed),
    "norm": Operation("a norm", _normed),
    "project": Operation(_PRODUCTS, _mapped),
    "linear": Operation(_PRODUCTS, _mapped),
    "rotate": Operation("a rotation", attention.rotated),
    "scores": Operation(_PRODUCTS, attention.scored),
    "scale": Operation("a division", attention.scaled),
    "mask": Operation("a mask", attention.masked),
    "softmax": Operation("a softmax", attention.weighed),
    "mix": Operation(_PRODUCTS, attention.mixed),
    "concat": Operation("a place beside others", attention.side_by_side),
    "activate": Operation("an activation", _activated),
}


def operation(cell: Cell) -> Operation:
    """What makes the step of a cell; probabilities are asked for with a temperature."""
    if cell.step.name == "pooled":
        return Operation("tanh of a sum of products", _pooled)
    return _OPERATIONS[OPERATIONS[cell.step.name]]
