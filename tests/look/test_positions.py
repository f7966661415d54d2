"""The picture of positions: the model's own numbers, against the paper's formula and its own rotations."""

import math

import pytest
import torch
from architectures import config_of, encoding_of, lively, some_ids
from transformers.models.ctrl.modeling_ctrl import positional_encoding

from tinytf.errors import UsageError
from tinytf.loading import load
from tinytf.look.positions import positions_of as positions
from tinytf.model.without import left_out
from tinytf.trace.record import record


def test_sinusoidal_positions_are_sines_and_cosines_of_the_paper() -> None:
    found = load("tiny-encoder").positions()
    assert found.how == "sinusoidal"
    assert found.table["sines"][1, :2].tolist() == pytest.approx([0.841471, math.sin(10_000 ** (-2 / 128))], abs=1e-6)
    assert found.table["cosines"][2, 0].item() == pytest.approx(-0.416147, abs=1e-6)
    trace = load("tiny-encoder").trace("The cat sat on the mat")
    assert torch.equal(trace["embed.positions"][:, 1::2], found.table["cosines"][: len(trace.tokens)])
    assert found.waves[0].wavelength == pytest.approx(2 * math.pi)
    assert found.waves[-1].wavelength == pytest.approx(2 * math.pi * 10_000 ** (126 / 128))
    assert found.check is not None
    assert found.check.holds
    assert found.similarity[1] == pytest.approx(sum(math.cos(wave.frequency) for wave in found.waves) / 64, abs=1e-6)


def test_positions_of_ctrl_are_those_of_transformers() -> None:
    found = positions(lively(config_of("ctrl, sines before cosines")))
    table = torch.cat((found.table["sines"], found.table["cosines"]), dim=-1)
    assert torch.allclose(table, positional_encoding(32, 24, torch.float), atol=1e-6)
    assert found.check is not None
    assert found.check.holds


@pytest.mark.parametrize(
    "kind", ["llama, grouped", "pythia, side by side and turned in part", "mistral, a window and stretched waves"]
)
def test_rotary_waves_are_the_angles_that_queries_turn_by(kind: str) -> None:
    model = lively(config_of(kind))
    found = positions(model)
    assert found.check is not None
    assert found.check.holds
    trace = record(model, encoding_of(some_ids(model.config, 1, 9, 3)[0].tolist()))
    before, after = trace["L0H0.q"].double(), trace["L0H0.q_rot"].double()
    for number, wave in enumerate(found.waves):
        pair = list(wave.dimensions)
        turned = torch.view_as_complex(after[:, pair].contiguous()) / torch.view_as_complex(
            before[:, pair].contiguous()
        )
        assert torch.allclose(turned.real, found.table["cosines"][:9, number].double(), atol=1e-4)
        assert torch.allclose(turned.imag, found.table["sines"][:9, number].double(), atol=1e-4)


def test_a_learned_table_has_the_periods_that_are_in_it() -> None:
    model = lively(config_of("gpt2"))
    assert positions(model).check is None
    place = torch.arange(32) * 2 * math.pi
    with torch.no_grad():
        model.embed.positions.weight[:, 5] = 7 + (place / 8).sin()  # type: ignore[union-attr, index, operator]
        model.embed.positions.weight[:, 6] = (place / 16).cos()  # type: ignore[union-attr, index, operator]
    found = positions(model)
    assert (found.waves[5].wavelength, found.waves[6].wavelength) == (8, 16)
    assert found.waves[5].share == pytest.approx(1, abs=1e-5)
    assert torch.equal(found.table["learned"], model.embed.positions.weight)  # type: ignore[union-attr, arg-type]
    offset = lively(config_of("roberta, positions from the third row"))
    assert len(positions(offset).table["learned"]) == 32


def test_a_model_without_positions_has_no_picture() -> None:
    with pytest.raises(UsageError, match="no positions"):
        positions(left_out(lively(config_of("gpt2")), ["positions"]))
    assert positions(lively(config_of("gpt2", context=1))).waves == ()
