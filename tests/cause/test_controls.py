"""Random controls: which interventions they are, and their effects beside plain hooks in float64."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest
import torch
from architectures import asked, config_of, encoding_of, lively, some_ids
from torch import Tensor

import tinytf
from tinytf.cause.interventions.controls import Control, has_directions, random_sets, random_vectors
from tinytf.cause.interventions.hooks import hook_points
from tinytf.errors import UsageError
from tinytf.steps.table import table_of
from tinytf.trace.record import record

A, B, LENGTH = 3, 4, 9
CLEAN, CORRUPT = "The cat lost the ball. The cat lost the", "The cat lost the hat. The cat lost the"


@contextmanager
def input_of_o(block: Any, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Pass the heads side by side, (1, T, H, D), through a change before the output projection."""
    n_heads = 4
    handle = block.attention.o.register_forward_pre_hook(
        lambda _, args: (change(args[0].unflatten(-1, (n_heads, -1)).clone()).flatten(-2),)
    )
    yield
    handle.remove()


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped", "gemma 2, norms around each part and windows by layer"])
def test_the_controls_of_a_head_are_the_other_heads_of_its_layer(kind: str) -> None:
    model = lively(config_of(kind)).double()
    ids = [some_ids(model.config, 1, LENGTH, seed=seed)[0].tolist() for seed in (5, 6)]
    clean, corrupt = (record(model, encoding_of(of)) for of in ids)
    block: Any = model.blocks[1]
    heads: list[Tensor] = []

    def lead(of: list[int], change: Callable[[Tensor], Tensor]) -> float:
        with torch.no_grad(), input_of_o(block, change):
            logits = model(torch.tensor([of]))[0, -1]
        return float(logits[A] - logits[B])

    plain = [lead(of, lambda x: heads.append(x) or x) for of in ids]  # type: ignore[func-returns-value]

    def without(head: int) -> Callable[[Tensor], Tensor]:
        return lambda x: x.index_fill(2, torch.tensor([head]), 0.0)

    def patched(head: int) -> Callable[[Tensor], Tensor]:
        return lambda x: x.index_copy(2, torch.tensor([head]), heads[0][:, :, [head]])

    ablated = asked(model).ablate(clean, "L1H2", target=A, versus=B).control
    shares = asked(model).patch(clean, corrupt, "L1H2", answer=A, versus=B).control
    changes = [lead(ids[0], without(head)) - plain[0] for head in range(4)]
    recovered = [(lead(ids[1], patched(head)) - plain[1]) / (plain[0] - plain[1]) for head in range(4)]
    for control, effects in ((ablated, changes), (shares, recovered)):
        others = [abs(effects[head]) for head in (0, 1, 3)]
        assert control is not None
        assert control.effect == pytest.approx(effects[2], abs=1e-9)
        assert (control.median, control.largest) == pytest.approx((median(others), max(others)), abs=1e-9)
        assert (control.count, control.reached) == (3, sum(size >= abs(effects[2]) for size in others))
        assert control.what == "other heads of L1"


@pytest.mark.parametrize(("at", "module"), [("L1.ffn", "ffn.down"), ("L0.attn", "attention.o")])
def test_the_controls_of_a_whole_step_move_each_token_as_far_in_random_directions(at: str, module: str) -> None:
    model, count, seed = lively(config_of("gpt2")).double(), 4, 3
    ids = [some_ids(model.config, 1, LENGTH, seed=seed)[0].tolist() for seed in (5, 6)]
    clean, corrupt = (record(model, encoding_of(of)) for of in ids)
    part = model.blocks[int(at[1])].get_submodule(module)
    values: list[Tensor] = []

    def lead(of: list[int], change: Callable[[Tensor], Tensor]) -> float:
        handle = part.register_forward_hook(lambda *args: change(args[2]))
        with torch.no_grad():
            logits = model(torch.tensor([of]))[0, -1]
        handle.remove()
        return float(logits[A] - logits[B])

    plain = [lead(of, lambda x: values.append(x[0]) or x) for of in ids]  # type: ignore[func-returns-value]

    def controls(own: Tensor, change: Tensor, of: list[int]) -> list[float]:
        dice = torch.Generator().manual_seed(seed)
        leads = list[float]()
        for _ in range(count):
            drawn = torch.randn(own.shape, generator=dice, dtype=torch.float64)
            moved = own + drawn / drawn.norm(dim=1, keepdim=True) * change.norm(dim=1, keepdim=True)
            leads.append(lead(of, lambda x, moved=moved: moved[None]))  # type: ignore[misc]
        return leads

    cut, patched = lead(ids[0], torch.zeros_like), lead(ids[1], lambda x: values[0][None])
    changes = [one - plain[0] for one in controls(values[0], -values[0], ids[0])]
    recovered = controls(values[1], values[0] - values[1], ids[1])
    recovered = [(one - plain[1]) / (plain[0] - plain[1]) for one in recovered]
    ablated = asked(model).ablate(clean, at, target=A, versus=B, controls=count, seed=seed).control
    shares = asked(model).patch(clean, corrupt, at, answer=A, versus=B, controls=count, seed=seed).control
    effects = cut - plain[0], (patched - plain[1]) / (plain[0] - plain[1])
    for control, effect, others in ((ablated, effects[0], changes), (shares, effects[1], recovered)):
        assert control is not None
        sizes = [abs(other) for other in others]
        assert control.effect == pytest.approx(effect, abs=1e-9)
        assert (control.median, control.largest) == pytest.approx((median(sizes), max(sizes)), abs=1e-9)
        assert (control.count, control.reached) == (count, sum(size >= abs(effect) for size in sizes))
        assert control.what == "changes of the same length in random directions"


@pytest.mark.parametrize("at", ["L1H0-3", "L1.weights[-1,2]", "L1.weights"])
def test_what_is_no_vector_of_each_token_has_no_directions(at: str) -> None:
    tokens = [str(number) for number in range(LENGTH)]
    table = table_of(config_of("gpt2"))
    assert not has_directions(hook_points(at, table, tokens), table)


def test_the_largest_of_a_sweep_stands_beside_the_rest_of_it() -> None:
    model = lively(config_of("gpt2")).double()
    ids = [some_ids(model.config, 1, LENGTH, seed=seed)[0].tolist() for seed in (5, 6)]
    clean, corrupt = (record(model, encoding_of(of)) for of in ids)
    heads: dict[int, Tensor] = {}

    def lead(of: list[int], layer: int, change: Callable[[Tensor], Tensor]) -> float:
        with torch.no_grad(), input_of_o(model.blocks[layer], change):
            logits = model(torch.tensor([of]))[0, -1]
        return float(logits[A] - logits[B])

    changes, recovered = [], []
    for layer in range(model.config.n_layers):
        before, after = (lead(of, layer, lambda x, n=layer: heads.setdefault(n, x.clone()) is None or x) for of in ids)
        for head in range(4):
            at = torch.tensor([head])
            changes.append(lead(ids[0], layer, lambda x, at=at: x.index_fill(2, at, 0.0)) - before)
            moved = lead(ids[1], layer, lambda x, at=at, n=layer: x.index_copy(2, at, heads[n][:, :, at])) - after
            recovered.append(moved / (before - after))
    ablated = asked(model).ablate_sweep(clean, "heads", target=A, versus=B).control
    shares = asked(model).patch_sweep(clean, corrupt, "heads", answer=A, versus=B).control
    for control, effects, what in ((ablated, changes, "heads"), (shares, recovered, "patches")):
        first, *others = sorted(map(abs, effects), reverse=True)
        assert control is not None
        assert abs(control.effect) == pytest.approx(first, abs=1e-9)
        assert (control.median, control.largest) == pytest.approx((median(others), others[0]), abs=1e-9)
        assert (control.count, control.reached) == (len(effects) - 1, 0)
        assert control.words == f"the largest of {len(effects)} {what}"


def test_what_was_not_measured_is_no_control_and_equal_effects_share_their_rank() -> None:
    assert Control.of_sweep("heads", []) is None
    assert Control.of_sweep("heads", [math.nan, 2.0]) is None
    assert Control.of("other heads", math.nan, [1.0]) is None
    some = Control.of_sweep("heads", [1.0, math.nan, -3.0, 0.5])
    assert some == Control("heads", 2, -3.0, 0, 0.75, 1.0, picked=True)
    equal = Control.of_sweep("heads", [0.0, 0.0, 0.0])
    assert equal is not None
    assert equal.words == "one of 3 equal largest of 3 heads"


def test_random_sets_are_distinct_sets_of_the_same_layers_other_than_the_one_asked_for() -> None:
    table = table_of(config_of("gpt2"))
    points = hook_points(["L0H1", "L1H0", "L1H3"], table)
    what, sets = random_sets(points, table, 20, seed=0)
    assert what == "random sets of 3 heads of the same layers"
    assert len({frozenset(one) for one in sets}) == len(sets) == 20
    assert frozenset(points) not in {frozenset(one) for one in sets}
    assert all(sorted(point.layer for point in one) == [0, 1, 1] for one in sets)
    assert random_sets(points, table, 20, seed=0)[1] == sets != random_sets(points, table, 20, seed=1)[1]
    assert len(random_sets(points, table, 100, seed=0)[1]) == 4 * 6 - 1  # all there are
    what, sets = random_sets(hook_points("L1.7", table), table, 10, seed=0)
    assert (what, len(sets)) == ("random units of L1", 10)


@pytest.mark.parametrize("at", ["L1.attn", "L1", "L1.in", "L1H0-3"])
def test_where_there_are_no_others_of_a_kind_there_are_no_random_sets(at: str) -> None:
    table = table_of(config_of("gpt2"))
    assert random_sets(hook_points(at, table), table, 10, seed=0)[1] == []


def test_random_vectors_have_the_length_and_no_direction_in_common() -> None:
    vector = torch.randn(500, generator=torch.Generator().manual_seed(1))
    drawn = torch.stack(random_vectors(vector, 200, seed=0))
    assert torch.allclose(drawn.norm(dim=1), vector.norm(), rtol=1e-5)
    cosines = torch.nn.functional.cosine_similarity(drawn, vector[None])
    assert float(cosines.abs().max()) < 0.25  # 5 standard deviations
    assert torch.equal(drawn, torch.stack(random_vectors(vector, 200, seed=0)))


def test_a_random_vector_that_steers_is_its_own_control() -> None:
    """Of vectors drawn like the controls, as many as chance says have an effect that few controls reach."""
    model = tinytf.load("tiny")
    lengths = torch.full((128,), 1.0)
    shares = []
    for vector in random_vectors(lengths, 12, seed=7):
        curve = model.steer_curve(CLEAN, {"L1.out": vector}, strengths=[1.0], ask=["ball", "hat"], controls=12)
        assert curve.control is not None
        shares.append(curve.control.reached / curve.control.count)
    assert 0.2 < sum(shares) / len(shares) < 0.8


def test_none_are_run_where_none_are_asked_for_and_fewer_are_refused() -> None:
    model = tinytf.load("tiny")
    assert model.ablate(CLEAN, "L1H0", controls=0).control is None
    assert model.patch(CLEAN, CORRUPT, "L1.ffn", controls=0).control is None
    assert model.patch(CLEAN, CORRUPT, "L1H0-3").control is None  # there is no other head, and no direction of all
    with pytest.raises(UsageError, match="-1 random controls"):
        model.patch(CLEAN, CORRUPT, "L1H0", controls=-1)
