"""The backward pass by hand gives what autograd gives, for every step and parameter of every architecture."""

import pytest
import torch
from architectures import config_of, encoding_of, lively
from caught_gradients import DECODED, IDS, MODELS, backward, by_autograd, is_near, loss, traced
from covering import along

from tinytf.config import ModelConfig
from tinytf.errors import AddressError, UsageError
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import record_gradients
from tinytf.trace.record import record

models = pytest.mark.parametrize("name", MODELS)
precisions = along({"name": MODELS, "dtype, tolerance": [(torch.float64, 1e-10), (torch.float32, 1e-5)]})


def shifts_all_keys(parameter: str, config: ModelConfig) -> bool:
    """Whether it is the last thing that is done to the keys; a rotation turns it by each key's own angle.

    Where keys also score queries of distances it adds something else to every score.
    """
    if parameter.endswith("attention.pos_k.bias"):
        return True
    last = "k_norm.bias" if config.qk_norm else "attention.k.bias"
    return config.positions != "rotary" and not config.distance_queries and parameter.endswith(last)


def exactly(name):
    """The gradients of steps and parameters by autograd in float64."""
    trace, targets = traced(name)
    return by_autograd(trace.model, targets)


@pytest.mark.every
@precisions
def test_every_step_has_autograds_gradient(name, dtype, tolerance):
    trace, targets = traced(name, dtype)
    found = dict(backward(trace, targets))
    expected, _ = by_autograd(trace.model, targets)
    rows = [(step, layer) for step, layer in trace.steps.rows if step.is_tensor and (step.to_loss or not step.in_layer)]
    tensors = {step.full_name(layer) for step, layer in rows}
    of_text = {step.name for step in trace.steps.after if len(step.axes) == 1}
    vectors = of_text | {step.name for step in trace.steps.vector_steps}  # no loss depends on them
    assert set(expected) == tensors - vectors
    for step, gradient in expected.items():
        assert found[step].dtype is dtype
        assert is_near(found[step], gradient, tolerance, lambda step=step: exactly(name)[0][step]), step


@pytest.mark.every
@precisions
def test_every_parameter_has_autograds_gradient(name, dtype, tolerance):
    trace, targets = traced(name, dtype)
    found = dict(backward(trace, targets))
    _, expected = by_autograd(trace.model, targets)
    for parameter, gradient in expected.items():
        if not shifts_all_keys(parameter, trace.config):
            assert is_near(
                found[parameter], gradient, tolerance, lambda parameter=parameter: exactly(name)[1][parameter]
            ), parameter


@precisions
def test_a_bias_that_shifts_all_keys_alike_decides_nothing(name, dtype, tolerance):
    """It adds the same to every score of a row, and softmax takes it off: what is left of the sum is rounding."""
    trace, targets = traced(name, dtype)
    found = dict(backward(trace, targets))
    own = (name for name in found if name.startswith("blocks."))
    for parameter in filter(lambda parameter: shifts_all_keys(parameter, trace.config), own):
        layer = int(parameter.split(".")[1])
        assert found[parameter].abs().max() <= tolerance * found[f"L{layer}.k"].abs().max(), parameter


@models
def test_gradients_come_in_the_reverse_of_the_forward_pass_and_each_once(name):
    trace, targets = traced(name)
    order = [found for found, _ in backward(trace, targets)]
    steps = [step.full_name(layer) for step, layer in reversed(trace.steps.rows) if step.is_tensor]
    parameters = {name for name, _ in trace.model.named_parameters()}
    assert [found for found in order if found not in parameters] == steps
    assert sorted(found for found in order if found in parameters) == sorted(parameters)


@models
def test_a_gradient_has_the_shape_of_what_it_is_of(name):
    trace, targets = traced(name)
    parameters = dict(trace.model.named_parameters())
    for found, gradient in backward(trace, targets):
        of = parameters[found] if found in parameters else trace[found]
        assert gradient.shape == of.shape, found
        assert not gradient.requires_grad


def test_finite_differences_agree():
    """Neither formulas nor autograd: the loss itself, a little to each side."""
    trace, targets = traced("qwen3, normed queries and wide heads")
    found = dict(backward(trace, targets))
    model, step = trace.model, 1e-5
    for name, parameter in model.named_parameters():
        place = tuple(size // 2 for size in parameter.shape)
        if name == "embed.tokens.weight":
            place = (IDS[0], 1)
        sides = []
        for way in (step, -step):
            with torch.no_grad():
                parameter[place] += way
                sides.append(loss(record(model, encoding_of(IDS)), targets))
                parameter[place] -= way
        assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(float(found[name][place]), abs=1e-8), name


def test_the_pooler_does_not_lead_to_the_loss():
    trace, targets = traced("bert with a pooler")
    found = dict(backward(trace, targets))
    for name in ("pooled", "pooler.weight", "pooler.bias"):
        assert not found[name].any()


def test_an_almost_certain_token_keeps_its_gradient():
    """In float32 1 − p would be 0: the logits are 30 apart, and 1 − p is 1e-13."""
    model = lively(config_of("gpt2", head_bias=True))
    with torch.no_grad():
        model.head.decoder.bias[IDS[-1]] = 60.0
    trace = record(model, encoding_of(IDS))
    gradient = dict(backward(trace, Targets((3,), (IDS[-1],))))["logits"][3]
    others = torch.cat((gradient[: IDS[-1]], gradient[IDS[-1] + 1 :]))
    assert others.min() > 0
    assert float(gradient[IDS[-1]]) == pytest.approx(-float(others.sum()), rel=1e-2)


def test_nothing_that_was_recorded_is_changed():
    trace, targets = traced("gpt2")
    before = {name: tensor.clone() for name, tensor in trace.recording.tensors.items()}
    held = list(backward(trace, targets))
    copies = [gradient.clone() for _, gradient in backward(trace, targets)]
    assert all(torch.equal(gradient, copy) for (_, gradient), copy in zip(held, copies, strict=True))
    assert all(torch.equal(tensor, trace.recording.tensors[name]) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("positions", "ids", "says"),
    [((), (), "nothing to predict"), ((1, 2), (3,), "2 positions do not match 1 target token")],
)
def test_targets_that_do_not_pair_are_refused(positions, ids, says):
    with pytest.raises(UsageError, match=says):
        Targets(positions, ids)


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (Targets((10,), (1,)), "no position 10: the text has 10 tokens, 0 to 9"),
        (Targets((-1,), (1,)), "no position -1"),
        (Targets((0,), (31,)), "no token 31: the vocabulary has 31, 0 to 30"),
    ],
)
def test_targets_beyond_the_text_or_the_vocabulary_are_refused_at_once(targets, says):
    trace, _ = traced("gpt2")
    with pytest.raises(UsageError, match=says):
        record_gradients(trace.model, trace.encoding, targets)


def test_a_model_without_a_head_has_no_loss():
    trace = record(lively(config_of("bert with a pooler")), encoding_of(IDS))
    with pytest.raises(UsageError, match="no language-model head"):
        record_gradients(trace.model, trace.encoding, DECODED)


def test_a_layer_that_was_not_recorded_is_named():
    trace = record(lively(config_of("gpt2")), encoding_of(IDS), layers=[1])
    with pytest.raises(AddressError, match="layer 0 was not recorded"):
        list(backward(trace, DECODED))
