"""A run, its checkpoint and a recording that were written in November 2026, by flat configurations, still open."""

import json
import shutil
from pathlib import Path

import pytest
from driving import Tinytf

from tinytf.config import FIELDS
from tinytf.loading import load
from tinytf.runs.reader import read_history

KEPT = Path(__file__).parent / "kept"


@pytest.mark.parametrize("place", ["run", "run/checkpoints/step-000004"])
def test_a_kept_model_opens_with_the_layers_that_it_had(place: str) -> None:
    config = load(str(KEPT / place)).config
    assert config.by_layer == (("experts", (0, 2)), ("window", (4, 0)))
    assert [block.mixer.window for block in config.blocks] == [4, 0]
    assert [block.feed_forward.mixture.experts for block in config.blocks] == [0, 2]
    assert (config.blocks[0].mixer.positions, config.d_model, config.head.kind) == ("rotary", 8, "lm")
    stored = json.loads((KEPT / place / "config.json").read_text())["model"]
    found = json.loads(json.dumps(config.to_dict()))
    assert {name: found[name] for name in stored} == {**stored, "by_layer": sorted(stored["by_layer"])}
    since = found.keys() - stored.keys()
    assert {name: found[name] for name in since} == {
        name: json.loads(json.dumps(FIELDS[name].default)) for name in since
    }, "settings that came since"


def test_a_kept_recording_is_what_the_kept_model_computes(tinytf: Tinytf) -> None:
    ran = tinytf("diff", "the cat", "-m", KEPT / "run", "--versus", KEPT / "rec.safetensors", "--json")
    assert ran.status == 0, ran.err
    steps = json.loads(ran.out)["steps"]
    assert len(steps) > 20
    assert max(step["relative"] for step in steps) < 1e-5


def test_a_kept_run_is_read_and_goes_on(tinytf: Tinytf, tmp_path: Path) -> None:
    run = shutil.copytree(KEPT / "run", tmp_path / "run")
    assert read_history(run).last == 4
    ran = tinytf("train", KEPT / "text.txt", "--resume", "--out", run, "--steps", "6")
    assert ran.status == 0, ran.err
    assert read_history(run).last == 6
