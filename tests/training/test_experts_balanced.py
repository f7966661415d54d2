"""Experts in training: the share of choices that each gets, and a loss that evens them out."""

from pathlib import Path

import pytest
import torch
from training_runs import MODEL, RECIPE, STORY, changed
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from tinytf.look.experts import routers
from tinytf.model.transformer import Transformer
from tinytf.runs.reader import read_history
from tinytf.training.data.examples import Batch
from tinytf.training.train import train
from tinytf.training.tuning.experts import expert_shares, imbalance
from tinytf.training.tuning.losses import BatchLoss

MIXED = {**MODEL, "experts": 4, "experts_per_token": 2}
IDS = torch.randint(0, 20, (3, 9), generator=torch.Generator().manual_seed(0))
BATCH = Batch(IDS, IDS.roll(-1, 1), torch.arange(9) < torch.tensor([[9], [7], [4]]))


@pytest.fixture
def model() -> Transformer:
    return Transformer.initialised(RECIPE.model_config(20).but(**MIXED), 3)


@pytest.mark.parametrize("mask", [None, BATCH.padding_mask], ids=["whole", "padded"])
def test_the_imbalance_is_that_of_transformers(model: Transformer, mask: torch.Tensor | None) -> None:
    with routers(model, (0, 1)) as routed:
        model.hidden(IDS, padding_mask=mask)
    for said in routed.values():  # theirs pools the layers
        theirs = load_balancing_loss_func((said.flatten(0, 1),), 4, 2, None if mask is None else mask.long())
        ours = imbalance(model, {0: said}, mask)
        torch.testing.assert_close(ours, theirs / 2)  # which counts a token once for each of its experts


def test_it_is_added_to_the_gradient_and_not_to_the_loss(model: Transformer) -> None:
    def of(balance: float) -> tuple[float, torch.Tensor]:
        model.zero_grad()
        loss = BatchLoss(model, balance=balance)(*BATCH.tensors)
        loss.backward()
        router = dict(model.named_parameters())["blocks.0.ffn.router.weight"]
        return float(loss.detach()), router.grad.clone()

    (plain, gradient), (balanced, other) = of(0.0), of(0.5)
    assert balanced == pytest.approx(plain)
    with routers(model, (0, 1)) as routed:
        model.hidden(IDS, padding_mask=BATCH.padding_mask)
    model.zero_grad()
    (0.5 * IDS.numel() * imbalance(model, routed, BATCH.padding_mask)).backward()
    own = dict(model.named_parameters())["blocks.0.ffn.router.weight"].grad
    torch.testing.assert_close(other, gradient + own, rtol=1e-4, atol=1e-5)


def test_a_run_has_the_share_of_each_expert_and_balancing_evens_them_out(tmp_path: Path) -> None:
    spread = {}
    for balance in (0.0, 0.1):
        recipe = changed(RECIPE, model=MIXED, balance=balance, steps=40, probe_every=20, lr=1e-2, sample_tokens=0)
        train(STORY, recipe, tmp_path / str(balance))
        (step, loads) = read_history(tmp_path / str(balance)).experts[-1]
        assert step == 40
        assert loads["shares"].shape == (2, 4)
        assert loads["shares"].sum(1) == pytest.approx([1, 1], abs=1e-3)
        spread[balance] = loads["shares"].max() - loads["shares"].min()
    assert spread[0.1] < 0.5 * spread[0.0]


def test_shares_are_of_real_tokens_and_a_model_without_experts_has_none(model: Transformer) -> None:
    with routers(model, (0,)) as routed, torch.no_grad():
        model.eval().hidden(IDS, padding_mask=BATCH.padding_mask)
    best = routed[0].topk(2).indices[BATCH.padding_mask]
    expected = torch.bincount(best.flatten(), minlength=4) / best.numel()
    assert expert_shares(model, BATCH)[0] == pytest.approx(expected.tolist(), abs=1e-3)
    assert expert_shares(Transformer.initialised(RECIPE.model_config(20), 0), BATCH) is None
