"""The pass at a glance: sizes against numpy, the stream against its own sums, the lens against the lens."""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from architectures import KINDS, asked, config_of, encoding_of, lively, mixer_of, output_matrix
from caught_gradients import HEADS, IDS, model_of
from numpy.typing import NDArray
from torch import Tensor

from tinytf.look.flow import Flow, flow
from tinytf.look.overview import Overview, layer_overview, overview
from tinytf.look.prediction import Likely, Prediction
from tinytf.steps.operations.mix_streams import MixStreams
from tinytf.steps.operations.scan import Scan
from tinytf.steps.operations.short_conv import ShortConv
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

models = pytest.mark.parametrize("name", KINDS)
READ = [name for name in KINDS if name in HEADS or KINDS.get(name, {}).get("head") != "none"]


@lru_cache
def traced(name: str) -> Trace:
    return record(model_of(name, torch.float64), encoding_of(IDS))


def seen(trace: Trace, *positions: int) -> Overview:
    """The overview of a trace that predicts something at these positions."""
    found = tuple(Prediction(place, "", "next", 0, (Likely("", 0, 1.0, 0.0),)) for place in positions)
    return overview(trace, found, lambda token: f"#{token}")


def value(trace: Trace, name: str, layer: int) -> NDArray[np.float64]:
    found: NDArray[np.float64] = trace.step(name, layer).numpy()
    return found


# The drawing.


@models
def test_every_step_of_the_drawing_has_the_shape_of_its_tensor(name: str) -> None:
    trace = traced(name)
    drawn = flow(trace, 0).steps
    assert [step.name for step in drawn] == [step.name for step, layer in trace.steps.rows if layer == 0]
    for step in drawn:
        assert step.shape == tuple(trace.step(step.name, 0).shape)
        assert step.step.from_stream or all(
            shape == tuple(trace.step(source, 0).shape) for source, shape in step.inputs
        )


@models
def test_the_stream_is_what_it_was_and_what_joins_it(name: str) -> None:
    trace = traced(name)
    steps = flow(trace, 0).steps
    joined = [step for step in steps if step.joins]
    for step in joined:
        if not isinstance(step.step.operation, MixStreams):  # of several streams
            total = sum(value(trace, source, 0) for source, _ in step.inputs)
            assert np.allclose(value(trace, step.name, 0), total)
        assert set(step.joins) < {source for source, _ in step.inputs}
    assert {branch for step in joined for branch in step.joins} == {step.branch for step in steps if step.branch}


@models
def test_the_weights_of_the_drawing_make_its_steps(name: str) -> None:
    """x·W + b with the matrix of the shape that is drawn, and every parameter of the block is in the drawing."""
    trace = traced(name)
    steps = flow(trace, 0).steps
    own = [step for step in steps if trace.steps.has_own(step.step, 0)]  # the others share those of one of these
    count = sum(math.prod(weight.shape) for step in own for weight in step.weights)
    assert count == sum(parameter.numel() for parameter in trace.model.blocks[0].parameters())
    for step in steps:
        for weight in step.weights:
            if isinstance(step.step.operation, ShortConv) and len(weight.shape) == 2:
                heads = step.shape[0] if step.step.has_heads else 1
                assert weight.shape == (heads * step.shape[-1], step.step.operation.width)
            elif isinstance(step.step.operation, Scan) and len(weight.shape) == 2:
                assert weight.shape == (step.shape[0] * step.shape[-1], trace.config.at(0).d_head)
            elif len(weight.shape) >= 2 and weight.name != "bias" and step.inputs and not step.step.is_map:
                (_, taken), *choice = step.inputs
                assert len(choice) == len(weight.shape) - 2 == step.step.of_experts
                heads = step.shape[0] if step.step.has_heads else 1
                groups = getattr(step.step.operation, "groups", 1)
                assert taken[-1] == groups * weight.shape[-2]
                assert weight.shape[-1] == heads * step.shape[-1]
                assert weight.shape[:-2] == step.shape[: len(choice)]
                assert f"·{weight.name}" in step.step.formula


def branches(kind: str) -> list[str]:
    return [step.branch for step in flow(traced(kind), 0).steps if step.weights]


def test_side_by_side_both_branches_read_the_same_stream() -> None:
    found: Flow = flow(traced("pythia, side by side and turned in part"), 0)
    (total,) = (step for step in found.steps if step.joins)
    assert total.joins == ("attn", "ffn")
    reading = [step.name for step in found.steps if "in" in [source for source, _ in step.inputs]]
    assert reading == ["norm1", "norm2", "out"]


def test_a_norm_of_what_is_added_ends_its_branch() -> None:
    kind = "gemma 2, norms around each part and windows by layer"
    assert set(branches(kind)) == {"attn_norm", "ffn_norm"}
    assert set(branches("the paper's encoder")) == {"attn", "ffn", ""}  # its norms are on the stream


# Sizes.


@models
def test_what_is_added_is_measured_against_the_stream_it_is_added_to(name: str) -> None:
    trace = traced(name)
    rows = [2, 5]
    for layer, one in enumerate(seen(trace, *rows).layers):
        for added in one.added:
            (total,) = (s for s in flow(trace, layer).steps if any(b.startswith(added.step) for b in s.joins))
            (stream,) = (source for source, _ in total.inputs if source not in total.joins)
            (join,) = (branch for branch in total.joins if branch.startswith(added.step))
            assert added.norm == pytest.approx(np.linalg.norm(value(trace, join, layer)[rows]), rel=1e-5)
            assert added.stream == pytest.approx(np.linalg.norm(value(trace, stream, layer)[rows]), rel=1e-5)


@models
def test_a_head_adds_what_is_missing_of_attention_without_it(name: str) -> None:
    trace = traced(name)
    (place,) = rows = (6,)
    one = seen(trace, *rows).layers[0]
    matrix = output_matrix(mixer_of(trace.model.blocks[0]))
    concat = trace.step("concat" if trace.config.o_rank else trace.steps.at("attn", 0).inputs[0], 0)[place]
    width = trace.config.at(0).value_width
    assert len(one.heads) == trace.config.at(0).n_heads
    (attention,) = (added for added in one.added if added.step == "attn")
    for head, share in enumerate(one.heads):
        without = concat.clone()
        without[head * width : (head + 1) * width] = 0
        with torch.no_grad():
            missing: Tensor = matrix @ (concat - without)
        whole = trace.step("attn", 0)[place]
        assert share == pytest.approx(float(missing.norm() / whole.norm()) * attention.share, rel=1e-5)


@pytest.mark.parametrize("name", READ)
def test_what_heads_add_to_the_logit_is_what_attribute_says_and_ranks_them(name: str) -> None:
    trace = traced(name)
    found = seen(trace, 4)
    parts = asked(trace.model).attribute(trace, position="4", token="#0").parts
    heads = {(part.layer, part.head): part.value for part in parts if part.kind == "head"}
    assert len(found.ranked) == len(heads)
    assert {(layer, head): pytest.approx(value, rel=1e-6) for layer, head, value in found.ranked} == heads
    values = [value for _, _, value in found.ranked]
    assert values == sorted(values, reverse=True)
    assert found.flow.layer == found.ranked[0][0]


def test_one_layer_by_itself_has_the_same_sizes() -> None:
    trace = traced("gemma 2, norms around each part and windows by layer")
    said = (Prediction(4, "", "next", 0, (Likely("", 0, 1.0, 0.0),)),)
    one, whole = layer_overview(trace, said, 1), overview(trace, said, str)
    assert one.layers[0].added == whole.layers[1].added
    assert one.layers[0].heads == whole.layers[1].heads
    assert [head for _, head, _ in one.ranked] == sorted(range(4), key=lambda head: -one.layers[0].heads[head])
    assert one.flow.layer == 1


@models
def test_the_branch_of_attention_is_what_it_adds_to_the_stream(name: str) -> None:
    trace = traced(name)
    if not trace.steps.added_in(trace.steps.attention_layers[0]):
        pytest.skip("it stands beside the stream, with the feed-forward")
    steps = flow(trace, trace.steps.attention_layers[0]).branch(trace.steps.weights)
    *branch, total = steps
    assert {"q", "k", "v", "weights", "concat", "attn"} <= {one.name for one in branch}
    assert branch[-1].name in total.joins
    assert not any(one.step.role == "ffn" for one in branch)


def test_without_a_prediction_all_tokens_are_measured_and_the_lens_reads_nothing() -> None:
    kind = "bert with a pooler"
    found = seen(record(lively(config_of(kind)), encoding_of(IDS)))
    assert found.positions == tuple(range(len(IDS)))
    assert found.reading is None
    assert [one.read for one in found.layers] == [None, None]


@pytest.mark.parametrize("name", READ)
def test_every_layer_is_read_as_the_lens_reads_it(name: str) -> None:
    trace = traced(name)
    stages = asked(trace.model).lens(trace, position="3", top=1).stages[1:]
    reads = [one.read for one in seen(trace, 3).layers]
    assert [read.id for read in reads if read] == [int(stage.top_ids) for stage in stages]
    assert [read.probability for read in reads if read] == pytest.approx([float(s.top_probabilities) for s in stages])


# What a head does, and where it looks.


def test_a_head_is_captioned_by_what_it_sees_most_where_the_logit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not by what it does on average: all other queries look at the first token here."""
    found = seen(record(lively(config_of("gpt2")), encoding_of(IDS[:6])), 5)
    weights = torch.eye(6)[:1].repeat(6, 1)
    weights[5] = torch.tensor([0.07, 0.01, 0.01, 0.9, 0.01, 0.0])
    monkeypatch.setattr(Overview, "weights", lambda self, layer, head: weights)
    assert found.most_seen(0, 0) == f"→ #{IDS[3]}"


def test_the_closeup_of_a_long_text_has_the_last_queries_and_the_keys_the_last_one_sees_most() -> None:
    trace = record(lively(config_of("gpt2")), encoding_of(list(range(20))))
    found = seen(trace, 19).closeup(1, 2, keys=4, queries=8)
    whole = trace["L1H2.weights"].numpy()
    most = np.argsort(-whole[19])[:4]
    assert found.queries == tuple(range(12, 20))
    assert found.keys == tuple(sorted(most.tolist()))
    assert np.array_equal(found.weights.numpy(), whole[12:][:, list(found.keys)])


def test_the_closeup_ends_with_the_position_that_is_read() -> None:
    trace = record(lively(config_of("rotary and both ways")), encoding_of(list(range(20))))
    assert seen(trace, 10).closeup(0, 0, 4, 8).queries == tuple(range(3, 11))
    short = record(lively(config_of("gpt2")), encoding_of(IDS[:5]))
    assert seen(short, 4).closeup(0, 0, 9, 8).keys == (0, 1, 2, 3, 4)


def test_a_head_of_a_fresh_model_whose_attention_adds_nothing_adds_nothing() -> None:
    model = lively(config_of("gemma 2, norms around each part and windows by layer"))
    with torch.no_grad():
        model.blocks[0].attention.o.weight.zero_()
    first = seen(record(model, encoding_of(IDS)), len(IDS) - 1).layers[0]
    assert first.added[0].norm == 0
    assert first.heads == (0, 0, 0, 0)
