"""Every formula of the backward pass against autograd of the operation that it is the derivative of."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from caught_gradients import relative
from torch import Tensor

from tinytf.gradients.loss import cross_entropy, cross_entropy_of_probs
from tinytf.steps.operations.activate import ACTIVATIONS, SLOPES, activation_gradient, gated_gradients
from tinytf.steps.operations.linear import weight_gradient
from tinytf.steps.operations.lookup import Embedding, table_gradient
from tinytf.steps.operations.mask import Sight, mask_gradient, mask_scores
from tinytf.steps.operations.mix import mix_gradients
from tinytf.steps.operations.norm import NORMS, layer_norm_gradient, layer_normed, rms_norm_gradient, rms_normed
from tinytf.steps.operations.operation import into_heads, repeat_groups, side_by_side, summed
from tinytf.steps.operations.positions import position_rows
from tinytf.steps.operations.rotate import rotate, rotation_gradient
from tinytf.steps.operations.scale import scale_scores
from tinytf.steps.operations.scores import attention_scores, scores_gradients
from tinytf.steps.operations.softmax import attention_weights, softmax_gradient

T, C, H, D, V = 9, 12, 6, 8, 17
precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["float64", "float32"]
)
groups = pytest.mark.parametrize("n_groups", [6, 3, 1])


def some(*shape: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def agree(found: tuple[Tensor, ...], forward: Callable[..., Tensor], *inputs: Tensor, g: Tensor) -> float:
    """The largest relative difference between ``found`` and autograd's gradients of ``inputs``."""
    expected = torch.autograd.grad(forward(*inputs), inputs, g)
    return max(relative(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


@precisions
def test_cross_entropy_over_logits(dtype, tolerance):
    logits, ids = some(5, V, dtype=dtype), torch.tensor([3, 16, 0, 3, 8])
    found = cross_entropy(logits.detach(), ids)
    assert agree((found,), lambda x: F.cross_entropy(x, ids), logits, g=torch.ones((), dtype=dtype)) <= tolerance


def test_cross_entropy_over_a_large_vocabulary_keeps_its_digits_in_float32():
    """Entry by entry; torch's own float32 gradient of these logits is off by several times as much."""
    logits, ids = 4 * some(3, 50_000, dtype=torch.float32).detach(), torch.tensor([49_999, 7, 20_000])
    exact = cross_entropy(logits.double(), ids)
    assert float(((cross_entropy(logits, ids).double() - exact) / exact).abs().max()) < 1e-7


@precisions
def test_cross_entropy_over_probabilities(dtype, tolerance):
    probs = some(5, V, dtype=dtype).softmax(-1).detach().requires_grad_()
    ids = torch.tensor([3, 16, 0, 3, 8])
    found = cross_entropy_of_probs(probs.detach(), ids)
    one = torch.ones((), dtype=dtype)
    assert agree((found,), lambda p: -p[range(5), ids].log().mean(), probs, g=one) <= tolerance


@precisions
def test_softmax(dtype, tolerance):
    x, g = some(H, T, T, dtype=dtype), some(H, T, T, dtype=dtype, seed=2)
    found = softmax_gradient(g, x.softmax(-1))
    assert agree((found,), lambda x: x.softmax(-1), x, g=g) <= tolerance


@precisions
@pytest.mark.parametrize("window", [0, 3])
def test_scale_mask_and_softmax_in_a_row(dtype, tolerance, window):
    x, g = some(H, T, T, dtype=dtype), some(H, T, T, dtype=dtype, seed=2)
    allowed = Sight(causal=True, window=window).allowed(T, None, x.device)

    def forward(scores: Tensor) -> Tensor:
        return attention_weights(mask_scores(scale_scores(scores, D), allowed))

    found = scale_scores(mask_gradient(softmax_gradient(g, forward(x.detach())), allowed), D)
    assert agree((found,), forward, x, g=g) <= tolerance
    assert not found[..., ~allowed].any()


@precisions
def test_what_is_masked_gets_nothing_whatever_comes(dtype, tolerance):
    x, g = some(H, T, T, dtype=dtype), some(H, T, T, dtype=dtype, seed=2)
    allowed = Sight(causal=True).allowed(T, None, x.device)
    found = mask_gradient(g.detach(), allowed)
    assert agree((found,), lambda x: mask_scores(x, allowed), x, g=g) <= tolerance
    assert mask_gradient(g, None) is g


@precisions
@groups
def test_scores_of_shared_keys(dtype, tolerance, n_groups):
    q, k, g = some(H, T, D, dtype=dtype), some(n_groups, T, D, dtype=dtype, seed=2), some(H, T, T, dtype=dtype, seed=3)
    found = scores_gradients(g.detach(), q.detach(), k.detach())
    assert agree(found, lambda q, k: attention_scores(q, repeat_groups(k, H)), q, k, g=g) <= tolerance


@precisions
@groups
def test_weighted_sums_of_shared_values(dtype, tolerance, n_groups):
    w, v, g = some(H, T, T, dtype=dtype), some(n_groups, T, D, dtype=dtype, seed=2), some(H, T, D, dtype=dtype, seed=3)
    found = mix_gradients(g.detach(), w.detach(), v.detach())
    assert agree(found, lambda w, v: w @ repeat_groups(v, H), w, v, g=g) <= tolerance


@precisions
def test_a_rotation_is_turned_back(dtype, tolerance):
    x, g = some(H, T, D, dtype=dtype), some(H, T, D, dtype=dtype, seed=2)
    angle = torch.arange(T, dtype=dtype)[:, None] * torch.linspace(1, 0.1, D // 2, dtype=dtype)
    cosine, sine = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
    found = rotation_gradient(g.detach(), cosine, sine)
    assert agree((found,), lambda x: rotate(x, cosine, sine), x, g=g) <= tolerance
    assert relative(rotate(found, cosine, sine), g.detach()) <= tolerance


@precisions
def test_heads_are_laid_side_by_side_and_taken_apart(dtype, tolerance):
    x, g = some(H, T, D, dtype=dtype), some(T, H * D, dtype=dtype, seed=2)
    assert agree((into_heads(g.detach(), D),), lambda x: x.transpose(0, 1).flatten(1), x, g=g) <= tolerance
    assert torch.equal(side_by_side(into_heads(g, D)), g)


@precisions
def test_a_linear_map(dtype, tolerance):
    x, weight, bias = some(T, C, dtype=dtype), some(V, C, dtype=dtype, seed=2), some(V, dtype=dtype, seed=3)
    g = some(T, V, dtype=dtype, seed=4)
    found = (g @ weight, weight_gradient(g, x), summed(g))
    assert agree(found, F.linear, x, weight, bias, g=g) <= tolerance


@precisions
@pytest.mark.parametrize("factor", [1.0, math.sqrt(C)])
def test_an_embedding_adds_up_where_a_token_comes_again(dtype, tolerance, factor):
    ids, g = torch.tensor([3, 1, 3, 3, 0, 16, 1, 2, 2]), some(T, C, dtype=dtype)
    table = Embedding(V, C, factor).to(dtype)
    found = table_gradient(g.detach(), ids, V, factor)
    (expected,) = torch.autograd.grad(table(ids), table.weight, g)
    assert relative(found, expected) <= tolerance


@precisions
@pytest.mark.parametrize("offset", [0, 2])
def test_positions_fill_their_own_rows(dtype, tolerance, offset):
    table, g = some(V, C, dtype=dtype), some(T, C, dtype=dtype, seed=2)
    found = position_rows(g.detach(), V, offset)
    assert agree((found,), lambda table: table[offset : offset + T], table, g=g) <= tolerance


@precisions
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("spread", [1.0, 0.01], ids=["centred", "around 1"])
def test_layer_norm(dtype, tolerance, eps, spread):
    x, g = some(H, T, C, dtype=dtype), some(H, T, C, dtype=dtype, seed=2)
    x = (1 - spread + spread * x).detach().requires_grad_()
    gain, bias = some(C, dtype=dtype, seed=3), some(C, dtype=dtype, seed=4)
    normed, _ = layer_normed(x, eps)
    found = (layer_norm_gradient(g, x, gain, eps), summed(g * normed), summed(g))
    assert agree(found, lambda x, gain, bias: F.layer_norm(x, (C,), gain, bias, eps), x, gain, bias, g=g) <= tolerance


@precisions
@pytest.mark.parametrize("eps", [1e-6, 0.3])
def test_rms_norm(dtype, tolerance, eps):
    x, g, gain = some(H, T, C, dtype=dtype), some(H, T, C, dtype=dtype, seed=2), some(C, dtype=dtype, seed=3)
    normed, _ = rms_normed(x, eps)
    found = (rms_norm_gradient(g, x, gain, eps), summed(g * normed))
    assert agree(found, lambda x, gain: F.rms_norm(x, (C,), gain, eps), x, gain, g=g) <= tolerance


def test_every_norm_and_activation_of_the_model_has_a_derivative():
    assert set(NORMS) == {"layernorm", "rmsnorm"}
    assert set(SLOPES) == set(ACTIVATIONS)


@precisions
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, dtype, tolerance):
    x = torch.cat((torch.linspace(-12, 12, 401, dtype=dtype), torch.zeros(1, dtype=dtype))).requires_grad_()
    g = some(len(x), dtype=dtype)
    assert agree((activation_gradient(g, x.detach(), name),), ACTIVATIONS[name], x, g=g) <= tolerance


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_keep_their_digits_in_float32(name):
    """Entry by entry, where the slope is far from 0 as where it is almost 0: no difference of near equals."""
    x = torch.linspace(-6, 6, 241)
    exact = SLOPES[name](x.double())
    large = exact.abs() > 1e-12
    found = SLOPES[name](x).double()
    assert float(((found - exact) / exact)[large].abs().max()) < 5e-5


@precisions
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gated_activation(name, dtype, tolerance):
    act = ACTIVATIONS[name]
    gate, hidden, g = (some(T, C, dtype=dtype, seed=seed) for seed in (1, 2, 3))
    found = gated_gradients(g.detach(), gate.detach(), hidden.detach(), act(gate).detach(), name)
    assert agree(found, lambda gate, hidden: act(gate) * hidden, gate, hidden, g=g) <= tolerance
