"""The features of a text, on the built-in model: every number against hooks on its modules, or float64 by hand."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from architectures import lively
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import AddressError, TinytfError, UsageError
from tinytf.features.coder import SparseCoder
from tinytf.loading import Model, load
from tinytf.text.corpus import find_files

TEXT = "The cat sat on the mat. The dog"


@pytest.fixture(scope="module")
def model() -> Model:
    return load("tiny")


def random_coder(at: str = "L2.out", features: int = 60, **more: object) -> SparseCoder:
    """A coder of random directions, whose 8 active features say something of the step."""
    draw = torch.Generator().manual_seed(3)
    decoder = torch.nn.functional.normalize(torch.randn(features, 128, generator=draw), dim=-1)
    bias, output_bias = (torch.randn(size, generator=draw) for size in (features, 128))
    coder = SparseCoder("random", "SAELens", "topk", decoder.T.clone(), bias, decoder, output_bias, at, at, 8)
    return replace(coder, **more)  # type: ignore[arg-type]


def hidden_with_hook(model: Model, path: str, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Logits (T, V) of TEXT with a plain PyTorch hook on one module."""
    ids = torch.tensor([model.encode(TEXT).ids])
    handle = model.transformer.get_submodule(path).register_forward_hook(lambda m, args, result: change(result))
    try:
        with torch.no_grad():
            logits: Tensor = model.transformer(ids)[0]
    finally:
        handle.remove()
    return logits.double()


def loss_of(logits: Tensor, ids: list[int]) -> float:
    return float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])))


def test_what_is_kept_is_its_formulas(model: Model) -> None:
    coder = random_coder()
    report, ids = model.features(TEXT, coder), model.encode(TEXT).ids
    x = model.trace(TEXT)["L2.out"].double()
    activations = coder.encode(x.float()).double()
    rebuilt = activations @ coder.decoder.double() + coder.output_bias.double()
    kept, error = report.fidelity, x - rebuilt
    assert kept.l0 == float((activations > 0).sum(-1).double().mean())
    assert kept.explained_variance == pytest.approx(
        1 - float(error.pow(2).sum() / (x - x.mean(0)).pow(2).sum()), abs=1e-5
    )
    assert kept.relative_error == pytest.approx(float((error.norm(dim=-1) / x.norm(dim=-1)).mean()), abs=1e-5)
    assert kept.cosine == pytest.approx(
        float((x * rebuilt).sum(-1).div(x.norm(dim=-1) * rebuilt.norm(dim=-1)).mean()), abs=1e-5
    )
    block = "blocks.2.out"
    plain, reconstructed, zeroed = (
        loss_of(hidden_with_hook(model, block, change), ids)
        for change in (lambda y: y, lambda y: rebuilt.float()[None], torch.zeros_like)
    )
    assert (kept.loss, kept.loss_reconstructed, kept.loss_zeroed) == pytest.approx(
        (plain, reconstructed, zeroed), abs=1e-4
    )
    assert kept.loss_recovered == pytest.approx((zeroed - reconstructed) / (zeroed - plain), abs=1e-4)


def test_a_perfect_coder_loses_nothing(model: Model) -> None:
    both_signs = torch.cat((torch.eye(128), -torch.eye(128)))  # x = relu(x) − relu(−x)
    zeros = torch.zeros(256), torch.zeros(128)
    coder = SparseCoder(
        "exact", "SAELens", "standard", both_signs.T.clone(), zeros[0], both_signs, zeros[1], "L1.ffn", "L1.ffn"
    )
    kept = model.features(TEXT, coder).fidelity
    assert kept.explained_variance == 1
    assert kept.loss == kept.loss_reconstructed
    assert kept.loss_recovered == 1
    assert kept.l0 == 128


@pytest.mark.parametrize(
    ("at", "order", "scale", "factor"),
    [("L3.out", "both", 1, 1), ("L1.ffn_norm", "both", 1, 1), ("L3.out", "pre", 0.5, 1), ("L1.ffn", "pre", 0.5, 0.5)],
)
def test_contributions_error_and_bias_add_up_to_the_logit(
    model: Model, at: str, order: str, scale: float, factor: float
) -> None:
    config = ModelConfig.of(
        vocab_size=2048, d_model=128, n_layers=4, n_heads=4, d_ff=64, context=64, norm="rmsnorm", norm_order=order,
        residual_scale=scale,
    )  # fmt: skip
    other = replace(model, name="both", transformer=lively(config))
    coder, last = random_coder(at), len(model.encode(TEXT).ids) - 1
    report, trace = other.features(TEXT, coder, top=8), other.trace(TEXT)
    token, x, stream = report.tokens[last], trace[at].double()[last], trace["L3.out"].double()[last]
    assert token.predicted == int(trace.logits_at(last).argmax())
    with torch.no_grad():
        question = (other.transformer.unembedding[token.predicted] * other.transformer.final_norm.weight).double()
    question = question / (stream.pow(2).mean() + config.final_eps).sqrt()
    rest = stream - factor * (coder.encode(x.float()).double() @ coder.decoder.double())
    parts = [active.contribution or math.nan for active in token.features]
    assert sum(parts) + float(rest @ question) == pytest.approx(float(trace.logits_at(last)[token.predicted]), abs=1e-3)


def test_directions_are_read_through_the_norm_and_the_unembedding(model: Model) -> None:
    coder = random_coder()
    (direction,) = model.features(TEXT, coder, chosen=[5], tokens=4).directions
    logits = model.transformer.unembedding @ (coder.decoder[5] * model.transformer.final_norm.weight)
    assert [i for i, _ in direction.promoted] == logits.topk(4).indices.tolist()
    assert [value for _, value in direction.suppressed] == pytest.approx(logits.topk(4, largest=False).values.tolist())
    cosines = coder.decoder @ coder.decoder[5]
    assert [i for i, _ in direction.nearest] == cosines.topk(6).indices.tolist()[1:]
    heads = model.features(TEXT, random_coder("blocks.1.attn.hook_z"), chosen=[5], tokens=4)
    through = model.transformer.unembedding @ (
        (model.trace(TEXT)["L1.W_O"].T @ coder.decoder[5]) * model.transformer.final_norm.weight
    )
    assert heads.at == "L1.concat"
    assert [i for i, _ in heads.directions[0].promoted] == through.topk(4).indices.tolist()


def test_a_cap_of_the_logits_leaves_the_order_of_the_tokens(model: Model) -> None:
    """As in Gemma 2, whose sums are normed: the output of a layer passes the final norm's gain and the cap alone."""
    config = ModelConfig.of(vocab_size=2048, d_model=128, n_layers=4, n_heads=4, d_ff=64, context=64, norm="rmsnorm",
                            norm_order="both", logit_cap=30.0)  # fmt: skip
    capped, coder = replace(model, name="capped", transformer=lively(config)), random_coder()
    report = capped.features(TEXT, coder, chosen=[5], tokens=4)
    logits = capped.transformer.unembedding @ (coder.decoder[5] * capped.transformer.final_norm.weight)
    assert [i for i, _ in report.directions[0].promoted] == logits.topk(4).indices.tolist()
    assert report.reading.endswith("the final norm's gain, through the unembedding, before their cap")
    assert report.contributing.startswith("a cap comes between a feature and the logits")
    assert report.tokens[-1].features[0].contribution is None


def test_a_change_moves_the_step_along_the_directions_alone(model: Model) -> None:
    coder = random_coder()
    activations = coder.encode(model.trace(TEXT)["L2.out"])
    ablated = int(activations.sum(0).argmax())
    added = (ablated + 1) % 60
    change = model.features(TEXT, coder, ablate=[ablated], add={added: 3.0}).change
    assert change is not None
    moved = -activations[:, ablated, None] * coder.decoder[ablated] + 3.0 * coder.decoder[added]
    logits = hidden_with_hook(model, "blocks.2.out", lambda y: y + moved)[-1]
    log_p = logits.log_softmax(-1)
    assert change.effect.after == pytest.approx(float(log_p[change.target]), abs=1e-4)
    assert change.effect.best == int(log_p.argmax())
    assert change.check.difference == 0
    assert change.loss_after is not None


def test_a_normalised_coder_changes_the_step_by_its_own_decoding(model: Model) -> None:
    coder = random_coder(normalisation="layer_norm")
    x = model.trace(TEXT)["L2.out"]
    activations = coder.encode(x)
    number = int(activations.sum(0).argmax())
    without = activations.clone()
    without[:, number] = 0
    moved = coder.decode(without, x) - coder.decode(activations, x)
    report = model.features(TEXT, coder, ablate=[number])
    assert report.reading.startswith("rows of W_dec, without the scale of each token, times the final norm's gain")
    change = report.change
    assert change is not None
    log_p = hidden_with_hook(model, "blocks.2.out", lambda y: y + moved)[-1].log_softmax(-1)
    assert change.effect.after == pytest.approx(float(log_p[change.target]), abs=1e-4)


def test_a_transcoder_replaces_the_step_that_it_writes(model: Model) -> None:
    coder = random_coder(
        reads="blocks.1.mlp.hook_in", writes="blocks.1.hook_mlp_out", is_transcoder=True, subtracts_bias=False
    )
    report, trace = model.features(TEXT, coder), model.trace(TEXT)
    output = coder.decode(coder.encode(trace["L1.norm2"]))
    logits = hidden_with_hook(model, "blocks.1.ffn.down", lambda y: output[None])
    assert (report.at, report.into) == ("L1.norm2", "L1.ffn")
    assert report.fidelity.loss_reconstructed == pytest.approx(loss_of(logits, model.encode(TEXT).ids), abs=1e-4)
    error = (trace["L1.ffn"] - output).norm(dim=-1) / trace["L1.ffn"].norm(dim=-1)
    assert report.fidelity.relative_error == pytest.approx(float(error.mean()), abs=1e-5)


def test_tokens_that_the_tokenizer_adds_do_not_count() -> None:
    encoder = load("tiny-encoder")
    coder = random_coder("L1.norm2")
    report = encoder.features("the cat sat", coder)
    assert [bool(token.features) for token in report.tokens] == [False, True, True, True, False]
    assert report.fidelity.tokens == 3
    assert report.fidelity.loss is None
    x = encoder.trace("the cat sat")["L1.norm2"][1:4]
    relative = (x - coder.reconstruct(x)).norm(dim=-1) / x.norm(dim=-1)
    assert report.fidelity.relative_error == pytest.approx(float(relative.mean()), abs=1e-5)


def test_a_prediction_that_is_not_finite_is_refused_with_the_first_such_step(model: Model) -> None:
    other = replace(model, transformer=lively(model.config))
    with torch.no_grad():
        other.transformer.blocks[2].ffn.down.weight[0, 0] = math.nan
    with pytest.raises(TinytfError, match=r"first at L2\.ffn"):
        other.features(TEXT, random_coder("L1.out"))
    with pytest.raises(TinytfError, match=r"L2\.out is not finite"):
        other.steer([("a happy dog", "a sad dog")])


def test_examples_are_the_strongest_places_of_the_corpus(model: Model, tmp_path: Path) -> None:
    documents = ["The cat sat on the mat.", "The dog saw a bird and ran away.", "Once a shy robot slept in a box."]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents))
    coder = random_coder()
    by_hand = [coder.encode(model.trace(text)["L2.out"]) for text in documents]
    most = torch.cat(by_hand).amax(0)
    numbers = int(most.argmax()), int(most.argmin())
    assert float(most[numbers[1]]) == 0
    report = model.feature_examples(find_files([tmp_path / "corpus.txt"]), coder, numbers, top=3)
    places = sorted(
        (-float(value), document, position)
        for document, activations in enumerate(by_hand)
        for position, value in enumerate(activations[:, numbers[0]])
    )[:3]
    examples, silent = report.units.values()
    assert [-example.activation for example in examples] == pytest.approx([place[0] for place in places], abs=1e-4)
    assert (examples[0].document, examples[0].position) == places[0][1:]
    assert (silent, report.documents) == ((), 3)  # a feature that is active nowhere has no place


def test_the_sentence_says_what_the_numbers_are(model: Model) -> None:
    coder = random_coder()
    report = model.features(TEXT, coder)
    strongest = report.tokens[-1].features[0]
    activations = coder.encode(model.trace(TEXT)["L2.out"])[-1]
    assert strongest.feature == int(activations.argmax())
    assert f"feature {strongest.feature} is the most active of 8 ({float(activations.max()):.3g})" in report.sentence
    chosen = model.features(TEXT, coder, chosen=[strongest.feature]).sentence
    count = int((coder.encode(model.trace(TEXT)["L2.out"])[:, strongest.feature] > 0).sum())
    assert chosen.startswith(f"Feature {strongest.feature} is active at {count} of 9 tokens, most at ")
    changed = model.features(TEXT, coder, ablate=[strongest.feature])
    assert changed.change is not None
    before, after = changed.change.effect.before, changed.change.effect.after
    assert changed.sentence.startswith(f"Without feature {strongest.feature}, ")
    assert ("falls" in changed.sentence) == (round(math.exp(after), 2) < round(math.exp(before), 2))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"at": "L2.weights"}, AddressError, "not one vector a token"),
        ({"at": "L1-2.out"}, AddressError, "not one step of one layer"),
        ({"at": "L2.ffn.act"}, UsageError, "reads vectors of 128 numbers, and L2.ffn.act of this model has 344"),
        ({"into": "L2.ffn"}, UsageError, "takes no --into"),
        ({"chosen": [60]}, UsageError, "there is no feature 60"),
        ({"add": {-1: 2.0}}, UsageError, "there is no feature -1"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    model: Model, arguments: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        model.features(TEXT, random_coder(), **arguments)  # type: ignore[arg-type]
