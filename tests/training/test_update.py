"""An update written out is what torch's AdamW does, in every number."""

import pytest
import torch
from torch import nn

from tinytf.errors import UsageError
from tinytf.training.tuning.update import UpdateWatch, choose_weight


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("most", [1e9, 0.5])
def test_every_number_of_an_update_is_that_of_the_plain_formula(decay: float, most: float) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=decay, fused=True)
    by_hand = {
        name: (torch.zeros_like(p).double(), torch.zeros_like(p).double()) for name, p in model.named_parameters()
    }
    for step in range(1, 6):
        optimiser.zero_grad()
        model(torch.randn(4, 5)).square().mean().mul(30).backward()
        watch = UpdateWatch(model, optimiser, count=4)
        before = {name: p.detach().double().clone() for name, p in model.named_parameters()}
        raw = {name: p.grad.double().clone() for name, p in model.named_parameters()}
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), most))
        optimiser.step()
        updates = watch.updates(norm, most)
        assert len(updates) == 4
        factor = min(1.0, most / (norm + 1e-6))
        for name, (m, v) in by_hand.items():
            m.mul_(0.9).add_(0.1 * factor * raw[name])
            v.mul_(0.95).add_(0.05 * (factor * raw[name]) ** 2)
        for one in updates:
            m, v = by_hand[one.name]
            assert one.step == step
            assert one.gradient == pytest.approx(float(raw[one.name][one.index]), rel=1e-6)
            assert abs(one.gradient) == pytest.approx(float(raw[one.name].abs().max()), rel=1e-6)
            assert one.clip == pytest.approx(factor)
            assert one.m == pytest.approx(float(m[one.index]), rel=1e-5)
            assert one.v == pytest.approx(float(v[one.index]), rel=1e-5)
            assert one.m_hat == pytest.approx(one.m / (1 - 0.9**step))
            assert one.v_hat == pytest.approx(one.v / (1 - 0.95**step))
            assert one.before == pytest.approx(float(before[one.name][one.index]))
            expected = one.before * (1 - 0.01 * decay) - 0.01 * one.m_hat / (one.v_hat**0.5 + 1e-8)
            assert one.after == pytest.approx(expected, abs=1e-12)
            assert one.torch == float(dict(model.named_parameters())[one.name].detach()[one.index])
            assert one.difference < 1e-7


def test_weights_are_chosen_by_name_and_by_entry() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(2, 5)).sum().backward()
    watch = UpdateWatch(model, optimiser, [choose_weight(model, "0.weight[6, 2]"), choose_weight(model, "1.bias")])
    before = float(model[0].weight.detach()[6, 2])
    optimiser.step()
    entry, largest = watch.updates(norm=1.0, max_norm=1e9)
    assert (entry.name, entry.index, entry.before) == ("0.weight", (6, 2), before)
    assert entry.after == pytest.approx(float(model[0].weight.detach()[6, 2]), abs=1e-7)
    assert largest.name == "1.bias"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.weigth", "no weight '0.weigth'"),
        ("", "no weight ''"),
        ("0.weight[7,0]", "not an entry of 0.weight, which is 7 × 5"),
        ("0.weight[1]", "not an entry of 0.weight"),
        ("1.bias[1,,2]", "not an entry of 1.bias"),
        ("0.weight[-1,0]", "no weight '0.weight[-1,0]'"),
    ],
)
def test_a_weight_that_is_not_there_is_said(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        choose_weight(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), text)
    assert said in error.value.message
