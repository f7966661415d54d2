"""The range test of learning rates: the losses of real steps, a rate by a rule, and nothing written."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import MODEL, RECIPE, STORY, changed

from tinytf.text.corpus import find_files
from tinytf.training.data.setup import first_model, prepare
from tinytf.training.find_lr import RangeTest, find_lr
from tinytf_cli.main import run

RATES = np.geomspace(1e-6, 1, 100)


def result(losses: np.ndarray) -> RangeTest:
    harder = np.random.default_rng(1).standard_normal(len(losses))  # some batches are, whatever the rate
    return RangeTest(RECIPE, RATES[: len(losses)], losses + harder, 7 + harder, len(losses) == len(RATES))


def valley(fall: float, noise: float = 0.02) -> np.ndarray:
    """Losses that fall fastest at index 60, are lowest at about 70, and then rise."""
    index = np.arange(100)
    drop = fall / (1 + np.exp(-(index - 60) / 2))
    return 7 - drop + np.maximum(0, index - 72) * 0.05 + noise * np.random.default_rng(0).standard_normal(100)


def test_the_suggested_rate_is_where_the_loss_falls_fastest() -> None:
    test = result(valley(2.0))
    assert 58 <= int(np.argmin(abs(RATES - test.suggested))) <= 62
    assert 64 <= test.lowest <= 74
    assert test.smoothed[50] == pytest.approx((test.losses - test.before)[45:56].mean())


@pytest.mark.parametrize("losses", [valley(0.0), valley(0.05, noise=0.1), 5 + RATES, np.array([5.0, 4.0])])
def test_a_loss_that_does_not_fall_clearly_suggests_none(losses: np.ndarray) -> None:
    assert result(losses).suggested is None


def test_the_losses_are_those_of_plain_steps_with_growing_rates(tmp_path: Path) -> None:
    recipe = changed(RECIPE, weight_decay=0.0, clip=0.5)
    test = find_lr(find_files(STORY), recipe)
    setup = prepare(find_files(STORY), recipe, tmp_path)
    model = first_model(recipe, setup.tokenizer.vocab_size)
    untouched = first_model(recipe, setup.tokenizer.vocab_size)
    optimiser = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))
    for step, rate in enumerate(RATES[:30]):
        batch = setup.examples.batch(step)
        first = torch.nn.functional.cross_entropy(untouched(batch.ids).flatten(0, 1), batch.targets.flatten())
        assert test.before[step] == pytest.approx(first.item(), abs=1e-4)
        loss = torch.nn.functional.cross_entropy(model(batch.ids).flatten(0, 1), batch.targets.flatten())
        assert test.losses[step] == pytest.approx(loss.item(), abs=1e-4)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()


OPTIONS = [f"--{name.replace('_', '-')}={size}" for name, size in MODEL.items()]


def test_the_command_suggests_a_rate_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "story.txt").write_text(STORY)
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "story.txt", "--tokenizer=char", "--block=16", "--batch=4", *OPTIONS, "--find-lr"]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"suggested lr {found['suggested']:.1e} ")
    assert f"--lr {found['suggested']:.1e}   trains with this rate, in place of --find-lr" in shown
    assert f"lowest loss {found['lowest']['change']:+.3f} nats since the start, at {found['lowest']['lr']:.1e}" in shown
    assert [row["lr"] for row in found["losses"]] == pytest.approx(RATES[: len(found["losses"])].tolist())
    assert [path.name for path in tmp_path.iterdir()] == ["story.txt"]


@pytest.mark.parametrize("other", ["--dry-run", "--explain=1", "--shard", "--out=run --overwrite"])
def test_a_range_test_of_something_else_is_refused(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "story.txt", "--find-lr", *other.split()]) == 2
    assert "--find-lr" in capsys.readouterr().err
