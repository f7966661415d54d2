"""A head that reads the mean of the tokens: what is asked of its logits, against passes written out here."""

import math
from functools import cache

import pytest
import torch
from architectures import HEADS_OF_CLASSES, asked, config_of, encoding_of, lively
from caught_gradients import IDS
from torch import Tensor

from tinytf.cause.swaps import Swapping
from tinytf.errors import UsageError
from tinytf.look.overview import overview
from tinytf.look.prediction import Likely, Prediction
from tinytf.model.transformer import Transformer
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

KINDS = [kind for kind, fields in HEADS_OF_CLASSES.items() if fields.get("head_reads") == "mean"]
kinds = pytest.mark.parametrize("kind", KINDS)


@cache
def traced(kind: str) -> Trace:
    return record(lively(config_of(kind)).double().requires_grad_(False), encoding_of(IDS))


def logits_of(model: Transformer, x: Tensor) -> Tensor:
    """The logits (labels,) of the last block's output (T, C): normed, averaged over the tokens, then the head."""
    assert model.head is not None
    return model.head(torch.stack([*model.final_norm(x)]).mean(0), model.embed.tokens.weight)


@kinds
def test_the_lens_reads_the_mean_after_every_layer(kind: str) -> None:
    trace = traced(kind)
    for stage in asked(trace.model).lens(trace).stages[1:]:
        expected = logits_of(trace.model, trace.step(trace.steps.output, stage.layer)).softmax(-1)
        assert torch.allclose(stage.top_probabilities[0], expected[stage.top_ids[0]], atol=1e-12)


@kinds
def test_the_parts_sum_to_the_logit_and_the_heads_are_those_of_the_overview(kind: str) -> None:
    trace = traced(kind)
    expected = logits_of(trace.model, trace.last_output)
    found = asked(trace.model).attribute(trace, token=1)
    assert sum(part.value for part in found.parts) == pytest.approx(float(expected[1]), abs=1e-12)
    assert found.holds
    heads = [part.value for part in found.parts if part.kind == "head"]
    seen = overview(trace, (Prediction(0, "", "next", 1, (Likely("", 1, 1.0, 0.0),)),), str)
    assert [value for layer in seen.layers for value in layer.direct or ()] == pytest.approx(heads, abs=1e-12)


@kinds
def test_a_head_taken_out_changes_the_mean_of_all_tokens(kind: str) -> None:
    trace = traced(kind)
    model = trace.model
    changed = asked(model).ablate(trace, "L0H1", target=1)
    x = trace.step("in", 0)
    module = model.blocks[0].attention.o
    width = model.config.d_head
    handle = module.register_forward_pre_hook(
        lambda module, args: (torch.cat((args[0][..., :width], 0 * args[0][..., width : 2 * width],
                                         args[0][..., 2 * width :]), dim=-1),)
    )  # fmt: skip
    for block in model.blocks:
        x = block(x[None])[0]
    handle.remove()
    assert math.exp(changed.effect.after) == pytest.approx(float(logits_of(model, x).softmax(-1)[1]), abs=1e-10)


@kinds
def test_swapped_tensors_are_refused(kind: str) -> None:
    with pytest.raises(UsageError, match="the mean of all tokens"):
        Swapping(traced(kind).model)
