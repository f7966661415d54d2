"""The backward flow over the depth: norms by layer, the verdict, and what each branch passes back to the stream."""

import pytest
import torch
from caught_gradients import MODELS, model_of, traced

from tinytf.gradients.flow import Flow, LayerFlow, StreamStep, flow
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import GradientTrace, record_gradients
from tinytf.loading import load


def backward(name: str) -> GradientTrace:
    forward, targets = traced(name)
    return record_gradients(forward.model, forward.encoding, targets)


def flow_of(last: float, *inputs: float) -> Flow:
    """The flow of layers with these norms at their inputs, from last to first."""
    top = len(inputs) - 1
    layers = tuple(LayerFlow(top - index, (StreamStep("in", norm),)) for index, norm in enumerate(inputs))
    return Flow(layers, f"L{top}.out", last, StreamStep("logits", 1.0), StreamStep("embed.tokens", inputs[-1]))


@pytest.mark.parametrize("name", MODELS)
def test_the_flow_goes_from_the_last_layer_to_the_first(name: str) -> None:
    trace = backward(name)
    found = flow(trace)
    assert [layer.layer for layer in found.layers] == list(range(trace.config.n_layers))[::-1]
    assert found.first == pytest.approx(float(trace.grad["L0.in"].norm()))
    for layer in found.layers:
        assert layer.stream[-1].step == "in"
        for step in layer.stream:
            assert step.norm == pytest.approx(float(trace.grad[f"L{layer.layer}.{step.step}"].norm()))
    assert found.logits.norm == pytest.approx(float(trace.grad[found.logits.step].norm()))
    assert found.embedded.norm == pytest.approx(float(trace.grad[found.embedded.step].norm()))
    assert found.last == pytest.approx(float(trace.grad[found.end].norm()))
    assert found.ratio == pytest.approx(found.first / found.last)
    assert found.per_layer**trace.config.n_layers == pytest.approx(found.ratio)
    assert found.word in found.verdict
    assert f"{found.ratio:.3g}" in found.verdict


@pytest.mark.parametrize(
    ("first", "last", "word"),
    [(1e-3, 1.0, "vanishing"), (200.0, 1.0, "exploding"), (1.0, 2.0, "steady"), (1.0, 0.0, "undefined")],
)
def test_the_verdict_follows_the_ratio(first: float, last: float, word: str) -> None:
    found = flow_of(last, first)
    assert found.word == word
    assert found.to_dict()["verdict"].startswith(word)


def test_the_layer_that_changes_the_norm_most_is_named() -> None:
    assert flow_of(1.0, 2.0, 3.0, 30.0).steepest == (0, 10.0)
    assert flow_of(100.0, 2.0, 3.0, 30.0).steepest == (2, 0.02)
    assert "most through L0, 10" in flow_of(1.0, 2.0, 3.0, 30.0).verdict


def test_the_layers_that_tell_most_are_the_ends_and_the_steepest() -> None:
    found = flow_of(1.0, 1.1, 9.0, 10.0, 11.0, 12.0)
    assert found.telling(3) == [4, 3, 0]
    assert found.telling(9) == found.telling(None) == [4, 3, 2, 1, 0]
    assert flow_of(0.0, 0.0, 0.0).telling(1) == [1]


@pytest.mark.parametrize(
    ("name", "step", "readers", "ends"),
    [
        ("gpt2", "mid", ("norm2",), ("ffn",)),
        ("gemma 2, norms around each part and windows by layer", "in", ("norm1",), ("attn_norm",)),
        ("the paper's encoder", "norm1", ("ffn.up",), ("ffn",)),
        ("norms of what is added", "in", ("attention.q", "attention.k", "attention.v"), ("attn_norm",)),
        ("pythia, side by side and turned in part", "in", ("norm2",), ("ffn",)),
        ("gpt-j, a norm for both", "in", ("norm1",), ("attn", "ffn")),
    ],
)
def test_a_branch_passes_back_what_is_lost_when_it_is_cut_from_the_stream(
    name: str, step: str, readers: tuple[str, ...], ends: tuple[str, ...]
) -> None:
    trace = backward(name)
    (branch,) = (
        branch
        for place in flow(trace).layers[-2].stream
        for branch in place.branches
        if (place.step, branch.ends) == (step, ends)
    )
    for path in readers:
        trace.model.blocks[1].get_submodule(path).register_forward_pre_hook(
            lambda _, args: tuple(arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args)
        )
    whole = trace.grad[f"L1.{step}"]
    lost = whole - record_gradients(trace.model, trace.encoding, trace.targets).grad[f"L1.{step}"]
    assert branch.norm == pytest.approx(float(lost.norm()))
    assert branch.share == pytest.approx(float((lost * whole).sum() / whole.square().sum()))


def test_norms_that_shrink_what_comes_back_make_it_vanish() -> None:
    model = model_of("the paper's encoder")
    for block in model.blocks:
        torch.nn.init.constant_(block.norm1.weight, 0.01)
    forward, targets = traced("the paper's encoder")
    found = flow(record_gradients(model, forward.encoding, targets))
    assert found.word == "vanishing", found.verdict


def test_a_built_in_model_is_steady_and_its_data_is_plain() -> None:
    model = load("tiny")
    encoding = model.encode("The cat sat on the mat")
    trace = record_gradients(model.transformer, encoding, Targets((1, 2), encoding.ids[2:4]))
    assert flow(trace).word == "steady"
    assert flow(trace).to_dict()["layers"][0]["layer"] == 3
