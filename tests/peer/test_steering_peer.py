"""Control vectors of repeng: files go both ways, and its directions are those of ``pca``."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tinytf

PEER = "repeng"
PAIRS = [("I am so happy today", "I am so sad today"), ("What a joyful song", "What a gloomy song"),
         ("She laughed with delight", "She wept with grief"), ("The best day of all", "The worst day of all"),
         ("We won the game", "We lost the game")]  # fmt: skip


@pytest.fixture(scope="module")
def repeng() -> Any:
    if not hasattr(np, "float_"):  # repeng 0.4 names a type that numpy 2 lacks
        np.float_ = np.float64  # type: ignore[attr-defined]
    import repeng

    return repeng


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama of random weights as transformers opens it, with the tokenizer of ``tiny``."""
    folder = tmp_path_factory.mktemp("llama") / "model"
    tinytf.load("preset:llama-tiny").export(folder)
    return folder


def test_repeng_reads_what_we_write_and_we_what_it_writes(repeng: Any, folder: Path, tmp_path: Path) -> None:
    model = tinytf.load(str(folder))
    made = model.steer(PAIRS)
    made.save(tmp_path / "ours.gguf")
    theirs = repeng.ControlVector.import_gguf(tmp_path / "ours.gguf")
    assert theirs.model_type == "llama"
    assert [f"L{layer}.out" for layer in theirs.directions] == [each.at for each in made.vectors[1:]]
    for layer, values in theirs.directions.items():
        np.testing.assert_array_equal(values, made.at(f"L{layer}.out").numpy())
    (theirs * -0.5).export_gguf(tmp_path / "theirs.gguf")
    read = tinytf.steering_vector(tmp_path / "theirs.gguf")
    assert read.architecture == "llama"
    for each in read.vectors:
        assert torch.equal(each.vector, -0.5 * made.at(each.at))


def test_pca_is_the_direction_that_repeng_trains_and_adding_it_does_the_same(repeng: Any, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = tinytf.load(str(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.convert_ids_to_tokens(0)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    entries = [repeng.DatasetEntry(positive=a, negative=b) for a, b in PAIRS]
    trained = repeng.ControlVector.train(theirs, tokenizer, entries, batch_size=1)
    ours = model.steer(PAIRS, method="pca")
    for layer, expected in trained.directions.items():
        if layer == model.config.n_layers - 1:
            continue  # the last hidden state of transformers, which repeng takes, comes after the final norm
        vector = ours.at(f"L{layer}.out").numpy()
        cosine = float(vector @ expected) / float(np.linalg.norm(vector) * np.linalg.norm(expected))
        assert math.isclose(abs(cosine), 1.0, abs_tol=1e-5), (layer, cosine)

    control = repeng.ControlModel(theirs, list(trained.directions))
    control.set_control(trained, 1.5)
    text = "The cat was"
    with torch.no_grad():
        expected_logits = control(**tokenizer(text, return_tensors="pt")).logits[0, -1]
    vectors = {f"L{layer}.out": 1.5 * torch.tensor(values) for layer, values in trained.directions.items()}
    with model.steered(vectors):
        logits = model.trace(text).logits_at(-1)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)
