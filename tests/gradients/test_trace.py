"""The recorded backward pass: what autograd gives, by the addresses of a trace, and each formula held against it."""

import pytest
import torch
from architectures import config_of, encoding_of, lively
from caught_gradients import IDS, MASKED, MODELS, by_autograd, loss, model_of, relative, traced
from covering import along

from tinytf.errors import MemoryShortage, UsageError
from tinytf.gradients import trace as gradients_trace
from tinytf.gradients.by_hand import agreement
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import GradientTrace, record_gradients


def recorded(name: str, dtype: torch.dtype = torch.float64) -> GradientTrace:
    forward, targets = traced(name, dtype)
    return record_gradients(forward.model, forward.encoding, targets)


@pytest.mark.parametrize("name", MODELS)
def test_every_step_and_parameter_has_the_gradient_that_autograd_gives(name: str) -> None:
    found = recorded(name)
    steps, parameters = by_autograd(found.model, found.targets)
    for step, gradient in steps.items():
        assert relative(found.grad.step(*_place(step)), gradient) < 1e-12, step
    assert set(found.parameters) == set(parameters)
    for parameter, gradient in parameters.items():
        # A bias of keys that are not rotated has gradient 0; what there is of it is rounding.
        assert float((found.parameters[parameter] - gradient).abs().max()) < 1e-10 * gradient.abs().max() + 1e-14


def _place(name: str) -> tuple[str, int | None]:
    layer, _, short = name.partition(".")
    return (short, int(layer[1:])) if layer[1:].isdigit() else (name, None)


@pytest.mark.parametrize("name", MODELS)
def test_what_it_holds_of_the_forward_pass_is_the_trace(name: str) -> None:
    forward, targets = traced(name)
    found = record_gradients(forward.model, forward.encoding, targets)
    for step, layer in forward.steps.rows:
        if step.is_tensor:
            ours, theirs = (trace.step(step.name, layer).exp() for trace in (found, forward))  # masked scores are −∞
            assert relative(ours, theirs) < 1e-12, step.name
            assert found.grad.step(step.name, layer).shape == forward.step(step.name, layer).shape
    assert found.loss == pytest.approx(loss(forward, targets), abs=1e-12)
    assert len(found.losses) == len(targets.ids)


@along({"name": MODELS, "dtype, most": [(torch.float64, 1e-13), (torch.float32, 1e-5)]})
def test_each_formula_agrees_with_autograd(name: str, dtype: torch.dtype, most: float) -> None:
    found = agreement(recorded(name, dtype))
    assert found.holds
    assert max(one.difference for one in found.items) < most  # of gradients around 1; some parameters' are exactly 0
    paths = [
        path
        for path, _ in model_of(name).named_parameters()
        if not path.startswith(("pooler.", "pooling.")) and ".index_" not in path
    ]
    assert len(found.parameters) == len(paths)


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("name", ["gpt2", "llama, grouped"])
def test_formulas_agree_in_16_bits_where_squares_would_overflow(name: str, dtype: torch.dtype, most: float) -> None:
    forward, targets = traced(name, torch.float32)
    with torch.no_grad():
        forward.model.blocks[0].attention.o.weight *= 1000 / forward["L0.attn"].abs().max()
    found = record_gradients(forward.model.to(dtype), forward.encoding, targets)
    assert found["L0.mid"].abs().max() > 256
    assert max(one.relative for one in agreement(found).steps.values()) < most


def test_a_wrong_gradient_is_found_out() -> None:
    found = recorded("gpt2")
    found.grad.recording.tensors["L0.weights"][0, 3, 1] += 1e-4
    compared = agreement(found)
    assert not compared.holds
    assert compared.telling.step == "L0.weights"


def test_addresses_are_those_of_the_trace() -> None:
    found = recorded("llama, grouped")
    assert found.grad["L1H2.weights"].shape == found["L1H2.weights"].shape == (len(IDS), len(IDS))
    assert found.grad["L1H2.weights[4,3]"] == found.grad.step("weights", 1)[2, 4, 3]
    assert found.grad["L0-1.out"].shape == found["L0-1.out"].shape
    target = found.targets.ids[4]
    p = found["probs"][4, target]
    assert found.grad[f"probs[4,{target}]"] == pytest.approx(-1 / (len(IDS) - 1) / float(p))
    assert found.grad[f"logits[4,{target}]"] == pytest.approx((float(p) - 1) / (len(IDS) - 1))


def test_the_model_is_left_as_it_was() -> None:
    model = lively(config_of("gpt2")).train()
    first = next(model.parameters()).requires_grad_(False)
    record_gradients(model, encoding_of(IDS), Targets((2,), (5,)))
    assert model.training
    assert not first.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(block.fused for block in model.blocks)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_weights_that_are_no_floating_point_numbers_are_refused() -> None:
    model = lively(config_of("gpt2"))
    weight = model.blocks[0].ffn.up.weight
    model.blocks[0].ffn.up.weight = torch.nn.Parameter(weight.detach().to(torch.int8), requires_grad=False)
    with pytest.raises(UsageError, match=r"blocks\.0\.ffn\.up\.weight is of torch\.int8, which has no gradient"):
        record_gradients(model, encoding_of(IDS), Targets((2,), (5,)))


def test_what_would_not_fit_is_said_before_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients_trace, "UNASKED", 0)
    monkeypatch.setattr(gradients_trace, "free_bytes", lambda _: 1000)
    model = lively(config_of("gpt2"))
    with pytest.raises(MemoryShortage, match="a backward pass of 10 tokens through"):
        record_gradients(model, encoding_of(IDS), Targets((2,), (5,)))
    assert record_gradients(model, encoding_of(IDS), Targets((2,), (5,)), force=True).loss > 0


def test_masked_positions_are_predicted_by_an_encoder() -> None:
    found = recorded("bert with a masked head, untied")
    assert found.targets == MASKED
    assert float(found.grad["logits"][0].abs().max()) == 0
