"""A model without some of its steps: what it gives, and what a trace of it says of itself."""

import copy
import itertools
from typing import Any

import pytest
import torch
from architectures import KINDS, asked, config_of, encoding_of, lively, some_ids

from tinytf.cause.interventions import HookPoint, Intervention, hook_points, intervened, intervening
from tinytf.errors import AddressError, UsageError
from tinytf.generate.loop import stream
from tinytf.gradients.by_hand import agreement
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import record_gradients
from tinytf.loading import load
from tinytf.look.explain import Explanation
from tinytf.model.transformer import Transformer
from tinytf.steps.table import StepTable
from tinytf.trace.check import check
from tinytf.trace.record import record
from tinytf.trace.trace import Trace


def explain(trace: Trace, address: str, **settings: Any) -> Explanation:
    """The one cell at an address."""
    return asked(trace.model).explain(trace, address, **settings)[0]


SITES = (["L0H1"], ["L1.attn"], ["L0.ffn"], ["L1"], ["L1.in"], ["L0.out"], ["L1.out"], ["L0H0", "L0H1", "L1.ffn"])

PLACES = [
    *itertools.product(("gpt2", "llama, grouped", "bert with a masked head"), SITES),  # a norm before, a norm after
    *((kind, SITES[-1]) for kind in KINDS),
]


def cut(model: Transformer, at: list[str], value: float = 0.0) -> Transformer:
    sites = hook_points(at, StepTable(model.config))
    return intervened(model, [Intervention(site, torch.full((width(model, site),), value)) for site in sites])


def width(model: Transformer, site: HookPoint) -> int:
    return model.config.d_model if site.head is None else model.config.at(site.layer).value_width


def traced(model: Transformer) -> Any:
    return record(model, encoding_of(some_ids(model.config, 1, 7, 3)[0].tolist()))


@pytest.mark.parametrize(("kind", "at"), PLACES, ids=str)
def test_a_trace_without_some_steps_adds_up_and_names_them(kind: str, at: list[str]) -> None:
    model = lively(config_of(kind))
    trace = traced(cut(model, at, 0.5))
    found = check(trace)
    assert found.holds, found.telling
    assert len(found.exchanged) == len(hook_points(at, StepTable(model.config)))
    assert found.to_dict()["exchanged"] == list(found.exchanged)
    assert check(traced(model)).exchanged == ()
    if model.head is not None:
        place = trace.recording.logit_rows[-1]
        apart = asked(trace.model).attribute(trace, position=str(place))
        assert apart.holds, apart.difference
        layers = range(model.config.n_layers)
        counts = [model.config.at(layer).n_heads if trace.steps.added_in(layer) else 0 for layer in layers]
        assert apart.heads().isfinite().sum(dim=1).tolist() == counts


def test_the_weights_are_shared_and_the_model_itself_is_whole() -> None:
    model = lively(config_of("gpt2"))
    plain = traced(model)
    other = cut(model, ["L0.ffn"])
    assert all(a is b for a, b in zip(model.parameters(), other.parameters(), strict=True))
    gone = copy.deepcopy(model)
    block: Any = gone.blocks[0]
    with torch.no_grad():
        for parameter in block.ffn.down.parameters():
            parameter.zero_()
    assert torch.allclose(traced(other).recorded_logits, traced(gone).recorded_logits, atol=1e-6)
    assert torch.equal(traced(model).recorded_logits, plain.recorded_logits)
    assert not torch.equal(traced(other).recorded_logits, plain.recorded_logits)


def test_both_ways_to_ablate_give_the_same_and_leave_nothing_behind() -> None:
    model = lively(config_of("llama, grouped"))
    site = hook_points(["L1H2"], StepTable(model.config))[0]
    with intervening(model, [Intervention(site, torch.zeros(model.config.d_head))]):
        inside = traced(model)
        assert check(inside).exchanged == ("L1H2.head_out",)
    assert torch.equal(inside.recorded_logits, traced(cut(model, ["L1H2"])).recorded_logits)
    assert model.exchanged == ()
    assert check(traced(model)).exchanged == ()


def test_a_real_fault_beside_an_exchanged_step_is_still_found() -> None:
    model = lively(config_of("gpt2"))
    trace = traced(cut(model, ["L0H1"]))
    trace.recording.tensors["L0.head_out"] = trace.recording.tensors["L0.head_out"].clone()
    trace.recording.tensors["L0.head_out"][0, 2] += 1.0
    assert not check(trace).holds


def test_an_exchanged_number_has_no_arithmetic_and_what_follows_has() -> None:
    trace = traced(cut(lively(config_of("gpt2")), ["L0H1", "L1.ffn"]))
    for address in ("L0H1.head_out[0,0]", "L1.ffn[2,3]"):
        with pytest.raises(AddressError, match="put there by an intervention"):
            explain(trace, address)
    assert explain(trace, "L0H0.head_out[0,0]").holds
    assert explain(trace, "L1.out[2,3]").holds
    assert all(one.holds for one in asked(trace.model).explain(trace, "logits[6,3]", depth=12))


def test_generation_runs_without_the_steps_cached_or_not() -> None:
    model = lively(config_of("llama, grouped"))
    ids = some_ids(model.config, 1, 4, 3)[0].tolist()
    other = cut(model, ["L0.ffn", "L1H0"])
    cached, plain = ([step.id for step in stream(other, ids, max_tokens=6, use_cache=one)] for one in (True, False))
    expected = list(ids)
    for _ in range(6):
        expected.append(int(other(torch.tensor([expected]))[0, -1].argmax()))
    assert cached == plain == expected[4:]


def test_a_difference_of_recorded_traces_is_that_of_two_runs() -> None:
    model = lively(config_of("bert with a masked head"))
    other = cut(model, ["L0.ffn"])
    first, second = traced(model), traced(other)
    text = " ".join(map(str, first.encoding.ids))
    fresh = asked(model).diff(text, asked(other))
    kept = asked(model).diff(first, (asked(other), second))
    assert [(one.name, one.largest) for one in fresh.steps] == [(one.name, one.largest) for one in kept.steps]
    assert kept.first is not None
    assert kept.first.name == "L0.ffn"


def test_an_open_model_goes_without_a_head_and_says_so() -> None:
    model = load("tiny")
    other = model.without(["L0H3", "L2.ffn"])
    assert other.notes[-1] == "without L0H3, L2.ffn (zero)"
    trace = other.trace("The cat sat")
    assert not trace["L0H3.head_out"].any()
    with model.ablated(["L0H3", "L2.ffn"]):
        assert torch.equal(model.trace("The cat sat").recorded_logits, trace.recorded_logits)
    with pytest.raises(UsageError, match="no text is given"):
        model.without("L0H3", how="resample")
    with pytest.raises(UsageError, match="no way to ablate"):
        model.without("L0H3", how="nothing")


@pytest.mark.parametrize(("kind", "at"), [p for p in PLACES if config_of(p[0]).head.kind != "none"], ids=str)
def test_no_gradient_goes_through_what_was_put_there_and_the_formulas_agree(kind: str, at: list[str]) -> None:
    model = lively(config_of(kind))
    drawn = torch.Generator().manual_seed(1)
    sites = hook_points(at, StepTable(model.config))
    values = {site: torch.randn(7, width(model, site), generator=drawn) for site in sites}
    model = intervened(model, [Intervention(site, values[site]) for site in sites])
    encoding = encoding_of(some_ids(model.config, 1, 7, 3)[0].tolist())
    trace = record_gradients(model, encoding, Targets((1, 4), (3, 5)))
    found = agreement(trace)
    assert found.holds, found.telling
    assert check(trace).holds
    for name, site in zip(trace.recording.exchanged, sites, strict=True):
        assert torch.equal(trace[name], values[site])
    if at == ["L0H1"]:
        assert not trace.grad["L0H1.weights"].any()
