"""A derivation is the row of the gradient that it says it is, and its formula and numbers are to be checked by hand."""

import caught_gradients
import pytest
import torch
from architectures import encoding_of
from caught_gradients import IDS, MASKED, MODELS, backward, model_of, relative

from tinytf.errors import AddressError
from tinytf.gradients.derivation import derive
from tinytf.gradients.trace import GradientTrace, record_gradients

models = pytest.mark.parametrize("name", MODELS)


def traced(name: str) -> GradientTrace:
    forward, targets = caught_gradients.traced(name)
    return record_gradients(forward.model, forward.encoding, targets)


@models
def test_every_row_of_every_step_is_that_of_the_gradient(name):
    trace = traced(name)
    gradients = dict(backward(trace, trace.targets))
    for step, layer in trace.steps.rows:
        if not step.is_tensor:
            continue
        full, config = step.full_name(layer), trace.config.at(layer)
        heads = range(config.experts if step.of_experts else config.n_heads) if step.is_split else [None]
        for head in heads:
            address = full if head is None else f"L{layer}{step.letter}{head}.{step.name}"
            for row in (0, 5):
                found = derive(trace, f"{address}[{row}]")
                expected = gradients[full]
                if head is not None:
                    expected = expected[head // config.heads_per_kv if "kv head" in step.axes else head]
                if len(step.axes) > 1:
                    expected = expected[row]
                # of one segment, whose score is the same for all keys, only rounding is left
                least = 1e-15 * max(float(gradients[full].abs().max()), 1e-2 * trace.config.segments)
                nothing = float(expected.abs().max()) < least
                assert nothing or relative(found.result, expected) <= 1e-10, (address, row)
                assert (found.name, found.head) == (full, head)


@models
def test_all_that_is_shown_is_a_scalar_or_a_vector_without_a_name_twice(name):
    trace = traced(name)
    for step, layer in trace.steps.rows:
        if step.is_tensor:
            found = derive(trace, step.full_name(layer))
            shown = [*found.inputs, *found.intermediates]
            assert all(quantity.values.dim() <= 1 and not quantity.values.requires_grad for quantity in shown)
            names = [quantity.name for quantity in shown]
            assert len(set(names)) == len(names), (found.name, names)
            assert found.formula[0].startswith(f"∂{step.name} = ")


FORMULAS = {
    ("gpt2", "L1.norm1"): "∂norm1 = ∂q·W_Qᵀ + ∂k·W_Kᵀ + ∂v·W_Vᵀ",
    ("gpt2", "L1.in"): "∂in = ∂mid + (ĝ − mean(ĝ) − x̂·mean(ĝ⊙x̂)) / σ",
    ("gpt2", "L0.out"): "∂out = ∂L1.in",
    ("gpt2", "L1.out"): "∂out = (ĝ − mean(ĝ) − x̂·mean(ĝ⊙x̂)) / σ",
    ("gpt2", "embed.out"): "∂embed.out = ∂L0.in",
    ("gpt2", "embed.tokens"): "∂embed.tokens = ∂embed.out",
    ("gpt2", "final.norm"): "∂final.norm = ∂logits·E",
    ("gpt2", "L0H2.scores"): "∂scores = ∂scaled / 2.449",
    ("gpt2", "L0H2.scaled"): "∂scaled = ∂masked ⊙ visible",
    ("gpt2", "L0H2.masked"): "∂masked = w ⊙ (g − Σ g⊙w)",
    ("gpt2", "L0H2.weights"): "∂weights = ∂head_out·vᵀ",
    ("gpt2", "L0H2.head_out"): "∂head_out = ∂concat[12…17]",
    ("gpt2", "L0.ffn.hidden"): "∂ffn.hidden = ∂ffn.act ⊙ GELU′(ffn.hidden)",
    ("gpt2", "L0.ffn.act"): "∂ffn.act = ∂ffn·W₂ᵀ",
    ("llama, grouped", "L1.mid"): "∂mid = ∂out + (ĝ − x̂·mean(ĝ⊙x̂)) / σ",
    ("llama, grouped", "L1.q"): "∂q = ∂q_rot ⊙ cos + [b | −a] ⊙ sin",
    ("llama, grouped", "L1H3.k_rot"): "∂k_rot = ∂scoresᵀ·q",
    ("llama, grouped", "L1H3.v"): "∂v = weightsᵀ·∂head_out",
    ("llama, grouped", "L1.ffn.gate"): "∂ffn.gate = ∂ffn.act ⊙ ffn.hidden ⊙ SiLU′(ffn.gate)",
    ("llama, grouped", "L1.ffn.hidden"): "∂ffn.hidden = ∂ffn.act ⊙ SiLU(ffn.gate)",
    ("llama, grouped", "final.norm"): "∂final.norm = ∂logits·W_Uᵀ",
    ("bert with a masked head", "L1.norm1"): "∂norm1 = ∂sum + ∂ffn.hidden·W₁ᵀ",
    ("bert with a masked head", "L1.norm2"): "∂norm2 = ∂head.dense·Wᵀ",
    ("bert with a pooler", "pooled"): "∂pooled = 0: no path leads from here to the loss",
}


@pytest.mark.parametrize(("name", "address"), FORMULAS)
def test_the_formula_is_that_of_the_architecture(name, address):
    trace = traced(name)
    assert derive(trace, address).formula[0] == FORMULAS[name, address]


def test_a_softmax_row_can_be_followed_number_by_number():
    trace = traced("gpt2")
    found = derive(trace, "L0H1.masked[4]")
    g, w = (quantity.values.tolist() for quantity in found.inputs)
    along, centred = (quantity.values for quantity in found.intermediates)
    assert w == trace["L0H1.weights[4]"].tolist()
    by_hand = sum(one * weight for one, weight in zip(g, w, strict=True))
    assert float(along) == pytest.approx(by_hand, rel=1e-12)
    assert centred.tolist() == pytest.approx([one - by_hand for one in g], rel=1e-12)
    assert found.result.tolist() == pytest.approx([(a - by_hand) * b for a, b in zip(g, w, strict=True)], rel=1e-12)
    assert found.result[5:].tolist() == [0.0] * 5


def test_a_layer_norm_row_names_mean_sigma_and_gain():
    trace = traced("gpt2")
    found = derive(trace, "L0.mid[3]")
    assert [quantity.name for quantity in found.inputs] == ["∂out", "∂norm2", "mid", "mean", "σ", "gain"]
    assert [quantity.name for quantity in found.intermediates] == [
        "x̂", "ĝ", "mean(ĝ)", "mean(ĝ⊙x̂)", "(ĝ − mean(ĝ) − x̂·mean(ĝ⊙x̂)) / σ",
    ]  # fmt: skip
    assert found.formula[1:] == ("ĝ = ∂norm2 ⊙ gain", "x̂ = (mid − mean) / σ, σ = √(variance + ε)")
    assert found.inputs[3].values.item() == pytest.approx(trace["L0.mid[3]"].mean().item())


def test_a_shared_key_names_the_query_heads_that_it_sums():
    trace = traced("llama, grouped")
    found = derive(trace, "L1H3.v[2]")
    assert found.formula[1:] == ("summed over the query heads 2 to 3, which share it",)
    assert [quantity.name for quantity in found.inputs] == ["weights[·,2], head 2", "weights[·,2], head 3"]
    assert torch.equal(found.inputs[1].values, trace["L1H3.weights"][:, 2])
    total = found.intermediates[0].values + found.intermediates[1].values
    assert relative(found.result, total) < 1e-15


def test_the_row_is_the_last_that_predicts_unless_said_by_number_or_by_cell():
    trace = traced("gpt2")
    assert derive(trace, "L0.norm1").row == len(IDS) - 2
    assert derive(trace, "L0.norm1[-1]").row == len(IDS) - 1
    assert derive(trace, "L0H1.weights[#15]").row == IDS.index(15)
    assert derive(trace, "L0H1.weights").head == 1
    assert derive(trace, "L0.weights").head == 0


def test_a_position_that_is_asked_twice_says_so():
    trace = record_gradients(model_of("roberta, positions from the third row"), encoding_of(IDS), MASKED)
    found = derive(trace, "logits[2]")
    assert found.formula[0] == "∂logits = (2·p − onehot) / N"
    assert found.inputs[1].values.nonzero().flatten().tolist() == [7, 11]
    assert relative(found.result, dict(backward(trace, MASKED))["logits"][2]) < 1e-12
    probs = derive(trace, "probs[2]")
    assert relative(probs.result, dict(backward(trace, MASKED))["probs"][2]) < 1e-12
    assert derive(trace, "logits[0]").formula[0] == "∂logits = 0: nothing is to be predicted from here"


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("L0", "L0 has no gradient"),
        ("ids", "ids has no gradient"),
        ("L*.norm1", "2 layers"),
        ("L0H*.q", "4 heads"),
        ("L0.weights[1,2]", "not one row"),
        ("L0.norm1[10]", "token 10 is out of range: there are 10, 0 to 9"),
        ("L0.weights[-11]", "query -11 is out of range"),
        ("L5.norm1", "there is no layer 5"),
        ("L0.norm3", "there is no step 'norm3'"),
    ],
)
def test_what_is_not_one_row_of_one_step_is_refused(address, says):
    trace = traced("gpt2")
    with pytest.raises(AddressError, match=says):
        derive(trace, address)
