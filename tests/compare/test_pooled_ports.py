"""Ports of an embedding model whose vectors are pooled otherwise: the way is named."""

from pathlib import Path

import pytest
import torch
from architectures import asked, config_of, encoding_of, lively
from torch import Tensor

from tinytf.compare.diff import Difference
from tinytf.compare.dumps.read import Dump
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

IDS = [3, 14, 15, 9, 2, 6, 5]


@pytest.fixture(scope="module", params=["mean", "first", "last", "max"])
def trace(request: pytest.FixtureRequest) -> Trace:
    model = lively(config_of("bert with a pooler", pooler=False, pooling=request.param, unit_embedding=True))
    return record(model, encoding_of(IDS))


def compared(trace: Trace, pooled: Tensor, unit: bool = True) -> Difference:
    steps = {name: trace[name] for name in ("embed.out", "L0.attn", f"L1.{trace.steps.output}")}
    steps |= {"pooled": pooled, "embedding": pooled / pooled.norm() if unit else pooled}
    shapes = {name: tuple(one.shape) for name, one in steps.items()}
    return asked(trace.model).diff(None, Dump(Path("port"), shapes, steps.__getitem__, {"ids": IDS}))


def test_a_sound_port_has_no_difference(trace: Trace) -> None:
    found = compared(trace, trace["pooled"])
    assert found.first is None
    assert {"pooled", "embedding"} <= {step.name for step in found.steps}


def test_another_pooling_is_the_cause(trace: Trace) -> None:
    x = trace.last_output
    ways = {"the mean of the tokens": x.mean(0), "the first token": x[0], "the last token": x[-1]}
    for words, pooled in ways.items():
        if torch.allclose(pooled, trace["pooled"]):
            continue
        found = compared(trace, pooled)
        assert found.first is not None
        assert found.first.name == "pooled"
        assert found.cause is not None
        assert found.cause.words.startswith(f"pooling of {words} instead of ")
        assert (found.cause.explained, found.cause.later) == (1, 1)


def test_a_missing_end_token_is_the_cause() -> None:
    model = lively(config_of("bert with a pooler", pooler=False, pooling="mean", unit_embedding=True))
    trace = record(model, encoding_of(IDS))
    found = compared(trace, trace.last_output[:-1].mean(0))
    assert found.cause is not None
    assert found.cause.words == "the last token is left out of the pooling"


def test_a_vector_of_another_length_is_the_cause(trace: Trace) -> None:
    found = compared(trace, trace["pooled"], unit=False)
    assert found.first is not None
    assert found.first.name == "embedding"
    assert found.cause is not None
    assert found.cause.words == "its vectors are not scaled to length 1"
