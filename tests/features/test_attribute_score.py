"""An attention score in pairs of parts: they sum to it, and each is what the part alone gives query and key."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from architectures import KINDS, config_of, encoding_of, lively
from torch import Tensor

import tinytf
from tinytf.errors import TinytfError, UsageError
from tinytf.features.attribute_score import AttributeScore, attribute_score
from tinytf.features.layouts import open_sae
from tinytf.look.head_parts import Sources, head_parts
from tinytf.trace.record import record

SAMPLES = Path(__file__).parents[2] / "samples"
IDS = (3, 14, 15, 9, 2, 6, 5)
TEXT = "The cat sat on the mat. The cat"
NOT_LINEAR = ("q_unit", "q_act", "q_adapted", "read1", "memory.in", "memory.sum")
"""What stands between the stream and a score that has no parts: queries activated or of length 1 (linear attention),
adapters of shared weights, streams that are weighed by themselves, and memories that are read beside the stream."""


@pytest.mark.every
@pytest.mark.parametrize("kind", KINDS)
def test_the_pairs_sum_to_the_score_in_float64_in_every_kind(kind: str) -> None:
    trace = record(lively(config_of(kind)).double(), encoding_of(IDS))
    for layer in range(trace.config.n_layers):
        if not trace.steps.has("scores", layer) or len(trace.steps.at("scores", layer).inputs) != 2:
            continue
        head, places = trace.config.at(layer).n_heads - 1, trace.steps.sources(trace.steps.at("scores", layer), layer)
        if any(trace.steps.has(step, layer) for step in NOT_LINEAR):
            with pytest.raises(UsageError, match="this score has no parts: "):
                head_parts(trace, places[0], head, 5, Sources())
            continue
        query, key = (head_parts(trace, at, head, row, Sources()) for at, row in zip(places, (5, 3), strict=True))
        pairs = query.vectors @ key.vectors.T
        score = float(trace[f"L{layer}H{head}.scores[5,3]"])
        assert float(pairs.sum()) == pytest.approx(score, abs=1e-12 * max(1.0, float(pairs.abs().sum())))
        assert len(query.names) == len(query.vectors) > 1


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


def through_query(model: tinytf.Model, trace: tinytf.Trace, layer: int, head: int, at: int, part: Tensor) -> Tensor:
    """What a vector in the stream of ``tiny`` gives a query, by hand: RMSNorm held, W_Q, and RoPE by halves."""
    stream, block = trace[f"L{layer}.in"][at].double(), model.transformer.blocks[layer]
    scale = (stream.square().mean() + model.config.norm_eps).sqrt()
    x = (part.double() / scale * block.norm1.weight.double()) @ trace[f"L{layer}H{head}.W_Q"].double()
    half = len(x) // 2
    angles = at * model.config.rope_theta ** (-torch.arange(half).double() / half)
    a, b = x[:half], x[half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())).detach()


def row(report: AttributeScore, name: str) -> Tensor:
    """The pairs of a part of the query, (M,)."""
    return report.values[[part.name for part in report.queries].index(name)]


def test_a_part_of_the_query_is_what_it_gives_by_hand(model: tinytf.Model) -> None:
    trace = model.trace(TEXT)
    report, key = attribute_score(model, trace, "L2H1.scores[7,1]"), trace["L2H1.k_rot"][1].double()
    head = trace["L1H3.head_out"][7].double() @ trace["L1H3.W_O"].double()
    for name, part in (("embed.tokens", trace["embed.out"][7]), ("L1H3", head), ("L0.ffn", trace["L0.ffn"][7])):
        expected = float(through_query(model, trace, 2, 1, 7, part) @ key)
        assert float(row(report, name).sum()) == pytest.approx(expected, abs=1e-4)
        assert next(each.value for each in report.queries if each.name == name) == pytest.approx(expected, abs=1e-4)


def test_features_of_the_stream_are_parts_and_what_they_miss_is_an_error(model: tinytf.Model) -> None:
    trace, coder = model.trace(TEXT), open_sae(SAMPLES / "sae")
    report, key = attribute_score(model, trace, "L3H0.scores[7,1]", features=coder), trace["L3H0.k_rot"][1].double()
    activations = coder.encode(trace["L2.out"][7:8])[0]
    named = {part.name for part in report.queries if part.kind == "feature"}
    assert named == {f"L2.out.F{number}" for number in activations.nonzero().flatten().tolist()}
    strongest = int(activations.argmax())
    given = through_query(model, trace, 3, 0, 7, activations[strongest] * coder.decoder[strongest])
    assert float(row(report, f"L2.out.F{strongest}").sum()) == pytest.approx(float(given @ key), abs=1e-4)
    missed = trace["L2.out"][7] - coder.decode(activations[None])[0]
    error = float(through_query(model, trace, 3, 0, 7, missed) @ key)
    assert float(row(report, "L2.out error").sum()) == pytest.approx(error, abs=1e-4)
    assert report.check.holds


def test_features_of_a_feed_forward_stand_in_its_place_among_the_other_parts(model: tinytf.Model) -> None:
    coder = replace(open_sae(SAMPLES / "sae"), reads="L1.ffn", writes="L1.ffn")
    plain = attribute_score(model, TEXT, "L3H0.scores[7,1]")
    split = attribute_score(model, TEXT, "L3H0.scores[7,1]", features=coder)
    of_coder = [part for part in split.queries if part.name.startswith("L1.ffn")]
    assert {part.kind for part in of_coder} == {"feature", "coder bias", "error"}
    assert sum(part.value for part in of_coder) == pytest.approx(float(row(plain, "L1.ffn").sum()), abs=1e-4)
    assert float(row(split, "L2.ffn").sum()) == pytest.approx(float(row(plain, "L2.ffn").sum()), abs=1e-4)


@pytest.mark.parametrize(
    ("at", "features", "message"),
    [
        ("L1H0.weights[4,1]", None, "what is split is scores"),
        ("L1H0.scores", None, "one number is explained at a time"),
        ("L1.scores[4,1]", None, "names no head"),
        ("L1H0.scores[99,1]", None, "query 99 is out of range"),
        ("L2H0.scores[4,1]", SAMPLES / "sae", "layer 2 reads no features of sae: they are of L2.out"),
        ("L2H0.scores[4,1]", "nowhere", "there is no nowhere"),
    ],
)
def test_what_cannot_be_split_says_why(model: tinytf.Model, at: str, features: object, message: str) -> None:
    with pytest.raises(TinytfError, match=message) as caught:
        attribute_score(model, TEXT, at, features=features)  # type: ignore[arg-type]
    assert "\n" not in caught.value.message


def test_a_score_that_the_mask_hides_says_so(model: tinytf.Model) -> None:
    said = {at: model.attribute_score("The cat sat", f"L1H0.scores[{at}]") for at in ("0,2", "2,0", "1,1")}
    assert {at: one.masked for at, one in said.items()} == {"0,2": True, "2,0": False, "1,1": False}
    assert ", masked: " in said["0,2"].sentence
    assert "masked" not in said["2,0"].sentence
