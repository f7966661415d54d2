"""What conversions do to a parameter: another order of rows, another orientation, another's place, fewer bits.

Shapes: R rows (outputs), C columns (inputs), E experts, H heads, D head width.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tinytf.compare.attempts import FORMATS, kind_of, order_in_words
from tinytf.compare.dumps.fit import in_halves
from tinytf.config import ModelConfig
from tinytf.model.transformer import PATHS, Transformer, stack_at
from tinytf.sentences import first_of, listed
from tinytf.steps.table import table_of
from tinytf.trace.lens_names import in_pairs
from tinytf.trace.parameters import addresses_of

_EXACT, _NEAR, _BETTER = 1e-5, 0.5, 3.0
"""Errors ‖Δ‖ ÷ ‖W‖ of equal numbers and of numbers rounded to few bits; what explains B is so much nearer than A's."""
_EXACT_VECTOR, _NEAR_VECTOR = 1e-3, 0.05
"""The first two for a gain or bias: two gains near 1 are close, and nobody rounds them to few bits."""
_SAMPLE, _MOST_ROWS, _FEW = 4096, 8192, 8
"""Numbers by which tensors are found again; the most rows of which every two are compared; the fewest numbers of a row
that may be rounded."""
Made = tuple[str, Tensor]
"""What was done to A's parameter in words, and the numbers that it gives."""


@dataclass(frozen=True)
class Found:
    """What a parameter of B is: ``words``, empty if it is A's up to the ``error`` ‖Δ‖ ÷ ‖W‖.

    It ``rounds`` where it only has fewer bits. ``other`` is the name of A's parameter that is in its place, ``layer``
    that one's layer if it is another.
    """

    words: str
    error: float
    rounds: bool = False
    other: str = ""
    layer: int | None = None


@dataclass(frozen=True)
class Parameters:
    """The parameters of a model by path, with their names in a layer and their layers, and samples of them by shape.

    ``tried`` is the record of what was tried on any.
    """

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]
    layers: Mapping[str, int | None]
    samples: dict[tuple[int, ...], tuple[list[str], Tensor]] = field(default_factory=dict)
    tried: dict[str, None] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Transformer) -> "Parameters":
        tensors = {path: parameter.detach() for path, parameter in model.named_parameters()}
        names, layers = dict[str, str](), dict[str, int | None]()
        for at, config in model.config.stacks.items():
            for address, layer in addresses_of(table_of(config)):
                path = PATHS[at] + address.path(layer)
                if path in tensors and path not in names:
                    names[path], layers[path] = address.parameter.name, layer
        for path in tensors:
            if path not in names:
                block = re.match(r"blocks\.(\d+)\.(.*)", path)
                names[path], layers[path] = (block[2], int(block[1])) if block else (path, None)
        return cls(model.config, tensors, names, layers)

    def address(self, path: str) -> str:
        layer = "" if self.layers[path] is None else f"L{self.layers[path]}."
        return stack_at(path) + layer + self.names[path]

    def config_at(self, path: str) -> ModelConfig:
        """The configuration of the layer of a parameter, or of its stack."""
        return self.config.stacks[stack_at(path)].at(self.layers[path])

    def sampled(self, shape: tuple[int, ...]) -> tuple[list[str], Tensor]:
        """The parameters of a shape and their samples, (N, numbers), each of length 1."""
        if shape not in self.samples:
            paths = [path for path, tensor in self.tensors.items() if tuple(tensor.shape) == shape]
            rows = [_sample(self.tensors[path]) for path in paths]
            self.samples[shape] = paths, torch.stack(rows) if rows else torch.empty(0, 0)
        return self.samples[shape]

    def beside(self, path: str) -> dict[str, Tensor]:
        """The other parameters of a layer, by name."""
        layer = self.layers[path]
        return {
            self.names[other]: tensor
            for other, tensor in self.tensors.items()
            if self.layers[other] == layer and other != path and stack_at(other) == stack_at(path)
        }


def floats(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu()


def _sample(tensor: Tensor) -> Tensor:
    """Some numbers of a tensor at places that depend on its shape alone, with a length of 1."""
    flat = tensor.reshape(-1)
    places = torch.arange(min(_SAMPLE, len(flat))) * max(1, len(flat) // _SAMPLE)
    taken = floats(flat[places.to(flat.device)])
    return taken / taken.norm().clamp(min=1e-30)


def _error(made: Tensor, b: Tensor) -> float:
    """‖Δ‖ ÷ ‖B‖, infinite for other shapes and where a number is not finite."""
    if made.shape != b.shape:
        return math.inf
    error = float((made - b).norm()) / (float(b.norm()) or 1.0)
    return error if math.isfinite(error) else math.inf


def explained(ours: Parameters, path: str, b: Tensor) -> Found | None:
    """What B's parameter ``b`` at ``path`` is, beside A's; None if nothing is found."""
    a, limit = floats(ours.tensors[path]), _NEAR if b.dim() > 1 else _EXACT_VECTOR
    if not b.isfinite().all():
        count = int((~b.isfinite()).sum())
        return Found(
            f"not finite: {count:,} of its {b.numel():,} numbers {'is' if count == 1 else 'are'} NaN or ∞", 0.0
        )
    if not b.any() and a.any():
        return Found("all 0", 0.0)
    own = _error(a, b)
    for search in (_simply, _elsewhere, _in_order):
        best: Found | None = None
        for one in search(ours, path, a, b):
            if not isinstance(one, Found):
                ours.tried[kind_of(one[0].removeprefix("A's").strip(", "))] = None
            found = one if isinstance(one, Found) else Found(one[0], _error(one[1], b))
            near_enough = found.error <= limit and found.error * _BETTER <= own
            if near_enough and (best is None or found.error * _BETTER < best.error):
                best = found
        if best is not None:
            return best
    if own <= (_NEAR if b.dim() > 1 else _NEAR_VECTOR):
        ours.tried.update(dict.fromkeys(f"rounded to {name}" for name in FORMATS))
        words = _rounded(a, b)
        return Found(words, own, rounds=bool(words))
    return None


def _rounded(a: Tensor, b: Tensor) -> str:
    """The format in which B's are A's, or A's are B's; empty if none is."""
    first, second = (tensor.reshape(-1, tensor.shape[-1])[: 4 * _FEW] for tensor in (a, b))
    for name, rounded in FORMATS.items():
        exact, other = (a, b) if "one scale" in name else (first, second)
        with suppress(RuntimeError):  # a row is not a whole number of blocks
            if _error(rounded(exact), other) <= _EXACT:
                return f"A's rounded to {name}"
            if _error(rounded(other), exact) <= _EXACT:
                return f"what A's are rounded from, to {name}"
    return ""


def _simply(ours: Parameters, path: str, a: Tensor, b: Tensor) -> Iterator[Made]:
    """What a slip of a conversion makes of a parameter without looking at any other."""
    if a.shape != b.shape:
        if a.numel() == b.numel() and a.dim() > 1:
            yield "A's, transposed", a.transpose(-1, -2).reshape(b.shape)
        return
    size = float(a.double().square().sum()) or 1.0
    factor = float((a.double() * b.double()).sum()) / size
    if abs(factor + 1) < 1e-3:
        yield "A's, with the other sign", -a
    elif abs(factor - 1) > 1e-3:
        yield f"A's, {factor:.4g} times as large", a * factor
    if a.dim() == 1:
        added = float((b - a).median())
        yield f"A's, with {added:.4g} added", a + added
    if _is_turned(path):
        config, heads = ours.config_at(path), _heads(ours, path)
        rope = config.rope
        if rope.width > 2 and a.shape[0] % heads == 0:
            by_head = a.reshape(heads, a.shape[0] // heads, -1).transpose(-1, -2)  # (H, C, D)
            for words, turned in (
                ("in pairs instead of halves", in_pairs),
                ("put from pairs into halves, where they were in halves", in_halves),
            ):
                yield f"A's with its rows in another order: {words}", turned(by_head, config).mT.reshape(a.shape)
    if a.dim() > 1:
        yield from _of_matrix(ours, path, a, b)


def _is_turned(path: str) -> bool:
    return re.search(r"attention\.[qk]\.(weight|bias)$", path) is not None


def _of_matrix(ours: Parameters, path: str, a: Tensor, b: Tensor) -> Iterator[Made]:
    """Another orientation, a scale for each row or column, and a mean that is subtracted."""
    if a.shape[-1] == a.shape[-2]:
        yield "A's, transposed", a.mT
    elif a.dim() == 2:
        yield "A's, read as if it were transposed", a.T.reshape(a.shape)
    for axis, words in ((-2, "column"), (-1, "row")):
        if a.shape[axis] >= _FEW:
            yield f"A's, with the mean of each {words} subtracted", a - a.mean(axis, keepdim=True)
            scale = (a * b).sum(axis, keepdim=True) / a.square().sum(axis, keepdim=True).clamp(min=1e-30)
            gain = next((name for name, gain in ours.beside(path).items() if _is_gain(gain, scale)), "")
            yield f"A's, with each {words} multiplied by {gain or 'a factor of its own'}", a * scale


def _is_gain(gain: Tensor, scale: Tensor) -> bool:
    return gain.dim() == 1 and gain.numel() == scale.numel() and _error(floats(gain), scale.flatten()) < 1e-3


def _elsewhere(ours: Parameters, path: str, a: Tensor, b: Tensor) -> Iterator[Found]:
    """Another parameter of A that B has in this place, as it is or transposed."""
    ours.tried["another parameter in its place, also transposed"] = None
    readings = [("", b)] + ([(", transposed", b.mT)] if b.dim() > 1 else [])
    for words, read in readings:
        paths, samples = ours.sampled(tuple(read.shape))
        if not paths:
            continue
        alike = samples @ _sample(read)
        order = alike.argsort(descending=True)[:3].tolist()
        for index in sorted(order, key=lambda one: (ours.layers[paths[one]] != ours.layers[path], -float(alike[one]))):
            other = paths[index]
            if other == path or float(alike[index]) < 1 - _NEAR**2:
                continue
            moved = ours.layers[other] != ours.layers[path]
            name, error = ours.address(other) if moved else ours.names[other], _error(floats(ours.tensors[other]), read)
            layer = ours.layers[other] if moved and not words and ours.names[other] == ours.names[path] else None
            yield Found(f"A's {name}{words}", error, other="" if moved else f"{name}{words}", layer=layer)


def _in_order(ours: Parameters, path: str, a: Tensor, b: Tensor) -> Iterator[Made]:
    """Rows or columns in another order; rows that come from several matrices, of a joint one that was cut otherwise."""
    heads, orders = _heads(ours, path), ["heads or rows", "columns", "rows of several matrices"]
    ours.tried.update(dict.fromkeys(f"{what} in another order" for what in (["experts"] if b.dim() == 3 else orders)))
    if a.shape == b.shape and a.dim() == 3:  # (E, R, C)
        order = _order(a.flatten(1), b.flatten(1))
        if order is not None:
            yield f"A's, its experts in another order: {first_of([str(one) for one in order.tolist()], 8)}", a[order]
    if a.shape == b.shape and a.dim() == 1 and a.unique().numel() > 1:
        order = torch.empty(len(a), dtype=torch.long)
        order[b.argsort()] = a.argsort()
        if _error(a[order], b) <= _EXACT:
            yield f"A's, {order_in_words(order, heads)}", a[order]
    if a.dim() != 2 or b.dim() != 2:
        return
    if a.shape == b.shape:
        if (order := _order(a, b)) is not None:
            yield f"A's, {order_in_words(order, heads)}", a[order]
        if (order := _order(a.T, b.T)) is not None:
            words = order_in_words(order, heads if path.endswith("attention.o.weight") else 0)
            yield f"A's, {words.replace('its rows', 'its columns')}", a[:, order]
    joint = {name: floats(one) for name, one in ours.beside(path).items() if one.dim() == 2}
    joint = {name: one for name, one in joint.items() if one.shape[1] == b.shape[1] and len(one) <= _MOST_ROWS}
    if joint and len(b) <= _MOST_ROWS:
        pool = torch.cat((a, *joint.values()))
        order = _order(pool, b)
        if order is not None:
            ends = torch.tensor([len(a), *(len(one) for one in joint.values())]).cumsum(0)
            used = torch.bucketize(order, ends, right=True).unique().tolist()
            names = sorted((ours.names[path], *joint)[index] for index in used)
            words = f"made of rows of A's {listed(names)}, as if their joint matrix were cut the other way"
            if len(names) > 1:
                yield words, pool[order]


def _heads(ours: Parameters, path: str) -> int:
    config = ours.config_at(path)
    if re.search(r"attention\.[kv]\.", path):
        return config.n_kv_heads
    return config.n_heads if "attention." in path else 0


def _order(a: Tensor, b: Tensor) -> Tensor | None:
    """The rows of ``a`` that ``b`` has, in its order: each the one whose direction is nearest; None if one has none."""
    if a.shape[1] < _FEW:
        return None
    unit_a, unit_b = (rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-30) for rows in (a, b))
    order = torch.arange(len(b)) if len(a) >= len(b) else torch.zeros(len(b), dtype=torch.long)
    wrong = ((unit_a[order] * unit_b).sum(1) < 1 - _NEAR**2 / 2).nonzero().flatten()
    if not len(wrong):
        return None
    if len(wrong) > _MOST_ROWS:
        if len(a) != len(b):
            return None
        probe = torch.linspace(1, 2, a.shape[1], dtype=torch.float64).mul(1e3).sin()
        order = torch.empty(len(b), dtype=torch.long)
        order[(b.double() @ probe).argsort()] = (a.double() @ probe).argsort()
        return order
    nearest = (unit_b[wrong[:_FEW]] @ unit_a.T).max(dim=1)
    if bool((nearest.values < 1 - _NEAR**2 / 2).any()):  # the first few tell whether it is worth while
        return None
    order[wrong] = (unit_b[wrong] @ unit_a.T).argmax(dim=1)
    return order
