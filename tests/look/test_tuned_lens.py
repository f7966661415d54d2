"""Tuned lenses: the identity is the logit lens, files of the tuned-lens package are read, training lowers KL."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import asked, config_of, lively
from torch import nn

from tinytf.errors import CheckpointError, UsageError
from tinytf.estimate import Estimate
from tinytf.loading import Model, load
from tinytf.look import tuned_lens as training
from tinytf.look.translators import Translators, lens_stages, read_translators, stage_names
from tinytf.look.tuned_lens import TunedLens

TEXT = "The cat lost the ball. The cat lost the"


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load("tiny", device="cpu")


@pytest.fixture(scope="module")
def trained(tiny: Model) -> TunedLens:
    return tiny.train_lens(steps=6)


def drawn(model: Model, seed: int = 1) -> Translators:
    """Random translators that are near the identity."""
    generator, width = torch.Generator().manual_seed(seed), model.config.d_model
    count = len(lens_stages(model.config))
    weights = tuple(0.02 * torch.randn(width, width, generator=generator) for _ in range(count))
    return Translators(weights, tuple(0.1 * torch.randn(width, generator=generator) for _ in range(count)))


@pytest.mark.parametrize("name", ["tiny", "tiny-encoder"])
def test_the_identity_is_the_logit_lens_to_the_last_bit(name: str) -> None:
    model = load(name, device="cpu")
    plain, tuned = model.lens(TEXT), model.lens(TEXT, tuned=Translators.identity(model.config))
    assert tuned.holds
    for ours, theirs in zip(tuned.stages, plain.stages, strict=True):
        for member in ("top_ids", "top_probabilities", "entropy", "divergence"):
            assert torch.equal(getattr(ours, member), getattr(theirs, member)), (ours.name, member)


def test_a_stage_is_read_through_its_translator_and_the_last_as_it_is(tiny: Model) -> None:
    translators, trace, transformer = drawn(tiny), tiny.trace(TEXT), tiny.transformer
    report = tiny.lens(trace, tuned=translators)
    final = transformer.unembed(trace["final.norm"]).double().log_softmax(-1)
    for number, (step, stage) in enumerate(zip(lens_stages(tiny.config), report.stages, strict=False)):
        x = trace.step(*step).double()
        y = x + x @ translators.weights[number].double().T + translators.biases[number].double()
        gain, eps = transformer.final_norm.weight.double(), tiny.config.final_eps
        read = (y / (y.square().mean(-1, keepdim=True) + eps).sqrt() * gain) @ transformer.unembedding.double().T
        expected = (final.exp() * (final - read.log_softmax(-1))).sum(-1)
        np.testing.assert_allclose(stage.divergence.detach(), expected.detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(report.stages[-1].top_ids, tiny.lens(trace).stages[-1].top_ids)
    assert report.sentence.startswith("By the tuned lens, after ·the, the model's guess is ")


def written_by_the_package(folder: Path, translators: Translators) -> Path:
    """What tuned_lens.nn.lenses.TunedLens.save writes: the state of a list of nn.Linear, and its configuration."""
    layers = nn.ModuleList()
    for weight, bias in zip(translators.weights, translators.biases, strict=True):
        layer = nn.Linear(len(bias), len(bias))
        layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
        layers.append(layer)
    folder.mkdir()
    torch.save(layers.state_dict(), folder / "params.pt")
    config = {"base_model_name_or_path": "tiny", "d_model": len(bias), "num_hidden_layers": len(layers), "bias": True,
              "base_model_revision": None, "unembed_hash": "", "lens_type": "linear_tuned_lens"}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_lens_of_the_tuned_lens_package_is_read(tiny: Model, tmp_path: Path) -> None:
    translators = drawn(tiny)
    folder = written_by_the_package(tmp_path / "lens", translators)
    for path in (folder, folder / "params.pt"):
        found = read_translators(path, tiny.config)
        assert all(map(torch.equal, found.weights, translators.weights))
        assert all(map(torch.equal, found.biases, translators.biases))
    report = tiny.lens(TEXT, tuned=folder)
    assert (report.tuned, report.to_dict()["tuned"]) == (str(folder), str(folder))
    assert torch.equal(report.stages[1].entropy, tiny.lens(TEXT, tuned=translators).stages[1].entropy)


def test_files_that_are_no_lens_of_this_model_are_refused(tiny: Model, tmp_path: Path) -> None:
    folder = written_by_the_package(tmp_path / "lens", drawn(tiny))
    with pytest.raises(UsageError, match=r"translates 4 stages, and this model has 3"):
        read_translators(folder, load("tiny-encoder", device="cpu").config)
    other = replace(drawn(tiny), weights=tuple(torch.zeros(16, 16) for _ in range(4)))
    narrow = replace(other, biases=tuple(torch.zeros(16) for _ in range(4)))
    with pytest.raises(UsageError, match="is 16 × 16 numbers, and this model needs 128 × 128"):
        read_translators(written_by_the_package(tmp_path / "narrow", narrow), tiny.config)
    broken = drawn(tiny)
    broken.biases[2][5] = torch.nan
    with pytest.raises(UsageError, match=r"of 2 in .* has numbers that are not finite"):
        read_translators(written_by_the_package(tmp_path / "nan", broken), tiny.config)
    (folder / "config.json").write_text('{"lens_type": "other"}')
    with pytest.raises(UsageError, match="a lens of the kind 'other'"):
        read_translators(folder, tiny.config)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_translators(folder, tiny.config)
    with pytest.raises(UsageError, match="no translators after attention"):
        tiny.lens(TEXT, tuned=drawn(tiny), sublayers=True)


def test_a_pickle_that_runs_code_is_not_run(tiny: Model, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "ran"),))  # type: ignore[return-value]

    torch.save({"0.weight": Trap()}, tmp_path / "params.pt")
    with pytest.raises(CheckpointError, match="which could run code"):
        read_translators(tmp_path / "params.pt", tiny.config)
    assert not (tmp_path / "ran").exists()


def test_the_regression_is_the_least_squares_solution(tiny: Model) -> None:
    windows = [
        torch.tensor(tiny.trace(text).encoding.ids[:8]) for text in [f"The cat saw {n} big dogs in it" for n in "abc"]
    ]
    found = training._regression(tiny.transformer, partial(training._streams, tiny.transformer), windows)
    traces = [tiny.trace(ids=ids) for ids in windows]
    for stage, step in enumerate(lens_stages(tiny.config)):
        x = torch.cat([trace.step(*step) for trace in traces]).double().numpy()
        y = torch.cat([trace["L3.out"] for trace in traces]).double().numpy() - x
        x = np.concatenate([x, np.ones((len(x), 1))], 1)
        ridge = np.eye(129) * training._RIDGE * np.square(x[:, :128]).sum(0).mean()
        ridge[-1, -1] = 0
        solved = np.linalg.solve(x.T @ x + ridge, x.T @ y)
        np.testing.assert_allclose(found.weights[stage].T, solved[:-1], atol=2e-3)
        np.testing.assert_allclose(found.biases[stage], solved[-1], atol=2e-3)


def test_the_lens_is_measured_on_windows_that_it_was_not_trained_on(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The divergences again, by ``Model.lens`` on the last windows of the corpus, at all of their positions."""
    monkeypatch.setattr(training, "_MEASURED", training.WINDOW)
    trained = tiny.train_lens(steps=1)
    assert tiny.corpus is not None
    ids = tiny.tokenizer.encode(tiny.corpus.read_text("utf-8"), special=False).ids
    count = len(ids) // trained.window
    assert (trained.training, trained.held_out) == (count - count // 10, count // 10)
    kl = torch.zeros(2, 4, dtype=torch.float64)
    for number in range(count - trained.held_out, count):
        trace = tiny.trace(ids=ids[number * trained.window : (number + 1) * trained.window])
        for row, lens in enumerate((None, trained.translators)):
            stages = tiny.lens(trace, tuned=lens).stages[:-1]
            kl[row] += torch.stack([stage.divergence.mean() for stage in stages]).detach() / trained.held_out
    for stage, logit, tuned in zip(trained.stages, *kl.tolist(), strict=True):
        assert stage.logit.value == pytest.approx(logit, rel=1e-5)
        assert stage.tuned.value == pytest.approx(tuned, rel=1e-5)
        assert stage.less.value == pytest.approx(stage.logit.value - stage.tuned.value)


def test_training_lowers_what_the_regression_leaves(tiny: Model, trained: TunedLens) -> None:
    started = tiny.train_lens(steps=0)
    assert started.mean[1] > trained.mean[1]
    assert started.mean[0] == pytest.approx(trained.mean[0], rel=0.2)
    assert all(stage.closer for stage in trained.stages)
    assert trained.sentence.startswith(
        "On held-out text the tuned lens is closer to the model's own prediction at 4 of 4"
    )
    again = tiny.train_lens(steps=6)
    assert all(map(torch.equal, again.translators.weights, trained.translators.weights))
    assert again.stages == trained.stages


def test_closer_is_said_only_where_the_whole_interval_is(trained: TunedLens) -> None:
    first, *others = trained.stages
    unsure = replace(first, less=Estimate(0.3, -0.01, 0.6))
    assert not unsure.closer
    assert " at 3 of 4 stages" in replace(trained, stages=(unsure, *others)).sentence


def test_a_trained_lens_is_written_and_read(tiny: Model, trained: TunedLens, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {name: tensor.contiguous() for name, tensor in trained.tensors().items()}
    assert set(tensors) == {f"{name}.{part}" for name in stage_names(tiny.config) for part in ("weight", "bias")}
    save_file(tensors, tmp_path / "lens.safetensors")
    found = read_translators(tmp_path / "lens.safetensors", tiny.config)
    assert all(map(torch.equal, found.weights, trained.translators.weights))


def test_ctrl_c_keeps_what_was_trained(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    report = tiny.train_lens(steps=50, on_progress=stop)
    assert (report.interrupted, report.steps, report.of_steps) == (True, 2, 50)
    assert all(np.isfinite(stage.tuned.value) for stage in report.stages)


def test_what_cannot_be_trained_is_refused(tiny: Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the corpus has 1 window of 128 tokens, and at least 4 are needed"):
        tiny.train_lens(text="The cat sat.")
    assert tiny.train_lens(text="The cat sat on the mat. " * 100, steps=0).corpus == "a text"
    with pytest.raises(UsageError, match="is not known"):
        replace(tiny, corpus=None).train_lens()
    with pytest.raises(UsageError, match="several residual streams"):
        asked(
            lively(config_of("gemma 3n, streams that predict each other, a low-rank residual, and sparse gates"))
        ).train_lens(text="1 2")
