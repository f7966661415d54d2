"""Linear probes, beside scikit-learn, and what they may say is readable."""

import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tinytf.bulk.folder import recorded
from tinytf.errors import AddressError, UsageError
from tinytf.estimate import Estimate, mean_of
from tinytf.loading import Model, load
from tinytf.look.logistic import fitted, folds_of, right_when_left_out
from tinytf.look.probe import LabelledTexts, Probe
from tinytf.text.corpus import Reading, find_files

FIRST, SECOND = ("dog", "fox", "bear"), ("cat", "hen", "duck")


def in_order() -> LabelledTexts:
    """Which of two animals comes first: every text has a twin with the same words."""
    rows = []
    for one, other, verb in itertools.product(FIRST, SECOND, ("saw", "helped")):
        rows += [{"text": f"The {one} {verb} the {other}.", "label": "one"},
                 {"text": f"The {other} {verb} the {one}.", "label": "other"}]  # fmt: skip
    random.Random(0).shuffle(rows)
    return LabelledTexts.of(rows, "order.jsonl")


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load("tiny", device="cpu")


@pytest.fixture(scope="module")
def probed(tiny: Model) -> Probe:
    return tiny.probe(in_order())


@pytest.mark.parametrize(("rows", "features", "count"), [(60, 10, 2), (60, 10, 3), (40, 90, 2), (45, 90, 4)])
def test_a_probe_is_the_logistic_regression_of_scikit_learn(rows: int, features: int, count: int) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = 3 * torch.randn(rows, features, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    y = torch.arange(rows) % count
    scaled = ((x - x.mean(0)) / x.std(0, correction=0)).numpy()
    theirs = linear_model.LogisticRegression(tol=1e-10, max_iter=10_000).fit(scaled, y.numpy())
    expected = theirs.decision_function(scaled)
    found = fitted(x, y, count)
    scores = (x @ found.weights.T + found.biases).numpy()
    if count == 2:
        np.testing.assert_allclose(scores[:, 1] - scores[:, 0], expected, atol=2e-4)
    else:  # a number that all classes share says nothing
        centred = (one - one.mean(-1, keepdims=True) for one in (scores, expected))
        np.testing.assert_allclose(*centred, atol=2e-4)
    assert found.predict(x).tolist() == theirs.predict(scaled).tolist()


def test_the_left_out_are_those_of_scikit_learn_too() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(50) % 2
    x = torch.randn(50, 6, generator=generator, dtype=torch.float64) + 0.6 * y[:, None]
    folds = folds_of(y.tolist(), 5, 3)
    right = right_when_left_out(x, y, folds, 2)
    for fold in range(5):
        out = folds == fold
        mean, scale = x[~out].mean(0), x[~out].std(0, correction=0)
        theirs = linear_model.LogisticRegression(tol=1e-10).fit(((x[~out] - mean) / scale).numpy(), y[~out].numpy())
        expected = theirs.predict(((x[out] - mean) / scale).numpy()) == y[out].numpy()
        assert right[out].bool().tolist() == expected.tolist()


def test_folds_share_out_every_label() -> None:
    labels = [0] * 13 + [1] * 7
    folds = folds_of(labels, 5, 0)
    for label, least in ((0, 2), (1, 1)):
        counts = [int(((folds == fold) & (torch.tensor(labels) == label)).sum()) for fold in range(5)]
        assert min(counts) >= least
        assert max(counts) <= least + 1
    assert folds.tolist() != folds_of(labels, 5, 1).tolist()


def test_an_order_is_readable_where_the_words_alone_are_not_enough(tiny: Model, probed: Probe) -> None:
    assert [step.at for step in probed.steps] == ["L0.out", "L1.out", "L2.out", "L3.out"]
    assert probed.words.value <= 0.5
    assert all(step.readable for step in probed.steps)
    assert probed.sentence.startswith("The label is readable beyond the baselines first and best at L0.out (100 %, ")
    embedded = tiny.probe(in_order(), at="embed.out")  # the last token is a full stop in every text
    assert not embedded.steps[0].readable
    assert embedded.sentence.startswith("At no step is the label readable beyond the baselines")


def test_a_word_is_not_readable_beyond_the_words(tiny: Model) -> None:
    texts = in_order()
    labels = tuple("dog" if "dog" in text else "none" for text in texts.texts)
    report = tiny.probe(LabelledTexts("words", texts.texts, labels), position="mean")
    assert report.words.value > 0.9
    assert not any(step.readable for step in report.steps)


@pytest.mark.exhaustive
def test_labels_without_a_pattern_are_not_readable(tiny: Model) -> None:
    texts = in_order()
    labels = tuple(random.Random(3).choices(("a", "b"), k=len(texts.texts)))
    report = tiny.probe(LabelledTexts("random", texts.texts, labels))
    assert not any(step.readable for step in report.steps)


def test_a_repeated_text_is_left_out(tiny: Model) -> None:
    """Else a probe would be asked for texts that it was trained on."""
    texts = in_order()
    labels = tuple(random.Random(3).choices(("one", "other"), k=len(texts.texts)))
    rows = [{"text": text, "label": label} for text, label in zip(texts.texts, labels, strict=True)]
    once, thrice = (tiny.probe(LabelledTexts.of(rows * times, "t"), at="L1.out") for times in (1, 3))
    assert (once.texts, once.repeats, thrice.texts, thrice.repeats) == (36, 0, 36, 72)
    assert thrice.steps[0].accuracy == once.steps[0].accuracy
    assert thrice.words == once.words
    with pytest.raises(UsageError, match="only one text of t has the label 'b'"):
        LabelledTexts.of([{"text": text, "label": label} for text, label in zip("wxyy", "aabb", strict=True)], "t")


def test_the_most_frequent_label_is_right_for_its_share(tiny: Model) -> None:
    """Counted in the other folds, of two equally frequent labels the wrong one would often come first."""
    texts = in_order()
    assert (
        tiny.probe(LabelledTexts("t", texts.texts[:33], texts.labels[:33]), at="L0.out").majority.value
        == max(Counter(texts.labels[:33]).values()) / 33
    )


def test_readable_takes_every_baseline(probed: Probe) -> None:
    step = probed.steps[0]
    for name in ("over_words", "over_majority", "over_shuffled"):
        assert not replace(step, **{name: Estimate(0.2, 0.0, 0.4)}).readable
        assert replace(step, **{name: Estimate(0.2, 0.01, 0.4)}).readable
    later = replace(probed, steps=(replace(step, over_words=Estimate(0.2, -0.1, 0.4)), *probed.steps[1:]))
    assert "first and best at L1.out" in later.sentence
    unsure = replace(later.steps[1], accuracy=Estimate(0.8, 0.7, 0.9), shuffled=Estimate(0.7, 0.6, 0.8))
    told = replace(later, steps=(later.steps[0], unsure, *later.steps[2:])).sentence
    assert told.endswith("first at L1.out (80 %, the best baseline 70 %), and best at L2.out (100 %).")
    only = replace(later, steps=(later.steps[0], unsure)).sentence  # a step that is not readable is not the best
    assert "first and best at L1.out (80 %, the best baseline 70 %)" in only


def test_the_vectors_are_those_of_the_texts_and_the_shares_those_of_numpy(tiny: Model, probed: Probe) -> None:
    texts = in_order()
    x = torch.stack([tiny.trace(text)["L2.out"][-1] for text in texts.texts]).double()
    y = torch.tensor([("one", "other").index(label) for label in texts.labels])
    right = right_when_left_out(x, y, folds_of(y.tolist(), 5, 0), 2)
    assert probed.steps[2].accuracy == mean_of(right, 0)
    assert probed.steps[2].accuracy.value == pytest.approx(float(right.mean()))
    direction = probed.steps[2].direction.double()
    means = x[y == 1].mean(0) - x[y == 0].mean(0)
    assert float(direction.norm()) == pytest.approx(float(means @ direction / direction.norm()), rel=1e-5)
    assert ((x - x.mean(0)) @ direction > 0).long().tolist() == y.tolist()
    other = tiny.probe(texts, at="L2.out", toward="one")
    torch.testing.assert_close(other.steps[0].direction.double(), -direction, rtol=1e-4, atol=1e-4)


def test_a_file_of_directions_is_one_of_steering_vectors(probed: Probe) -> None:
    assert {array.name: tuple(array.read().shape) for array in probed.stored()} == {
        f"L{layer}.out": (128,) for layer in range(4)
    }
    said = probed.metadata()
    assert (said["kind"], said["method"], said["toward"], said["made_with"]) == (
        "steer", "probe", "other", "tiny",
    )  # fmt: skip
    assert [vector["at"] for vector in said["vectors"]] == [step.at for step in probed.steps]


@pytest.mark.exhaustive
def test_several_labels_and_other_places_are_probed(tiny: Model) -> None:
    texts = in_order()
    animals = tuple(text.split()[1] for text in texts.texts)
    report = tiny.probe(LabelledTexts("animals", texts.texts, animals), at=["L0H1.head_out", "L1.ffn"], position="1")
    assert report.labels == tuple(sorted((*FIRST, *SECOND)))
    assert [tuple(step.direction.shape) for step in report.steps] == [(6, 32), (6, 128)]
    assert report.steps[1].accuracy.value > 0.9
    assert not report.steps[1].readable  # the position sees two tokens, and the second is the label
    assert load("tiny-encoder", device="cpu").probe(texts).position == "mean"


def test_ctrl_c_keeps_the_steps_that_are_measured(tiny: Model) -> None:
    count = len(in_order().texts)

    def stop(done: int, of: int) -> None:
        if done == count + 2:
            raise KeyboardInterrupt

    report = tiny.probe(in_order(), on_progress=stop)
    assert (len(report.steps), report.interrupted) == (2, True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a b", "label": "x"}, {"text": " ", "label": "y"}], r"line 2 of .*t\.jsonl has no text"),
        ([{"text": "a b", "label": "x"}, {"text": "a c"}], r"line 2 of .*t\.jsonl has no label"),
        ([{"text": "a b", "label": 1}, {"text": "a c", "label": 1}], r"every text of .*t\.jsonl has the label '1'"),
        ([{"text": w, "label": w == "c"} for w in "abc"], r"only one text of .*t\.jsonl has the label 'True'"),
        ([], r"t\.jsonl holds no texts"),
    ],
)
def test_bad_rows_are_refused_by_line(rows: list[dict[str, object]], message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match=message):
        LabelledTexts.read(path)


def test_bad_places_are_refused(tiny: Model) -> None:
    texts = in_order()
    with pytest.raises(AddressError, match=r"L0.weights is head × query × key"):
        tiny.probe(texts, at="L0.weights")
    with pytest.raises(UsageError, match=r"line \d+ of order\.jsonl: no token is 'dog'"):
        tiny.probe(texts, position="dog")
    with pytest.raises(UsageError, match="is 2 positions"):
        tiny.probe(texts, position="0-1")
    with pytest.raises(UsageError, match="no text has the label 'third'"):
        tiny.probe(texts, toward="third")
    long = LabelledTexts("t", ("The cat " * 200, *texts.texts), ("one", *texts.labels))
    with pytest.raises(UsageError, match="line 1 of t: the text has 401 tokens") as refused:
        tiny.probe(long)
    assert refused.value.hint == "shorten it, or leave it out"


@pytest.mark.exhaustive
def test_a_recording_of_the_texts_gives_the_same_probe(tiny: Model, tmp_path: Path) -> None:
    texts = in_order()
    table = tmp_path / "order.jsonl"
    rows = [{"text": t, "label": label} for t, label in zip(texts.texts, texts.labels, strict=True)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    corpus = find_files([table], Reading(field="text"))
    steps = ("L*.out", "L1H*.head_out")
    tiny.record(corpus, steps, tmp_path / "acts", shard_size=0.05)
    tiny.record(corpus, steps, tmp_path / "last", every_token=False)
    for folder, position in (("acts", "-1"), ("acts", "mean"), ("acts", "2"), ("last", "-1")):
        recording = recorded(tmp_path / folder)
        ran, read = (tiny.probe(table, at=steps, position=position, recording=r) for r in (None, recording))
        assert (read.words, [step.at for step in read.steps]) == (ran.words, [step.at for step in ran.steps])
        assert [step.accuracy for step in read.steps] == [step.accuracy for step in ran.steps]
        for ours, theirs in zip(read.steps, ran.steps, strict=True):
            torch.testing.assert_close(ours.direction, theirs.direction, atol=1e-3, rtol=1e-3)
    acts = recorded(tmp_path / "acts")
    with pytest.raises(UsageError, match=r"has no L0\.mid"):
        tiny.probe(texts, at="L0.mid", recording=acts)
    with pytest.raises(UsageError, match="has no row for The of line 1"):
        tiny.probe(texts, position="0", recording=recorded(tmp_path / "last"))
    swapped = LabelledTexts(texts.name, texts.texts[::-1], texts.labels[::-1])
    with pytest.raises(UsageError, match=r"line 1 of order\.jsonl is not document 1 of"):
        tiny.probe(swapped, recording=acts)
    fewer = LabelledTexts(texts.name, texts.texts[:-1], texts.labels[:-1])
    with pytest.raises(UsageError, match="has more documents than"):
        tiny.probe(fewer, recording=acts)
    tiny.record(corpus, ["L1.out"], tmp_path / "cut", window=4)
    with pytest.raises(UsageError, match="is recorded in windows of 4"):
        tiny.probe(texts, at="L1.out", recording=recorded(tmp_path / "cut"))
    with pytest.raises(UsageError, match="was recorded with other weights"):
        load("preset:llama-tiny").probe(texts, recording=acts)


def test_an_added_token_has_no_recorded_row(tmp_path: Path) -> None:
    encoder, texts = load("tiny-encoder"), in_order()
    (tmp_path / "texts.txt").write_text("\n".join(texts.texts), "utf-8")
    encoder.record(find_files([tmp_path / "texts.txt"], Reading("line")), ["L1.mid"], tmp_path / "acts")
    acts = recorded(tmp_path / "acts")
    with pytest.raises(UsageError, match=r"has no row for \[CLS\] of line 1"):  # in the mean
        encoder.probe(texts, at="L1.mid", recording=acts)
    ran, read = (encoder.probe(texts, at="L1.mid", position="-2", recording=r).steps[0] for r in (None, acts))
    assert read.accuracy == ran.accuracy
    torch.testing.assert_close(read.direction, ran.direction, atol=1e-3, rtol=1e-3)
