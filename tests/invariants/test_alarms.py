"""Self-checks raise no false alarm in any precision, and find a fault ten times what they allow."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from sentences import sentences
from torch import Tensor

from tinytf.cause.interventions import sweep
from tinytf.gradients.by_hand import agreement
from tinytf.gradients.trace import GradientTrace
from tinytf.loading import Model, load
from tinytf.steps.operations import norm, scores
from tinytf.tolerance import MARGIN, Coarse, Comparison, TwoResults, compare
from tinytf.trace.check import check
from tinytf.trace.trace import Trace

dtypes = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
FAULT = 10
Fault = Callable[[dict[str, Tensor], str], None]
"""Changes a number of a named tensor."""


@cache
def model_of(name: str, dtype: str) -> Model:
    return load(name, device="cpu", dtype=dtype)


@pytest.mark.share(4)
@dtypes
@pytest.mark.parametrize("name", ["tiny", "tiny-encoder"])
def test_no_sentence_is_a_false_alarm(name: str, dtype: str) -> None:
    model = model_of(name, dtype)
    for sentence in sentences(4):
        assert check(model.trace(sentence)).holds, sentence
        if model.config.causal:
            assert agreement(model.grad(sentence)).holds, sentence


def item_at(items: Any, name: str) -> Comparison:
    """The comparison of a step that fails, or else one of it."""
    return max((one for one in items if one.step == name), key=lambda one: one.share)


@dtypes
@pytest.mark.parametrize("name", ["L1.q", "L1.v", "L1.head_out", "L1.attn", "L2.ffn.hidden", "L2.ffn", "final.norm"])
def test_a_fault_in_a_step_ten_times_beyond_what_is_allowed_is_found(name: str, dtype: str) -> None:
    trace = model_of("tiny", dtype).trace("The cat sat on the mat")
    tensor = trace.recording.tensors[name] = trace.recording.tensors[name].clone()
    cell = tuple(size // 2 for size in tensor.shape)
    exact = tensor[cell].clone()
    tensor[cell] += exact.abs() + 1
    allowed = item_at(check(trace).items, name).allowed
    tensor[cell] = exact + FAULT * allowed
    assert not check(trace).holds


@pytest.mark.share(4)
@dtypes
@pytest.mark.parametrize(
    "name", ["final.norm", "L3.out", "L2.norm2", "L1.weights", "L1.masked", "L0.q", "blocks.0.norm1.weight"]
)
def test_a_fault_in_a_gradient_ten_times_beyond_what_is_allowed_is_found(name: str, dtype: str) -> None:
    trace: GradientTrace = model_of("tiny", dtype).grad("The cat sat on the mat")
    tensors = trace.parameters if name in trace.parameters else trace.grad.recording.tensors
    tensor = tensors[name] = tensors[name].clone()
    cell = tuple((size - 1) // 2 for size in tensor.shape)
    exact = tensor[cell].clone()
    tensor[cell] += tensor.abs().max()
    allowed = item_at(agreement(trace).items, name).allowed
    tensor[cell] = exact + FAULT * allowed
    assert not agreement(trace).holds


def _code(model: Model, trace: Trace, fault: Fault) -> tuple[bool, float]:
    fault(trace.recording.tensors, "L1.ffn.hidden")
    (line,) = model.code(trace, at=["L1.ffn.hidden"]).lines
    assert line.allowed is not None
    return line.holds, line.allowed


def _explain(model: Model, trace: Trace, fault: Fault) -> tuple[bool, float]:
    tensors = trace.recording.tensors
    middle = ",".join(str(size // 2) for size in tensors["L2.ffn"].shape)
    fault(tensors, "L2.ffn")
    worst = model.explain(trace, f"L2.ffn[{middle}]").worst
    return worst.holds, worst.allowed


def _attribute(model: Model, trace: Trace, fault: Fault) -> tuple[bool, float]:
    logits = {"logits": trace.recorded_logits[-1]}
    fault(logits, "logits")
    trace.recorded_logits[-1] = logits["logits"]
    found = model.attribute(trace, token=len(logits["logits"]) // 2)
    return found.holds, found.allowed


def _sweep(model: Model, trace: Trace, fault: Fault) -> tuple[bool, float]:
    def wrong(*asked: Any) -> Tensor:
        logits = {"alone": right(*asked)}
        fault(logits, "alone")
        return logits["alone"]

    right = sweep.logits_with
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sweep, "logits_with", wrong)
        check = model.ablate_sweep(trace, "layers").check
    return check.holds, check.allowed


@dtypes
@pytest.mark.parametrize("asked", [_code, _explain, _attribute, _sweep], ids=lambda one: one.__name__.strip("_"))
def test_a_fault_in_what_is_asked_ten_times_beyond_what_is_allowed_is_found(
    asked: Callable[[Model, Trace, Fault], tuple[bool, float]], dtype: str
) -> None:
    """A first fault, of 1, tells what is allowed where it stands; the second is ten times that."""
    model = model_of("tiny", dtype)

    def off(by: float) -> Fault:
        def fault(tensors: dict[str, Tensor], name: str) -> None:
            tensor = tensors[name] = tensors[name].clone()
            tensor[tuple(size // 2 for size in tensor.shape)] += by

        return fault

    def trace() -> Trace:
        return model.trace("The cat sat on the mat")

    holds, _ = asked(model, trace(), off(0.0))
    assert holds
    found, allowed = asked(model, trace(), off(10.0))
    assert not found
    assert not asked(model, trace(), off(FAULT * allowed))[0]


def _another_eps(g: Tensor, x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return RIGHT_NORM(g, x, gain, 1e-3 if g.dtype is torch.float32 else 0.5)


def _without_projection(g: Tensor, x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return (norm.wide(g) * gain / norm.rms_normed(x, eps)[1]).to(g.dtype)


def _half_of_keys(g: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    of_q, of_k = RIGHT_SCORES(g, q, k)
    return of_q, of_k / 2


RIGHT_NORM, RIGHT_SCORES = norm.rms_norm_gradient, scores.scores_gradients
WRONG = [(norm, "rms_norm_gradient", _another_eps), (norm, "rms_norm_gradient", _without_projection),
         (scores, "scores_gradients", _half_of_keys)]  # fmt: skip


@dtypes
@pytest.mark.parametrize(("module", "name", "wrong"), WRONG, ids=[one[2].__name__.strip("_") for one in WRONG])
def test_a_wrong_formula_is_found(
    module: Any, name: str, wrong: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = model_of("tiny", dtype).grad("The cat sat on the mat")
    assert agreement(trace).holds
    monkeypatch.setattr(module, name, wrong)
    assert not agreement(trace).holds


def test_a_mask_that_is_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = model_of("tiny", "float32").trace("The cat sat on the mat")
    operation = trace.steps.by_name["masked"].operation
    assert operation is not None
    right = type(operation).forward
    monkeypatch.setattr(type(operation), "forward", lambda self, x: right(self, x).roll(1, -1))
    assert not check(trace.underived()).holds


def summed(terms: Tensor) -> TwoResults:
    """A sum in the order of its terms, as a gemv kernel makes it, and by torch."""
    total = terms.new_zeros(())
    for term in terms:
        total = total + term
    return TwoResults("sum", "", total[None], terms.double().sum()[None].float())


def test_a_long_sum_that_cancels_is_allowed_more_than_its_result() -> None:
    terms = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 1000
    terms[-1] -= terms.sum() - 1e-3
    ways = summed(terms)
    ones = torch.ones(4096)
    again = lambda: TwoResults("sum", "", torch.dot(terms, ones)[None], ways.expected)  # noqa: E731
    found = compare(ways, torch.float32, Coarse([ones]), again)
    assert found.holds
    assert found.difference > MARGIN * 2**-24 * found.scale  # of what is left, the rounding is a large part
    assert not compare(TwoResults("sum", "", ways.found + FAULT * found.allowed, ways.expected), torch.float32,
                       Coarse([ones]), again).holds  # fmt: skip
