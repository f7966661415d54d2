"""The operations of worked examples, each twice: as tinytf computes it, and in plain float64 numpy."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.optim.adam import adam

from tinytf.analysis.size import parameter_count, parameter_parts
from tinytf.errors import TinytfError
from tinytf.model.parts import NORMS, sinusoidal_table
from tinytf.presets import preset
from tinytf.steps.operations.activate import ACTIVATIONS
from tinytf.steps.operations.mask import Sight, mask_scores
from tinytf.steps.operations.scale import scale_scores
from tinytf.steps.operations.scores import attention_scores
from tinytf.steps.operations.softmax import attention_weights
from tinytf.training.optimiser import learning_rate
from tinytf.training.recipe import Recipe
from tinytf.worked import plainly
from tinytf.worked.plainly import numbers as _n

CONSTANTS: Mapping[str, float] = {"pi": math.pi, "inf": math.inf}

LARGEST = 20_000_000
"""Numbers that an operation may make."""


@dataclass(frozen=True)
class Operation:
    """``usage`` as it is written, what it gives in a few words, and the two ways to compute it."""

    usage: str
    gives: str
    tinytf: Callable[..., Any]
    plain: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.usage.partition("(")[0]


def _t(value: Any) -> torch.Tensor:
    """A float64 tensor of a number or a tensor."""
    return value.double() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


def _elementwise(torch_name: str, numpy: Callable[[Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    function = getattr(torch, torch_name)
    return lambda x: function(_t(x)), lambda x: numpy(_n(x))


def _reduced(
    whole: Callable[..., Any], along: Callable[..., Any], plain: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def by_torch(x: Any, axis: int | None = None) -> Any:
        return whole(_t(x)) if axis is None else along(_t(x), dim=axis)

    return by_torch, lambda x, axis=None: plain(_n(x), axis=axis)


# tinytf's side: what the model, the trainer and the counts themselves are made of.


def _softmax(x: Any, axis: int = -1) -> Any:
    x = _t(x)
    return attention_weights(x.movedim(axis, -1)).movedim(-1, axis)


def _normed(name: str) -> Callable[..., Any]:
    def norm(x: Any, eps: float = 1e-5) -> Any:
        return NORMS[name](_t(x).shape[-1], eps).double()(_t(x))

    return norm


def _sinusoidal(length: int, d_model: int) -> Any:
    if d_model % 2:
        raise ValueError(f"d_model is even, a sine and a cosine of each frequency, and not {d_model}")
    _require(length * d_model)
    return sinusoidal_table(length, d_model, torch.device("cpu"), torch.float64)


def _causal_mask(x: Any) -> Any:
    x = _t(x)
    past = x.shape[-1] - x.shape[-2]
    if past < 0:
        raise ValueError(f"there are more queries than keys: {_sizes(x)}")
    allowed = Sight(causal=True).allowed(x.shape[-1], None, x.device)
    assert allowed is not None
    return mask_scores(x, allowed[: x.shape[-2]])


def _adam(theta: float, g: float, m: float, v: float, t: int, lr: float, beta1: float, beta2: float, eps: float) -> Any:
    """torch's own step, as a function: making an optimiser imports torch's compiler, which takes seconds."""
    weight, first, second = (_t(value).detach().clone() for value in (theta, m, v))
    adam(
        [weight], [_t(g).detach()], [first], [second], [], [torch.tensor(float(t - 1))],
        foreach=False, amsgrad=False, beta1=beta1, beta2=beta2, lr=lr, weight_decay=0.0, eps=eps, maximize=False,
    )  # fmt: skip
    return torch.stack([first, second, first / (1 - beta1**t), second / (1 - beta2**t), weight])


def _learning_rate(step: int, lr: float, warmup: int, steps: int) -> float:
    return learning_rate(step, Recipe(lr=lr, warmup=warmup, steps=steps, schedule="cosine", final_lr=0.0))


def _clip_factor(norm: float, most: float) -> Any:
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    weight.grad = torch.full((1,), float(norm), dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([weight], most)
    return weight.grad[0] / norm if norm else _t(1.0)


_PART_NAMES = {
    "attention": "attention,",
    "feed-forward": "feed-forward,",
    "tokens": "token emb",
    "positions": "positions,",
}


def _parameters(name: str, part: str = "") -> int:
    try:
        config = preset(name)
    except TinytfError as error:
        raise ValueError(error.message) from None
    if part not in plainly.PARTS:
        raise ValueError(f"there is no part {part!r}: {', '.join(filter(None, plainly.PARTS))}")
    if not part:
        return parameter_count(config)
    return sum(one.total for one in parameter_parts(config) if one.name.startswith(_PART_NAMES[part]))


def _split_heads(x: Any, n_heads: int) -> Any:
    return _t(x).unflatten(-1, (n_heads, -1)).transpose(-3, -2)  # (…, T, C) -> (…, H, T, D)


def _sizes(x: Any) -> str:
    return " × ".join(str(size) for size in x.shape)


def _require(numbers: int) -> None:
    if numbers > LARGEST:
        raise ValueError(f"this would make {numbers:,} numbers; {LARGEST:,} are the most")


def _ones(*shape: int) -> Any:
    _require(math.prod(shape))
    return torch.ones(*shape, dtype=torch.float64)


def _linspace(first: float, last: float, count: int) -> Any:
    _require(count)
    return torch.linspace(first, last, count, dtype=torch.float64)


def _windows(ids: Any, length: int) -> Any:
    return _t(ids).unfold(0, length, 1)


def _size(x: Any, axis: int | None = None) -> int:
    return math.prod(x.shape) if axis is None else x.shape[axis]


def _by_evaluator(*_: Any) -> Any:
    raise AssertionError("the evaluator computes this itself")


_ALL = (
    Operation("exp(x)", "eˣ", *_elementwise("exp", np.exp)),
    Operation("log(x)", "natural logarithm", *_elementwise("log", np.log)),
    Operation("sqrt(x)", "√x", *_elementwise("sqrt", np.sqrt)),
    Operation("abs(x)", "|x|", *_elementwise("abs", np.abs)),
    Operation("sin(x)", "sine", *_elementwise("sin", np.sin)),
    Operation("cos(x)", "cosine", *_elementwise("cos", np.cos)),
    Operation("tanh(x)", "hyperbolic tangent", *_elementwise("tanh", np.tanh)),
    Operation("erf(x)", "error function", *_elementwise("erf", plainly.erf)),
    Operation("sigmoid(x)", "1 / (1 + e⁻ˣ)", *_elementwise("sigmoid", lambda x: 1 / (1 + np.exp(-x)))),
    Operation("sum(x, axis)", "the sum, of all or along an axis", *_reduced(torch.sum, torch.sum, np.sum)),
    Operation("mean(x, axis)", "the mean", *_reduced(torch.mean, torch.mean, np.mean)),
    Operation("max(x, axis)", "the largest", *_reduced(torch.max, torch.amax, np.max)),
    Operation("min(x, axis)", "the smallest", *_reduced(torch.min, torch.amin, np.min)),
    Operation("shape(x)", "the sizes of all axes", lambda x: _t(list(x.shape)), lambda x: _n(x.shape)),
    Operation("size(x, axis)", "how many numbers, or how many along an axis", _size, _size),
    Operation("length(text)", "characters of a text", len, len),
    Operation("relu(x)", "max(0, x)", lambda x: ACTIVATIONS["relu"](_t(x)), lambda x: np.maximum(_n(x), 0)),
    Operation("gelu(x)", "x·Φ(x), exactly", lambda x: ACTIVATIONS["gelu"](_t(x)), plainly.gelu),
    Operation(
        "gelu_tanh(x)", "the approximation by tanh", lambda x: ACTIVATIONS["gelu_tanh"](_t(x)), plainly.gelu_tanh
    ),
    Operation(
        "silu(x)",
        "x·sigmoid(x)",
        lambda x: ACTIVATIONS["silu"](_t(x)),
        lambda x: _n(x) / (1 + np.exp(-_n(x))),
    ),
    Operation(
        "scores(q, k)",
        "q·kᵀ",
        lambda q, k: attention_scores(_t(q), _t(k)),
        lambda q, k: _n(q) @ np.swapaxes(_n(k), -1, -2),
    ),
    Operation(
        "scale(scores, d)",
        "scores / √d",
        lambda x, d: scale_scores(_t(x), d),
        lambda x, d: _n(x) / math.sqrt(d),
    ),
    Operation("causal_mask(scores)", "−∞ where the key is after the query", _causal_mask, plainly.causal_mask),
    Operation("softmax(x, axis)", "shares that sum to 1 along an axis (the last)", _softmax, plainly.softmax),
    Operation("layer_norm(x, eps)", "(x − mean) / √(variance + eps)", _normed("layernorm"), plainly.norm),
    Operation("rms_norm(x, eps)", "x / √(mean square + eps)", _normed("rmsnorm"), plainly.rms_norm),
    Operation("sinusoidal(length, d_model)", "the fixed positions", _sinusoidal, plainly.sinusoidal),
    Operation("split_heads(x, n_heads)", "(T, H·D) as (H, T, D)", _split_heads, plainly.split_heads),
    Operation(
        "join_heads(x)", "(H, T, D) as (T, H·D)", lambda x: _t(x).transpose(-3, -2).flatten(-2), plainly.join_heads
    ),
    Operation("ones(rows, columns)", "all 1", _ones, lambda *shape: np.ones(shape)),
    Operation("linspace(first, last, count)", "so many numbers at even distances", _linspace, np.linspace),
    Operation(
        "tril(x, k)",
        "the lower triangle, from the diagonal k on",
        lambda x, k=0: _t(x).tril(k),
        lambda x, k=0: np.tril(_n(x), k),
    ),
    Operation("triu(x, k)", "the upper triangle", lambda x, k=0: _t(x).triu(k), lambda x, k=0: np.triu(_n(x), k)),
    Operation(
        "where(condition, a, b)",
        "a where the condition holds, else b",
        lambda c, a, b: torch.where(_t(c).bool(), _t(a), _t(b)),
        lambda c, a, b: np.where(_n(c).astype(bool), _n(a), _n(b)),
    ),
    Operation("windows(ids, length)", "every run of so many in a row", _windows, plainly.windows),
    Operation(
        "parameters(preset, part)",
        "weights of a preset or of its attention, feed-forward …",
        _parameters,
        plainly.parameters,
    ),
    Operation("adam(theta, g, m, v, t, lr, beta1, beta2, eps)", "m, v, m̂, v̂ and θ after step t", _adam, plainly.adam),
    Operation(
        "learning_rate(step, lr, warmup, steps)",
        "tinytf's warm-up and cosine, step from 0",
        _learning_rate,
        plainly.learning_rate,
    ),
    Operation("clip_factor(norm, most)", "what clipping multiplies gradients by", _clip_factor, plainly.clip_factor),
    Operation("gradient(loss, W)", "∂loss/∂W, by autograd and by finite differences", _by_evaluator, _by_evaluator),
    Operation("learns(loss, W)", "whether W is given and its gradient is not 0", _by_evaluator, _by_evaluator),
    Operation("token_ids(text)", "ids by the tokenizer of --tokenizer", _by_evaluator, _by_evaluator),
    Operation("tokens(text)", "its pieces as they are shown", _by_evaluator, _by_evaluator),
)
OPERATIONS: Mapping[str, Operation] = {operation.name: operation for operation in _ALL}
"""What a formula may call."""
