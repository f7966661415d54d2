"""Scores of cross-attention: maps whose answers are known, and the translator's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tinytf
from tinytf.look.heads.across import SCORES_ACROSS, monotone
from tinytf.look.heads.census import heads
from tinytf.look.heads.measures import repeated_tokens

ASSETS = Path(tinytf.__file__).parent / "assets"
PAIRS = ASSETS / "tiny-translator" / "held_out.tsv"


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (torch.eye(5), 1.0),
        (torch.eye(5).flip(0), -1.0),
        (torch.eye(5)[:, :3].softmax(0).mean(0).expand(5, 3), 0.0),
        (torch.eye(7)[[0, 2, 4, 6]], 1.0),
        (torch.ones(1, 4) / 4, 0.0),
    ],
    ids=["diagonal", "backwards", "still", "two at a time", "one query"],
)
def test_a_map_moves_in_order_or_backwards_or_stays(weights: torch.Tensor, expected: float) -> None:
    assert float(monotone(weights.double())) == pytest.approx(expected, abs=1e-12)


def test_the_scores_across_are_those_of_the_recorded_maps() -> None:
    model = tinytf.load("tiny-translator")
    found = heads(model, PAIRS, count=3).across
    assert found is not None
    assert found.pairs == 3
    rows = [line.split("\t") for line in PAIRS.read_text("utf-8").splitlines()[1:4]]
    traces = [model.reading(source).trace(target) for source, target in rows]
    for layer, head in found.ranked:
        maps = [trace[f"L{layer}H{head}.cross.weights"].double().numpy() for trace in traces]
        places = [np.corrcoef(np.arange(len(one)), one @ np.arange(one.shape[1]))[0, 1] for one in maps]
        uniform = [-(one * np.log(one.clip(1e-300))).sum(1).mean() / np.log(one.shape[1]) for one in maps]
        expected = {
            "monotone": np.mean(places), "first": np.mean([one[:, 0].mean() for one in maps]),
            "end": np.mean([one[:, -1].mean() for one in maps]), "entropy_share": np.mean(uniform),
        }  # fmt: skip
        for name in SCORES_ACROSS:
            assert float(found.values[name][layer, head]) == pytest.approx(expected[name], abs=1e-6), name


def test_the_decoders_own_heads_are_measured_on_targets_that_repeat_their_source() -> None:
    model = tinytf.load("tiny-translator")
    found = heads(model, random_only=True, length=5, count=2, seed=4)
    copies = repeated_tokens(model.config.vocab_size, 5, 2, 4).tolist()
    end = model.tokenizer.end_ids[0]
    for name, offset in (("previous", -1), ("duplicate", -5), ("induction", -4)):
        means = []
        for row in copies:
            bound = model.reading(model.encoder.trace(ids=[*row[:5], end]))
            weights = bound.trace(ids=[0, *row])["L1H0.weights"].numpy()
            queries = range(1 if name == "previous" else 6, 11)
            means.append(np.mean([weights[query, query + offset] for query in queries]))
        assert float(found.repeats.values[name][1, 0]) == pytest.approx(np.mean(means), abs=1e-6), name
    assert found.text is None
    assert found.across is not None
    assert {head["layer"] for head in found.to_dict()["across"]["heads"]} == {0, 1}


@pytest.mark.parametrize(
    ("along", "said"), [(0.7, "in order"), (-0.7, "backwards"), (0.3, "none moves along the source")]
)
def test_a_head_is_said_to_move_along_the_source_from_a_correlation_on(along: float, said: str) -> None:
    found = heads(tinytf.load("tiny-translator"), random_only=True, length=5, count=2)
    assert found.across is not None
    values = {**found.across.values, "monotone": torch.tensor([[0.0, along], [0.1, -0.1]])}
    assert said in replace(found, across=replace(found.across, values=values)).sentence
