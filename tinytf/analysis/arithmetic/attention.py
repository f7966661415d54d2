"""The operations inside attention, done once more for one cell: rotation, scores, mask, softmax, weighted values."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tinytf.analysis.arithmetic.cell import Cell
from tinytf.analysis.arithmetic.data import Value
from tinytf.analysis.arithmetic.working import Series, Working, product, single
from tinytf.model.parts import rotary_frequencies, rotary_table


def token_label(cell: Cell, place: int) -> str:
    return f"{place} {cell.trace.tokens[place].shown}"


def _doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rotated(cell: Cell) -> Working:
    """Half rotation: d and d + D/2 are a pair, turned by position · frequency (Su et al. 2021).

    Cosine and sine are those of the model's table, which rounds the angle to float32."""
    (token, width), rope, trace = cell.index, cell.trace.config.rope, cell.trace
    half = trace.config.d_head // 2
    pair = width % half
    other = width + half if width < half else width - half
    kept, mixed = cell.source(0, token, width), cell.source(0, token, other)
    frequency = float(rotary_frequencies(rope)[pair])
    tensor = trace.model_input
    cosine, sine = (float(wave[token, width]) for wave in rotary_table(token + 1, rope, tensor.device, tensor.dtype))
    before = (
        Value("frequency", frequency, f"radians a token, of the pair d{pair} and d{pair + half}"),
        Value("angle", token * frequency, f"position {token} × frequency"),
        Value("cos", cosine, "of the angle"),
        Value("sin", sine, "of the angle"),
    )
    signed = -sine if width < half else sine
    series = product(
        (kept.step.name, "cos, −sin" if width < half else "cos, sin"),
        (_doubles(kept.value, mixed.value), _doubles(cosine, signed)),
        lambda i: f"d{(width, other)[i]} · {('cos', 'sin')[i]}",
        lambda i: ((kept, mixed)[i],),
    )
    return Working(((kept, 2), (mixed, 2)), series, before=before)


def scored(cell: Cell) -> Working:
    query, key = cell.source(0, cell.index[0], 0), cell.source(1, cell.index[1], 0)
    series = product(
        (query.step.name, key.step.name),
        (query.row(), key.row()),
        lambda i: f"d{i}",
        lambda i: (cell.source(0, cell.index[0], i), cell.source(1, cell.index[1], i)),
    )
    return Working(((query, 1), (key, 1)), series)


def scaled(cell: Cell) -> Working:
    score, width = cell.source(0, *cell.index), cell.trace.config.d_head
    root = math.sqrt(width)
    before = (Value("score", score.value), Value("√d_head", root, f"√{width}"))
    return Working(
        ((score, 2),), before=before, after=(Value("scaled", score.value / root, "score / √d_head"),), leads=(score,)
    )


def masked(cell: Cell) -> Working:
    (query, key), window = cell.index, cell.trace.config.window
    scaled = cell.source(0, query, key)
    if key > query:
        why = f"masked: key {token_label(cell, key)} comes after query {token_label(cell, query)}"
    elif window and key <= query - window:
        why = f"masked: key {token_label(cell, key)} is {query - key} back, and the window sees {window - 1} back"
    else:
        seen = f"visible: key {token_label(cell, key)} does not come after query {token_label(cell, query)}"
        value = Value("masked", scaled.value, "scaled, as it is")
        return Working(((scaled, 2),), after=(value,), leads=(scaled,), note=seen)
    after = (Value("masked", -math.inf, "−∞, whatever the score"),)
    return Working(((scaled, 2),), before=(Value("scaled", scaled.value),), after=after, note=why)


def softmax(own: Cell, name: str, scores: Tensor, label: Callable[[int], str]) -> Working:
    """e^(x − max) of each of the ``scores`` in the row of ``own``, their sum, and the share of its own one."""
    place, highest = own.index[-1], scores.max()
    lowered = scores - highest
    powers = lowered.exp()
    total, power = float(powers.sum()), float(powers[place])
    before = (Value("max", float(highest), "the largest, subtracted from all"),)
    after = (
        Value("e^(x − max)", power, f"of {label(place)}"),
        Value("share", power / total, "e^(x − max) / sum"),
    )
    series = Series(powers, label, names=(name, "− max"), factors=(scores, lowered), called="e^(x − max)")
    return Working(((own, 1),), series, before=before, after=after, leads=(own,))


def weighed(cell: Cell) -> Working:
    own = cell.source(0, *cell.index)
    return softmax(own, own.step.name, own.row(), lambda i: token_label(cell, i))


def mixed(cell: Cell) -> Working:
    query, width = cell.index
    weights, values = cell.source(0, query, 0), cell.source(1, 0, width)
    series = product(
        ("weights", "v"),
        (weights.row(), values.column()),
        lambda i: token_label(cell, i),
        lambda i: (cell.source(0, query, i), cell.source(1, i, width)),
    )
    return Working(((weights, 1), (values, 0)), series)


def side_by_side(cell: Cell) -> Working:
    head, width = divmod(cell.index[1], cell.trace.config.d_head)
    taken = cell.source(0, cell.index[0], width, head=head)
    return Working(((taken, 2),), single(f"head {head} d{width}", [("heads", taken.value)], (taken,)))
