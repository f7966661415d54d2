"""trace --teach: the steps of one way through a pass, each with its lesson, on the numbers of that way."""

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from small_models import TEXT

from tinytf.learn.course import lesson
from tinytf.learn.live import Live
from tinytf.learn.teach import Taught, teach
from tinytf.loading import Model

OF_EVERY_SORT = (
    "tiny",
    "tiny-encoder",
    "llama, grouped",
    "gemma 2, norms around each part and windows by layer",
    "experts beside a shared one, after a dense layer",
    "gated delta, and gated heads in one layer",
    "bert with a pooler",
    "deberta v2, distances through their own",
)


@pytest.fixture(params=OF_EVERY_SORT)
def told(request: pytest.FixtureRequest, opened: Callable[[str], Model]) -> Taught:
    model = opened(request.param)
    return teach(model, model.trace(TEXT))


def test_every_step_of_the_way_is_told_once_in_the_order_of_the_pass(told: Taught) -> None:
    live = told.live
    rows = [step.full_name(layer) for step, layer in live.trace.steps.rows if layer in (None, live.layer)]
    steps = [address for part in told.parts for address in part.steps]
    assert [re.sub(r"^(L\d+)[HE]\d+\.", r"\1.", address) for address in steps] == rows
    assert all(f"H{live.head}." in address for address in steps if re.match(r"L\d+H", address) and "kv" not in address)


def test_its_texts_are_those_of_the_lessons_there_and_each_is_told_first_only_once(told: Taught) -> None:
    live = told.live
    assert live.layer in live.trace.steps.attention_layers
    seen = set()
    for part in told.parts:
        again = lesson(part.lesson.name, live)
        assert (part.lesson.why, part.lesson.formula, part.lesson.pytorch) == (again.why, again.formula, again.pytorch)
        assert part.again == (part.lesson.name in seen)
        seen.add(part.lesson.name)
        for address in part.lesson.shown:
            assert address.split("[")[0] in part.steps
    ffn = [part.steps for part in told.parts if part.lesson.name == "feed-forward"]
    parts = {address.partition(".")[2].partition(".")[0] for steps in ffn for address in steps}
    assert parts <= {"ffn", "expert", "shared"}
    qkv = next(part for part in told.parts if part.lesson.name == "qkv")
    assert f"head {live.head} of block {live.layer}." in qkv.lesson.why


def test_by_default_it_goes_by_the_head_that_a_trace_names_to_its_prediction(
    opened: Callable[[str], Model],
) -> None:
    model = opened("tiny")
    text = "The cat lost the ball. The cat lost the"
    trace = model.trace(text)
    report = model.traced(trace)
    told = teach(model, trace)
    assert f"L{told.live.layer}H{told.live.head}, which looks at" in report.sentence
    (logits,) = (part for part in told.parts if part.lesson.name == "logits")
    best = report.predictions[0].top[0]
    assert logits.lesson.figures is not None
    assert logits.lesson.figures.rows[0][1] == best.id
    assert logits.lesson.figures.rows[0][3] == pytest.approx(best.probability, rel=1e-4)


def test_a_place_is_followed_and_the_table_of_blocks_is_of_all_blocks(opened: Callable[[str], Model]) -> None:
    model = opened("tiny")
    told = teach(model, model.trace(TEXT), (2, 3))
    assert (told.live.layer, told.live.head) == (2, 3)
    data = told.to_dict()
    values = {address: numbers for part in data["steps"] for address, numbers in part["values"].items()}
    here = told.live.here
    assert values[f"L2H3.q[{here}]"] == pytest.approx(told.live.trace["L2H3.q"][here].tolist())
    (stack,) = (part.lesson for part in told.parts if part.lesson.name == "stack")
    assert stack.figures is not None
    for layer, row in enumerate(stack.figures.rows):
        x, out = (told.live.trace[f"L{layer}.{name}"].double().numpy()[here] for name in ("in", "out"))
        cosine = float(x @ out / math.sqrt((x @ x) * (out @ out)))
        assert (row[2], row[5], row[6]) == pytest.approx((np.linalg.norm(x), np.linalg.norm(out), cosine), rel=1e-5)


def test_lessons_without_a_place_stay_in_the_first_head(opened: Callable[[str], Model]) -> None:
    live = Live(opened("tiny"), TEXT)
    assert (live.layer, live.head) == (0, 0)
    assert lesson("qkv", live).shown[0].startswith("L0H0.q")
