"""Whole numbers with a scale, numbers beyond float16, and ids that come of the same text in another way."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import asked, config_of, encoding_of, lively

from tinytf.compare.diff import Difference
from tinytf.compare.dumps.read import open_dump
from tinytf.errors import DumpError, UsageError
from tinytf.loading import Model, load
from tinytf.text.chat import Conversation
from tinytf.trace.record import record

IDS = [3, 14, 15, 9, 2, 6, 5]


@pytest.fixture
def model() -> Model:
    return asked(lively(config_of("llama, grouped")))


def compared(model: Model, path: Path, **arrays: Any) -> Difference:
    np.savez(path / "port.npz", input_ids=np.array(IDS), **arrays)
    return model.diff(None, open_dump(path / "port.npz"), tolerance=0.02)


@pytest.mark.parametrize("way", ["one", "token", "channel"])
@pytest.mark.slow
def test_quantised_activations_are_read_with_their_scale(model: Model, tmp_path: Path, way: str) -> None:
    numbers = record(model.transformer, encoding_of(IDS))["L0.norm1"].numpy()
    axis = {"one": None, "token": 1, "channel": 0}[way]
    low, high = (np.min(numbers, axis=axis, keepdims=axis == 1), np.max(numbers, axis=axis, keepdims=axis == 1))
    scale = (high - low) / 255
    zero = np.round(-128 - low / scale)
    whole = np.clip(np.round(numbers / scale + zero), -128, 127).astype(np.int8)
    beside = {"L0.norm1.scale": np.ravel(scale), "L0.norm1.zero_point": np.ravel(zero)}
    found = compared(model, tmp_path, **{"L0.norm1": whole}, **beside)
    assert found.first is None
    assert [step.name for step in found.steps] == ["L0.norm1"]
    assert found.steps[0].relative > 1e-4  # it was rounded
    wrong = compared(model, tmp_path, **{"L0.norm1": whole}, **{**beside, "L0.norm1.zero_point": np.ravel(zero) + 9})
    assert wrong.first is not None


def test_a_scale_that_does_not_fit_is_refused(model: Model, tmp_path: Path) -> None:
    whole = np.ones((len(IDS), 24), dtype=np.int8)
    with pytest.raises(DumpError, match=r"L0\.norm1\.scale has 5 numbers, which does not fit 7 × 24"):
        compared(model, tmp_path, **{"L0.norm1": whole, "L0.norm1.scale": np.ones(5)})


@pytest.mark.exhaustive
@pytest.mark.slow
def test_numbers_beyond_float16_are_named(model: Model, tmp_path: Path) -> None:
    model.transformer.blocks[1].ffn.up.weight.data *= 1e5
    trace = record(model.transformer, encoding_of(IDS))
    names = ("L1.ffn.gate", "L1.ffn.hidden", "L1.ffn.act")
    steps = {name: trace[name].numpy() for name in names}
    with np.errstate(over="ignore"):
        steps["L1.ffn.hidden"] = np.where(
            np.abs(steps["L1.ffn.hidden"]) > 65504, np.sign(steps["L1.ffn.hidden"]) * np.inf, steps["L1.ffn.hidden"]
        )
    assert np.isinf(steps["L1.ffn.hidden"]).any()
    found = compared(model, tmp_path, **steps)
    assert found.cause is not None
    assert found.cause.step == "L1.ffn.hidden"
    assert found.cause.words.startswith("it reaches ")
    assert found.cause.words.endswith(" and overflows float16, whose largest number is 65,504")


def refused(model: Model, text: str, ids: list[int], path: Path) -> str:
    np.savez(path / "port.npz", **{"input_ids": np.array(ids), "L0.norm1": np.zeros((len(ids), model.config.d_model))})
    with pytest.raises(UsageError) as caught:
        model.diff(text, open_dump(path / "port.npz"))
    return caught.value.message


def test_ids_that_come_of_the_text_in_another_way_are_explained(tmp_path: Path) -> None:
    encoder, decoder = load("tiny-encoder"), load("tiny")
    text = "The cat sat."
    ids = encoder.encode(text).ids
    assert refused(encoder, text, ids[1:-1], tmp_path) == (
        f"port.npz lacks {encoder.tokenizer.shown(ids[0])} and {encoder.tokenizer.shown(ids[-1])}, "
        "which this tokenizer adds to a text"
    )
    own, (special, *_) = decoder.encode(text).ids, sorted(decoder.tokenizer.special_ids)
    shown = decoder.tokenizer.shown(special)
    begun = f"port.npz has {shown} before the text, which this tokenizer does not add"
    assert refused(decoder, text, [special, *own], tmp_path) == begun
    assert refused(decoder, text, [*own, special], tmp_path) == begun.replace("before", "after")
    assert refused(decoder, text, [5, 6, *own, 7], tmp_path) == (
        "port.npz has the tokens of TEXT, 2 more before it and 1 more after it, such as those of a prompt or a template"
    )
    assert "is of another text, or of another tokenizer" in refused(decoder, text, [5, 6, 7], tmp_path)


def test_ids_of_a_chat_template_are_said_to_be_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = load("tiny"), "The cat sat."
    plain = type(model).encode

    def encode(self: Model, written: Any, **settings: Any) -> Any:
        written = f"User: {text} Answer:" if isinstance(written, Conversation) else written
        return plain(self, written, **settings)

    monkeypatch.setattr(type(model), "encode", encode)
    ids = plain(model, f"User: {text} Answer:").ids
    assert (
        refused(model, text, ids, tmp_path) == "port.npz is of TEXT in the model's chat template: --chat writes it so"
    )
