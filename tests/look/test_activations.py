"""The activations of a text on their curves: torch's own functions, and the numbers of the trace."""

import pytest
import torch
import torch.nn.functional as F
from architectures import asked, config_of, lively

from tinytf.errors import AddressError
from tinytf.loading import load


def test_every_curve_is_that_of_torch() -> None:
    found = load("tiny").activations("The cat sat")
    x = found.grid.double()
    expected = {
        "ReLU": F.relu(x), "GELU": x * torch.distributions.Normal(0.0, 1.0).cdf(x),
        "GELU(tanh)": F.gelu(x, approximate="tanh"), "SiLU": x * x.sigmoid(),
    }  # fmt: skip
    assert found.curves.keys() == expected.keys()
    for name, curve in expected.items():
        assert torch.allclose(found.curves[name].double(), curve, atol=1e-6), name


def test_points_are_the_text_s_own_and_figures_count_them() -> None:
    model = load("tiny")
    trace = model.trace("The cat sat")
    found = model.activations(trace, layer=2)
    assert (found.name, found.gated) == ("SiLU", "SwiGLU")
    assert found.hidden is not None
    assert torch.equal(found.inputs, trace["L2.ffn.gate"])
    assert torch.allclose(found.outputs, F.silu(found.inputs) * found.hidden)
    one = found.places[1]
    assert one.below == pytest.approx(sum(x < 0 for x in found.inputs[1].tolist()) / 344)
    assert one.silent == pytest.approx(sum(abs(y) < 0.01 for y in found.outputs[1].tolist()) / 344)
    inputs = [x for row in found.inputs.tolist() for x in row]
    assert found.below == pytest.approx(sum(x < 0 for x in inputs) / len(inputs))
    assert found.beyond == sum(abs(x) > 5 for x in inputs)
    assert found.quantiles[0] == found.inputs.min()
    assert found.quantiles[3] == pytest.approx(float(found.inputs.median()), abs=0.01)


@pytest.mark.parametrize(("kind", "name"), [("gpt2", "GELU(tanh)"), ("the paper's encoder", "ReLU")])
def test_without_a_gate_every_output_is_on_the_curve(kind: str, name: str) -> None:
    found = asked(lively(config_of(kind))).activations("1 2 3", 1)
    assert (found.name, found.gated, found.hidden) == (name, "", None)
    curve = {"ReLU": F.relu, "GELU(tanh)": lambda x: F.gelu(x, approximate="tanh")}[name]
    assert torch.allclose(found.outputs, curve(found.inputs), atol=1e-6)


def test_a_layer_that_is_not_there_is_named() -> None:
    with pytest.raises(AddressError, match="no layer 7"):
        load("tiny").activations("The cat", layer=7)
