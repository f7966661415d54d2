"""Two kernels for one product, and a packed matrix: all are F.linear."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from architectures import config_of, furthest, lively, some_ids
from torch import Tensor

from tinytf.generate.decoder import Decoder
from tinytf.generate.loop import stream
from tinytf.steps import linear as module
from tinytf.steps import one_token as kernels
from tinytf.steps.linear import Linear, linear, onednn
from tinytf.steps.one_token import pack, packs

LARGE = (520, 510)  # (out, in): above the limit below which F.linear is taken
SHAPES = {"small": (7, 5), "just below": (512, 511), "at the limit": (512, 512), "above": LARGE, "tall": (30_000, 9)}
BEFORE = {"a vector": (), "one row": (1,), "rows": (3,), "texts": (2, 3), "heads": (2, 2, 3), "none": (0,)}


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(params=["as it is", "without oneDNN"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without oneDNN":
        monkeypatch.setattr(module, "has_onednn", lambda: False)
    return request.param


@torch.no_grad()
@pytest.mark.parametrize(
    ("size", "before"), [*((size, "texts") for size in SHAPES), *(("above", before) for before in BEFORE)]
)
def test_it_is_the_product_in_more_digits_for_every_shape(kernel: str, size: str, before: str) -> None:
    outputs, inputs = SHAPES[size]
    x, weight = numbers(*BEFORE[before], inputs), numbers(outputs, inputs, seed=1)
    for bias in (numbers(outputs, seed=2), None):
        found = linear(x, weight, bias)
        exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        assert found.dtype is torch.float32
        assert found.shape == exact.shape
        if exact.numel():
            assert furthest(found.double(), exact) < 1e-5
            assert furthest(found, F.linear(x, weight, bias)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    "arranged",
    [
        lambda x, weight: (x, weight.T.contiguous().T),
        lambda x, weight: (x.T.contiguous().T, weight),
        lambda x, weight: (x[:, None].expand(-1, 2, -1), weight),
        lambda x, weight: (x, torch.cat((weight, weight))[: len(weight)]),
        lambda x, weight: (x, torch.stack((weight, weight), -1)[..., 0]),
    ],
    ids=["weight transposed", "x transposed", "x expanded", "a part of a larger matrix", "every other number"],
)
def test_it_does_not_matter_how_the_numbers_lie_in_memory(kernel: str, arranged: Callable) -> None:
    x, weight = arranged(numbers(3, LARGE[1]), numbers(*LARGE, seed=1))
    exact = x.double() @ weight.double().T
    assert furthest(linear(x, weight, None).double(), exact) < 1e-5


@pytest.mark.parametrize("size", ["small", "above"])
def test_gradients_are_those_of_torchs_own(kernel: str, size: str) -> None:
    outputs, inputs = SHAPES[size]
    grads = []
    for function in (linear, F.linear):
        leaves = [numbers(3, inputs), numbers(outputs, inputs, seed=1), numbers(outputs, seed=2)]
        for leaf in leaves:
            leaf.requires_grad_()
        function(*leaves).square().sum().backward()
        grads.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*grads, strict=True):
        assert theirs.abs().max() > 0
        assert torch.equal(ours, theirs)


LONG = {"a text": ((700,), True), "texts": ((3, 250), True), "without bias": ((700,), False), "few rows": ((3,), True)}
"""Shapes before the last of x, and whether there is a bias; but for the last, so much work that oneDNN does it."""


def leaves(before: tuple[int, ...], *, bias: bool, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    made = [numbers(*before, 96, dtype=dtype), numbers(80, 96, seed=1, dtype=dtype)]
    return [one.requires_grad_() for one in [*made, *([numbers(80, seed=2, dtype=dtype)] if bias else [])]]


@pytest.mark.parametrize("case", LONG)
def test_gradients_of_a_long_product_are_those_in_more_digits(kernel: str, case: str) -> None:
    before, bias = LONG[case]
    grads = []
    for dtype in (torch.float32, torch.float64):
        given = leaves(before, bias=bias, dtype=dtype)
        made = linear(*given) if bias else linear(*given, None)
        assert made.shape == (*before, 80)
        made.sin().sum().backward()
        grads.append([one.grad for one in given])
    for ours, exact in zip(*grads, strict=True):
        assert exact.abs().max() > 0.1
        assert furthest(ours.double(), exact) < 1e-5


def test_a_single_vector_has_gradients_through_a_large_matrix(kernel: str) -> None:
    given = [numbers(2048).requires_grad_(), numbers(2048, 2048, seed=1).requires_grad_()]
    linear(*given, None).sum().backward()
    assert furthest(given[0].grad, given[1].detach().sum(0)) < 1e-5
    assert torch.equal(given[1].grad, given[0].detach().expand(2048, -1))


@pytest.mark.parametrize("frozen", [0, 1, 2], ids=["x", "weight", "bias"])
def test_what_is_frozen_gets_no_gradient_and_the_others_the_same(kernel: str, frozen: int) -> None:
    free, given = leaves((700,), bias=True), leaves((700,), bias=True)
    given[frozen].requires_grad_(False)
    for function, these in ((F.linear, free), (linear, given)):
        function(*these).sum().backward()  # the gradient above is one number, expanded
    assert given[frozen].grad is None
    for ours, theirs in zip(given, free, strict=True):
        assert ours is given[frozen] or furthest(ours.grad, theirs.grad) < 1e-5


def test_a_gradient_of_a_gradient_is_torchs_own(kernel: str) -> None:
    found = []
    for function in (F.linear, linear):
        given = leaves((700,), bias=True)
        first = torch.autograd.grad(function(*given).sin().sum(), given, create_graph=True)
        sum(one.square().sum() for one in first).backward()
        found.append([one.grad for one in given])
    for theirs, ours in zip(*found, strict=True):
        assert theirs.abs().max() > 0.1
        assert furthest(ours, theirs) < 1e-4


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_other_dtypes_are_torchs_own(dtype: torch.dtype, near: float) -> None:
    x, weight, bias = numbers(2, LARGE[1], dtype=dtype), numbers(*LARGE, seed=1, dtype=dtype), numbers(LARGE[0])
    found = linear(x, weight, bias.to(dtype))
    assert found.dtype is dtype
    assert torch.equal(found, F.linear(x, weight, bias.to(dtype)))
    assert furthest(found.double(), x.double() @ weight.double().T + bias.to(dtype).double()) < near


@torch.no_grad()
def test_a_change_of_a_large_weight_is_seen_at_once(kernel: str) -> None:
    x, weight = numbers(1, LARGE[1]), numbers(*LARGE, seed=1)
    before = linear(x, weight, None)
    weight.mul_(2)
    assert torch.allclose(linear(x, weight, None), 2 * before, atol=1e-4)


def test_the_module_is_torchs_own_with_the_same_names(kernel: str) -> None:
    ours, theirs = Linear(LARGE[1], LARGE[0]), torch.nn.Linear(LARGE[1], LARGE[0])
    theirs.load_state_dict(ours.state_dict())
    x = numbers(2, LARGE[1])
    assert torch.equal(ours(x), theirs(x))
    with torch.inference_mode():
        assert furthest(ours(x), theirs(x)) < 1e-5


needs_packing = pytest.mark.skipif(not packs(), reason="torch has no packed products here")


@needs_packing
@torch.inference_mode()
@pytest.mark.parametrize("size", [(1, 1), (3, 1), (1, 7), (7, 5), (33, 17), (64, 130), (1001, 63)], ids=str)
def test_a_packed_matrix_gives_the_product_for_odd_sizes(size: tuple[int, int]) -> None:
    weight = numbers(*size, seed=1).bfloat16()
    for rows, bias in itertools.product((1, 2, 5), (numbers(size[0], seed=2).bfloat16(), None)):
        x = numbers(rows, size[1]).bfloat16()
        exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        found = onednn(x, pack(weight), bias)
        assert found.dtype is torch.bfloat16
        assert furthest(found.double(), exact) < 2**-7  # bfloat16 has 8 bits
        assert furthest(found.double(), F.linear(x, weight, bias).double()) < 2**-7


@needs_packing
@torch.inference_mode()
def test_packing_leaves_the_matrix_alone_and_takes_a_transposed_one() -> None:
    weight = numbers(5, 7, seed=1).bfloat16()
    before, x = weight.clone(), numbers(2, 7).bfloat16()
    straight, turned = pack(weight), pack(weight.T.contiguous().T)
    assert torch.equal(weight, before)
    assert torch.equal(onednn(x, straight, None), onednn(x, turned, None))
    weight.zero_()  # a copy of that moment
    assert onednn(x, straight, None).abs().max() > 0


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped"])
def test_a_decoder_works_where_nothing_can_be_packed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively(config_of(kind)).bfloat16()
    ids = some_ids(model.config, 1, 7)
    monkeypatch.setattr(kernels, "packs", lambda: False)
    monkeypatch.setattr(kernels, "pack", lambda weight: pytest.fail("packed all the same"))
    decoder = Decoder(model, model.cache())
    found = torch.stack([decoder(column) for column in ids.unbind(1)], dim=1)
    assert furthest(found.float(), model(ids).float()) < 0.1
    assert len(list(stream(model, [3, 17], max_tokens=5))) == 5
