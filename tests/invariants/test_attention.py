"""The attention core, fused and step by step, against equation 1 of Vaswani et al. written out with loops."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from architectures import KINDS, config_of, furthest, lively, padding, some_ids
from covering import along
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Block
from tinytf.steps.operations.operation import Pass
from tinytf.steps.program import Fused
from tinytf.trace.hooks import Tap, tap_steps

B, T, D = 3, 9, 10
HEADS = [(4, 4), (4, 2), (6, 2), (4, 1), (1, 1)]
CASES = list(itertools.product((True, False), HEADS, ("none", "left", "right")))
case = pytest.mark.parametrize(
    ("causal", "heads", "side"),
    CASES,
    ids=[f"{'causal' if c else 'both ways'}-{h} over {g}-padding {s}" for c, (h, g), s in CASES],
)


def some_qkv(n_heads: int, groups: int, width: int = D) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n_heads * 10 + groups)
    return tuple(torch.randn(B, count, T, width, generator=generator) for count in (n_heads, groups, groups))


Core = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def core(kind: str, *, causal: bool, window: int = 0, width: int = D, tap: Tap | None = None) -> Core:
    """The rows from scores to heads of a model whose heads are so wide; they take any number of them."""
    sizes = {"vocab_size": 8, "d_model": width, "n_layers": 1, "n_heads": 1, "d_head": width, "d_ff": 8, "context": 64}
    block = Block(ModelConfig.of(**sizes, causal=causal, window=window, positions="none"), 0)
    rows = [row for row in block.rows if row.step.core]
    (fused,) = (part for part in block.program if isinstance(part, Fused))
    assert fused.fits
    for row in rows if tap is not None else ():
        row.module.register_forward_hook(lambda module, args, made, name=row.name: tap(name, made))

    def run(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        values, now = {"q": q, "k": k, "v": v}, Pass(padding_mask=real)
        if kind == "fused":
            return fused(values, now)
        for row in rows:
            values[row.name] = row(values, now)
        return values["head_out"]

    return run


CORES = ("fused", "steps")


def by_loops(q: Tensor, k: Tensor, v: Tensor, causal: bool, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights and mixed values in float64, one query at a time; query head h reads key head h // (H / G)."""
    batch, n_heads, length, width = q.shape
    each = n_heads // k.shape[1]
    weights = torch.zeros(batch, n_heads, length, length, dtype=torch.float64)
    mixed = torch.zeros(batch, n_heads, length, width, dtype=torch.float64)
    for b, h, i in itertools.product(range(batch), range(n_heads), range(length)):
        keys = [j for j in range(length) if (not causal or j <= i) and (real is None or real[b, j])]
        if not keys:
            continue
        exponentials = [
            math.exp(float(q[b, h, i].double() @ k[b, h // each, j].double()) / math.sqrt(width)) for j in keys
        ]
        for j, exponential in zip(keys, exponentials, strict=True):
            weights[b, h, i, j] = exponential / sum(exponentials)
            mixed[b, h, i] += weights[b, h, i, j] * v[b, h // each, j]
    return weights, mixed


@case
def test_both_cores_compute_the_equation(causal, heads, side):
    q, k, v = some_qkv(*heads)
    real = padding(side, B, T)
    seen: dict[str, Tensor] = {}
    stepped = core("steps", causal=causal, tap=lambda name, tensor: seen.setdefault(name, tensor))(q, k, v, real)
    weights, mixed = by_loops(q, k, v, causal, real)
    assert furthest(seen["weights"].double(), weights) < 1e-6
    assert furthest(stepped.double(), mixed) < 1e-6
    assert furthest(core("fused", causal=causal)(q, k, v, real).double(), mixed) < 1e-6


@case
def test_fused_equals_step_by_step(causal, heads, side):
    for width in (D, 3):
        q, k, v = some_qkv(*heads, width)
        real = padding(side, B, T)
        fused, stepped = (core(kind, causal=causal, width=width)(q, k, v, real) for kind in CORES)
        assert furthest(fused, stepped) < 1e-6


@along({"kind": KINDS, "side": ["none", "left", "right"]})
def test_a_whole_model_is_the_same_with_either_core(kind, side):
    model = lively(config_of(kind))
    ids = some_ids(model.config)
    real = padding(side, *ids.shape)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        model.to(dtype)
        with torch.no_grad():
            fused = model(ids, padding_mask=real)
            model.fuse(False)
            assert furthest(model(ids, padding_mask=real), fused) < tolerance
            model.fuse(True)


@pytest.mark.parametrize("kind", CORES)
@pytest.mark.parametrize("window", [1, 3, T, T + 1])
def test_a_window_hides_all_but_the_last_keys(kind, window):
    """Each query against softmax attention over the keys of its own window alone."""
    q, k, v = some_qkv(4, 4)
    mixed = core(kind, causal=True, window=window)(q, k, v, None)
    for t in range(T):
        seen = slice(max(0, t - window + 1), t + 1)
        weights = (q[:, :, t : t + 1] @ k[:, :, seen].transpose(-2, -1) / D**0.5).softmax(-1)
        assert furthest(mixed[:, :, t : t + 1], weights @ v[:, :, seen]) < 1e-6


@pytest.mark.parametrize("kind", CORES)
@pytest.mark.parametrize("causal", [True, False])
def test_a_query_that_may_look_nowhere_gets_zeros(kind, causal):
    q, k, v = some_qkv(4, 2)
    real = torch.ones(B, T, dtype=torch.bool)
    real[0] = False
    real[1, :4] = False
    mixed = core(kind, causal=causal)(q, k, v, real)
    assert torch.isfinite(mixed).all()
    assert (mixed[0] == 0).all()
    assert ((mixed[1, :, :4] == 0).all()) == causal
    assert (mixed[2] != 0).any()


@pytest.mark.parametrize("kind", CORES)
def test_gradients_stay_finite_where_a_query_may_look_nowhere(kind):
    q, k, v = (tensor.requires_grad_() for tensor in some_qkv(4, 4))
    core(kind, causal=True)(q, k, v, padding("left", B, T)).sum().backward()
    assert all(torch.isfinite(tensor.grad).all() for tensor in (q, k, v))


def test_a_tap_sees_every_step_in_order():
    q, k, v = some_qkv(4, 2)
    seen: list[tuple[str, tuple[int, ...]]] = []

    def tap(name: str, tensor: Tensor) -> Tensor:
        seen.append((name, tuple(tensor.shape)))
        return tensor

    core("steps", causal=True, tap=tap)(q, k, v, None)
    square = (B, 4, T, T)
    assert seen == [
        ("scores", square),
        ("scaled", square),
        ("masked", square),
        ("weights", square),
        ("head_out", (B, 4, T, D)),
    ]


@pytest.mark.parametrize("step", ["scores", "scaled", "masked", "weights", "head_out"])
def test_a_tap_can_replace_each_step(step):
    """Where a step is replaced by zeros, what follows is known: equal scores mix evenly, no weights mix nothing."""
    q, k, v = some_qkv(2, 2)

    def tap(name: str, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor) if name == step else tensor

    mixed = core("steps", causal=True, tap=tap)(q, k, v, None)
    running_mean = v.cumsum(2) / torch.arange(1, T + 1)[:, None]
    everywhere = v.mean(2, keepdim=True).expand_as(v)
    nothing = torch.zeros_like(v)
    expected = {
        "scores": running_mean, "scaled": running_mean, "masked": everywhere, "weights": nothing, "head_out": nothing,
    }  # fmt: skip
    assert furthest(mixed, expected[step]) < 1e-6


def test_a_tap_reaches_every_layer_of_a_model_and_is_taken_off_again():
    model = lively(config_of("llama, grouped"))
    ids, layers = some_ids(model.config), []
    plain = model(ids)
    with tap_steps(model, lambda name, tensor: layers.append(name) or tensor):
        model(ids)
    assert [name for name in layers if name.endswith(".weights")] == ["L0.weights", "L1.weights"]
    with tap_steps(model, lambda name, tensor: tensor * 0, ["head_out"]):
        assert furthest(model(ids), plain) > 1e-2
    assert torch.equal(model(ids), plain)


@pytest.mark.parametrize("step", ["scores", "weights"])
def test_a_hook_between_scores_and_heads_is_called_with_the_steps_own_numbers(step):
    """What stands in for several steps does so only while none of them is hooked."""
    model = lively(config_of("gpt2"))
    ids, seen = some_ids(model.config), []
    plain = model(ids)
    hook = model.blocks[1].get_submodule(step).register_forward_hook(lambda module, args, made: seen.append(made))
    assert furthest(model(ids), plain) < 1e-5
    hook.remove()
    (found,) = seen
    assert found.shape == (len(ids), model.config.n_heads, ids.shape[1], ids.shape[1])
    if step == "weights":
        assert furthest(found.sum(-1), torch.ones(found.shape[:-1])) < 1e-6
    assert torch.equal(model(ids), plain)


@pytest.mark.parametrize("step", ["weights", "head_out"])
def test_a_backward_hook_is_called_with_the_gradient_of_its_step(step):
    model = lively(config_of("gpt2"))
    seen = []
    hook = (
        model.blocks[1].get_submodule(step).register_full_backward_hook(lambda module, into, out: seen.append(out[0]))
    )
    model(some_ids(model.config)).square().mean().backward()
    hook.remove()
    (found,) = seen
    assert found.shape[:2] == (3, model.config.n_heads)
    assert float(found.abs().max()) > 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if config_of(kind).causal])
def test_a_decoder_never_sees_what_comes_after(kind):
    model = lively(config_of(kind))
    ids = some_ids(model.config)
    changed = ids.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % model.config.vocab_size
    before, after = model(ids), model(changed)
    assert furthest(before[:, :7], after[:, :7]) < 1e-6
    assert furthest(before[:, 7:], after[:, 7:]) > 1e-2


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not config_of(kind).causal])
def test_an_encoder_sees_both_ways(kind):
    model = lively(config_of(kind))
    ids = some_ids(model.config)
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % model.config.vocab_size
    assert furthest(model(ids)[:, 0], model(changed)[:, 0]) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_behind_padding_does_not_matter(kind):
    model = lively(config_of(kind))
    ids = some_ids(model.config)
    real = padding("right", *ids.shape)
    changed = torch.where(real, ids, (ids + 1) % model.config.vocab_size)
    assert furthest(model(changed, padding_mask=real)[real], model(ids, padding_mask=real)[real]) < 1e-6


def test_more_tokens_than_the_context_are_refused_with_both_numbers():
    model = lively(config_of("gpt2"))
    with pytest.raises(UsageError, match=r"^33 tokens are more than the model's context of 32$"):
        model(torch.zeros(1, 33, dtype=torch.long))
    assert model(torch.zeros(1, 32, dtype=torch.long)).shape == (1, 32, 31)


def test_in_training_attention_is_computed_in_float32_whatever_the_products_are_in() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 9, 8, generator=generator).bfloat16().requires_grad_() for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        heads = core("fused", causal=True, width=8)(q, k, v, None)
    assert heads.dtype is torch.bfloat16
    whole = core("fused", causal=True, width=8)(q.float(), k.float(), v.float(), None)
    assert torch.equal(heads, whole.bfloat16())
    heads.float().square().sum().backward()
    assert q.grad is not None
    assert q.grad.dtype is torch.bfloat16
