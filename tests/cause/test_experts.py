"""One expert ablated, patched and attributed, against models whose weights are changed instead."""

import copy
import math

import pytest
import torch
from architectures import asked, config_of, furthest, lively

from tinytf.api import Model
from tinytf.gradients.by_hand import agreement
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import record_gradients
from tinytf.steps.operations import Choose, Route
from tinytf.trace.check import check
from tinytf.trace.hooks import tap_steps

TEXT, OTHER = "3 14 15 9 2 6 5 30 3 11", "3 14 15 8 2 6 5 30 3 11"
IDS = torch.tensor([[int(word) for word in TEXT.split()]])
KINDS = ["experts, two a token", "experts beside a shared one, after a dense layer"]


@pytest.fixture(scope="module", params=KINDS)
def model(request) -> Model:
    return asked(lively(config_of(request.param)).double().requires_grad_(False))


def used_expert(model: Model) -> int:
    """One of the last layer that the last token is sent to."""
    return int(model.trace(TEXT).step("ffn.routes", 1)[-1].argmax())


@torch.no_grad()
def test_an_expert_ablated_is_one_whose_output_matrix_and_bias_are_0(model: Model) -> None:
    number = used_expert(model)
    found = model.ablate(TEXT, f"L1E{number}")
    assert found.check.holds
    assert [str(site) for site in found.sites] == [f"L1E{number}"]
    other = copy.deepcopy(model.transformer)
    down = other.blocks[1].ffn.experts.down
    down.weight[number] = 0.0
    if down.bias is not None:
        down.bias[number] = 0.0
    before, after = (one(IDS)[0, -1].log_softmax(-1) for one in (model.transformer, other))
    assert found.effect.kl == pytest.approx(float((before.exp() * (before - after)).sum()), abs=1e-10)


def test_a_sweep_over_experts_finds_what_each_does_alone(model: Model) -> None:
    number = used_expert(model)
    swept, alone = model.ablate_sweep(TEXT, "experts"), model.ablate(TEXT, f"L1E{number}")
    assert swept.check.holds
    found = dict(zip(swept.names, swept.effects, strict=True))
    assert found[f"L1E{number}"].kl == pytest.approx(alone.effect.kl, abs=1e-10)
    assert swept.kl.numel() == len(swept.names)


def test_experts_above_a_dense_layer_are_swept() -> None:
    config = config_of("experts, two a token", by_layer=(("experts", (0, 5)),))
    swept = asked(lively(config)).ablate_sweep(TEXT, "experts")
    assert swept.check.holds
    assert swept.names == tuple(f"L1E{number}" for number in range(5))


def test_a_trace_without_an_expert_adds_up_and_its_gradients_are_by_the_formulas(model: Model) -> None:
    number = used_expert(model)
    without = model.without(f"L1E{number}")
    trace = without.trace(TEXT)
    assert check(trace).holds
    assert not trace[f"L1E{number}.expert.added"].any()
    found = record_gradients(without.transformer, trace.encoding, Targets((8, 4), (11, 7)))
    assert agreement(found).telling.relative < 1e-9
    assert trace.is_exchanged("expert.added", 1, number)


def test_all_that_experts_add_patched_is_their_sum_patched(model: Model) -> None:
    settings = {"answer": 7, "versus": 21}
    experts = model.patch(TEXT, OTHER, [f"L1E{n}" for n in range(model.config.experts)], **settings)
    assert all(one.holds for one in experts.checks)
    if not model.config.d_shared:
        assert experts.value == pytest.approx(model.patch(TEXT, OTHER, "L1.ffn", **settings).value, abs=1e-9)


def test_experts_are_parts_of_a_logit(model: Model) -> None:
    found = model.attribute(TEXT)
    assert found.sum == pytest.approx(found.logit, abs=1e-10)
    parts = [part.name for part in found.parts if part.kind == "expert" and part.layer == 1]
    assert len(parts) == model.config.experts_per_token
    assert f"L1E{used_expert(model)}" in parts


@torch.no_grad()
def test_the_fused_experts_give_what_the_rows_give_one_after_the_other(model: Model) -> None:
    with tap_steps(model.transformer, lambda _, tensor: tensor):
        stepped = model.transformer(IDS)
    assert furthest(model.transformer(IDS), stepped) < 1e-12


def test_an_expert_that_is_not_there_is_one_clear_error(model: Model) -> None:
    with pytest.raises(Exception, match="there is no expert 77: the model has"):
        model.ablate(TEXT, "L1E77")
    with pytest.raises(Exception, match="this model has no experts"):
        asked(lively(config_of("gpt2"))).ablate(TEXT, "L1E0")


def test_sigmoids_that_are_nearly_0_are_divided_by_their_sum_and_an_epsilon() -> None:
    """LFM2-MoE adds 1e-6: with scores of 1e-6 each, two experts have weights of 1/3."""
    router = torch.full((1, 2), math.log(1e-6), dtype=torch.float64)
    assert Route("sigmoid", True, 1.0, 1e-6).forward(router, torch.ones(1, 2))[0].tolist() == pytest.approx([1 / 3] * 2)


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("renormed", [True, False])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_the_gradient_of_the_weights_is_autograds_and_none_goes_through_the_choice(
    score: str, renormed: bool, scale: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    router = torch.randn(6, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    g = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    route, chosen = Route(score, renormed, scale, 1e-20), Choose(2).forward(router)
    routes = route.forward(router, chosen)
    assert not chosen.requires_grad
    assert bool(((routes > 0) == (chosen > 0)).all())
    if renormed:
        assert routes.sum(-1).tolist() == pytest.approx([scale] * 6)
    (expected,) = torch.autograd.grad(routes, router, g)
    assert furthest(route._gradient(g, router.detach(), chosen != 0), expected) < 1e-12
