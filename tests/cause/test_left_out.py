"""A model without scaling, mask or positions: what it computes, and what its trace says of itself."""

import pytest
import torch
import torch.nn.functional as F
from architectures import KINDS, asked, config_of, encoding_of, lively, some_ids

from tinytf.cause.order import order
from tinytf.cause.sharpness import peaks, sharpness
from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf.generate.beam import search
from tinytf.generate.decoder import Kind
from tinytf.generate.loop import stream
from tinytf.gradients.by_hand import agreement
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import record_gradients
from tinytf.loading import load
from tinytf.model.transformer import Transformer
from tinytf.model.without import left_out, removable
from tinytf.trace.check import check
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

GONE = {"scaling": ("scaled",), "mask": ("masked",), "positions": ("embed.positions", "q_rot", "k_rot", "biased")}


def traced(model: Transformer, length: int = 7) -> Trace:
    return record(model, encoding_of(some_ids(model.config, 1, length, 3)[0].tolist()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", LEFT_OUT)
def test_a_trace_has_no_such_step_and_adds_up(kind: str, part: str) -> None:
    if part not in removable(config_of(kind)):
        pytest.skip("it has none")
    model = lively(config_of(kind))
    other = left_out(model, [part])
    trace = traced(other)
    assert check(trace).holds
    for name in () if model.config.index_keys and part == "mask" else GONE[part]:
        assert not any(trace.steps.has(name, layer) for layer in trace.steps.attention_layers), name
    assert "embed.positions" not in trace.steps.by_name or part != "positions"
    assert all(model.get_parameter(name) is one for name, one in other.named_parameters())
    assert all(model.get_buffer(name) is one for name, one in other.named_buffers())
    assert not torch.equal(trace.last_hidden, traced(model).last_hidden)


@pytest.mark.parametrize("kind", ["llama, grouped", "gpt2", "gemma 2, norms around each part and windows by layer"])
@pytest.mark.parametrize("part", LEFT_OUT)
def test_attention_is_what_torch_computes_without_the_part(kind: str, part: str) -> None:
    """From the queries and keys of the trace; a cap, which torch's attention lacks, is left to the check."""
    trace = traced(left_out(lively(config_of(kind, attention_cap=0.0)), [part]))
    rotary = trace.config.positions == "rotary"
    q, k = (trace.step(f"{name}_rot" if rotary else name, 1, heads=(0, 1, 2, 3)) for name in "qk")
    assert rotary == (part != "positions" and kind != "gpt2")
    divisor = trace.config.attention_divisor or trace.config.d_head**0.5
    found = F.scaled_dot_product_attention(
        q, k, torch.eye(7).expand(4, 7, 7), is_causal=part != "mask", scale=1 / (1 if part == "scaling" else divisor)
    )
    assert torch.allclose(trace["L1.weights"], found, atol=1e-6)


def test_without_positions_the_embeddings_are_those_of_the_tokens() -> None:
    trace = traced(left_out(lively(config_of("gpt2")), ["positions"]))
    assert torch.equal(trace["embed.out"], trace["embed.tokens"])
    assert "embed.positions.weight" not in dict(trace.model.named_parameters())


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped", "bert with a masked head"])
def test_numbers_gradients_and_formulas_are_of_what_is_computed(kind: str) -> None:
    config = config_of(kind)
    other = left_out(lively(config), removable(config))
    trace = traced(other)
    assert asked(other).explain(trace, "logits[6,3]", depth=12).holds
    assert trace.steps.by_name["weights"].formula == "softmax(scores), each row sums to 1"
    grads = record_gradients(other, trace.encoding, Targets((5, 6), (3, 1)))
    assert agreement(grads).holds


@pytest.mark.parametrize("part", LEFT_OUT)
@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_goes_without_the_part_cached_or_not(part: str, use_cache: bool) -> None:
    model = lively(config_of("llama, grouped"))
    other, ids = left_out(model, [part]), some_ids(model.config, 1, 4, 3)[0].tolist()
    expected = list(ids)
    for _ in range(6):
        expected.append(int(other(torch.tensor([expected]))[0, -1].argmax()))
    assert [step.id for step in stream(other, ids, max_tokens=6, use_cache=use_cache)] == expected[4:]
    (beam,) = list(search(other, ids, beams=1, max_tokens=6, use_cache=use_cache))[-1].finished
    assert list(beam.ids) == expected[4:]


def test_kernels_that_need_a_cache_say_that_there_is_none_and_others_divide_by_nothing() -> None:
    model, compiled = lively(config_of("llama, grouped")), Kind(compile=True)
    with pytest.raises(UsageError, match="only decoding with a cache"):
        stream(left_out(model, ["mask"]), [1, 2], max_tokens=2, kind=compiled)
    undivided = left_out(model, ["scaling"])
    found, whole = (list(stream(undivided, [1, 2], max_tokens=6, use_cache=cached)) for cached in (True, False))
    assert {step.note for step in found} == {""}
    assert [step.log_probability for step in found] == pytest.approx([step.log_probability for step in whole], abs=1e-5)
    with pytest.raises(UsageError, match="nothing can be cached"):
        left_out(model, ["mask"]).cache()


def test_a_part_that_is_not_there_cannot_be_left_out() -> None:
    with pytest.raises(UsageError, match="no mask to leave out") as told:
        left_out(lively(config_of("bert with a pooler")), ["mask"])
    assert told.value.hint == "it has scaling and positions"
    model = load("tiny")
    with pytest.raises(UsageError, match="no scaling"):
        model.without("scaling").without("scaling")
    with pytest.raises(UsageError, match="ablated steps already"):
        model.without("L0H1").without("scaling")


def test_parts_and_steps_go_together_and_are_named() -> None:
    model = load("tiny").without(["positions", "L0H1", "mask"])
    assert model.notes == ("without positions, mask, L0H1 (zero)",)
    found = check(model.trace("The cat sat"))
    assert found.holds
    assert found.exchanged == ("L0H1.head_out",)


def test_both_softmaxes_are_of_the_same_live_scores() -> None:
    trace = load("tiny").trace("The cat sat on the mat")
    found = sharpness(trace, 1, 3)
    assert found is not None
    q, k = (trace.step(f"{name}_rot", 1, (3,))[0] for name in "qk")
    scores = (q @ k.T).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    assert torch.allclose(found.scaled, (scores / 32**0.5).softmax(-1), atol=1e-6)
    assert torch.allclose(found.unscaled, scores.softmax(-1), atol=1e-5)
    assert torch.equal(found.scaled, trace["L1H3.weights"])
    expected = torch.distributions.Categorical(found.scaled).entropy()
    assert [one.entropy for one in peaks(found.scaled)] == pytest.approx(expected.tolist(), abs=1e-5)
    w = torch.tensor([[0.2, 0.8]])
    (peak,) = peaks(w)
    assert (peak.key, peak.share) == (1, pytest.approx(0.8))
    assert peak.slope == pytest.approx(torch.autograd.functional.jacobian(_softmax, w.log()[0])[1, 1].item())


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def test_without_positions_an_encoder_gives_permuted_outputs_and_a_decoder_does_once_its_mask_is_gone() -> None:
    encoder, decoder = load("tiny-encoder"), load("tiny")
    text = encoder.encode("The cat [MASK] on the mat")
    found = order(encoder.transformer, text, encoder.tokenizer.mask_id)
    assert found is not None
    assert [one.lost for one in found.runs] == [False, True]
    assert found.runs[1].first == pytest.approx(found.runs[1].second, rel=1e-5)
    assert found.permutation[0] == 0, "[CLS] keeps its place"
    said = order(decoder.transformer, decoder.encode("The cat sat on the"))
    assert said is not None
    assert [(one.lacks, one.lost) for one in said.runs] == [
        ((), False), (("positions",), False), (("positions", "mask"), True),
    ]  # fmt: skip
    bare, ids = decoder.without(["positions", "mask"]), decoder.encode("The cat sat on the").ids
    places = list(said.permutation)
    assert places == [3, 2, 1, 0, 4]
    with torch.no_grad():
        first = bare.transformer.hidden(torch.tensor([ids]))[0, places]
        second = bare.transformer.hidden(torch.tensor([[ids[place] for place in places]]))[0]
    assert said.runs[2].difference == pytest.approx(float((first - second).abs().max()))


@pytest.mark.parametrize("text", ["The", "cat cat cat"])
def test_a_text_with_no_other_order_has_none(text: str) -> None:
    model = load("tiny")
    assert order(model.transformer, encoding_of([5] * len(text.split()))) is None


def test_one_layer_of_masked_attention_gives_the_last_token_the_same_in_any_order() -> None:
    """So what a decoder without positions knows of the order it learns from the tokens between."""
    one, two = (
        order(left_out(lively(config_of("gpt2", n_layers=layers)), []), encoding_of([3, 9, 4, 7])) for layers in (1, 2)
    )
    assert one is not None
    assert two is not None
    assert one.runs[1].first == pytest.approx(one.runs[1].second, rel=1e-5)
    assert two.runs[1].first != pytest.approx(two.runs[1].second, rel=1e-3)


def test_the_comparison_has_both_predictions_and_what_changed() -> None:
    model = load("tiny")
    found = model.compare_without("The cat sat on the", ["mask"], head="L1H2")
    again = model.without("mask").trace("The cat sat on the")
    whole = model.trace("The cat sat on the")
    (one,) = found.difference.predictions
    shares = [trace.logits_at(4).softmax(-1)[list(one.ids)].tolist() for trace in (whole, again)]
    assert [list(one.first), list(one.second)] == [pytest.approx(some, abs=1e-6) for some in shares]
    assert found.gone == ("masked",)
    assert found.holds
    assert found.difference.attention is not None
    assert torch.equal(found.difference.attention.second, again["L1H2.weights"])
    weights = [trace["L2.weights"] for trace in (whole, again)]
    apart = (weights[0] - weights[1]).abs().sum(-1).mean(-1) / 2
    layer = found.layers[2]
    assert (layer.head, layer.moved) == (int(apart.argmax()), pytest.approx(float(apart.max()), abs=1e-6))
    assert layer.ahead == pytest.approx(float(weights[1].triu(1).sum() / (4 * 5)), abs=1e-6)
    data = found.to_dict()
    assert data["kind"] == "without"
    assert data["sharpness"] is None
    assert data["order"] is None
    assert [one["holds"] for one in data["checks"]] == [True, True]
