"""Weights in any order are told: heads, experts and joint matrices, of orders that no table of mistakes lists."""

import pytest
import torch
from broken.bench import Port, cause_of, compared
from broken.patches import tensors

_EXPERTS, _HEADS = [3, 0, 5, 1, 2, 4], [2, 3, 1, 0]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_any_order_of_experts_is_solved_for() -> None:
    port = Port("mixtral", tensors(r"layers\.1\.mlp\.experts\.\w+", lambda w: w[_EXPERTS]), "L1.ffn")
    assert cause_of(compared(port)) == f"its experts in another order: {', '.join(map(str, _EXPERTS))}"


@pytest.mark.slow
def test_any_order_of_heads_is_solved_for() -> None:
    change = lambda w: w.unflatten(1, (4, -1))[:, _HEADS].flatten(1)  # noqa: E731
    port = Port("gemma2", tensors(r"layers\.2\.self_attn\.o_proj\.weight", change), "L2.attn")
    assert cause_of(compared(port)) == "its heads in another order: 2 3 1 0"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_head_that_is_left_out_is_named() -> None:
    change = lambda w: w.unflatten(1, (4, -1)).index_fill(1, torch.tensor([2]), 0.0).flatten(1)  # noqa: E731
    port = Port("llama", tensors(r"layers\.1\.self_attn\.o_proj\.weight", change), "L1.attn")
    assert cause_of(compared(port)) == "head 2 is left out"


@pytest.mark.parametrize(("rank", "told"), [(1, True), (2, True), (30, False)])
def test_a_matrix_that_is_added_is_told_where_its_rank_is_low(rank: int, told: bool) -> None:
    generator = torch.Generator().manual_seed(1)

    def change(w: torch.Tensor) -> torch.Tensor:
        a, b = torch.randn(len(w), rank, generator=generator), torch.randn(rank, w.shape[1], generator=generator)
        return w + 0.01 * a @ b

    port = Port("llama", tensors(r"layers\.1\.self_attn\.q_proj\.weight", change), "L1.q")
    assert (f"a matrix of rank {rank} is added" in cause_of(compared(port))) is told
