"""The operations of worked examples, each implemented twice: by tinytf, and in plain float64 numpy."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch.optim.adamw import adamw

from tinytf.errors import TinytfError
from tinytf.look.info import parameter_count, parameter_parts
from tinytf.presets import preset
from tinytf.steps.operations.activate import ACTIVATIONS
from tinytf.steps.operations.mask import Sight, mask_scores
from tinytf.steps.operations.norm import NORMS
from tinytf.steps.operations.positions import sinusoidal_table
from tinytf.steps.operations.scale import scale_scores
from tinytf.steps.operations.scores import attention_scores
from tinytf.steps.operations.softmax import attention_weights
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.optimiser import learning_rate
from tinytf.verify import plainly
from tinytf.verify.language import LanguageError, require_room

CONSTANTS: Mapping[str, float] = {"pi": math.pi, "inf": math.inf}


@dataclass(frozen=True)
class Function:
    """An operation: its ``usage``, its result in a few words, and two implementations.

    The first ``tensors`` arguments are passed as float64 tensors or arrays, even if a formula has numbers there. The
    evaluation itself computes an operation without implementations.
    """

    usage: str
    gives: str
    tinytf: Callable[..., Any] | None = None
    plain: Callable[..., Any] | None = None
    tensors: int = 1

    @property
    def name(self) -> str:
        return self.usage.partition("(")[0]

    def by_tinytf(self, *arguments: Any) -> Any:
        assert self.tinytf is not None
        return self.tinytf(*map(_tensor, arguments[: self.tensors]), *arguments[self.tensors :])

    def by_numpy(self, *arguments: Any) -> Any:
        assert self.plain is not None
        arrays = (np.asarray(value, dtype=np.float64) for value in arguments[: self.tensors])
        return self.plain(*arrays, *arguments[self.tensors :])


def _tensor(value: Any) -> torch.Tensor:
    return value.double() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


# tinytf's side: what the model, the trainer and the counts themselves are made of.


def _softmax(x: torch.Tensor, axis: int = -1) -> Any:
    return attention_weights(x.movedim(axis, -1)).movedim(-1, axis)


def _normed(name: str) -> Callable[..., Any]:
    return lambda x, eps=1e-5: NORMS[name](x.shape[-1], eps).double()(x)


def _sinusoidal(length: int, d_model: int) -> Any:
    if d_model % 2:
        raise LanguageError(f"d_model must be even, with a sine and a cosine per frequency, and is {d_model}")
    require_room(length * d_model)
    return sinusoidal_table(length, d_model, torch.device("cpu"), torch.float64)


def _causal_mask(x: torch.Tensor) -> Any:
    queries, keys = x.shape[-2:]
    if queries > keys:
        raise LanguageError(f"there are more queries than keys: {' × '.join(map(str, x.shape))}")
    allowed = Sight(causal=True).allowed(keys, None, x.device)
    assert allowed is not None
    return mask_scores(x, allowed[:queries])


def _adam(
    theta: Any, g: Any, m: Any, v: Any, t: int, lr: float, beta1: float, beta2: float, eps: float, decay: float = 0.0
) -> torch.Tensor:
    """torch's own step, as a function: making an optimiser imports torch's compiler, which takes seconds."""
    weight, first, second = (value.detach().clone() for value in (theta, m, v))
    adamw(
        [weight], [g.detach()], [first], [second], [], [torch.tensor(float(t - 1))],
        foreach=False, amsgrad=False, beta1=beta1, beta2=beta2, lr=lr, weight_decay=decay, eps=eps, maximize=False,
    )  # fmt: skip
    return torch.stack([first, second, first / (1 - beta1**t), second / (1 - beta2**t), weight])


def _learning_rate(step: int, lr: float, warmup: int, steps: int) -> float:
    return learning_rate(step, Recipe(lr=lr, warmup=warmup, steps=steps, schedule="cosine", final_lr=0.0))


def _clip_factor(norm: float, most: float) -> Any:
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    weight.grad = torch.full((1,), float(norm), dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([weight], most)
    return weight.grad[0] / norm if norm else torch.tensor(1.0, dtype=torch.float64)


def _parameters(name: str, part: str = "") -> int:
    try:
        config = preset(name)
    except TinytfError as error:
        raise LanguageError(error.message, error.hint) from None
    if not part:
        return parameter_count(config)
    if part not in plainly.PARTS:
        raise LanguageError(f"there is no part {part!r}: {', '.join(plainly.PARTS)}")
    begins = plainly.PARTS[part][0]
    return sum(part.total for part in parameter_parts(config) if part.name.startswith(begins))


def _split_heads(x: torch.Tensor, n_heads: int) -> Any:
    return x.unflatten(-1, (n_heads, -1)).transpose(-3, -2)  # (…, T, C) -> (…, H, T, D)


def _ones(*shape: int) -> Any:
    require_room(math.prod(shape))
    return torch.ones(*shape, dtype=torch.float64)


def _linspace(first: float, last: float, count: int) -> Any:
    require_room(count)
    return torch.linspace(first, last, count, dtype=torch.float64)


def _where(condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(condition != 0, a, b)


def _size(x: Any, axis: int | None = None) -> int:
    return math.prod(np.shape(x)) if axis is None else np.shape(x)[axis]


_ALL = (
    Function("exp(x)", "eˣ", torch.exp, np.exp),
    Function("log(x)", "natural logarithm", torch.log, np.log),
    Function("sqrt(x)", "√x", torch.sqrt, np.sqrt),
    Function("abs(x)", "|x|", torch.abs, np.abs),
    Function("sin(x)", "sine", torch.sin, np.sin),
    Function("cos(x)", "cosine", torch.cos, np.cos),
    Function("tanh(x)", "hyperbolic tangent", torch.tanh, np.tanh),
    Function("erf(x)", "error function", torch.erf, plainly.erf),
    Function("sigmoid(x)", "1 / (1 + e⁻ˣ)", torch.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    Function("sum(x, axis)", "the sum, of all or along an axis", torch.sum, np.sum),
    Function("mean(x, axis)", "the mean", torch.mean, np.mean),
    Function("max(x, axis)", "the largest", torch.amax, np.max),
    Function("min(x, axis)", "the smallest", torch.amin, np.min),
    Function("shape(x)", "the sizes of all axes", lambda x: _tensor(list(x.shape)), lambda x: np.array(x.shape)),
    Function("size(x, axis)", "how many numbers, or how many along an axis", _size, _size, tensors=0),
    Function("length(text)", "characters of a text", len, len, tensors=0),
    Function("relu(x)", "max(0, x)", ACTIVATIONS["relu"], lambda x: np.maximum(x, 0)),
    Function("gelu(x)", "x·Φ(x), exactly", ACTIVATIONS["gelu"], plainly.gelu),
    Function("gelu_tanh(x)", "the approximation by tanh", ACTIVATIONS["gelu_tanh"], plainly.gelu_tanh),
    Function("silu(x)", "x·sigmoid(x)", ACTIVATIONS["silu"], lambda x: x / (1 + np.exp(-x))),
    Function("scores(q, k)", "q·kᵀ", attention_scores, lambda q, k: q @ np.swapaxes(k, -1, -2), tensors=2),
    Function("scale(scores, d)", "scores / √d", scale_scores, lambda x, d: x / math.sqrt(d)),
    Function("causal_mask(scores)", "−∞ where the key is after the query", _causal_mask, plainly.causal_mask),
    Function("softmax(x, axis)", "weights that sum to 1 along an axis (the last)", _softmax, plainly.softmax),
    Function("layer_norm(x, eps)", "(x − mean) / √(variance + eps)", _normed("layernorm"), plainly.norm),
    Function("rms_norm(x, eps)", "x / √(mean square + eps)", _normed("rmsnorm"), plainly.rms_norm),
    Function("sinusoidal(length, d_model)", "the fixed positions", _sinusoidal, plainly.sinusoidal, tensors=0),
    Function("split_heads(x, n_heads)", "(T, H·D) as (H, T, D)", _split_heads, plainly.split_heads),
    Function("join_heads(x)", "(H, T, D) as (T, H·D)", lambda x: x.transpose(-3, -2).flatten(-2), plainly.join_heads),
    Function("ones(rows, columns)", "all 1", _ones, lambda *shape: np.ones(shape), tensors=0),
    Function("linspace(first, last, count)", "count numbers, evenly spaced", _linspace, np.linspace, tensors=0),
    Function("tril(x, k)", "the lower triangle, from the diagonal k on", torch.tril, np.tril),
    Function("triu(x, k)", "the upper triangle", torch.triu, np.triu),
    Function("where(condition, a, b)", "a where the condition holds, else b", _where, np.where, tensors=3),
    Function("windows(ids, length)", "every run of length ids", lambda x, n: x.unfold(0, n, 1), sliding_window_view),
    Function("parameters(preset, part)", "weights of a preset or a part", _parameters, plainly.parameters, tensors=0),
    Function(
        "adam(theta, g, m, v, t, lr, beta1, beta2, eps, decay)",
        "m, v, m̂, v̂ and θ after step t; with weight decay that of AdamW",
        _adam,
        plainly.adam,
        tensors=4,
    ),
    Function(
        "learning_rate(step, lr, warmup, steps)",
        "tinytf's warm-up and cosine, step from 0",
        _learning_rate,
        plainly.learning_rate,
        tensors=0,
    ),
    Function("clip_factor(norm, most)", "what clipping multiplies by", _clip_factor, plainly.clip_factor, tensors=0),
    Function("gradient(loss, W)", "∂loss/∂W, by autograd and by finite differences"),
    Function("learns(loss, W)", "whether W is given and its gradient is not 0"),
    Function("token_ids(text)", "ids by the tokenizer of --tokenizer"),
    Function("tokens(text)", "its pieces as they are shown"),
)
OPERATIONS: Mapping[str, Function] = {operation.name: operation for operation in _ALL}
"""The operations that a formula may call, by name."""
