"""Finite differences: right gradients hold on every kind of model, and wrong ones do not."""

import math
from dataclasses import replace
from typing import Any

import covering
import pytest
import torch
from caught_gradients import MODELS, model_of, traced
from covering import sample
from torch import Tensor

from tinytf.gradients import differences, probing
from tinytf.gradients.differences import TOLERANCE, MeasuredEntry, check, ridders
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import GradientTrace, record_gradients
from tinytf.loading import load


@sample("name", MODELS, every=2)
def test_gradients_are_what_the_loss_does(name: str) -> None:
    forward, targets = traced(name)
    many = 24 if covering.everything else 8  # each way to compute a step: test_completeness.py
    found = check(forward.model, forward.encoding, targets, many, 1)
    assert found.holds
    assert len(found.rows) == many
    assert found.worst.relative_error <= TOLERANCE
    assert found.unresolved <= 3


@pytest.mark.parametrize(("name", "text"), [("tiny", "The cat sat on the mat"), ("tiny-encoder", "The [MASK] sat")])
def test_also_of_the_built_in_models(name: str, text: str) -> None:
    model = load(name)
    encoding = model.encode(text)
    found = check(model.transformer, encoding, Targets((1, 2), (77, 5)), 24, 0)
    assert found.holds
    assert {type(row.analytic) for row in found.rows} == {float}
    assert all(parameter.dtype == torch.float32 for parameter in model.transformer.parameters())


class _WithoutSlope(torch.nn.Module):
    """GELU whose slope is off by a part in 2,000."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x) + 5e-4 * (x - x.detach())


def test_a_wrong_slope_of_the_activation_is_found_out() -> None:
    forward, targets = traced("rotary and both ways")
    forward.model.blocks[1].ffn.act = _WithoutSlope()
    found = check(forward.model, forward.encoding, targets, 60, 0)
    assert not found.holds
    assert found.worst.relative_error > 10 * TOLERANCE


@sample("name", ["blocks.0.ffn.up.weight", "embed.tokens.weight", "blocks.0.norm1.weight"])
def test_a_gradient_that_is_off_by_a_ten_thousandth_of_its_largest_entry_fails(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*args: Any, **settings: Any) -> GradientTrace:
        trace = record_gradients(*args, **settings)
        gradient = trace.parameters[name]
        trace.parameters[name] = gradient + 1e-4 * gradient.abs().max()
        return trace

    monkeypatch.setattr(differences, "record_gradients", wrong)
    forward, targets = traced("gpt2, one layer")
    found = check(forward.model, forward.encoding, targets, 100, 0)
    assert not found.holds
    assert {row.name for row in found.rows if row.relative_error > TOLERANCE} == {name}


def test_steps_are_changed_in_batches_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, targets = traced("gpt2")
    found = check(forward.model, forward.encoding, targets, 12, 0)
    monkeypatch.setattr(probing, "_LOGITS", 3 * 10 * 31)
    again = check(forward.model, forward.encoding, targets, 12, 0)
    assert [row.numeric for row in again.rows] == pytest.approx([row.numeric for row in found.rows], abs=1e-10)


@pytest.mark.parametrize("name", ["gpt2", "bert with a pooler"])
def test_parameters_and_steps_are_drawn_alike_and_the_seed_decides(name: str) -> None:
    forward, targets = traced(name)
    found, again = (check(forward.model, forward.encoding, targets, 12, 3) for _ in range(2))
    parameters = dict(forward.model.named_parameters())
    assert sum(row.name in parameters for row in found.rows) == 6
    assert found == again
    other = check(forward.model, forward.encoding, targets, 12, 4)
    assert [row.name for row in other.rows] != [row.name for row in found.rows]


def test_the_model_is_left_as_it_was() -> None:
    model = model_of("gpt2", torch.float32)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    forward, targets = traced("gpt2")
    check(model, forward.encoding, targets, 10, 0)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_no_derivative_is_measured_across_a_kink() -> None:
    forward, targets = traced("the paper's encoder")
    with torch.no_grad():
        forward.model.blocks[0].ffn.up.weight.zero_()
        forward.model.blocks[0].ffn.up.bias.zero_()
    found = check(forward.model, forward.encoding, targets, 100, 0)
    assert found.redrawn > 0
    assert found.holds
    assert any(row.shortened for row in found.rows)


def test_where_every_entry_lies_on_a_kink_it_says_that_none_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences.LossProbe, "losses", lambda *_: None)
    forward, targets = traced("gpt2")
    found = check(forward.model, forward.encoding, targets, 4, 0)
    assert not found.holds
    assert found.redrawn == 81
    assert found.to_dict()["worst"] is None


def test_it_says_how_far_it_is_and_gives_plain_data() -> None:
    forward, targets = traced("gpt2, one layer")
    said: list[tuple[int, int]] = []
    found = check(forward.model, forward.encoding, targets, 3, 0, lambda done, count: said.append((done, count)))
    assert said == [(1, 3), (2, 3), (3, 3)]
    data = found.to_dict()
    assert data["holds"]
    assert data["asked"] == 3
    assert [entry["name"] for entry in data["entries"]] == [row.name for row in found.rows]
    assert data["worst"]["relative_error"] == found.worst.relative_error


def test_a_relative_error_is_no_smaller_than_the_floor_makes_it() -> None:
    row = MeasuredEntry("x", (0,), 1e-9, 2e-9, 1e-3, 1e-5)
    assert row.relative_error == pytest.approx(1e-4)
    assert replace(row, analytic=math.nan).relative_error == math.inf
    assert row.resolved
    assert not replace(row, floor=1.0).resolved


def test_ridders_gives_a_derivative_to_twelve_digits() -> None:
    steps = [0.2, 0.1, 0.05, 0.025, 0.0125]
    above, below = ([math.exp(1 + sign * step) for step in steps] for sign in (1, -1))
    assert ridders(steps, above, below)[0] == pytest.approx(math.e, rel=1e-12)
