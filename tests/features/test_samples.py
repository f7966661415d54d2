"""The steering vector and the autoencoder of ``samples`` are what ``samples/make_vectors.py`` makes."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tinytf
from tinytf.features.place import place_at
from tinytf.features.train_sae import measured
from tinytf.look.examples import corpus_windows
from tinytf.steps.table import table_of
from tinytf.text.corpus import find_files
from tinytf_cli.main import run

SAMPLES = Path(__file__).parents[2] / "samples"
HELD_OUT = SAMPLES.parent / "tinytf" / "assets" / "tiny" / "held_out.txt"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_vectors", SAMPLES / "make_vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_vector_is_made_from_the_pairs_beside_it(script: ModuleType, tmp_path: Path) -> None:
    steer, _ = script.commands(tmp_path, tmp_path / "moods.safetensors", tmp_path)
    assert run(steer) == 0
    now, stored = (tinytf.steering_vector(path) for path in (tmp_path / "moods.safetensors", script.VECTOR))
    assert now.best.at == stored.best.at
    torch.testing.assert_close(now.best.vector, stored.best.vector)
    assert (now.pairs, now.made_with, now.best.accuracy) == (stored.pairs, stored.made_with, stored.best.accuracy)


def test_the_autoencoder_has_the_settings_of_its_command(script: ModuleType, tmp_path: Path) -> None:
    _, train = script.commands(HELD_OUT, tmp_path, tmp_path / "sae")
    assert run([*train, "--tokens", "512"]) == 0
    assert (tmp_path / "sae" / "cfg.json").read_bytes() == (script.AUTOENCODER / "cfg.json").read_bytes()
    assert tinytf.open_sae(tmp_path / "sae").decoder.shape == tinytf.open_sae(script.AUTOENCODER).decoder.shape


@pytest.mark.exhaustive
def test_the_autoencoder_keeps_as_much_as_one_that_is_trained_now(script: ModuleType, tmp_path: Path) -> None:
    """Not its weights, which another processor rounds differently."""
    stories = tmp_path / "stories.txt"
    subprocess.run([sys.executable, SAMPLES / "stories" / "generate.py", "--out", stories], check=True)
    _, train = script.commands(stories, tmp_path, tmp_path / "sae")
    assert run(train) == 0
    model, documents = tinytf.load("tiny"), find_files([HELD_OUT]).documents()
    place = place_at("L2.out", table_of(model.config))
    now, stored = (
        measured(model, corpus_windows(model, documents), tinytf.open_sae(folder), place)
        for folder in (tmp_path / "sae", script.AUTOENCODER)
    )
    assert now.explained_variance == pytest.approx(stored.explained_variance, abs=0.01)
    assert now.loss_recovered == pytest.approx(stored.loss_recovered, abs=0.01)
