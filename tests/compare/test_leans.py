"""Leans of errors, beside errors that are drawn: what rounding does by chance is none, what a fault does is one."""

import pytest
import torch
from torch import Tensor

from tinytf.compare.leans import Lean, OwnLeans, leaning
from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.table import table_of

_TOKENS, _WIDTH = 20, 64


def _step(name: str) -> Step:
    config = ModelConfig.of(
        vocab_size=50, context=32, d_model=_WIDTH, n_heads=4, n_layers=1, d_ff=64, positions="rotary", norm="rmsnorm"
    )
    return table_of(config).at(name, 0)


def _rounded(x: Tensor, seed: int) -> Tensor:
    """Each number off by up to one part in 256, as in bfloat16."""
    return x * (1 + (torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) - 0.5) / 128)


def _lean(change: "object", seed: int = 0, name: str = "q") -> Lean | None:
    step = _step(name)
    x = torch.randn(4, _TOKENS, 16, generator=torch.Generator().manual_seed(seed + 100))
    x = x if step.has_heads else x.transpose(0, 1).flatten(1)
    own = [one for run in (1, 2) if (one := leaning(x, _rounded(x, seed + run), step)) is not None]
    theirs = leaning(x, change(_rounded(x, seed + 3)), step)  # type: ignore[operator]
    assert theirs is not None
    return OwnLeans.of(own).failed(theirs, own)


@pytest.mark.parametrize("name", ["q", "norm1"])
def test_errors_drawn_at_random_never_lean(name: str) -> None:
    assert [_lean(lambda y: y, seed, name) for seed in range(50)] == [None] * 50


def test_errors_twice_as_large_do_not_lean() -> None:
    assert all(_lean(lambda y: _rounded(_rounded(y, 7), 8), seed) is None for seed in range(20))


@pytest.mark.parametrize("factor", [1.01, 0.995])
def test_a_factor_leans_with_the_value(factor: float) -> None:
    lean = _lean(lambda y: y * factor)
    assert lean is not None
    assert (lean.test, lean.head) == ("factor", None)
    assert lean.amount == pytest.approx(factor - 1, abs=5e-4)


def test_a_constant_leans_one_way() -> None:
    lean = _lean(lambda y: y - 0.01)
    assert lean is not None
    assert (lean.test, lean.amount) == ("bias", pytest.approx(-0.01, rel=0.1))


def test_one_head_that_leans_is_named() -> None:
    lean = _lean(lambda y: y * torch.tensor([1.0, 1.0, 1.02, 1.0])[:, None, None])
    assert lean is not None
    assert (lean.test, lean.head, lean.amount) == ("factor", 2, pytest.approx(0.02, rel=0.05))


def test_a_vector_that_every_token_has_is_a_bias() -> None:
    vector = 0.02 * torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(16)
    lean = _lean(lambda y: y + vector, name="norm1")
    assert lean is not None
    assert (lean.test, lean.amount) == ("vector", pytest.approx(0.02, rel=0.1))


def test_an_error_of_one_token_is_no_lean_of_all() -> None:
    """A norm rounds the length by which it divides a token: all its numbers then err alike."""
    scale = torch.ones(_TOKENS).index_fill(0, torch.tensor([7]), 1.002)
    assert _lean(lambda y: y * scale[:, None]) is None
