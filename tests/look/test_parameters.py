"""What is shown of a parameter, against torch.linalg and numpy on the model's own tensors."""

import numpy as np
import pytest
import torch
from architectures import KINDS, config_of, lively

from tinytf import load
from tinytf.errors import AddressError, UsageError
from tinytf.loading import Model
from tinytf.look.parameters import BINS, WAYS, Parameters, ParameterValues
from tinytf.model.transformer import Transformer
from tinytf.steps.table import StepTable


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load("tiny")


def of(transformer: Transformer) -> Model:
    """A model without words of its own."""
    return Model("made", transformer, load("tiny").tokenizer, "random weights")


def only(found: Parameters) -> ParameterValues:
    (one,) = found.found
    return one


@pytest.mark.parametrize("kind", KINDS)
def test_the_values_of_every_parameter_are_those_of_the_model(kind: str) -> None:
    model = lively(config_of(kind))
    named = {name: one.detach() for name, one in model.named_parameters()}
    table = StepTable(model.config)
    names: list[str] = []
    for name, (step, one) in table.parameters.items():
        if not one.absent:
            layer = next((i for i in (1, 0, 2) if step.in_layer and table.has_parameter(name, i)), None)
            part = "E1" if step.of_experts else ""
            names.append(name if layer is None else f"L{layer}{part}.{name}")
    for one in of(model).parameters(names).found:
        own = named[one.name][1] if one.where.heads else named[one.name]
        assert torch.equal(one.values.flatten().sort().values, own.flatten().sort().values)
        assert one.norm == pytest.approx(float(np.linalg.norm(own.double().numpy())))
        assert one.statistics.mean == pytest.approx(float(own.mean()), abs=1e-6)
        assert one.statistics.std == pytest.approx(float(own.std(correction=0)), rel=1e-5, abs=1e-7)


def test_the_spectrum_is_that_of_torch_and_the_carrying_values_are_the_fewest(tiny: Model) -> None:
    for address in ("L0.W_Q", "L2H3.W_O", "L1.ffn.W_up"):
        one = only(tiny.parameters(address, way="spectrum"))
        _, expected, _ = np.linalg.svd(one.values.double().numpy())
        assert np.allclose(one.singular_values, expected, atol=1e-10)
        energy = expected**2
        assert energy[: one.carrying].sum() >= 0.9 * energy.sum() > energy[: one.carrying - 1].sum()
        assert one.to_dict()["carrying"] == one.carrying
    assert float(one.singular_values.square().sum()) == pytest.approx(one.norm**2)


def test_singular_values_worked_out_by_hand() -> None:
    """3 and 2 alone in a matrix of zeros: energies 9 and 4, and 9 of 13 is less than 90 %."""
    model = lively(config_of("gpt2"))
    with torch.no_grad():
        weight = model.get_parameter("blocks.0.ffn.up.weight").zero_()
        weight[7, 2], weight[30, 20] = -3.0, 2.0
    one = only(of(model).parameters("L0.ffn.W₁", way="spectrum"))
    assert one.singular_values[:3].tolist() == pytest.approx([3.0, 2.0, 0.0])
    assert one.carrying == 2


def test_rows_have_norms_and_tokens_have_theirs(tiny: Model) -> None:
    named = dict(tiny.transformer.named_parameters())
    one = only(tiny.parameters("L0.W_Q", way="norms"))
    assert torch.allclose(one.row_norms, named["blocks.0.attention.q.weight"].double().norm(dim=0))
    assert torch.allclose(only(tiny.parameters("E")).row_norms, named["embed.tokens.weight"].double().norm(dim=1))
    model = lively(config_of("llama, grouped"))
    one = only(of(model).parameters("W_U", way="norms"))
    assert torch.allclose(one.row_norms, model.get_parameter("head.decoder.weight").double().norm(dim=1))
    assert one.to_dict()["row_axis"] == "vocab"


def test_a_histogram_counts_every_number_once(tiny: Model) -> None:
    for address in ("L0.W_Q", "L0.norm1.gain"):
        one = only(tiny.parameters(address, way="histogram"))
        counts, edges = np.histogram(one.values.double().numpy(), BINS)
        assert one.histogram[1].tolist() == counts.tolist()
        assert np.allclose(one.histogram[0], edges)


def test_one_number_knows_its_row_and_what_it_makes(tiny: Model) -> None:
    weight = dict(tiny.transformer.named_parameters())["blocks.0.attention.q.weight"]
    one = only(tiny.parameters("L0H1.W_Q[3,7]"))
    assert one.values == weight[39, 3]
    assert one.row_norm == pytest.approx(float(weight.detach()[32:64, 3].double().norm()))
    assert one.makes == ("L0H1.q",)
    assert only(tiny.parameters("L0H1.W_O")).makes == ("L0.attn",)
    assert only(tiny.parameters("E[cat]")).makes == ("embed.tokens", "logits")
    assert torch.equal(
        only(tiny.parameters("E[cat]")).values, tiny.transformer.embed.tokens.weight[tiny.find_token("cat")]
    )


def test_a_trace_has_parameters_beside_its_steps(tiny: Model) -> None:
    found = tiny.traced("The cat", at=["L0H1.weights", "L0.W_Q"], way="histogram")
    data = found.to_dict()
    assert list(data["values"]) == ["L0H1.weights"]
    assert [(one["address"], one["way"]) for one in data["parameters"]] == [("L0.W_Q", "histogram")]
    assert found.tensors()["L0.W_Q"].shape == (128, 128)


def test_without_a_way_matrices_are_maps_and_tokens_and_vectors_tables(tiny: Model) -> None:
    found = tiny.parameters(["L0.W_Q", "E", "L0.b_Q", "L0.W_Q[0]"]).found
    assert [one.way for one in found] == ["map", "table", "table", "table"]


@pytest.mark.parametrize("way", ["map", "spectrum", "norms"])
def test_a_vector_is_not_shown_as_a_matrix(tiny: Model, way: str) -> None:
    with pytest.raises(UsageError, match="is a vector"):
        tiny.parameters("L0.b_Q", way=way)
    with pytest.raises(UsageError, match="is one number"):
        tiny.parameters("L0.W_Q[0,0]", way=way)


def test_what_is_no_parameter_or_no_way_is_refused(tiny: Model) -> None:
    with pytest.raises(AddressError, match=r"L0\.out is a step, not a parameter"):
        tiny.parameters("L0.out")
    with pytest.raises(AddressError, match="no step 'W_QQ'"):
        tiny.parameters("L0.W_QQ")
    with pytest.raises(UsageError, match="not shown as 'colour'"):
        tiny.parameters("E", way="colour")
    with pytest.raises(UsageError, match="token 'pooch' is 3 tokens"):
        tiny.parameters("E[pooch]")


def test_a_token_in_a_cell_is_said_with_its_id(tiny: Model) -> None:
    assert only(tiny.parameters("E[cat,3]")).tokens == {"cat": tiny.find_token("cat")}
    assert only(tiny.parameters("E[17]")).tokens == {}


def test_numbers_that_are_not_finite_have_no_spectrum_and_are_counted() -> None:
    model = lively(config_of("gpt2"))
    with torch.no_grad():
        model.get_parameter("blocks.0.attention.q.weight")[0, 0] = torch.nan
    assert only(of(model).parameters("L0.W_Q")).statistics.not_finite == 1
    assert int(only(of(model).parameters("L0.W_Q")).histogram[1].sum()) == 24 * 24 - 1
    with pytest.raises(UsageError, match="not finite"):
        of(model).parameters("L0.W_Q", way="spectrum")


def test_the_ways_of_the_command_are_those_of_the_library() -> None:
    from tinytf_cli.commands.trace import WAYS as OFFERED

    assert OFFERED == WAYS
