"""The share of the machine's matrix peak that training uses."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from training_runs import RECIPE, STORY, changed

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer
from tinytf.runs.reader import read_history
from tinytf.training.observers.log import SpeedLog
from tinytf.training.train import train
from tinytf.training.tuning import peak
from tinytf.training.tuning.peak import matrix_peak, training_flops

CONFIG = ModelConfig.of(vocab_size=50, d_model=32, n_layers=2, n_heads=2, d_ff=64, context=16)


def test_the_work_of_a_token_is_what_torch_counts_forward_and_backward() -> None:
    model = Transformer.initialised(CONFIG, 0).train()
    ids = torch.randint(50, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(ids).sum().backward()
    assert counter.get_total_flops() == 3 * 16 * training_flops(CONFIG, 16)


def test_the_peak_is_a_speed_and_measuring_it_draws_nothing() -> None:
    before = torch.get_rng_state()
    assert matrix_peak(torch.device("cpu")) > 1e6
    assert torch.equal(torch.get_rng_state(), before)


def test_bfloat16_is_said_to_be_slower_where_its_products_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {torch.float32: 9e9, torch.bfloat16: 1e9}
    monkeypatch.setattr(peak, "matrix_peak", lambda device, dtype=torch.float32: speeds[dtype])
    monkeypatch.setattr("tinytf.training.observers.log._PACE_SECONDS", 0.0)  # the first step is due for its speed
    notes: list[str] = []
    recipe = changed(RECIPE, steps=4, probe_every=0, sample_tokens=0)
    said = "products in bfloat16 are 9.0 times slower here than in float32; --dtype float32 trains faster"
    train(STORY, changed(recipe, dtype="bfloat16"), tmp_path / "a", on_note=notes.append)
    assert notes == [said]
    train(STORY, recipe, tmp_path / "b", on_note=notes.append)
    assert notes == [said]
    speeds[torch.bfloat16] = 8e9
    assert peak.slower_dtype("bfloat16", torch.device("cpu"), speeds[torch.bfloat16]) == ""


def test_mfu_is_work_times_speed_over_the_peak_and_measured_once(tmp_path: Path, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("tinytf.training.observers.log.time.monotonic", lambda: clock[0])
    pace = SpeedLog(tmp_path / "speed.jsonl", lambda: {"flops_per_token": 100.0, "peak_flops": 4000.0})
    pace.start(0)
    for step in (1, 2):
        clock[0] += 4.0
        pace.count(40, 4.0)
        pace.write(step, last=step == 2)
    (tmp_path / "recipe.json").write_text(json.dumps({"steps": 2}), "utf-8")
    lines = (json.dumps({"step": step, "loss": 1.0, "lr": 0.1, "grad_norm": 1.0}) for step in (1, 2))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    assert read_history(tmp_path).mfu == pytest.approx(10 * 100 / 4000)
    (tmp_path / "speed.jsonl").write_text(
        (tmp_path / "speed.jsonl").read_text("utf-8").replace("4000.0", "900.0"), "utf-8"
    )
    assert read_history(tmp_path).mfu == 1.0  # the product was slower than the run
    (tmp_path / "speed.jsonl").write_text(
        (tmp_path / "speed.jsonl").read_text("utf-8").replace("900.0", "4000.0"), "utf-8"
    )
    assert (tmp_path / "speed.jsonl").read_text("utf-8").count("peak_flops") == 1
