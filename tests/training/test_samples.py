"""Samples on the way: they change nothing, none is lost or doubled, and they are what the model says."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import DROPPING, RECIPE, STORY, changed, stopping_after

from tinytf.errors import TrainingError
from tinytf.generate.loop import stream
from tinytf.generate.samplers import Sampling
from tinytf.loading import load
from tinytf.runs.history import Sample
from tinytf.runs.lines import append_line, keep_lines
from tinytf.runs.reader import read_history, read_samples
from tinytf.text.corpus import find_files
from tinytf.training.data.setup import prepare
from tinytf.training.observers.samples import Sampler
from tinytf.training.train import train

MODEL = DROPPING
recipe = partial(changed, RECIPE, model=MODEL, steps=10)


def samples_of(run: Path) -> list[Sample]:
    return read_samples(run / "samples.jsonl")


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": {**MODEL, "positions": "rotary", "window": 8}, "tokenizer": "bpe", "vocab_size": 270},
        {"model": {**MODEL, "positions": "sinusoidal"}, "dtype": "bfloat16", "accumulate": 2, "repeats": 0.5},
        {"held_out": 0.0},
    ],
    ids=["characters", "rotary bpe", "bfloat16", "nothing held out"],
)
def test_a_run_with_samples_learns_what_one_without_does_to_the_bit(changes: dict, tmp_path: Path) -> None:
    for tokens in (0, 40):
        train(STORY, recipe(**changes, sample_tokens=tokens), tmp_path / str(tokens))
    with_, without = tmp_path / "40", tmp_path / "0"
    for name in ("metrics.jsonl", "model.safetensors", "checkpoints/step-000010/optimizer.safetensors"):
        assert (with_ / name).read_bytes() == (without / name).read_bytes()
    assert [sample.step for sample in samples_of(with_)] == [0, 1, 2, 4, 8, 10]
    assert not (without / "samples.jsonl").exists()


def test_the_global_random_numbers_are_left_alone(tmp_path: Path) -> None:

    setup = prepare(find_files(STORY), recipe(), tmp_path)
    setup.model.train()
    before = torch.get_rng_state()
    weights = [(one.data_ptr(), one._version) for one in setup.model.parameters()]
    sampler = Sampler(setup, recipe())
    first, second = sampler.sample(1), sampler.sample(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert [(one.data_ptr(), one._version) for one in setup.model.parameters()] == weights
    assert all(module.training for module in setup.model.modules())
    assert first is not None
    assert second == Sample(2, first.prompt, first.text)


def test_the_last_sample_is_how_the_finished_model_goes_on_from_the_held_out_text(tmp_path: Path) -> None:

    train(STORY, recipe(seed=3), tmp_path)
    last = samples_of(tmp_path)[-1]
    opened = load(str(tmp_path), device="cpu")
    ids = opened.tokenizer.encode(last.prompt).ids
    assert len(ids) == 5
    held_out = np.fromfile(tmp_path / "tokens" / "held_out.bin", dtype="<u2")[:5]
    assert ids == held_out.tolist()
    steps = stream(
        opened.transformer, ids, max_tokens=40, sampling=Sampling(temperature=0.8), seed=3, use_cache=False,
        decode=opened.tokenizer.decode,
    )  # fmt: skip
    assert last == Sample(10, last.prompt, "".join(step.text for step in steps))
    assert len(last.text) == 28  # what the context of 32 leaves, and the one that it is asked for


def test_a_sample_ends_before_the_end_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that has learned nothing but that texts end."""

    asked = recipe(tokenizer="bpe", vocab_size=270, model={**MODEL, "norm": "layernorm"})
    setup = prepare(find_files(STORY), asked, tmp_path)
    before = Sampler(setup, asked).sample(1)
    end = setup.tokenizer.end_id
    assert before is not None
    assert before.text
    with torch.no_grad():
        setup.model.final_norm.weight.zero_()
        setup.model.final_norm.bias.fill_(1.0)
        setup.model.embed.tokens.weight.fill_(0.0)
        setup.model.embed.tokens.weight[end] = 10.0
    after = Sampler(setup, asked).sample(2)
    assert after is not None
    assert (after.prompt, after.text) == (before.prompt, "")


def test_an_encoder_fills_in_a_hidden_word_and_learns_what_one_without_samples_does(tmp_path: Path) -> None:
    fields = {"tokenizer": "wordpiece", "objective": "masked"}
    for tokens in (0, 1):
        train(STORY, recipe(**fields, sample_tokens=tokens), tmp_path / str(tokens))
    said, silent = tmp_path / "1", tmp_path / "0"
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (said / name).read_bytes() == (silent / name).read_bytes()
    assert read_history(silent).sample is None
    last = read_history(said).sample
    assert last is not None
    assert last.prompt == "the fox sat [MASK] the mat."
    opened = load(str(said))
    encoding = opened.tokenizer.encode(last.prompt)
    place = encoding.ids.index(opened.tokenizer.mask_id)
    with torch.no_grad():
        logits = opened.transformer.unembed(opened.transformer.hidden(torch.tensor([encoding.ids])))
    assert last.text == opened.tokenizer.decode([int(logits[0, place].argmax())])


@pytest.mark.share(6)
@pytest.mark.parametrize("stop", [3, 5, 9])
def test_samples_of_work_that_was_lost_come_again_and_none_is_doubled(stop: int, tmp_path: Path) -> None:
    train(STORY, recipe(), tmp_path / "whole")
    train(STORY, recipe(), tmp_path / "run", interrupted=stopping_after(stop))
    with (tmp_path / "run" / "samples.jsonl").open("a") as lines:
        lines.write('{"step": 10, "prompt": "a", "text": "lost"}\n{"step": 11, "pro')
    train(STORY, recipe(), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "samples.jsonl").read_bytes() == (tmp_path / "whole" / "samples.jsonl").read_bytes()


def test_a_run_that_begins_again_from_its_first_step_has_its_first_sample_once(tmp_path: Path) -> None:
    train(STORY, recipe(), tmp_path / "whole")
    train(STORY, recipe(), tmp_path / "run", interrupted=stopping_after(3))
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # as if it had been killed before the first
    train(STORY, recipe(), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "samples.jsonl").read_bytes() == (tmp_path / "whole" / "samples.jsonl").read_bytes()


def test_a_run_that_was_begun_before_there_were_samples_goes_on(tmp_path: Path) -> None:
    train(STORY, recipe(), tmp_path, interrupted=stopping_after(5))
    stored = json.loads((tmp_path / "recipe.json").read_text("utf-8"))
    assert stored.pop("sample_tokens") == 40
    (tmp_path / "recipe.json").write_text(json.dumps(stored), "utf-8")
    (tmp_path / "samples.jsonl").unlink()
    assert train(STORY, recipe(), tmp_path, resume=True).last.step == 10
    assert [sample.step for sample in samples_of(tmp_path)] == [8, 10]


def test_lines_that_are_no_samples_are_passed_over_and_any_text_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    odd = [Sample(1, "\x1b[2J\n", "猫\ud800\u2028"), Sample(2, "", "")]
    for sample in odd:
        append_line(path, vars(sample), sync=True)
    with path.open("a") as lines:
        lines.write('{"step": "x", "prompt": "", "text": ""}\n[1]\n\n{"step": 3, "prompt": "a", "te')
    assert read_samples(path) == odd
    assert keep_lines(path, 1) == 1
    assert read_samples(path) == odd[:1]
    assert read_samples(tmp_path / "none") == []
    with pytest.raises(TrainingError, match="cannot write"):
        append_line(tmp_path, vars(odd[0]))


def test_a_sample_is_not_read_before_the_metrics_of_its_step(tmp_path: Path) -> None:
    train(STORY, recipe(), tmp_path, interrupted=stopping_after(5))
    append_line(tmp_path / "samples.jsonl", vars(Sample(8, "a", "early")))
    found = read_history(tmp_path).sample
    assert found is not None
    assert found.step == 4
