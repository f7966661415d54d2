"""Explanations: the terms of any cell add up to the number that torch made, and say what they are."""

import math
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from architectures import asked
from caught_gradients import MODELS, traced
from covering import along

from tinytf.errors import AddressError, UsageError
from tinytf.look.explain import TEMPERATURES, Explanation
from tinytf.steps.operations import Linear
from tinytf.steps.operations.mask import Sight
from tinytf.trace.trace import Trace


def explain(trace: Trace, address: str, **settings: Any) -> Explanation:
    """The one cell at an address."""
    return asked(trace.model).explain(trace, address, **settings)[0]


models = pytest.mark.parametrize("name", MODELS)


def some_cells(trace: Trace, seed: str, each: int = 5) -> Iterator[str]:
    """Addresses of the first cell of every step of every layer, whose query sees least, and of random ones."""
    draw = random.Random(seed)
    for step, layer in trace.steps.rows:
        if not step.is_tensor:
            continue
        for number in range(1 + each):
            head = draw.choice(step.part_numbers(trace.config.at(layer))) if step.is_split else None
            place = "" if layer is None else f"L{layer}." if head is None else f"L{layer}{step.letter}{head}."
            shape = trace.step(step.name, layer).shape[-len(step.axes[-2:]) :]
            yield f"{place}{step.name}[{','.join(str(draw.randrange(size) if number else 0) for size in shape)}]"


@along({"name": MODELS, "dtype": [torch.float64, torch.float32]})
def test_the_terms_of_any_cell_of_any_step_add_up_to_the_recorded_number(name: str, dtype: torch.dtype) -> None:
    trace, _ = traced(name, dtype)
    limit = 1e-12 if dtype is torch.float64 else 1e-5
    explained = set()
    for address in some_cells(trace, name):
        found = explain(trace, address, top=3)
        assert found.holds, address
        assert found.recorded == float(trace[address])
        if math.isinf(found.recorded):
            assert found.total == found.recorded
        else:
            assert abs(found.total - found.recorded) <= limit * max(1.0, abs(found.recorded)), address
        if found.sum is not None:
            listed = sum(term.contribution for term in found.terms) + found.rest.sum
            assert listed == pytest.approx(found.sum, abs=1e-10), address
            assert found.total == (found.after[-1].value if found.after else found.sum)
        explained.add(found.address.partition("[")[0].rpartition("]")[0] or found.title)
    assert len(explained) >= len({step.title for step, _ in trace.steps.rows if step.is_tensor})


@models
def test_the_factors_of_a_term_are_what_it_is_the_product_of(name: str) -> None:
    trace, _ = traced(name)
    for address in some_cells(trace, name, each=1):
        found = explain(trace, address)
        sizes = [abs(term.contribution) for term in found.terms]
        assert sizes == sorted(sizes, reverse=True)
        for term in found.terms:
            assert len(term.factors) in (0, len(found.factor_names))
            if term.factors and found.kind != "a softmax":
                assert math.prod(term.factors) == pytest.approx(term.contribution, abs=1e-12), address


@models
def test_following_the_largest_terms_ends_at_the_embeddings(name: str) -> None:
    trace, _ = traced(name)
    last = "final.norm" if trace.config.final_norm else f"L{trace.config.n_layers - 1}.norm2"
    found = list(asked(trace.model).explain(trace, f"{last}[4,3]", depth=1000))
    addresses = [one.address for one in found]
    assert len(set(addresses)) == len(addresses)
    assert [one.depth for one in found] == sorted(one.depth for one in found)
    ends = [one for one in found if not one.leads_to]
    assert ends
    assert {one.kind for one in ends} <= {
        "a lookup",
        "a lookup by hashes",
        "a position",
        "a row of a table",
        "what is given",
    }
    assert all(re.match(r"(enc\.)?embed\.|source|L\d\.(distances|(ple|ngram)\.tokens)\[", one.address) for one in ends)
    for one in found:
        assert set(one.leads_to) <= set(addresses)
        assert one.holds


def test_a_score_leads_to_the_two_numbers_of_its_largest_product() -> None:
    trace, _ = traced("gpt2")
    found = explain(trace, "L1H2.scores[5,3]", top=6)
    q, k = trace["L1H2.q[5]"], trace["L1H2.k[3]"]
    best = int((q * k).abs().argmax())
    assert found.factor_names == ("q", "k")
    assert found.terms[0].label == f"d{best}"
    assert found.terms[0].factors == (float(q[best]), float(k[best]))
    assert found.leads_to == (f"L1H2.q[5,{best}]", f"L1H2.k[3,{best}]")
    assert [one.address for one in found.inputs] == ["L1H2.q[5]", "L1H2.k[3]"]
    everything = explain(trace, "L1H2.scores[5,3]", top=100)
    assert len(everything.terms) == trace.config.d_head
    assert everything.rest.count == 0


def test_a_masked_cell_says_why() -> None:
    trace, _ = traced("mistral, a window and stretched waves")
    later, earlier, seen = (explain(trace, f"L0H0.masked[{cell}]") for cell in ("2,3", "8,2", "8,5"))
    assert "key 3 #9 comes after query 2 #15" in later.note
    assert "is 6 back, and the window sees 3 back" in earlier.note
    assert later.total == earlier.total == -math.inf
    assert not later.leads_to
    assert "visible" in seen.note
    assert seen.leads_to == ("L0H0.scaled[8,5]",)
    weight = explain(trace, "L0H0.weights[8,2]")
    assert weight.total == 0
    assert weight.holds


def test_the_intermediate_values_are_those_of_the_formulas() -> None:
    trace, _ = traced("gpt2")
    x = trace["L1.in[4]"]
    norm = {value.name: value.value for value in explain(trace, "L1.norm1[4,7]").before}
    assert norm["mean"] == pytest.approx(float(x.mean()))
    assert norm["variance"] == pytest.approx(float(x.var(unbiased=False)))
    assert norm["σ"] == pytest.approx(math.sqrt(norm["variance"] + norm["ε"]))
    assert norm["x̂"] == pytest.approx((float(x[7]) - norm["mean"]) / norm["σ"])
    rotation, _ = traced("llama, grouped")
    turned = {value.name: value.value for value in explain(rotation, "L0H3.k_rot[6,4]").before}
    assert turned["angle"] == pytest.approx(6 * turned["frequency"])
    assert turned["cos"] == pytest.approx(math.cos(turned["angle"]), abs=1e-6)
    assert turned["sin"] == pytest.approx(math.sin(turned["angle"]), abs=1e-6)
    wave, _ = traced("the paper's encoder")
    angle = {value.name: value.value for value in explain(wave, "embed.positions[5,9]").before}
    assert angle["angle"] == pytest.approx(5 / 10_000 ** (8 / 24))


def test_a_temperature_divides_the_logits() -> None:
    trace, _ = traced("gpt2")
    logits = trace["logits[3]"]
    found = explain(trace, "probs[3,7]", temperature=0.5)
    assert found.total == pytest.approx(float((logits / 0.5).softmax(dim=-1)[7]), rel=1e-9)
    assert "at a temperature of 0.5" in found.note
    assert explain(trace, "probs[3,7]").recorded == float(trace["probs[3,7]"])
    curves = asked(trace.model).explain(trace, "probs[3,7]").by_temperature
    likeliest = [i for i in logits.argsort(descending=True).tolist() if i != 7][:3]
    for i, shares in zip([7, *likeliest], curves.values(), strict=True):
        expected = [float((logits.double() / t).softmax(dim=-1)[i]) for t in TEMPERATURES]
        assert shares == pytest.approx(expected, rel=1e-9)
    assert (min(TEMPERATURES), max(TEMPERATURES)) == (0.1, 4)
    assert asked(trace.model).explain(trace, "logits[3,7]").by_temperature == {}


def test_a_number_that_was_recorded_wrong_is_found() -> None:
    trace, _ = traced("llama, grouped")
    assert explain(trace, "L0H1.q[4,2]").holds
    trace.recording.tensors["L0.q"][1, 4, 2] += 0.01
    found = explain(trace, "L0H1.q[4,2]")
    assert not found.holds
    assert found.difference == pytest.approx(0.01)
    trace.recording.tensors["L0.q"][1, 4, 2] = math.nan
    assert not explain(trace, "L0H1.q[4,2]").holds
    assert not explain(trace, "L0H1.scores[4,2]").holds


def test_a_mask_that_is_not_where_it_should_be_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sight, "allowed", lambda *_: torch.ones(10, 10, dtype=torch.bool).tril(1))
    trace, _ = traced("gpt2")
    assert explain(trace, "L0H1.masked[4,2]").holds
    assert not explain(trace, "L0H1.masked[4,5]").holds
    assert explain(trace, "L0H1.masked[4,6]").holds
    monkeypatch.setattr(Sight, "allowed", lambda *_: torch.eye(10, dtype=torch.bool))
    trace, _ = traced("gpt2")
    found = explain(trace, "L0H1.masked[4,2]")
    assert (found.recorded, found.holds) == (-math.inf, False)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("tokens", "tokens has no arithmetic"),
        ("ids", "ids has no arithmetic"),
        ("next", "next has no arithmetic: it is read off probs"),
        ("L1", "L1 names no step"),
        ("L1.scores[1,0]", "L1.scores[1,0] names no head"),
        ("L1H0.scores", "L1H0.scores is all of a step"),
        ("L1H0.scores[1]", "L1H0.scores[1] is a row"),
        ("L0-1.norm1[1,0]", "L0-1.norm1[1,0] is of 2 layers"),
        ("L0H*.q[1,0]", "L0H0-3.q[1,0] is of 4 heads"),
        ("L0.norm1[1,24]", "d_model 24 is out of range"),
        ("logits[1,word]", "token 'word' is no token"),
        ("logits[1,#31]", "there is no token 31"),
        ("L0.k_rot[1,0]", "this model has no step 'k_rot'"),
    ],
)
def test_what_is_not_one_number_is_refused(address: str, said: str) -> None:
    trace, _ = traced("gpt2")
    with pytest.raises(AddressError, match=said.replace("[", r"\[")) as caught:
        explain(trace, address)
    assert "\n" not in str(caught.value)


def test_the_example_of_a_refusal_is_an_address_that_can_be_explained() -> None:
    trace, _ = traced("gpt2")
    for address in ("L1", "L1H2", "L1.scores[1,0]", "L1H0.scores[1]", "L0-1.norm1[1,0]", "L0H*.q", "logits", "L1.mid"):
        with pytest.raises(AddressError) as caught:
            explain(trace, address)
        assert explain(trace, caught.value.hint.removeprefix("for example ")).holds


def test_depth_and_top_are_at_least_1() -> None:
    trace, _ = traced("gpt2")
    with pytest.raises(UsageError, match="top 0 is below 1"):
        explain(trace, "logits[1,0]", top=0)
    with pytest.raises(UsageError, match="depth 0 is below 1"):
        explain(trace, "logits[1,0]", depth=0)


def test_a_matrix_has_the_name_that_its_formula_gives_it() -> None:
    for name in MODELS:
        trace, _ = traced(name)
        for step, layer in trace.steps.rows:
            if isinstance(step.operation, Linear) and step.matrix != "W":
                where = "" if layer is None else f"L{layer}{step.letter}0." if step.is_split else f"L{layer}."
                found = explain(trace, f"{where}{step.name}[0,0]")
                assert f"·{found.factor_names[1]}" in found.formula


def test_a_temperature_is_above_0_and_of_probabilities() -> None:
    trace, _ = traced("gpt2")
    with pytest.raises(UsageError, match="a temperature belongs to probs"):
        explain(trace, "logits[1,0]", temperature=0.5)
    for temperature in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UsageError, match="is not above 0"):
            explain(trace, "probs[1,0]", temperature=temperature)
