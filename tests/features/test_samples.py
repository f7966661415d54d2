"""The vector, the autoencoder and the transcoders of ``samples`` are what ``samples/make_vectors.py`` makes."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import tinytf
from tinytf.features.coder import SparseCoder
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
    steer, *_ = script.commands(tmp_path, tmp_path / "moods.safetensors", tmp_path, tmp_path)
    assert run(steer) == 0
    now, stored = (tinytf.steering_vector(path) for path in (tmp_path / "moods.safetensors", script.VECTOR))
    assert now.best.at == stored.best.at
    torch.testing.assert_close(now.best.vector, stored.best.vector)
    assert (now.pairs, now.made_with, now.best.accuracy) == (stored.pairs, stored.made_with, stored.best.accuracy)


def test_the_autoencoder_has_the_settings_of_its_command(script: ModuleType, tmp_path: Path) -> None:
    _, train, _ = script.commands(HELD_OUT, tmp_path, tmp_path / "sae", tmp_path)
    assert run([*train, "--tokens", "512"]) == 0
    assert (tmp_path / "sae" / "cfg.json").read_bytes() == (script.AUTOENCODER / "cfg.json").read_bytes()
    assert tinytf.open_sae(tmp_path / "sae").decoder.shape == tinytf.open_sae(script.AUTOENCODER).decoder.shape


def test_the_transcoders_have_the_settings_of_their_command(script: ModuleType, tmp_path: Path) -> None:
    *_, train = script.commands(HELD_OUT, tmp_path, tmp_path, tmp_path / "transcoders")
    assert run([*train, "--tokens", "1024"]) == 0
    assert {file.name: file.stat().st_size for file in (tmp_path / "transcoders").iterdir()} == {
        file.name: file.stat().st_size for file in script.TRANSCODERS.iterdir()
    }
    assert (tmp_path / "transcoders" / "config.yaml").read_bytes() == (script.TRANSCODERS / "config.yaml").read_bytes()


def test_with_the_transcoders_the_model_predicts_nearly_as_well(script: ModuleType) -> None:
    """Every feed-forward replaced at once, in a run with plain hooks: what its training said, 89 % of the loss."""
    model, transcoders = tinytf.load("tiny"), tinytf.open_transcoders(script.TRANSCODERS)
    ids = [model.encode(text).ids for text in HELD_OUT.read_text("utf-8").split("\n\n")[:12]]

    def loss(replaced: bool, zeros: bool = False) -> float:
        handles, read = [], dict[int, Tensor]()
        for n, coder in enumerate(transcoders.coders if replaced else ()):
            block = model.transformer.blocks[n]

            def keep(_: object, args: object, result: Tensor, n: int = n) -> None:
                read[n] = result

            def write(_: object, args: object, result: Tensor, n: int = n, coder: SparseCoder = coder) -> Tensor:
                pre = read[n] @ coder.encoder + coder.bias
                output = (pre * (pre > coder.threshold)) @ coder.decoder + coder.output_bias
                return torch.zeros_like(result) if zeros else output

            handles += [block.norm2.register_forward_hook(keep), block.ffn.down.register_forward_hook(write)]
        total = count = 0.0
        with torch.no_grad():
            for text in ids:
                logits = model.transformer(torch.tensor([text]))[0, :-1]
                total += float(torch.nn.functional.cross_entropy(logits, torch.tensor(text[1:]), reduction="sum"))
                count += len(text) - 1
        for handle in handles:
            handle.remove()
        return total / count

    plain, now, zeros = loss(False), loss(True), loss(True, zeros=True)
    assert 0.8 < (zeros - now) / (zeros - plain) < 1


@pytest.mark.exhaustive
def test_the_autoencoder_keeps_as_much_as_one_that_is_trained_now(script: ModuleType, tmp_path: Path) -> None:
    """Not its weights, which another processor rounds differently."""
    stories = tmp_path / "stories.txt"
    subprocess.run([sys.executable, SAMPLES / "stories" / "generate.py", "--out", stories], check=True)
    _, train, _ = script.commands(stories, tmp_path, tmp_path / "sae", tmp_path)
    assert run(train) == 0
    model, documents = tinytf.load("tiny"), find_files([HELD_OUT]).documents()
    place = place_at("L2.out", table_of(model.config))
    now, stored = (
        measured(model, corpus_windows(model, documents), tinytf.open_sae(folder), place)
        for folder in (tmp_path / "sae", script.AUTOENCODER)
    )
    assert now.explained_variance == pytest.approx(stored.explained_variance, abs=0.01)
    assert now.loss_recovered == pytest.approx(stored.loss_recovered, abs=0.01)
