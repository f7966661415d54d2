"""Steering against arithmetic by hand: how vectors are made, what they do to a run, and what is said of it."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from architectures import KINDS, asked, config_of, lively
from safetensors.torch import save_file
from torch import Tensor

import tinytf
from tinytf.cause.steer.applying import Change, Steering, steered_model
from tinytf.cause.steer.contrasts import Activations
from tinytf.cause.steer.directions import accuracies_of, direction, held_out, vector_of
from tinytf.cause.steer.files import read_vectors, write_vectors
from tinytf.cause.steer.steered_generation import begin_steered_generation
from tinytf.cause.steer.vector import LayerVector, SteeringVector
from tinytf.errors import CheckpointError, TinytfError, UsageError
from tinytf.generate.continuing import Streaming
from tinytf.generate.decoder import Decoder
from tinytf.generate.runner import Runner
from tinytf.sentences import percent
from tinytf.steps.table import table_of
from tinytf.trace.check import check

PAIRS = [
    ("The dog was happy", "The dog was sad"), ("The cat was happy", "The cat was sad"),
    ("The girl was happy", "The girl was sad"), ("A boy was happy", "A boy was sad"),
    ("The bird was glad", "The bird was sad"), ("The horse was happy and", "The horse was sad and"),
]  # fmt: skip
PROMPT = "The dog was"


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny", dtype="float64")


@pytest.fixture(scope="module")
def vector(model: tinytf.Model) -> SteeringVector:
    return model.steer(PAIRS, at="L1.out")


def sides(model: tinytf.Model, address: str, tokens: slice) -> tuple[np.ndarray, np.ndarray]:
    """The values of both sides of PAIRS at an address, averaged over some tokens."""
    first, second = (
        np.stack([model.trace(pair[side])[address][tokens].numpy().mean(0) for pair in PAIRS]) for side in (0, 1)
    )
    return first, second


def logits_after(model: tinytf.Model, text: str = PROMPT) -> Tensor:
    return model.trace(text).logits_at(-1).double()


def test_the_mean_is_the_difference_of_the_means_of_traces(model: tinytf.Model) -> None:
    for position, tokens in (("last", slice(-1, None)), ("mean", slice(None))):
        report = model.steer(PAIRS, at="L*.out", position=position)
        assert [each.at for each in report.vectors] == ["L0.out", "L1.out", "L2.out", "L3.out"]
        for each in report.vectors:
            positive, negative = sides(model, each.at, tokens)
            expected = positive.mean(0) - negative.mean(0)
            np.testing.assert_allclose(each.vector.numpy(), expected, rtol=1e-6, atol=1e-6)
            assert each.norm == pytest.approx(np.linalg.norm(expected), rel=1e-9)


@pytest.fixture(scope="module")
def theirs(model: tinytf.Model, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same weights in transformers, in float64."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("exported") / "tiny"
    model.export(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()


def test_the_mean_is_that_of_the_hidden_states_of_transformers(model: tinytf.Model, theirs: Any) -> None:
    with torch.no_grad():
        first, second = (
            [theirs(torch.tensor([model.encode(pair[side]).ids]), output_hidden_states=True) for pair in PAIRS]
            for side in (0, 1)
        )
    report = model.steer(PAIRS, at="L*.out")
    for layer, each in enumerate(report.vectors[:-1], 1):  # the last hidden state comes after the final norm
        means = [torch.stack([run.hidden_states[layer][0, -1] for run in side]).mean(0) for side in (first, second)]
        np.testing.assert_allclose(each.vector, means[0] - means[1], rtol=0, atol=1e-5)


def test_the_size_is_the_norm_by_that_of_the_values(model: tinytf.Model, vector: SteeringVector) -> None:
    norms = [model.trace(text)["L1.out"][-1].norm() for pair in PAIRS for text in pair]
    assert vector.best.relative == pytest.approx(vector.best.norm / float(torch.stack(norms).mean()), rel=1e-9)


def test_the_component_of_pca_is_the_eigenvector_of_the_covariance(model: tinytf.Model) -> None:
    positive, negative = sides(model, "L2.out", slice(-1, None))
    differences = positive - negative
    expected = np.linalg.eigh(np.cov(differences.T))[1][:, -1]
    made = model.steer(PAIRS, at="L2.out", method="pca").best.vector.numpy().astype(float)
    assert abs(made @ expected) / np.linalg.norm(made) == pytest.approx(1.0, abs=1e-6)
    assert np.linalg.norm(made) == pytest.approx(abs(differences.mean(0) @ expected), rel=1e-5)
    assert made @ differences.mean(0) > 0


def test_the_probe_is_the_minimum_that_newton_finds() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 12, 7, dtype=torch.float64, generator=generator)
    x[0] += torch.linspace(-1, 2, 7)
    both = torch.cat((x[0], x[1])).numpy()
    both = both - both.mean(0)
    both = np.hstack((both / np.sqrt((both**2).sum(1).mean()), np.ones((24, 1))))
    labels, ridge = np.repeat([1.0, 0.0], 12), np.diag([1.0] * 7 + [0.0])
    weights = np.zeros(8)
    for _ in range(30):
        p = 1 / (1 + np.exp(-both @ weights))
        gradient = both.T @ (p - labels) + ridge @ weights
        weights -= np.linalg.solve(both.T @ (both * (p * (1 - p))[:, None]) + ridge, gradient)
    assert np.abs(gradient).max() < 1e-12
    expected = weights[:7] / np.linalg.norm(weights[:7])
    np.testing.assert_allclose(direction("probe", x[0], x[1]).numpy(), expected, atol=1e-7)


@pytest.mark.parametrize("method", ["mean", "pca", "probe"])
def test_strength_one_moves_the_negative_mean_to_the_positive_one_along_the_direction(method: str) -> None:
    generator = torch.Generator().manual_seed(1)
    positive, negative = torch.randn(2, 9, 5, dtype=torch.float64, generator=generator)
    made = vector_of(method, Activations(positive + 1, negative, 1.0))
    unit = made / made.norm()
    assert float((negative.mean(0) + made) @ unit) == pytest.approx(float((positive + 1).mean(0) @ unit))


def test_accuracy_is_measured_on_pairs_left_out() -> None:
    """With more dimensions than pairs any direction fits its own pairs; on others of pure noise it is a coin."""
    generator = torch.Generator().manual_seed(0)
    noise = Activations(*torch.randn(2, 60, 200, dtype=torch.float64, generator=generator), 1.0)
    unit = direction("mean", noise.positive, noise.negative)
    middle = (noise.positive + noise.negative).mean(0) @ unit / 2
    assert float(((noise.positive @ unit) > middle).double().mean()) > 0.8
    accuracy, separation = held_out("mean", noise, 0) or (None, math.nan)
    assert accuracy is not None
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert accuracy.low < 0.5 < accuracy.high
    assert abs(separation) < 0.5
    apart = replace(noise, positive=noise.positive + 1)
    accuracy, separation = held_out("mean", apart, 0) or (None, 0.0)
    assert accuracy is not None
    assert accuracy.value == 1.0
    assert separation > 5
    assert held_out("mean", Activations(noise.positive[:1], noise.negative[:1], 1.0), 0) is None


def test_accuracy_is_that_of_a_loop_over_folds() -> None:
    generator = torch.Generator().manual_seed(4)
    positive, negative = torch.randn(2, 13, 3, dtype=torch.float64, generator=generator)
    positive += 0.8
    order = torch.randperm(13, generator=torch.Generator().manual_seed(7)).tolist()
    right = 0.0
    for fold in range(5):
        tested = order[fold::5]
        rest = [n for n in range(13) if n not in tested]
        above, below = positive[rest].mean(0), negative[rest].mean(0)
        for n in tested:
            threshold = (above + below) @ (above - below) / 2
            right += float(positive[n] @ (above - below) > threshold) + float(negative[n] @ (above - below) < threshold)
    accuracy, _ = held_out("mean", Activations(positive, negative, 1.0), 7) or (None, 0)
    assert accuracy is not None
    assert accuracy.value == pytest.approx(right / 26)


def test_random_directions_are_judged_by_the_folds_of_the_vector() -> None:
    """A direction that tells all apart does so whatever its sign or length; one across it is judged by a loop."""
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(2, 20, 3, generator=generator, dtype=torch.float64)
    noise[:, :, 0] *= 0.01
    positive, negative = noise[0] + torch.tensor([1.0, 0, 0]), noise[1] - torch.tensor([1.0, 0, 0])
    along, across = torch.tensor([1.0, 0, 0]).double(), torch.tensor([0, 1.0, 0]).double()
    of = Activations(positive, negative, 1.0)
    accuracies = accuracies_of([along, -5 * along, across], of, seed=0)
    assert accuracies[:2] == [1.0, 1.0]
    right = []
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    for fold in range(5):
        tested = order[fold::5]
        rest = [pair for pair in range(20) if pair not in tested.tolist()]
        above, below = float(positive[rest, 1].mean()), float(negative[rest, 1].mean())
        side, middle = (1 if above >= below else -1), (above + below) / 2
        right += [bool(side * (value - middle) > 0) for value in positive[tested, 1].tolist()]
        right += [bool(side * (value - middle) < 0) for value in negative[tested, 1].tolist()]
    assert accuracies[2] == pytest.approx(sum(right) / 40)


def test_promoted_tokens_are_those_of_the_head(model: tinytf.Model, vector: SteeringVector) -> None:
    transformer = model.transformer
    gain = transformer.final_norm.weight.detach()
    logits = transformer.unembedding.detach() @ (vector.best.vector.double() * gain)
    assert [token for token, _ in vector.best.promoted] == logits.topk(8).indices.tolist()
    assert [token for token, _ in vector.best.demoted] == logits.topk(8, largest=False).indices.tolist()
    opposite = (-2 * vector).best
    assert opposite.promoted == tuple((token, -2 * value) for token, value in vector.best.demoted)
    assert opposite.norm == pytest.approx(2 * vector.best.norm)
    assert (0 * vector).best.promoted == (0 * vector).best.demoted == ()  # a vector of zeros raises no logit


@pytest.mark.parametrize("name", ["out", "ffn_norm", "norm2"])
def test_where_sums_are_normed_the_tokens_are_still_those_of_the_head(model: tinytf.Model, name: str) -> None:
    """What is added to the stream passes the final norm alone; the input of the feed-forward is not added to it."""
    config = tinytf.ModelConfig.of(vocab_size=2048, d_model=128, n_layers=2, n_heads=4, d_ff=64, context=64,
                                   norm="rmsnorm", norm_order="both", residual_scale=0.5)  # fmt: skip
    transformer = lively(config).double()
    best = replace(model, transformer=transformer).steer(PAIRS, at=f"L1.{name}", top=4).best
    logits = transformer.unembedding.detach() @ (best.vector.double() * transformer.final_norm.weight.detach())
    scale = 1.0 if name == "out" else 0.5
    expected = [] if name == "norm2" else list(zip(logits.topk(4).indices.tolist(), logits.topk(4).values, strict=True))
    assert [token for token, _ in best.promoted] == [token for token, _ in expected]
    assert [value for _, value in best.promoted] == pytest.approx([scale * float(x) for _, x in expected], rel=1e-5)


def test_a_vector_of_a_classifier_promotes_its_classes(model: tinytf.Model) -> None:
    config = tinytf.ModelConfig.of(vocab_size=2048, d_model=128, n_layers=2, n_heads=4, d_ff=64, context=64,
                                   head="sequence", head_reads="last", labels=("calm", "glad", "sad"),
                                   tied_head=False)  # fmt: skip
    report = replace(model, transformer=lively(config).double()).steer(PAIRS, at="L1.out", top=1)
    ((token, _),) = report.best.promoted
    assert f"promotes {config.labels[token]}" in report.sentence
    assert report.to_dict()["vectors"][0]["promoted"][0]["class"] == config.labels[token]


def test_a_steered_run_goes_on_from_the_stream_plus_the_vector(model: tinytf.Model, vector: SteeringVector) -> None:
    plain = model.trace(PROMPT)
    with model.steered({"L1.out": 3 * vector}) as steered:
        assert steered is model
        trace = model.trace(PROMPT)
        score = model.score(f"{PROMPT} hungry").tokens[-1].log_probability
        with model.steered(-3 * vector):
            torch.testing.assert_close(logits_after(model), plain.logits_at(-1))
    moved = plain["L1.out"] + 3 * vector.best.vector
    torch.testing.assert_close(trace["L1.out"], moved)
    x = moved[None]
    for block in model.transformer.blocks[2:]:
        x = block(x)
    expected = model.transformer.unembed(model.transformer.final_norm(x))[0, -1]
    torch.testing.assert_close(trace.logits_at(-1), expected)
    hungry = model.find_token(" hungry")
    assert score == pytest.approx(float(expected.detach().log_softmax(-1)[hungry]), abs=1e-6)
    assert check(trace).holds
    torch.testing.assert_close(logits_after(model), plain.logits_at(-1), rtol=0, atol=0)
    assert not model.transformer.edited


def test_a_removed_direction_is_gone_and_the_rest_stays(model: tinytf.Model, vector: SteeringVector) -> None:
    unit = (vector.best.vector / vector.best.vector.norm()).double()
    plain = model.trace(PROMPT)["L0.out"]
    with model.steered(remove={"L*.out": vector}):
        trace = model.trace(PROMPT)
    for layer in range(4):
        assert float((trace[f"L{layer}.out"] @ unit).abs().max()) < 1e-6
    torch.testing.assert_close(trace["L0.out"], plain - torch.outer(plain @ unit, unit), rtol=1e-6, atol=1e-6)
    with model.steered({"L0.out": vector}, remove={"L0.out": vector}):  # what is added is added afterwards
        assert float(model.trace(PROMPT)["L0.out"][0] @ unit) == pytest.approx(vector.best.norm, rel=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if config_of(kind).causal and not config_of(kind).labels])
def test_with_a_cache_and_without_the_logits_are_the_same(kind: str) -> None:
    model = lively(config_of(kind))
    if model.head is None or model.config.looks_ahead or not model.config.predicts_tokens:
        pytest.skip("it predicts no next token")
    generator = torch.Generator().manual_seed(2)
    added, removed = torch.randn(2, model.config.d_model, generator=generator)
    output = "ffn" if model.config.extra_streams else table_of(model.config).output  # a stream has one vector a token
    changes = [Change(f"L{layer}.{output}", removed, removes=True) for layer in range(model.config.n_layers)]
    steered = steered_model(asked(model), [*changes, Change(f"L1.{output}", added)]).transformer
    runners = [Runner(steered, [3, 14, 15, 9], cache) for cache in (steered.cache(12), None)]
    plain = Runner(model, [3, 14, 15, 9])
    logits = [runner.first() for runner in (*runners, plain)]
    for token in (2, 6, 5, 3):
        within = 1e-4 * max(1.0, float(logits[1].abs().max()))
        torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=within)
        assert float((logits[0] - logits[2]).abs().max()) > 1e-3
        logits = [runner.go_on([0], [token]) for runner in (*runners, plain)]
    assert not any(runner.note for runner in runners)
    assert Decoder.fits(steered) == Decoder.fits(model)  # the rows that nobody changes keep their kernels


def test_a_steered_text_is_that_of_transformers_with_a_hook(
    model: tinytf.Model, vector: SteeringVector, theirs: Any
) -> None:
    added = 0.8 * vector.best.vector.double()
    report = model.steered_generation(PROMPT, add={"L1.out": 0.8 * vector}, max_tokens=12)
    handle = theirs.model.layers[1].register_forward_hook(lambda module, args, result: result + added)
    ids = torch.tensor([report.prompt.ids])
    told = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    generated = theirs.generate(ids, output_logits=True, return_dict_in_generate=True, **told)
    handle.remove()
    assert report.text_ids == generated.sequences[0].tolist()
    with torch.no_grad():
        plain = theirs(generated.sequences).logits[0, ids.shape[1] - 1 : -1].log_softmax(-1)
    steered = torch.cat(generated.logits).double().log_softmax(-1)  # (new tokens, V)
    assert report.moved[0] == pytest.approx((plain.exp() * (plain - steered)).sum(-1).tolist(), abs=1e-5)


def test_a_steered_text_stands_beside_the_plain_one(model: tinytf.Model, vector: SteeringVector) -> None:
    report = model.steered_generation(PROMPT, add={"L1.out": 0.8 * vector}, max_tokens=6)
    assert report.plain is not None
    assert report.plain.text() == model.generate(PROMPT, max_tokens=6)
    same = [a.id == b.id for a, b in zip(report.steps, report.plain.steps, strict=True)]
    assert report.parted == same.index(False) + 1
    first, second = (model.shown(each.steps[report.parted - 1].id) for each in (report, report.plain))
    assert f"new token {report.parted} is {first} instead of {second}" in report.sentence
    assert f"moves by {np.mean(report.moved[0]):.3g} nats" in report.sentence
    assert report.check is not None
    assert report.check.holds
    assert report.check.difference < 1e-5
    with model.steered({"L1.out": 0.8 * vector}):
        assert model.generate(PROMPT, max_tokens=6) == report.text()


def test_the_check_fails_for_a_change_that_depends_on_other_positions(model: tinytf.Model) -> None:
    class Growing(Change):
        def __call__(self, value: Tensor) -> Tensor:
            return value + len(value) * self.vector.to(value)

    vector = torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(0)) / 4
    steering = Steering((Growing("L1.out", vector),), ("a wrong one",))
    prompt = model.prompt(PROMPT)
    report = begin_steered_generation(model, prompt, steering, Streaming(max_tokens=6)).whole
    assert not report.holds
    assert report.sentence == ""
    without = begin_steered_generation(model, prompt, steering, Streaming(max_tokens=2, use_cache=False)).whole
    assert without.check is None


def test_samples_and_an_early_end_are_told_apart(model: tinytf.Model, vector: SteeringVector) -> None:
    sampling = tinytf.Sampling(temperature=1.0)
    report = model.steered_generation(PROMPT, add=vector, samples=3, seed=5, sampling=sampling, max_tokens=4)
    assert [len(moved) for moved in report.moved] == [4, 4, 4]
    assert report.plain is not None
    assert [report.plain.text(n) for n in (1, 2, 3)] == model.samples(
        PROMPT, 3, seed=5, sampling=sampling, max_tokens=4
    )
    shorter = replace(report, steps=report.plain.steps[:6])
    assert shorter.parted == 3
    assert "new token 3 of the first text is its end instead of" in shorter.in_a_sentence()
    assert replace(report, steps=report.plain.steps).parted is None


def test_a_curve_is_made_of_steered_runs(model: tinytf.Model, vector: SteeringVector) -> None:
    texts = model.reference()
    report = model.steer_curve(PROMPT, vector, strengths=(1, -1, 0), ask=["happy", "sad"], reference=texts, tokens=20)
    happy, sad = report.asked
    plain = logits_after(model).log_softmax(-1)
    assert [dose.strength for dose in report.doses] == [-1, 0, 1]
    for dose in report.doses:
        with model.steered(dose.strength * vector):
            logits = logits_after(model)
            other = model.trace(ids=texts.texts[0].ids[:20])
        log_p = logits.log_softmax(-1)
        assert dose.probabilities == pytest.approx((float(log_p[happy].exp()), float(log_p[sad].exp())))
        assert dose.value == pytest.approx(float(logits[happy] - logits[sad]))
        assert dose.kl == pytest.approx(float((plain.exp() * (plain - log_p)).sum()), abs=1e-12)
        assert dose.best == int(logits.argmax())
        before = model.trace(ids=texts.texts[0].ids[:20])["logits"].log_softmax(-1)
        moved = (before.exp() * (before - other["logits"].log_softmax(-1))).sum(-1).mean()
        assert dose.elsewhere is not None
        assert dose.elsewhere.value == pytest.approx(float(moved), abs=1e-9)
    assert report.check.holds


def test_a_curve_says_at_every_step_only_if_it_is_so(model: tinytf.Model, vector: SteeringVector) -> None:
    report = model.steer_curve(PROMPT, vector, strengths=(-1, -0.5, 0, 0.5, 1), ask=["happy", "sad"])
    ends = [f"{report.doses[i].value:+.2f}".replace("-", "−") for i in (0, -1)]
    assert f"rises from {ends[0]} to {ends[1]} at every step" in report.sentence
    dip = replace(report.doses[2], value=report.doses[1].value)
    broken = replace(report, doses=(*report.doses[:2], dip, *report.doses[3:]))
    assert "but not at every step" in broken.in_a_sentence()
    back = replace(report, doses=report.doses[::-1])
    assert f"falls from {ends[1]} to {ends[0]} at every step" in back.in_a_sentence()
    one = model.steer_curve(PROMPT, vector, strengths=(-1, 1), ask=["sad"])
    assert "·sad falls from" in one.sentence
    assert "every step" not in one.sentence


def test_a_curve_that_does_not_move_is_not_said_to_rise(model: tinytf.Model, vector: SteeringVector) -> None:
    at_one = model.steer_curve(PROMPT, vector, strengths=(1,), ask=["happy"])
    assert at_one.sentence == f"At 1 × pairs at L1.out, ·happy has {percent(at_one.doses[0].probabilities[0])}."
    twice = model.steer_curve(PROMPT, vector, strengths=(-1, 0, 1), ask=["happy", " happy"])
    assert (len(twice.asked), twice.metric.name) == (1, "prob")
    assert twice.doses[0].value == pytest.approx(twice.doses[0].probabilities[0])
    still = model.steer_curve(PROMPT, 0 * vector, strengths=(-1, 0), ask=["happy", "sad"])
    assert f"stays at {still.doses[0].value:+.2f}".replace("-", "−") in still.sentence
    there_and_back = replace(
        still, doses=(*still.doses, replace(still.doses[0], strength=1, value=9.0), still.doses[0])
    )
    assert " at both ends" in there_and_back.in_a_sentence()
    costly = model.steer_curve(PROMPT, vector, strengths=(-1, 0), reference=model.reference(), tokens=20)
    assert "at −1, the predictions on other texts move by" in costly.sentence


def test_a_curve_that_is_interrupted_keeps_its_first_strengths(model: tinytf.Model, vector: SteeringVector) -> None:
    def stop(done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    report = model.steer_curve(PROMPT, vector, strengths=(-1, 0, 1), ask=["sad"], on_progress=stop)
    assert [dose.strength for dose in report.doses] == [-1, 0]
    assert report.interrupted


def test_a_vector_is_the_same_after_a_file(model: tinytf.Model, tmp_path: Path) -> None:
    made = model.steer(PAIRS, method="probe", position="mean")
    made.save(tmp_path / "joy.safetensors")
    read = tinytf.steering_vector(tmp_path / "joy.safetensors")
    assert (read.method, read.position, read.pairs, read.made_with) == ("probe", "mean", 6, "tiny")
    for one, other in zip(made.vectors, read.vectors, strict=True):
        assert torch.equal(one.vector, other.vector)
        assert (one.at, one.accuracy, one.separation, one.relative) == (
            other.at, other.accuracy, other.separation, other.relative,
        )  # fmt: skip
    assert read.best.at == made.best.at


@pytest.mark.parametrize(
    "said",
    [{"vectors": 5, "pairs": True}, {"vectors": [{"at": ["x"], "accuracy": {"value": 1e999}}], "pairs": "x"},
     {"vectors": [{"at": "L1.out", "accuracy": {"value": 7}, "relative": -1}], "pairs": 0, "strength": "NaN"}],
)  # fmt: skip
def test_what_a_file_says_of_its_vector_is_believed_only_if_it_can_be(said: dict[str, Any], tmp_path: Path) -> None:
    metadata = {"tinytf": json.dumps({"kind": "steering_vector", **said})}
    save_file({"L1.out": torch.ones(8)}, tmp_path / "odd.safetensors", metadata)
    read = tinytf.steering_vector(tmp_path / "odd.safetensors")
    assert (read.pairs, read.strength, read.best.accuracy, read.best.relative) == (None, 1.0, None, None)


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
def test_the_vectors_of_a_file_come_in_the_order_of_the_layers(suffix: str, tmp_path: Path) -> None:
    names, path = [f"L{layer}.out" for layer in range(1, 13)], tmp_path / f"vectors{suffix}"
    write_vectors(path, {name: torch.ones(4) for name in names}, {"kind": "steering_vector"})
    assert list(read_vectors(path)[0]) == names


def test_a_control_vector_is_what_the_library_of_gguf_reads(model: tinytf.Model, tmp_path: Path) -> None:
    made = model.steer(PAIRS)
    made.save(tmp_path / "joy.gguf")
    reader = gguf.GGUFReader(tmp_path / "joy.gguf")
    fields = {name: reader.fields[name].contents() for name in reader.fields if not name.startswith("GGUF.")}
    assert fields == {
        "general.architecture": "controlvector", "controlvector.model_hint": "tiny", "controlvector.layer_count": 3,
    }  # fmt: skip
    assert [tensor.name for tensor in reader.tensors] == ["direction.1", "direction.2", "direction.3"]
    for tensor, each in zip(reader.tensors, made.vectors[1:], strict=True):
        np.testing.assert_array_equal(tensor.data, each.vector.numpy())
    read = tinytf.steering_vector(tmp_path / "joy.gguf")
    assert [each.at for each in read.vectors] == ["L1.out", "L2.out", "L3.out"]
    with model.steered(read):
        expected = logits_after(model)
    with model.steered({f"L{n}.out": made.at(f"L{n}.out") for n in (1, 2, 3)}):
        torch.testing.assert_close(logits_after(model), expected, rtol=0, atol=0)


def wrong_files(folder: Path) -> dict[str, Path]:
    """Files that are no vectors, by what is wrong with them."""
    kind = {"tinytf": json.dumps({"kind": "steering_vector"})}
    tensors = {"nan": torch.tensor([1.0, math.nan]), "axes": torch.ones(2, 2), "ids": torch.ones(2, dtype=torch.int64)}
    files = {name: folder / f"{name}.safetensors" for name in (*tensors, "other", "uneven", "odd", "empty")}
    for name, tensor in tensors.items():
        save_file({"L1.out": tensor}, files[name], kind)
    save_file({"L1.out": torch.ones(2)}, files["other"])
    save_file({"L1.out": torch.ones(2), "L2.out": torch.ones(3)}, files["uneven"], kind)
    save_file({}, files["empty"], kind)
    files["odd"].write_bytes(b"no tensors")
    for name, architecture, tensor in (("llama", "llama", "direction.1"), ("zero", "controlvector", "direction.0")):
        files[name] = folder / f"{name}.gguf"
        writer = gguf.GGUFWriter(files[name], architecture)
        writer.add_tensor(tensor, np.ones(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    files["cut"] = folder / "cut.gguf"
    files["cut"].write_bytes(files["zero"].read_bytes()[:-40])
    files["text"] = folder / "joy.txt"
    return files


@pytest.mark.parametrize(
    ("name", "message"),
    [("nan", "no finite number"), ("ids", "no finite number"), ("axes", "a vector has one axis"),
     ("other", "holds no steering vector"), ("uneven", r"\(3,\), and L1.out"), ("empty", "holds no vector"),
     ("odd", "damaged|not a"), ("llama", "a GGUF file of 'llama'"), ("zero", "a tensor 'direction.0'"),
     ("cut", "truncated|damaged|file has"), ("text", "no file of steering vectors")],
)  # fmt: skip
def test_a_file_that_is_no_vector_is_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, CheckpointError), match=message) as caught:
        tinytf.steering_vector(wrong_files(tmp_path)[name])
    assert "\n" not in caught.value.message


def test_what_cannot_be_steered_is_refused(model: tinytf.Model, vector: SteeringVector, tmp_path: Path) -> None:
    wide = SteeringVector(source="wide.gguf", vectors=(LayerVector("L1.out", torch.ones(64), 8.0),))
    both = model.steer(PAIRS)
    hidden = replace(both, vectors=tuple(replace(each, accuracy=None) for each in both.vectors))
    refusals = {
        "wide.gguf at L1.out has 64 numbers, and tiny is 128 wide": lambda: model.steered(wide),
        "L1H2.head_out is head × token × d_head": lambda: model.steered({"L1H2.head_out": vector}),
        "L1 names no step": lambda: model.steered({"L1": vector}),
        r"L1.out\[0\] is a cell": lambda: model.steered({"L1.out[0]": vector}),
        "there is no vector": lambda: model.steered(),
        "is no vector by its address": lambda: model.steered([vector]),  # type: ignore[arg-type]
        "for L1.out is no vector": lambda: model.steered({"L1.out": 3}),  # type: ignore[dict-item]
        "zero, and has no direction": lambda: model.steered(remove={"L1.out": 0 * vector}),
        "not finite": lambda: model.steered({"L1.out": vector * math.inf}),
        "4 vectors, and one direction": lambda: model.steered(remove=hidden),
        "has no vector for L1.ffn": lambda: model.steered({"L1.ffn": both}),
        "pca takes 2 pairs or more": lambda: model.steer(PAIRS[:1], method="pca"),
        "there is no method 'lda'": lambda: model.steer(PAIRS, method="lda"),
        "there is no position 'first'": lambda: model.steer(PAIRS, position="first"),
        "line 2 of pairs: both texts are the same": lambda: model.steer([PAIRS[0], ("a", "a")]),
        "line 1 of pairs has no negative text": lambda: model.steer([{"positive": "a"}]),
        "line 1 of pairs has no clean text": lambda: model.steer([{"corrupt": "a"}]),
        "line 1 of pairs is no pair": lambda: model.steer(["ab", "cd", 3]),  # type: ignore[list-item]
        "pairs holds no pairs": lambda: model.steer([]),
        "do not differ at L0.in": lambda: model.steer([("A dog sat", "The dog sat")], at="L0.in"),
        "adds nothing to L0.out": lambda: both.only("L0.out").save(tmp_path / "a.gguf"),
        "L1.ffn is none": lambda: model.steer(PAIRS, at="L1.ffn").save(tmp_path / "a.gguf"),
        "no file of steering vectors": lambda: vector.save(tmp_path / "a.npz"),
        "a text cannot slide|slides": lambda: model.steered_generation(PROMPT, add=vector, on_overflow="slide"),
        "0 strengths": lambda: model.steer_curve(PROMPT, vector, strengths=()),
        "a strength is not finite": lambda: model.steer_curve(PROMPT, vector, strengths=(math.nan,)),
    }
    for message, call in refusals.items():
        with pytest.raises(TinytfError, match=message):
            call()
    assert not list(tmp_path.iterdir())
    with model.steered(vector), pytest.raises(UsageError, match=r"L1\.out is edited"):
        model.backward(PROMPT)


def test_one_backward_sees_the_vector(model: tinytf.Model, vector: SteeringVector) -> None:
    """The gradient of a loss through an added vector is that of autograd on the blocks above it."""
    with model.steered(vector):
        trace = model.grad(PROMPT)
    x = trace["L1.out"].clone().requires_grad_()
    y = x[None]
    for block in model.transformer.blocks[2:]:
        y = block(y)
    logits = model.transformer.unembed(model.transformer.final_norm(y))[0]
    targets = torch.tensor(trace.encoding.ids[1:])
    torch.nn.functional.cross_entropy(logits[:-1], targets).backward()
    torch.testing.assert_close(trace.grad["L1.out"], x.grad)
