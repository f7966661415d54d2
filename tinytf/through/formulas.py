"""What a module should have returned, computed again in float64 from its input and its parameters alone.

None calls the module, nor torch's function of the same name: products are matmuls, norms follow their definition.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.tolerance import STEP, allowed

_PIECE = 2**24
"""Numbers of a matrix that are in float64 at a time."""
_CELLS = 64
"""Cells of a tensor that a search for sums compares first."""
_SUMMANDS = 4
"""The most summands of a sum that is searched, among at most ``_CANDIDATES`` tensors."""
_CANDIDATES = 12

Formula = Callable[[Any, Tensor, Tensor], Tensor | None]
"""From a module, its input and its output (of which only shape and scale are used) to what it should be."""


@dataclass(frozen=True)
class Proof:
    """A second computation of an output: by which ``formula``, and how far it was ``off`` where ``allowed``.

    ``scale`` is the largest number that the formula gives.
    """

    formula: str
    off: float
    allowed: float
    scale: float

    @property
    def holds(self) -> bool:
        return self.off <= self.allowed  # false for a NaN


def compared(formula: str, found: Tensor, expected: Tensor) -> Proof:
    """How far an output is from what a formula gives, where rounding of its dtype is allowed."""
    off = float((found.to(expected.device).double() - expected.reshape(found.shape)).abs().max())
    scale = float(expected.abs().max())
    limit = allowed(STEP, found.dtype) * max(scale, 1e-6)
    return Proof(formula, off if math.isfinite(off) else math.inf, limit, scale)


def _wide(x: Tensor) -> Tensor:
    return x.detach().to("cpu" if x.device.type == "mps" else x.device).double()


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """x·Mᵀ + b, for a matrix (out, in), some rows at a time."""
    wide = _wide(x)
    rows = max(1, _PIECE // matrix.shape[1])
    result = torch.cat([wide @ _wide(part).T for part in matrix.split(rows)], dim=-1)
    return result if bias is None else result + _wide(bias)


def _linear(module: Any, x: Tensor, y: Tensor) -> Tensor | None:
    return _by_matrix(module.weight, module, x, y)


def _transposed(module: Any, x: Tensor, y: Tensor) -> Tensor | None:
    """By a matrix (in, out), as GPT-2 stores it."""
    return _by_matrix(module.weight.T, module, x, y)


def _by_matrix(matrix: Tensor, module: Any, x: Tensor, y: Tensor) -> Tensor | None:
    fits = matrix.dim() == 2 and (x.shape[-1], y.shape[-1]) == (matrix.shape[1], matrix.shape[0])
    return _product(x, matrix, getattr(module, "bias", None)) if fits and x.is_floating_point() else None


def _rows(module: Any, x: Tensor, y: Tensor) -> Tensor | None:
    """The rows of the ids."""
    if x.is_floating_point() or module.weight.dim() != 2 or y.shape != (*x.shape, module.weight.shape[1]):
        return None
    is_inside = bool(((x >= 0) & (x < len(module.weight))).all())  # not so where a module looks up positions
    return _wide(module.weight[x]) if is_inside else None


def _scaled_rows(module: Any, x: Tensor, y: Tensor) -> Tensor | None:
    """The rows of the ids times one number, the one that fits best."""
    rows = _rows(module, x, y)
    return None if rows is None else rows * float((rows * _wide(y)).sum() / (rows * rows).sum().clamp_min(1e-300))


def _epsilon(module: Any) -> float:
    names = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "norm_eps")
    found = next((getattr(module, name) for name in names if isinstance(getattr(module, name, None), float)), None)
    return 1e-6 if found is None else found


def _norm(centred: bool, offset: float) -> Formula:
    """(x − mean) / √(variance + ε) · (g + offset) + b; not ``centred``, x over its root mean square."""

    def formula(module: Any, x: Tensor, y: Tensor) -> Tensor | None:
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if x.shape != y.shape or not x.is_floating_point() or (weight is not None and weight.shape != x.shape[-1:]):
            return None
        wide = _wide(x)
        wide = wide - wide.mean(-1, keepdim=True) if centred else wide
        unit = wide / ((wide * wide).mean(-1, keepdim=True) + _epsilon(module)).sqrt()
        unit = unit if weight is None else unit * (_wide(weight) + offset)
        return unit if bias is None else unit + _wide(bias)

    return formula


def _pointwise(function: Callable[[Tensor], Tensor]) -> Formula:
    def formula(module: Any, x: Tensor, y: Tensor) -> Tensor | None:
        return function(_wide(x)) if x.shape == y.shape and x.is_floating_point() else None

    return formula


def _convolution(module: Any, x: Tensor, y: Tensor) -> Tensor | None:
    """Each window of the input, unfolded, times the kernel of its group; in one dimension or two."""
    if isinstance(module.padding, str) or module.padding_mode != "zeros" or not x.is_floating_point():
        return None
    flat = module.weight.dim() == 3
    if x.dim() != module.weight.dim() or module.weight.dim() not in (3, 4):
        return None
    settings = (module.kernel_size, module.dilation, module.padding, module.stride)
    kernel, dilation, padding, stride = [
        (least, *s) if flat else s for s, least in zip(settings, (1, 1, 0, 1), strict=True)
    ]
    windows = nn.functional.unfold(_wide(x[:, :, None] if flat else x), kernel, dilation, padding, stride)  # (B, CK, L)
    groups = module.groups
    windows = windows.reshape(len(x), groups, -1, windows.shape[-1])  # (B, G, CK/G, L)
    result = torch.einsum("gok,bgkl->bgol", _wide(module.weight).reshape(groups, -1, windows.shape[2]), windows)
    result = result.reshape(len(x), -1, windows.shape[-1])
    return (result if module.bias is None else result + _wide(module.bias)[:, None]).reshape(y.shape)


_ACTIVATIONS: dict[str, Formula] = {
    name: _pointwise(function)
    for name, function in {
        "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
        "gelu, by tanh": lambda x: x * (1 + torch.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
        "quick gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
        "silu": lambda x: x / (1 + torch.exp(-x)),
        "relu": lambda x: (x + x.abs()) / 2,
        "relu²": lambda x: ((x + x.abs()) / 2) ** 2,
        "tanh": lambda x: 1 - 2 / (torch.exp(2 * x) + 1),
        "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    }.items()
}
_IDENTITY: dict[str, Formula] = {"identity": _pointwise(lambda x: x)}
_NORMS = {
    "layer norm": _norm(True, 0.0),
    "RMS norm": _norm(False, 0.0),
    "RMS norm, gain 1 + g": _norm(False, 1.0),
    "layer norm, gain 1 + g": _norm(True, 1.0),
}
NORMS = frozenset(_NORMS)
ROWS = "rows of the ids"
_TORCH: dict[type[nn.Module], dict[str, Formula]] = {
    nn.Linear: {"x·Wᵀ + b": _linear},
    nn.Embedding: {ROWS: _rows},
    nn.LayerNorm: {"layer norm": _NORMS["layer norm"]},
    nn.RMSNorm: {"RMS norm": _NORMS["RMS norm"]},
    nn.Conv1d: {"convolution": _convolution},
    nn.Conv2d: {"convolution": _convolution},
    nn.GELU: {name: _ACTIVATIONS[name] for name in ("gelu", "gelu, by tanh")},
    nn.SiLU: {"silu": _ACTIVATIONS["silu"]},
    nn.ReLU: {"relu": _ACTIVATIONS["relu"]},
    nn.Tanh: {"tanh": _ACTIVATIONS["tanh"]},
    nn.Sigmoid: {"sigmoid": _ACTIVATIONS["sigmoid"]},
    nn.Identity: _IDENTITY,
    nn.Dropout: _IDENTITY,
}


def must_hold(module: nn.Module) -> bool:
    """Whether the class is torch's own, so that its formula is known and an output that differs is wrong."""
    return type(module) in _TORCH


def _formulas(module: nn.Module) -> dict[str, Formula]:
    """The formulas that a module may follow: that of a class of torch, else all that suit its own parameters."""
    if type(module) in _TORCH:
        return _TORCH[type(module)]
    own = {name: parameter for name, parameter in module.named_parameters(recurse=False) if parameter is not None}
    if not own:
        return {} if any(True for _ in module.children()) else {**_ACTIVATIONS, **_NORMS}
    weight = own.get("weight")
    if weight is None or set(own) - {"weight", "bias"}:
        return {}
    if weight.dim() == 2:
        return {"x·Wᵀ + b": _linear, "x·W + b": _transposed, ROWS: _rows, "rows of the ids × a number": _scaled_rows}
    return _NORMS if weight.dim() == 1 else {}


@torch.no_grad()
def recompute(module: nn.Module, x: Tensor, y: Tensor) -> Proof | None:
    """The formula nearest to the output ``y`` of a module for the input ``x``; None if none suits its parameters."""
    best: Proof | None = None
    for name, formula in _formulas(module).items():
        expected = formula(module, x, y)
        if expected is None or expected.numel() != y.numel() or not y.numel():
            continue
        proof = compared(name, y, expected)
        if best is None or proof.off < best.off:
            best = proof
    return best


@torch.no_grad()
def as_combination(y: Tensor, parts: list[tuple[str, Tensor]]) -> Proof | None:
    """``y`` as the sum of two to four of ``parts``, (name, tensor with as many numbers), or the product of two.

    Of more than twelve parts, the last are tried. None if none is equal.
    """
    parts, every = parts[-_CANDIDATES:], max(1, y.numel() // _CELLS)
    if len(parts) < 2:
        return None
    cells = torch.stack([_wide(tensor.reshape(-1)[::every]) for _, tensor in parts])  # (N, cells)
    goal = _wide(y.reshape(-1)[::every])
    limit = 4 * allowed(STEP, y.dtype) * max(float(goal.abs().max()), 1e-6)
    for combine, sign, most in ((torch.sum, " + ", _SUMMANDS), (torch.prod, " ⊙ ", 2)):
        for size in range(2, min(most, len(parts)) + 1):
            choices = torch.tensor(list(combinations(range(len(parts)), size)), device=cells.device)
            off = (combine(cells[choices], 1) - goal).abs().amax(-1)  # (choices,)
            for row in (off <= limit).nonzero()[:1, 0].tolist():
                chosen = [parts[i] for i in choices[row].tolist()]
                whole = combine(torch.stack([_wide(tensor.reshape(-1)) for _, tensor in chosen]), 0)
                proof = compared(sign.join(name for name, _ in chosen), y, whole)
                if proof.holds:
                    return proof
    return None


@torch.no_grad()
def as_mixture(x: Tensor, weights: Tensor, values: Tensor, name: str) -> Proof | None:
    """``x`` (1, Q, H·D) as attention ``weights`` (H, Q, K) · ``values`` (1, K, G·D), heads side by side; else None."""
    heads, queries, keys = weights.shape
    if x.numel() % (heads * queries) or values.numel() % keys:
        return None
    dimension, width = x.numel() // (heads * queries), values.numel() // keys
    if width % dimension or heads % (width // dimension):
        return None
    split = _wide(values).reshape(keys, -1, dimension).transpose(0, 1)  # (G, K, D)
    mixed = _wide(weights) @ split.repeat_interleave(heads // len(split), dim=0)  # (H, Q, D)
    proof = compared(f"weights · {name}", x, mixed.transpose(0, 1).reshape(x.shape))
    return proof if proof.holds else None
