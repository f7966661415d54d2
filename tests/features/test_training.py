"""Training a sparse autoencoder: it finds planted directions, revives dead features, and keeps what it has learned."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tinytf.errors import AddressError, TrainingError, UsageError
from tinytf.features import train_sae
from tinytf.features.fidelity import Reconstructed, reconstructed
from tinytf.features.layouts import open_sae
from tinytf.features.train_sae import SaeTraining, Weights, fit, shuffled
from tinytf.loading import Model, load
from tinytf.text.corpus import Corpus, find_files

SIZES = {"features": 48, "k": 4, "tokens": 3000, "batch": 100}


@pytest.fixture(scope="module")
def model() -> Model:
    return load("tiny")


@pytest.fixture(scope="module")
def corpus(model: Model) -> Corpus:
    assert model.corpus is not None
    return find_files([model.corpus])


@pytest.fixture(scope="module")
def trained(model: Model, corpus: Corpus) -> SaeTraining:
    return model.train_sae(corpus, "L1.out", **SIZES)


def sums_of(directions: Tensor, count: int, batch: int) -> Iterator[Tensor]:
    """Activations that are sums of 2 of some directions, with strengths from 1 to 3, and a common shift."""
    draw = torch.Generator().manual_seed(5)
    for _ in range(count):
        chosen = torch.rand(batch, len(directions), generator=draw).topk(2).indices
        strengths = torch.zeros(batch, len(directions)).scatter_(
            1, chosen, 1 + 2 * torch.rand(batch, 2, generator=draw)
        )
        yield strengths @ directions + 4.0


def test_planted_directions_are_found() -> None:
    planted = torch.nn.functional.normalize(torch.randn(40, 24, generator=torch.Generator().manual_seed(1)), dim=-1)
    batches = sums_of(planted, 700, 64)
    weights = fit(batches, 700, 60, 2, lr=5e-3, dead_after=3000, generator=torch.Generator().manual_seed(0))
    coder = weights.coder("planted", "", 2)
    assert float((coder.decoder @ planted.T).amax(0).mean()) > 0.95
    x = next(sums_of(planted, 1, 2000))
    error = x - coder.reconstruct(x)
    assert float(error.square().sum() / (x - x.mean(0)).square().sum()) < 0.1


def test_only_dead_features_learn_from_the_error_of_the_others() -> None:
    x = torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
    weights = Weights.of(x, 40, torch.Generator().manual_seed(0))
    loss, unexplained = weights.loss(x, 2, 1000)
    assert torch.equal(loss, unexplained)
    weights.idle[7] = 5000
    weights.encoder.data[:, 7] = 0.01 * x[0]  # too weak to be among the two, and so idle still
    loss, unexplained = weights.loss(x, 2, 1000)
    assert (loss - unexplained).item() == pytest.approx(1 / 32, rel=0.01)  # one feature explains little
    (gradient,) = torch.autograd.grad(loss - unexplained, weights.decoder)
    assert gradient[7].abs().sum() > 0
    assert float(torch.cat((gradient[:7], gradient[8:])).abs().max()) < 1e-6


def test_directions_have_length_1_and_k_features_are_active(model: Model, trained: SaeTraining) -> None:
    coder = trained.coder
    torch.testing.assert_close(coder.decoder.norm(dim=-1), torch.ones(48))
    activations = coder.encode(model.trace("The cat sat on the mat.")["L1.out"])
    assert int((activations > 0).sum(-1).max()) <= 4
    assert (trained.tokens, coder.reads) == (3000, "blocks.1.hook_resid_post")
    assert trained.steps[-1].unexplained < trained.steps[0].unexplained
    assert trained.dead == round(trained.steps[-1].dead * 48)


def test_what_is_measured_is_the_text_held_out(model: Model, corpus: Corpus, trained: SaeTraining) -> None:
    ids = [model.encode(text).ids for text in corpus.split(0.05)[1]]
    traces = [model.trace(ids=text[start : start + 128]) for text in ids for start in range(0, len(text), 128)]
    x = torch.cat([trace["L1.out"] for trace in traces]).double()
    error = x - trained.coder.reconstruct(x.float()).double()
    share = 1 - float(error.square().sum() / (x - x.mean(0)).square().sum())
    assert trained.held_out.tokens == len(x)
    assert trained.held_out.explained_variance == pytest.approx(share, abs=1e-4)
    singles = [model.features(trace, trained.coder).fidelity for trace in traces]
    counts = [len(trace.tokens) - 1 for trace in traces]
    loss = sum((one.loss_reconstructed or 0) * count for one, count in zip(singles, counts, strict=True)) / sum(counts)
    assert trained.held_out.loss_reconstructed == pytest.approx(loss, abs=1e-4)
    assert f"{100 * share:.0f} %" in trained.sentence


def test_a_seed_gives_the_same_weights(model: Model, corpus: Corpus, trained: SaeTraining, tmp_path: Path) -> None:
    again, other = (model.train_sae(corpus, "L1.out", **SIZES, seed=seed) for seed in (0, 1))
    assert torch.equal(again.coder.decoder, trained.coder.decoder)
    assert not torch.equal(other.coder.decoder, trained.coder.decoder)
    trained.coder.save(tmp_path / "sae")
    opened = open_sae(tmp_path / "sae")
    assert torch.equal(opened.encoder, trained.coder.encoder)
    assert opened.reads == trained.coder.reads


def test_an_interrupt_keeps_what_was_learned(model: Model, corpus: Corpus) -> None:
    def stop(done: int, of: int) -> None:
        if done == 700:
            raise KeyboardInterrupt

    report = model.train_sae(corpus, "L1.out", **SIZES, on_progress=stop)
    assert report.interrupted
    assert report.tokens == 700
    assert "dead" in report.sentence
    assert "dead" not in replace(report, dead_after=700).in_a_sentence()  # too few tokens to tell
    assert bool(report.coder.encoder.isfinite().all())
    assert report.held_out.explained_variance is not None


@pytest.mark.parametrize("window", [1, 3])
def test_an_interrupt_while_it_is_measured_keeps_the_weights(
    model: Model, corpus: Corpus, trained: SaeTraining, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(1, 99))

    def interrupted(*arguments: Any) -> Reconstructed:
        if next(calls) == window:
            raise KeyboardInterrupt
        return reconstructed(*arguments)

    monkeypatch.setattr(train_sae, "reconstructed", interrupted)
    report = model.train_sae(corpus, "L1.out", **SIZES)
    assert torch.equal(report.coder.decoder, trained.coder.decoder)
    assert 0 < report.held_out.tokens < trained.held_out.tokens


def test_a_stream_is_shuffled_and_nothing_comes_twice() -> None:
    parts = [torch.arange(start, start + 30.0)[:, None] for start in range(0, 300, 30)]
    batches = list(shuffled(parts, 16, torch.Generator().manual_seed(0)))
    rows = torch.cat(batches).flatten().tolist()
    assert {len(batch) for batch in batches} == {16}
    assert len(rows) == len(set(rows)) == 288
    assert rows != sorted(rows)


def test_sizes_that_do_not_fit_are_refused(model: Model, corpus: Corpus) -> None:
    for sizes, words in (({"k": 49}, "49 active features of 48"), ({"tokens": 50}, "not one batch of 100"),
                         ({"batch": 3000 * 3, "tokens": 9000}, "fewer tokens than one batch")):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            model.train_sae(corpus, "L1.out", **{**SIZES, **sizes})
    with pytest.raises(UsageError, match="fewer tokens than one batch"):
        model.train_sae(find_files("The cat sat on the mat."), "L1.out", **SIZES)
    with pytest.raises(AddressError, match="not one vector a token"):
        model.train_sae(corpus, "L1.q", **SIZES)
    with model.edited({"L1.ffn": 0.0}), pytest.raises(TrainingError, match="0 at every token"):
        model.train_sae(corpus, "L1.ffn", **SIZES)
