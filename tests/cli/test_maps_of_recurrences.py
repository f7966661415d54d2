"""The map of a layer that is not attention, on the screen."""

import re

from driving import Tinytf

from tinytf.loading import load

TEXT = "The cat sat on the mat"


def test_each_token_is_shown_with_the_keys_of_its_largest_weights(tinytf: Tinytf) -> None:
    model = load("preset:qwen3.5-tiny")
    out = tinytf("trace", TEXT, "-m", "preset:qwen3.5-tiny", "--at", "L0H1.read", "--width", "100").out
    trace = model.trace(TEXT)
    names, weights = [token.shown for token in trace.tokens], trace["L0.read"][1]
    rows = re.findall(r"^  (\S+) +reads most of +(.*)$", out, re.MULTILINE)
    assert [name for name, _ in rows] == names
    for query, (_, said) in enumerate(rows):
        order = weights[query, : query + 1].abs().argsort(descending=True).tolist()[:4]
        assert said.split("   ") == [f"{names[key]} {weights[query, key]:.3f}" for key in order]
