"""What tokens and heads add to a prediction: completeness on every model, and sums against plain loops."""

import math

import pytest
import torch
from architectures import KINDS, config_of
from caught_gradients import IDS, MODELS, by_autograd, loss, model_of, traced
from covering import along

from tinytf.errors import UsageError
from tinytf.gradients import saliency
from tinytf.gradients.loss import Targets
from tinytf.gradients.saliency import (
    MOST_POINTS,
    Integrated,
    attention_times_gradient,
    gradient_times_input,
    integrated_gradients,
)
from tinytf.gradients.trace import GradientTrace, record_gradients
from tinytf.loading import load
from tinytf.model.transformer import Transformer
from tinytf.trace.hooks import tap_steps

ROUTED = [kind for kind in KINDS if config_of(kind).experts or config_of(kind).index_keys]
EXPERTS = [name for name in MODELS if name.startswith(tuple(ROUTED))]


@along({"name": [name for name in MODELS if name not in EXPERTS], "dtype": [torch.float64, torch.float32]})
def test_attributions_sum_to_what_the_text_adds(name: str, dtype: torch.dtype) -> None:
    forward, targets = traced(name, dtype)
    found = integrated_gradients(forward.model, forward.encoding, targets)
    assert found.holds
    assert len(found.attributions) == len(IDS)
    assert found.points < MOST_POINTS
    assert found.at_input == pytest.approx(-loss(forward, targets), abs=1e-5)
    assert abs(found.sum - found.difference) <= max(0.01 * abs(found.difference), 1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_in_16_bits_is_integrated_in_float32(dtype: str) -> None:
    model = load("tiny", device="cpu", dtype=dtype)
    encoding, targets = model.encode("The cat sat on the"), Targets((3,), (7,))
    found = integrated_gradients(model.transformer, encoding, targets)
    assert found.holds
    assert next(model.transformer.parameters()).dtype == getattr(torch, dtype)
    wide = load("tiny", device="cpu")
    wide.transformer.load_state_dict({name: one.float() for name, one in model.transformer.state_dict().items()})
    assert found == integrated_gradients(wide.transformer, encoding, targets)


@pytest.mark.share(4)
@pytest.mark.parametrize("name", EXPERTS)
def test_jumps_from_choice_to_choice_are_what_the_attributions_miss(name: str) -> None:
    """The gradient does not see them, however near the points are: the sum is said not to hold."""
    forward, targets = traced(name)
    found = integrated_gradients(forward.model, forward.encoding, targets)
    assert found.holds == (found.points < MOST_POINTS - 1)
    assert found.holds == (abs(found.sum - found.difference) <= 0.01 * abs(found.difference))


def _by_small_steps(model: Transformer, targets: Targets, steps: int) -> list[float]:
    """The same integral by the midpoint rule: point after point, without a batch."""
    ids = torch.tensor([IDS])
    end = model.embed.tokens(ids).detach()
    start = (model.embed.tokens.weight.mean(dim=0) * model.embed.tokens.scale).detach().expand_as(end)
    total = torch.zeros_like(end)
    for step in range(steps):
        point = (start + (step + 0.5) / steps * (end - start)).requires_grad_()
        with tap_steps(model, lambda name, x, point=point: point if name == "embed.tokens" else x):
            chosen = model(ids)[0, list(targets.positions)].log_softmax(dim=-1)
        mean = chosen[range(len(targets.ids)), list(targets.ids)].mean()
        total += torch.autograd.grad(mean, point)[0] / steps
    return [float(row) for row in ((end - start) * total)[0].sum(dim=-1)]


@pytest.mark.parametrize("name", ["llama, grouped", "gpt2, scaled and normed embeddings"])
def test_attributions_are_the_integral(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saliency, "SHARE", 1e-4)
    forward, targets = traced(name)
    found = integrated_gradients(forward.model, forward.encoding, targets)
    expected = _by_small_steps(forward.model, targets, 300)
    assert found.attributions == pytest.approx(expected, abs=2e-3 * max(map(abs, expected)))


def test_attributions_of_tiny_are_those_of_a_fine_reference() -> None:
    model = load("tiny", device="cpu")
    encoding = model.encode("The cat sat on the mat")
    targets = Targets((2, 4), (encoding.ids[3], encoding.ids[5]))
    found = integrated_gradients(model.transformer, encoding, targets)
    steps, network = 512, model.transformer
    end = network.embed.tokens.weight[list(encoding.ids)].detach() * network.embed.tokens.scale
    start = network.embed.tokens.weight.mean(dim=0).detach() * network.embed.tokens.scale
    points = (start + (torch.arange(steps)[:, None, None] + 0.5) / steps * (end - start)).requires_grad_()
    with tap_steps(network, lambda name, x: points if name == "embed.tokens" else x):
        chosen = network(torch.tensor([encoding.ids]).expand(steps, -1))[:, targets.positions].log_softmax(dim=-1)
    total = sum(chosen[:, place, token].sum() for place, token in enumerate(targets.ids)) / len(targets.ids)
    (gradients,) = torch.autograd.grad(total, points)
    expected = ((end - start) * gradients.mean(dim=0)).sum(dim=-1).tolist()
    assert found.attributions == pytest.approx(expected, abs=0.01 * max(map(abs, expected)))
    assert found.attributions[-1] == 0  # after the last target


def test_points_go_through_in_batches_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, targets = traced("gpt2")
    found = integrated_gradients(forward.model, forward.encoding, targets)
    monkeypatch.setattr(saliency, "_NUMBERS", 3 * 10 * (2 * 31 + 2 * 2 * (8 * 24 + 3 * 40 + 4 * 4 * 10)))
    again = integrated_gradients(forward.model, forward.encoding, targets)
    assert again.attributions == pytest.approx(found.attributions)


def test_no_more_points_are_used_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, targets = traced("llama, grouped")
    monkeypatch.setattr(saliency, "PIECES", 1)
    monkeypatch.setattr(saliency, "MOST_POINTS", 3)
    halved = integrated_gradients(forward.model, forward.encoding, targets)
    assert halved.points == 3
    assert not halved.holds
    monkeypatch.setattr(saliency, "MOST_POINTS", 512)
    assert integrated_gradients(forward.model, forward.encoding, targets).holds


def test_a_jump_on_the_way_is_found_by_halving() -> None:
    forward, targets = traced("gpt2")
    width = forward.config.d_head
    with torch.no_grad():
        forward.model.blocks[0].attention.q.weight[:width] *= 60  # a head that changes its mind at once
    found = integrated_gradients(forward.model, forward.encoding, targets)
    assert found.holds
    assert found.points > 8


def test_a_difference_of_nearly_nothing_is_held_to_an_absolute_bound() -> None:
    assert Integrated((1e-6, 9e-5), 8, -2.0, -2.0).holds
    assert not Integrated((2e-4,), 8, -2.0, -2.0).holds
    assert not Integrated((math.nan,), 8, -2.0, -2.0).holds


def test_the_model_is_left_as_it_was_and_its_data_is_plain() -> None:
    model = model_of("gpt2").train()
    first = next(model.parameters()).requires_grad_(False)
    forward, targets = traced("gpt2")
    found = integrated_gradients(model, forward.encoding, targets)
    assert model.training
    assert not first.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert found.to_dict()["sum"] == math.fsum(found.to_dict()["attributions"])


def test_a_target_that_is_not_there_is_refused() -> None:
    forward, _ = traced("gpt2")
    with pytest.raises(UsageError, match="no position 10"):
        integrated_gradients(forward.model, forward.encoding, Targets((10,), (3,)))


@pytest.mark.parametrize("name", MODELS)
def test_gradient_times_input_is_the_slope_of_making_a_token_larger(name: str) -> None:
    forward, targets = traced(name)
    found = gradient_times_input(record_gradients(forward.model, forward.encoding, targets))
    for position in (0, 4):

        def at(size: float, position: int = position) -> float:
            def tap(step: str, tensor: torch.Tensor) -> torch.Tensor:
                if step == "embed.tokens":
                    tensor = tensor.clone()
                    tensor[:, position] *= size
                return tensor

            with torch.no_grad(), tap_steps(forward.model, tap):
                chosen = forward.model(torch.tensor([IDS]))[0, list(targets.positions)].log_softmax(dim=-1)
            return float(chosen[range(len(targets.ids)), list(targets.ids)].mean())

        assert found[position] == pytest.approx((at(1 + 1e-5) - at(1 - 1e-5)) / 2e-5, abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_attention_times_gradient_is_summed_over_each_map(name: str) -> None:
    forward, targets = traced(name)
    found = attention_times_gradient(record_gradients(forward.model, forward.encoding, targets))
    steps, _ = by_autograd(model_of(name), targets)
    others = set(range(forward.config.n_layers)) - set(forward.steps.attention_layers)
    assert all(math.isnan(value) for layer in others for value in found.absolute[layer])
    for layer in forward.steps.attention_layers:
        for head in range(forward.config.at(layer).n_heads):
            products = (forward.step("weights", layer)[head] * steps[f"L{layer}.weights"][head]).flatten().tolist()
            assert found.absolute[layer][head] == pytest.approx(sum(map(abs, products)))
            assert found.signed[layer][head] == pytest.approx(sum(products), abs=1e-12)
    assert len(found.to_dict()["signed"]) == forward.config.n_layers


@pytest.mark.parametrize(("name", "text"), [("tiny", "The cat sat on the mat"), ("tiny-encoder", "The [MASK] sat")])
def test_built_in_models_are_attributed_in_full(name: str, text: str) -> None:
    model = load(name)
    encoding = model.encode(text)
    found = integrated_gradients(model.transformer, encoding, Targets((2,), (77,)))
    assert found.holds
    assert found.points <= 128


@pytest.mark.parametrize("name", [name for name in MODELS if "two stacks" in name])
def test_tokens_of_the_text_that_is_read_have_their_part(name: str) -> None:
    """To first order, as the loss answers when one token's embedding grows; by the integral, the rest of the change."""
    forward, targets = traced(name)
    model, ids = forward.model, torch.tensor([forward.encoding.ids])
    trace, eps = record_gradients(model, forward.encoding, targets), 1e-5
    source = trace.source
    assert model.encoder is not None
    assert isinstance(source, GradientTrace)
    first_order, read = gradient_times_input(source), torch.tensor([source.encoding.ids])
    found = integrated_gradients(model, forward.encoding, targets)
    assert len(found.source) == len(first_order) == read.shape[1]

    def log_probability(share: float, place: int) -> float:
        def tap(name: str, x: torch.Tensor) -> torch.Tensor:
            if name == "embed.tokens":
                x = x.clone()
                x[..., place, :] *= 1 + share
            return x

        with torch.no_grad():
            with tap_steps(model.encoder, tap):  # type: ignore[arg-type]
                given = model.read(read)
            logits = model.unembed(model.hidden(ids, source=given))[0, list(targets.positions)].log_softmax(dim=-1)
        return float(logits[range(len(targets.ids)), list(targets.ids)].mean())

    for place, value in enumerate(first_order):
        slope = (log_probability(eps, place) - log_probability(-eps, place)) / (2 * eps)
        assert value == pytest.approx(slope, abs=1e-7)
    assert any(abs(value) > 1e-4 for value in first_order)
    assert found.sum == pytest.approx(math.fsum((*found.attributions, *found.source)))
    assert abs(math.fsum(found.attributions) - found.difference) > 2 * abs(found.sum - found.difference)
