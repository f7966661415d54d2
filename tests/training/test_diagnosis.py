"""A run that goes wrong is told what is wrong, by its numbers; of a healthy one nothing is said."""

import itertools
import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from judged import BROKEN, HEALTHY, LETTERS, USUAL, corpus, talker

from tinytf.runs.history import History
from tinytf.runs.runs import RunReport
from tinytf.runs.verdict import FAULTS, verdict_of
from tinytf.text.corpus import find_files, find_rows
from tinytf.training.data.baselines import PASSAGE, data_facts
from tinytf.training.data.examples import IGNORED
from tinytf.training.data.setup import prepare
from tinytf.training.recipe import Recipe


@pytest.mark.share(8)
@pytest.mark.parametrize("name", BROKEN)
def test_a_run_that_was_broken_on_purpose_is_told_its_fault(name: str, tmp_path: Path) -> None:
    history = BROKEN[name].trained(tmp_path / "run")
    verdict = verdict_of(history)
    assert verdict is not None
    assert verdict.fault == name.partition(",")[0]
    assert verdict.text.startswith(f"{verdict.fault}: ")
    summary = RunReport("run", tmp_path, history).summary()
    assert summary["verdict"] == {"fault": verdict.fault, "text": verdict.text}


def test_every_fault_has_a_run_that_was_broken_on_purpose() -> None:
    assert list(dict.fromkeys(name.partition(",")[0] for name in BROKEN)) == list(FAULTS)


@pytest.mark.share(14)
@pytest.mark.parametrize("case", HEALTHY.values(), ids=HEALTHY)
def test_nothing_is_said_of_a_healthy_run(case, tmp_path: Path) -> None:
    assert verdict_of(case.trained(tmp_path / "run")) is None


def curve(losses: np.ndarray, **more: object) -> History:
    steps = np.arange(1, len(losses) + 1)
    norms = np.full(len(losses), 0.5)
    recipe = {"steps": len(losses), "clip": 1.0}
    return replace(History(Path("run"), recipe, steps, losses, norms, norms), **more)


def test_every_fault_has_its_threshold() -> None:
    falling = np.linspace(7.0, 3.0, 400)
    held_out = [(200, 4.0), (400, 3.5)]
    healthy = curve(falling, held_out=held_out, baselines={"unigram": 6.0, "bigram": 4.0})
    assert verdict_of(healthy) is None
    faults = {
        "diverged": curve(np.concatenate([falling, np.full(50, 4.5)])),
        "below token counts": replace(healthy, baselines={"unigram": 3.4}),
        "clipped at every step": replace(healthy, grad_norm=np.full(400, 20.0)),
        "labels shifted wrongly": replace(healthy, shifts=[(400, 3.0, 3.6, 7.0)]),
        "data all the same": replace(healthy, sizes={"passages": 100, "known_passages": 90}),
        "learning by heart": replace(healthy, held_out=[(200, 3.4), (400, 3.5)], seen=[(200, 3.4), (400, 3.0)]),
        "worse again": replace(healthy, held_out=[(100, 3.4), (200, 3.5), (400, 3.5)]),
        "dead units": replace(healthy, health=[(400, {"dead": np.array([0.0, 0.95])})]),
    }
    for fault, history in faults.items():
        verdict = verdict_of(history)
        assert verdict is not None
        assert verdict.fault == fault
    assert verdict_of(replace(healthy, grad_norm=np.full(400, 5.0))) is None
    assert verdict_of(replace(healthy, health=[(400, {"dead": np.array([0.0, 0.5])})])) is None
    assert verdict_of(replace(healthy, shifts=[(400, 3.2, 3.6, 7.0)])) is None
    assert verdict_of(replace(healthy, sizes={"passages": 100, "known_passages": 80, "examples": 30})) is None
    assert verdict_of(replace(healthy, held_out=[(200, 3.4), (400, 3.5)])) is None, "one loss may be noise"
    early = replace(healthy, recipe={"steps": 4000, "clip": 1.0}, baselines={"unigram": 3.4})
    assert verdict_of(early) is None, "a run has until half of its steps to beat counting"
    assert verdict_of(curve(np.full(50, 9.0))) is None, "nothing is said of the first hundred steps"


@pytest.mark.parametrize(("ending", "said"), [(np.nan, "NaN"), (np.inf, "∞"), (-np.inf, "−∞")])
@pytest.mark.parametrize("before", [0, 1, 30, 400])
def test_a_loss_that_is_not_finite_and_stays_so_is_told_at_any_step(ending: float, said: str, before: int) -> None:
    falling = np.linspace(7.0, 3.0, before)
    for after in (1, 60):
        verdict = verdict_of(curve(np.concatenate([falling, np.full(after, ending)])))
        assert verdict is not None
        assert verdict.fault == "diverged"
        assert verdict.text == f"diverged: the loss is {said} since step {before + 1}"
    passed = verdict_of(curve(np.concatenate([falling, [ending], np.full(5, 3.0)])))
    assert passed is None, "a step that a scaler skips is no end"


OBJECTIVES = {
    "causal": {"objective": "causal"},
    "masked": {"objective": "masked", "vocab_size": 0},
    "translate": {"objective": "translate"},
    "chat": {"objective": "chat", "block": 64},
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_baselines_are_those_of_counting_by_hand(objective: str, tmp_path: Path) -> None:
    recipe = Recipe.from_dict({**USUAL, "batch": 2, "steps": 30, "vocab_size": 280, **OBJECTIVES[objective]})
    text = corpus({"translate": "pairs", "chat": "talks"}.get(objective, "letters"))
    files = find_files(text) if isinstance(text, str) else find_rows(text, recipe.reading)
    tokenizer, model = talker(recipe) if objective == "chat" else (None, None)
    setup = prepare(files, recipe, tmp_path, tokenizer, model)
    size = setup.tokenizer.largest_id + 1

    def asked(batches):
        for batch in batches:
            for row, targets in zip(batch.ids.tolist(), batch.targets.tolist(), strict=True):
                yield from ((one, two) for one, two in zip(row, targets, strict=True) if two != IGNORED)

    train = list(asked(map(setup.examples.seen, range(recipe.steps))))
    unigrams, pairs = Counter(two for _, two in train), Counter(train)
    losses: dict[str, list[float]] = {"unigram": [], "bigram": []}
    for first, second in asked(setup.examples.held_out(8)):
        alone = (unigrams[second] + 1) / (len(train) + size)
        followers = [count for (one, _), count in pairs.items() if one == first]
        kept = max(pairs[first, second] - 0.75, 0) + 0.75 * len(followers) * alone
        losses["unigram"].append(-math.log(alone))
        losses["bigram"].append(-math.log(kept / sum(followers) if followers else alone))
    expected = {name: sum(values) / len(values) for name, values in losses.items()}
    if objective == "masked":
        del expected["bigram"]
    counted = data_facts(setup.examples, recipe, size)
    assert counted["baselines"] == pytest.approx(expected, rel=1e-9)


def test_passages_and_examples_are_counted_as_by_hand(tmp_path: Path) -> None:
    recipe = Recipe.from_dict({**USUAL, **LETTERS, "block": 40, "steps": 30, "model": {"d_model": 16, "n_heads": 2}})
    examples = prepare(find_files(corpus("letters")), recipe, tmp_path).examples
    rows = [batch.ids.tolist() for batch in map(examples.seen, range(30))]

    def passages(rows):
        return [tuple(row[at : at + PASSAGE]) for row in rows for at in range(len(row) - PASSAGE + 1)]

    known = set(passages(itertools.chain(*rows)))
    held_out = passages(row for batch in examples.held_out(8) for row in batch.ids.tolist())
    counted = data_facts(examples, recipe, 100)
    assert counted["passages"] == len(held_out)
    assert counted["known_passages"] == sum(passage in known for passage in held_out)
    assert counted["first_examples"] == len(set(map(tuple, rows[0])))
    assert counted["examples"] == len({tuple(row) for batch in rows[:20] for row in batch})
