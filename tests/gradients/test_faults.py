"""Each fault put into a pass on purpose is found where it is, and nothing is found in a pass that is well."""

import math

import pytest
import torch
from architectures import encoding_of
from caught_gradients import IDS, MODELS, model_of, traced
from covering import along

from tinytf.errors import UsageError
from tinytf.gradients.faults import KINDS, first_fault
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import GradientTrace, record_gradients
from tinytf.loading import load
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.faults import Fault, first_not_finite
from tinytf.trace.record import record
from tinytf.trace.trace import Trace


def backward(name: str, dtype: torch.dtype = torch.float64) -> GradientTrace:
    forward, targets = traced(name, dtype)
    return record_gradients(forward.model, forward.encoding, targets)


def forward_of(model: Transformer) -> Trace:
    return record(model, encoding_of(IDS))


@torch.no_grad()
def changed(
    name: str, parameter: str, rows: slice | tuple[slice, slice], value: float, factor: float = 0.0
) -> Transformer:
    model = model_of(name)
    part = model.get_parameter(parameter)[rows]
    part.mul_(factor).add_(value)
    return model


@along({"name": MODELS, "dtype": [torch.float64, torch.float32]})
def test_a_model_that_is_well_has_no_fault(name: str, dtype: torch.dtype) -> None:
    forward, targets = traced(name, dtype)
    assert first_fault(forward) is None
    assert first_fault(record_gradients(forward.model, forward.encoding, targets)) is None


@pytest.mark.parametrize(("name", "text"), [("tiny", "The cat sat on the mat"), ("tiny-encoder", "The [MASK] sat")])
def test_nor_have_the_built_in_models(name: str, text: str) -> None:
    model = load(name)
    encoding = model.encode(text)
    assert first_fault(record_gradients(model.transformer, encoding, Targets((2,), (77,)))) is None


@pytest.mark.parametrize("name", MODELS)
def test_a_weight_that_is_no_number_is_found_where_it_is_used(name: str) -> None:
    third, config = slice(3, 4), model_of(name).config
    at = next(layer for layer in range(config.n_layers) if config.at(layer).d_ff)
    if count := config.at(at).experts:
        trace = forward_of(changed(name, f"blocks.{at}.ffn.experts.up.weight", (slice(None), third), math.nan))
        step, sent = f"L{at}.expert.hidden", trace[f"L{at}.ffn.chosen"].mT.nonzero()  # (E, T)
        clause = f"{len(sent)} of {count * 10 * config.at(at).d_expert:,} entries are NaN, the first at "
        clause += f"expert {int(sent[0, 0])}, token {int(sent[0, 1])}, d_expert 3"
    else:
        trace = forward_of(changed(name, f"blocks.{at}.ffn.up.weight", third, math.nan))
        step, clause = f"L{at}.ffn.hidden", "10 of 400 entries are NaN, the first at token 0, d_ff 3"
    assert first_fault(trace) == Fault(step, "forward", "nan", clause)
    assert first_not_finite(trace) == step


def test_infinity_is_found_with_its_token() -> None:
    trace = forward_of(changed("gpt2", "embed.tokens.weight", slice(IDS[4], IDS[4] + 1), math.inf))
    found = first_fault(trace)
    assert found == Fault(
        "embed.tokens", "forward", "inf", "24 of 240 entries are infinite, the first at token 4, d_model 0"
    )
    assert first_fault(trace, ["nan"]) != found


def test_only_masked_cells_may_hold_minus_infinity() -> None:
    trace = backward("gpt2")
    assert bool(trace["L0.masked"].isneginf().any())
    trace.recording.tensors["L0.masked"][1, 5, 2] = -math.inf
    assert first_fault(trace, ["inf"]) == Fault(
        "L0.masked", "forward", "inf", "1 of 400 entries is infinite, the first at head 1, query 5, key 2"
    )
    trace.recording.tensors["L0.masked"][1, 2, 5] = math.nan
    assert first_fault(trace, ["nan"]) == Fault(
        "L0.masked", "forward", "nan", "1 of 400 entries is NaN, the first at head 1, query 2, key 5"
    )


def test_logits_are_named_by_their_positions() -> None:
    trace = forward_of(model_of("gpt2"))
    trace.recording.tensors["logits"][0, 7] = math.inf
    found = first_fault(trace)
    assert found is not None
    assert (found.step, found.evidence) == ("logits", "1 of 31 entries is infinite, the first at token 9, vocab 7")


@pytest.mark.parametrize("name", ["gpt2", "mistral, a window and stretched waves", "the paper's encoder"])
def test_a_head_that_looks_at_one_key_alone_is_saturated(name: str) -> None:
    width = model_of(name).config.d_head
    model = changed(name, "blocks.1.attention.q.weight", slice(2 * width, 3 * width), 0.0, 1e6)
    found = first_fault(forward_of(model))
    queries = len(IDS) - model.config.causal
    assert found is not None
    assert (found.step, found.kind) == ("L1.weights", "saturated")
    assert found.evidence.startswith(f"1 of 4 heads, the first is head 2: each of its {queries} queries that see more")


def test_a_lone_token_has_no_choice_and_is_not_saturated() -> None:
    model = model_of("gpt2")
    encoding = encoding_of(IDS[:1])
    assert first_fault(record_gradients(model, encoding, Targets((0,), (5,)))) is None


@pytest.mark.parametrize(
    ("name", "parameter", "step"),
    [
        ("gpt2", "blocks.1.ffn.up.bias", "L1.ffn.act"),
        ("llama, grouped, tied, with biases", "blocks.0.ffn.gate.bias", "L0.ffn.act"),
        ("roberta, positions from the third row", "head.dense.bias", "head.act"),
    ],
)
def test_an_activation_without_a_slope_is_saturated(name: str, parameter: str, step: str) -> None:
    found = first_fault(forward_of(changed(name, parameter, slice(None), -1000.0)), ["saturated"])
    assert found is not None
    assert found.step == step
    assert "of inputs where the slope of" in found.evidence


@pytest.mark.parametrize(("silent", "step"), [(20, "L1.ffn.act"), (19, None)])
def test_units_that_say_nothing_are_dead_where_they_are_half(silent: int, step: str | None) -> None:
    # Of the other units one or the other may be silent too by chance: give each of them something to say.
    model = changed("narrow heads, after the sum", "blocks.1.ffn.up.bias", slice(silent, None), 1000.0)
    with torch.no_grad():
        model.blocks[1].ffn.up.bias[:silent] = -1000.0
    found = first_fault(forward_of(model), ["dead"])
    assert (found and found.step) == step
    if found:
        assert found.evidence == "20 of 40 units are 0 for each of 10 tokens, the first is unit 0"


@pytest.mark.parametrize("name", MODELS)
def test_what_a_zero_matrix_cuts_off_is_dead(name: str) -> None:
    out = table_of(model_of(name).config).at("attn", 0)
    model = changed(name, f"blocks.0.{out.module}.weight", slice(None), 0.0)
    targets = traced(name)[1]
    found = first_fault(record_gradients(model, encoding_of(IDS), targets))
    assert found == Fault(f"L0.{out.inputs[0]}", "backward", "dead", found.evidence if found else "")
    assert "exactly 0 in all" in found.evidence


def test_scores_without_a_choice_need_no_gradient() -> None:
    trace = record_gradients(model_of("gpt2"), encoding_of(IDS), Targets((0,), (5,)))
    assert not bool(trace.grad["L0.scores"].any())
    assert first_fault(trace) is None
    trace.grad.recording.tensors["L0.v"].zero_()
    found = first_fault(trace, ["dead"])
    assert found is not None
    assert found.step == "L0.v"


def test_a_recording_that_is_not_of_its_model_is_a_mismatch() -> None:
    trace = forward_of(model_of("gpt2"))
    trace.recording.tensors["L1.v"] = trace.recording.tensors["L1.v"] + 1e-3
    found = first_fault(trace)
    assert found is not None
    assert (found.step, found.direction, found.kind) == ("L1.v", "forward", "mismatch")
    assert "by 0.001," in found.evidence


def test_a_gradient_that_is_not_that_of_its_formula_is_a_mismatch() -> None:
    trace = backward("gpt2")
    trace.grad.recording.tensors["L0.weights"][0, 3, 1] += 1e-4
    found = first_fault(trace)
    assert found is not None
    assert (found.step, found.direction, found.kind) == ("L0.weights", "backward", "mismatch")
    assert found.evidence.startswith("off from its formula by 0.0001,")


def test_gradients_of_parameters_come_last() -> None:
    trace = backward("gpt2")
    name = "blocks.0.norm1.weight"
    trace.parameters[name][3] += 1.0
    found = first_fault(trace)
    assert found is not None
    assert (found.step, found.direction, found.kind) == (name, "backward", "mismatch")
    trace.parameters[name][3] = math.nan
    found = first_fault(trace)
    assert found == Fault(name, "backward", "nan", "1 of 24 entries is NaN, the first at [3]")


def test_the_backward_pass_is_searched_from_its_end_and_after_the_forward_pass() -> None:
    trace = backward("llama, grouped")
    trace.grad.recording.tensors["L0.q"][0, 0, 0] = math.nan
    trace.grad.recording.tensors["L1.weights"][2, 4, 1] = math.nan
    clause = "1 of 400 entries is NaN, the first at head 2, query 4, key 1"
    assert first_fault(trace) == Fault("L1.weights", "backward", "nan", clause)
    trace.recording.tensors["final.norm"][0, 0] = math.nan
    found = first_fault(trace, ["nan"])
    assert found is not None
    assert found.to_dict() == {
        "step": "final.norm",
        "direction": "forward",
        "kind": "nan",
        "evidence": "1 of 240 entries is NaN, the first at token 0, d_model 0",
    }


def test_of_some_layers_only_those_are_searched() -> None:
    model = changed("gpt2", "blocks.1.ffn.up.weight", slice(0, 1), math.nan)
    some = [kind for kind in KINDS if kind != "mismatch"]
    assert first_fault(record(model, encoding_of(IDS), layers=[0]), ["saturated", "dead"]) is None
    found = first_fault(record(model, encoding_of(IDS), layers=[1]), some)
    assert found is not None
    assert found.step == "L1.ffn.hidden"


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no fault 'ded'") as caught:
        first_fault(forward_of(model_of("gpt2")), ["ded"])
    assert caught.value.hint == "did you mean dead?"
