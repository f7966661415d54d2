"""A masked cell looks the same in every map of a text, whole or cut, and is no number near 0."""

import math
from pathlib import Path

import pytest
from driving import SENTENCE, Tinytf

from tinytf.loading import load


@pytest.mark.parametrize(
    "cell", ["L0.weights[1:,:]", "L0H1.weights[:,2]", "L0-1.weights[1:3,2:]", "L1.masked[0:2,:]", "L0H0.weights[0]"]
)
def test_a_part_of_a_map_has_a_point_for_every_cell_that_the_mask_hides(
    tinytf: Tinytf, decoder: Path, cell: str
) -> None:
    trace = load(str(decoder)).trace(SENTENCE)
    values = trace[cell]
    hidden = int(((values == 0) | (values == -math.inf)).sum())
    drawn = tinytf("trace", SENTENCE, "--at", cell, "-m", decoder, "--width", "200").out
    *rows, legend = drawn.split("\n\n")[1].splitlines()[2:]
    assert "· masked" in legend
    assert sum(row.split().count("·") for row in rows) == hidden > 0


def test_a_masked_cell_alone_is_said_to_be_one(tinytf: Tinytf, decoder: Path) -> None:
    for cell, masked in (("L0H0.weights[0,2]", True), ("L0H0.weights[2,0]", False)):
        drawn = tinytf("trace", SENTENCE, "--at", cell, "-m", decoder).out
        assert ("   masked" in drawn) == masked


def test_gradients_scores_and_an_encoder_have_no_masked_cells(tinytf: Tinytf, decoder: Path, encoder: Path) -> None:
    assert "masked" not in tinytf("trace", SENTENCE, "--at", "L0.scores[1:,:]", "-m", decoder).out
    assert "· masked" not in tinytf("trace", SENTENCE, "--at", "L0.weights[1:,:]", "-m", encoder).out


def test_sight_grows_token_by_token_and_a_query_is_said_to_see_what_the_mask_leaves(
    tinytf: Tinytf, decoder: Path
) -> None:
    text = f"{SENTENCE} {SENTENCE}"
    trace = load(str(decoder)).trace(text)
    names, visible = [token.shown for token in trace.tokens], trace["L0H0.masked"] > -math.inf
    assert len(names) > 9
    drawn = tinytf("trace", text, "--at", "L0H0.masked", "-m", decoder).out
    assert "query ↓ key →" in drawn
    seen = [line.split() for line in drawn.splitlines() if " sees " in line]
    for query, (name, *words) in enumerate(seen):
        keys = [name for name, sees in zip(names, visible[query].tolist(), strict=True) if sees]
        listed = keys if len(keys) < 10 else [*keys[:4], "…", *keys[-4:]]
        assert (name, words) == (names[query], ["sees", str(len(keys)), "of", str(len(names)), *listed])
    assert len(seen) == len(names)
    assert " sees " not in tinytf("trace", text, "--at", "L0H0.weights", "-m", decoder).out
